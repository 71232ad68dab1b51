"""One fragment writer a node, as Ray actors: finished rows leave the pipeline for the writer of their own
node.

A writer that dies is started again by Ray and the rows that it had not put yet are found missing, and
answered again, when the slice is reconciled.
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

#: Threads of a writer: callers that wait for one put do not keep the others from handing over their rows.
_THREADS = 8


class _Writer(FragmentWriter):
    """Remembers what it took until the driver asks: every finished row passes here, whatever answered it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._gauges = NodeSampler()
        self._summaries: list[pa.Table] = []
        self._failed = 0

    def take(self, rows: pa.Table | None, failed: pa.Table | None, summary: pa.Table | None) -> None:
        if rows is not None:
            self.add("rows", rows)
        if failed is not None:
            self.add("failed", failed)
        with self._lock:
            self._failed += failed.num_rows if failed is not None else 0
            self._summaries += [summary] if summary is not None else []

    def news(self) -> WriterUpdate:
        """What there is since the last call; failed rows so far."""
        with self._lock:
            taken, self._summaries = self._summaries, []
            return WriterUpdate(taken, self._failed, self._gauges.taken())


class FragmentWriters:
    """Handles of the writers, for tasks and for the driver that started them."""

    def __init__(self, by_node: dict[str, ActorHandle[Any]], unit_ids: Any) -> None:
        """:param unit_ids: the object that the writers were made with. Ray cannot start one again without it,
        and keeps it no longer than somebody refers to it (ray #53727)."""
        self._by_node = by_node
        self._unit_ids = unit_ids

    @classmethod
    def start(cls, url: str, folder: str, unit_ids: Sequence[str], epoch: int) -> FragmentWriters:
        """A writer on each node that is there now; nodes that come later use those of the others."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        writer = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=_THREADS)(
            _Writer
        )
        ids = ray.put(list(unit_ids))
        return cls(
            {
                node["NodeID"]: writer.options(
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
                ).remote(url, folder, ids, epoch)
                for node in ray.nodes()
                if node["Alive"]
            },
            ids,
        )

    def add(self, rows: pa.Table | None, failed: pa.Table | None, summary: pa.Table | None) -> None:
        """Hand over finished rows, from a task, with their `measure.summary`; rows that failed before they
        came to the engine have none."""
        import ray

        rows, failed = (t if t is not None and t.num_rows else None for t in (rows, failed))
        if rows is not None or failed is not None:
            node = ray.get_runtime_context().get_node_id()
            writer = self._by_node.get(node) or next(iter(self._by_node.values()))
            ray.get(writer.take.remote(rows, failed, summary))

    def flush(self, timeout: float | None = None) -> None:
        """Have all rows put that were handed over."""
        import ray

        ray.get([w.flush.remote() for w in self._by_node.values()], timeout=timeout)

    def updates(self) -> WriterUpdate:
        import ray

        told: list[WriterUpdate] = ray.get([w.news.remote() for w in self._by_node.values()])
        return WriterUpdate(
            [s for news in told for s in news.summaries],
            sum(news.failed for news in told),
            [s for news in told for s in news.samples],
        )

    def stop(self) -> None:
        import ray

        for writer in self._by_node.values():
            ray.kill(writer)
