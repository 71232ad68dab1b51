"""One fragment writer per node, as Ray actors: finished rows leave the pipeline at the writer of their own
node.

Ray restarts a writer that dies. Rows that it had not written yet are missing at reconciliation and run again.
The driver never depends on an answer of a writer, which may be paused or hang: it asks, and takes what has
come by the next time. What does not come at all is the stall watch's to end.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.columns import ROW_ID_FIELDS
from airflow_provider_raydatallm.processor.metrics.meter import WriterUpdate
from airflow_provider_raydatallm.processor.metrics.node_usage import NodeSampler
from airflow_provider_raydatallm.processor.ray_runtime.bounded_calls import wait_for_refs
from airflow_provider_raydatallm.processor.store.fragments import FragmentWriter

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

#: Threads of a writer: a caller that waits for a put does not block the others.
_THREADS = 8
_OPTIONS = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": _THREADS}
#: Seconds after which a writer that has not answered is named in errors.
_SILENT_SECONDS = 2.0


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
            failed_rows, self._failed_rows = self._failed_rows, 0
        return WriterUpdate(summaries, failed_rows, self._sampler.new_samples())

    def flush_and_update(self) -> WriterUpdate:
        self.flush()
        return self.update()


@dataclass(frozen=True)
class NodeWriter:
    """Hands a task's finished rows to the writer of its node.

    by_node: the writers that there were when the run started. Those of later nodes are found by name; until
    a node has its own, its rows go to another node's.
    """

    run: str
    by_node: Mapping[str, ActorHandle[Any]]

    def add(self, rows: pa.Table | None, failed: pa.Table | None, summary: pa.Table | None) -> None:
        """Hands over rows with their `summarize_group`; rows that failed before they reached the engine have
        no summary."""
        import ray

        rows, failed = (t if t is not None and t.num_rows else None for t in (rows, failed))
        if rows is not None or failed is not None:
            ray.get(self._writer().receive.remote(rows, failed, summary))

    def add_died(self, rows: pa.Table) -> None:
        """Hands over the ids of rows that were in an engine when it died by itself."""
        import ray

        ids = rows.select([field.name for field in ROW_ID_FIELDS])
        ray.get(self._writer().put_died.remote(ids))

    def _writer(self) -> ActorHandle[Any]:
        import ray

        node_id = ray.get_runtime_context().get_node_id()
        if node_id in self.by_node:
            return self.by_node[node_id]
        try:
            return ray.get_actor(_name(self.run, node_id))
        except ValueError:
            return next(iter(self.by_node.values()))


def _name(run: str, node_id: str) -> str:
    return f"fragment writer {run} {node_id}"


@dataclass(frozen=True)
class _Call:
    """What a writer was asked, and when (monotonic)."""

    node_id: str
    since: float


class FragmentWriters:
    """The writers of a run, for the driver that starts them. Thread-safe."""

    def __init__(self, url: str, folder: str, unit_ids: Sequence[str], epoch: int) -> None:
        """Starts a writer on each node of the cluster."""
        import ray

        self._run = uuid.uuid4().hex
        # Ray needs the unit ids to restart a writer, and keeps them only while something refers to them
        # (ray #53727).
        self._arguments = (url, folder, ray.put(list(unit_ids)), epoch)
        self._by_node: dict[str, ActorHandle[Any]] = {}
        self._hosts: dict[str, str] = {}
        self._calls: dict[ObjectRef[Any], _Call] = {}
        self._is_flushing = False
        #: Held only for what cannot block, so that a check that hangs does not block the last flush.
        self._lock = threading.Lock()
        self._start_on_new_nodes()

    def for_tasks(self) -> NodeWriter:
        return NodeWriter(self._run, dict(self._by_node))

    def update(self) -> WriterUpdate:
        """Returns, as one, the updates that have come since the last call. Never waits for a writer."""
        import ray

        self._start_on_new_nodes()
        with self._lock:
            pending = list(self._calls)
            done, _ = ray.wait(pending, num_returns=len(pending), timeout=0) if pending else ([], [])
            for ref in done:
                del self._calls[ref]
            if not self._is_flushing:
                for node_id in self._by_node.keys() - {call.node_id for call in self._calls.values()}:
                    self._ask(node_id, "update")
        updates: list[WriterUpdate] = ray.get(done)
        return WriterUpdate(
            [summary for update in updates for summary in update.summaries],
            sum(update.failed for update in updates),
            [sample for update in updates for sample in update.samples],
        )

    def flush(self, timeout_s: float | None = None) -> None:
        """Has all rows written that the writers hold, when no task adds any more. The next `update` has the
        last counts.

        :param timeout_s: None: until somebody ends the wait.
        :raises TimeoutError: naming the nodes whose writers did not answer.
        """
        import ray

        with self._lock:
            self._is_flushing = True
            flushes = [self._ask(node_id, "flush_and_update") for node_id in list(self._by_node)]
            # An update that was asked for before may have the last counts.
            calls = list(self._calls)
        _, late = wait_for_refs(calls, num_returns=len(calls), timeout_s=timeout_s)
        if late:
            raise TimeoutError(self.describe_silent())
        ray.get(flushes)

    def describe_silent(self) -> str:
        """Names the nodes whose writers do not answer; "" when there is none."""
        now = time.monotonic()
        with self._lock:
            calls = list(self._calls.values())
        seconds: dict[str, float] = {}
        for call in calls:
            if (waited_s := now - call.since) >= _SILENT_SECONDS:
                seconds[call.node_id] = max(waited_s, seconds.get(call.node_id, 0))
        texts = [f"{self._hosts[n]} ({n}) for {s:.0f} s" for n, s in seconds.items()]
        return f"No answer from the fragment writer on node {', '.join(texts)}" if texts else ""

    def stop(self) -> None:
        import ray

        for writer in self._by_node.values():
            ray.kill(writer)

    def _ask(self, node_id: str, method: str) -> ObjectRef[Any]:
        ref: ObjectRef[Any] = getattr(self._by_node[node_id], method).remote()
        self._calls[ref] = _Call(node_id, time.monotonic())
        return ref

    def _start_on_new_nodes(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        for node in ray.nodes():
            node_id = node["NodeID"]
            if node["Alive"] and node_id not in self._by_node:
                writer: Any = ray.remote(**_OPTIONS)(_Writer)
                self._hosts[node_id] = node["NodeManagerHostname"]
                self._by_node[node_id] = writer.options(
                    name=_name(self._run, node_id),
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=True),
                ).remote(*self._arguments)
