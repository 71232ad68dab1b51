"""One fragment writer per node, as Ray actors: finished rows leave the pipeline at the writer of their own
node. A slice that one process answers (`slice_process`) writes there, too.

Ray restarts a writer that dies. Rows that it had not written yet are missing at reconciliation and run again.
The driver never depends on an answer of a writer, which may be paused or hang: it asks, and takes what has
come by the next time. What does not come at all is the stall watch's to end.
"""

from __future__ import annotations

import threading
import time
import uuid
from abc import ABC, abstractmethod
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
#: So many ids are an argument that Ray keeps itself.
_FEW_UNITS = 500
#: In place of the node of a slice's process, which may be any with room.
_ANY_NODE = ""
#: Seconds after which a writer that has not answered is named in errors.
_SILENT_SECONDS = 2.0


class WriterActor(FragmentWriter):
    """Keeps counts and samples for the driver's next `update`: every finished row passes through a writer."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._sampler = NodeSampler()
        self._summaries: list[pa.Table] = []
        self._failed_rows = 0
        self._tasks: set[str] = set()

    def begin_task(self, task: str) -> bool:
        with self._lock:
            has_begun = task in self._tasks
            self._tasks.add(task)
        return has_begun

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


class RowWriter(ABC):
    """Takes a task's finished rows."""

    def add(self, rows: pa.Table | None, failed: pa.Table | None, summary: pa.Table | None) -> None:
        """Hands over rows with their `summarize_group`; rows that failed before they reached the engine have
        no summary."""
        rows, failed = (t if t is not None and t.num_rows else None for t in (rows, failed))
        if rows is not None or failed is not None:
            self._receive(rows, failed, summary)

    def add_died(self, rows: pa.Table) -> None:
        """Hands over the ids of rows that were in an engine when it died by itself."""
        self._put_died(rows.select([field.name for field in ROW_ID_FIELDS]))

    @abstractmethod
    def begin_task(self, task: str) -> bool:
        """Returns whether a task has begun before: Ray starts one again whose process dies."""

    @abstractmethod
    def _receive(self, rows: pa.Table | None, failed: pa.Table | None, summary: pa.Table | None) -> None: ...

    @abstractmethod
    def _put_died(self, ids: pa.Table) -> None: ...


@dataclass(frozen=True)
class OwnWriter(RowWriter):
    """Hands rows to the writer that this process is."""

    writer: WriterActor

    def begin_task(self, task: str) -> bool:
        return self.writer.begin_task(task)

    def _receive(self, rows: pa.Table | None, failed: pa.Table | None, summary: pa.Table | None) -> None:
        self.writer.receive(rows, failed, summary)

    def _put_died(self, ids: pa.Table) -> None:
        self.writer.put_died(ids)


