"""One fragment writer per node, as Ray actors: finished rows leave the pipeline at the writer of their own
node.

Ray restarts a writer that dies. Rows that it had not written yet are missing at reconciliation and run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.metrics.meter import WriterUpdate
from airflow_provider_raydatallm.processor.metrics.node_usage import NodeSampler
from airflow_provider_raydatallm.processor.store.fragments import FragmentWriter

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: Threads of a writer: a caller that waits for a put does not block the others.
_THREADS = 8


class _Writer(FragmentWriter):
    """Keeps counts and samples for the driver's next `update`: every finished row passes through a writer."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._sampler = NodeSampler()
        self._summaries: list[pa.Table] = []
        self._failed_rows = 0

    def receive(self, rows: pa.Table | None, failed: pa.Table | None, summary: pa.Table | None) -> None:
        if rows is not None:
            self.add("rows", rows)
        if failed is not None:
            self.add("failed", failed)
        with self._lock:
            self._failed_rows += failed.num_rows if failed is not None else 0
            self._summaries += [summary] if summary is not None else []

    def update(self) -> WriterUpdate:
        with self._lock:
            summaries, self._summaries = self._summaries, []
            return WriterUpdate(summaries, self._failed_rows, self._sampler.new_samples())


class FragmentWriters:
    """Handles of the writers, for tasks and for the driver that started them."""

    def __init__(self, by_node: dict[str, ActorHandle[Any]], unit_ids: Any) -> None:
        """:param unit_ids: the object that the writers were created with. Ray needs it to restart a writer,
        and keeps it only while something refers to it (ray #53727)."""
        self._by_node = by_node
        self._unit_ids = unit_ids

    @classmethod
    def start(cls, url: str, folder: str, unit_ids: Sequence[str], epoch: int) -> FragmentWriters:
        """Starts a writer on each current node; tasks on later nodes use another node's writer."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": _THREADS}
        writer: Any = ray.remote(**options)(_Writer)
        ids = ray.put(list(unit_ids))
        by_node = {}
        for node_id in (node["NodeID"] for node in ray.nodes() if node["Alive"]):
            affinity = NodeAffinitySchedulingStrategy(node_id, soft=True)
            by_node[node_id] = writer.options(scheduling_strategy=affinity).remote(url, folder, ids, epoch)
        return cls(by_node, ids)

    def add(self, rows: pa.Table | None, failed: pa.Table | None, summary: pa.Table | None) -> None:
        """Hands finished rows to the node's writer, from a task, with their `summarize_group`; rows that
        failed before they reached the engine have no summary."""
        import ray

        rows, failed = (t if t is not None and t.num_rows else None for t in (rows, failed))
        if rows is not None or failed is not None:
            node = ray.get_runtime_context().get_node_id()
            writer = self._by_node.get(node) or next(iter(self._by_node.values()))
            ray.get(writer.receive.remote(rows, failed, summary))

    def add_died(self, rows: pa.Table) -> None:
        """Records the ids of rows that were in an engine when it died by itself."""
        print("DIED", rows.num_rows, flush=True)

    def flush(self, timeout_s: float | None = None) -> None:
        """Writes all rows that the writers hold."""
        import ray

        ray.get([w.flush.remote() for w in self._by_node.values()], timeout=timeout_s)

    def update(self) -> WriterUpdate:
        """Returns all writers' updates as one."""
        import ray

        updates: list[WriterUpdate] = ray.get([w.update.remote() for w in self._by_node.values()])
        return WriterUpdate(
            [summary for update in updates for summary in update.summaries],
            sum(update.failed for update in updates),
            [sample for update in updates for sample in update.samples],
        )

    def stop(self) -> None:
        import ray

        for writer in self._by_node.values():
            ray.kill(writer)