@dataclass(frozen=True)
class NodeWriter(RowWriter):
    """Hands a task's finished rows to the writer of its node.

    by_node: the writers that there were when the run started, the driver's node first. Those of later nodes
    are found by name; until a node has its own, its rows go to the driver's.
    """

    run: str
    by_node: Mapping[str, ActorHandle[Any]]

    def begin_task(self, task: str) -> bool:
        import ray

        return bool(ray.get(self._writer().begin_task.remote(task)))

    def _receive(self, rows: pa.Table | None, failed: pa.Table | None, summary: pa.Table | None) -> None:
        import ray

        ray.get(self._writer().receive.remote(rows, failed, summary))

    def _put_died(self, ids: pa.Table) -> None:
        import ray

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

    def __init__(
        self,
        url: str,
        folder: str,
        unit_ids: Sequence[str],
        epoch: int,
        slice_process: type[WriterActor] | None = None,
    ) -> None:
        """Starts a writer on each node of the cluster.

        :param slice_process: the class of the one process that answers the slice. It writes, and no other
            process is started on the only node of a cluster.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._run = uuid.uuid4().hex
        # Ray needs the unit ids to restart a writer, and keeps many of them only while something refers to
        # them (ray #53727, of which Ray warns).
        ids = list(unit_ids)
        self._arguments = (url, folder, ids if len(ids) <= _FEW_UNITS else ray.put(ids), epoch)
        #: The driver's comes first: its writer stays, and takes the rows of nodes without one.
        self._by_node: dict[str, ActorHandle[Any]] = {}
        self._own_node = ray.get_runtime_context().get_node_id()
        self._places: dict[str, str] = {}
        self._calls: dict[ObjectRef[Any], _Call] = {}
        self._is_flushing = False
        #: Nodes that no row comes from any more, with the last flush of their writer while it lasts.
        self._released: dict[str, ObjectRef[Any] | None] = {}
        #: Held only for what cannot block, so that a check that hangs does not block the last flush.
        self._lock = threading.Lock()
        self.slice_process: ActorHandle[Any] | None = None
        if slice_process is not None:
            actor: Any = ray.remote(**{**_OPTIONS, "num_cpus": 1})(slice_process)
            # Nodes that the last rows do not need are to be idle: an autoscaler takes them.
            here = NodeAffinitySchedulingStrategy(self._own_node, soft=True, _spill_on_unavailable=True)
            self.slice_process = self._by_node[_ANY_NODE] = actor.options(scheduling_strategy=here).remote(
                *self._arguments
            )
            self._places[_ANY_NODE] = "the slice's process"
        self._start_on_new_nodes()

    def for_tasks(self) -> NodeWriter:
        """They may run on any node, also on those that were released."""
        with self._lock:
            if self._released:
                self._released.clear()
                self._run = uuid.uuid4().hex  # Ray may still know the names of those that ended
            return NodeWriter(self._run, dict(self._by_node))

    def release(self, node_id: str) -> None:
        """Ends the writer of a node when it has written its rows: it would keep an autoscaler from taking the
        node. No task there adds any until the next `for_tasks`."""
        with self._lock:
            if node_id in self._by_node and node_id != self._own_node:
                self._released[node_id] = self._ask(node_id, "flush_and_update")

    def update(self) -> WriterUpdate:
        """Returns, as one, the updates that have come since the last call. Never waits for a writer."""
        import ray

        self._start_on_new_nodes()
        with self._lock:
            pending = list(self._calls)
            done, _ = ray.wait(pending, num_returns=len(pending), timeout=0) if pending else ([], [])
            for ref in done:
                call = self._calls.pop(ref)
                if self._released.get(call.node_id) == ref:
                    self._released[call.node_id] = None
                    ray.kill(self._by_node.pop(call.node_id))
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
        with self._lock:
            self._is_flushing = False

    def describe_silent(self) -> str:
        """Names the nodes whose writers do not answer; "" when there is none."""
        now = time.monotonic()
        with self._lock:
            calls = list(self._calls.values())
        seconds: dict[str, float] = {}
        for call in calls:
            if (waited_s := now - call.since) >= _SILENT_SECONDS:
                seconds[call.node_id] = max(waited_s, seconds.get(call.node_id, 0))
        texts = [f"{self._places[n]} for {s:.0f} s" for n, s in seconds.items()]
        return f"no answer from the fragment writer on {', '.join(texts)}" if texts else ""

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

        nodes = [node for node in ray.nodes() if node["Alive"]]
        nodes.sort(key=lambda node: node["NodeID"] != self._own_node)
        if self.slice_process is not None and len(nodes) == 1:
            return
        for node in nodes:
            node_id = node["NodeID"]
            if node_id not in self._by_node and node_id not in self._released:
                writer: Any = ray.remote(**_OPTIONS)(WriterActor)
                self._places[node_id] = f"node {node['NodeManagerHostname']} ({node_id})"
                self._by_node[node_id] = writer.options(
                    name=_name(self._run, node_id),
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=True),
                ).remote(*self._arguments)
