"""An engine's workers, as its feeders reach them."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle


class Worker(Protocol):
    @property
    def process(self) -> Mapping[str, Any]:
        """`node_id` and `pid`, where they are known."""

    def generate(self, batch: pa.Table) -> Iterator[pa.Table]:
        """Yields groups of answers (`GROUP_SCHEMA` and `worker`, its name) until the batch is finished or the
        worker dies."""


class WorkerPool(Protocol):
    def least_busy(self, rows: int) -> contextlib.AbstractContextManager[Worker]:
        """Waits for the least busy worker and reserves `rows` on it.

        :raises RayActorError: when the last one has died for good.
        """


#: Opens the pool in a feeder; picklable.
OpenWorkerPool = Callable[[], WorkerPool]


def add_worker_name(group: pa.Table, name: str) -> pa.Table:
    return group.append_column("worker", pa.array([name] * group.num_rows))


def ready_ref(worker: ActorHandle[Any]) -> ObjectRef[Any]:
    """The result of `VllmWorker.ready`; an error when the engine will never start. A worker that dies before
    is restarted."""
    ref: ObjectRef[Any] = worker.ready.options(max_task_retries=-1).remote()
    return ref


class OwnWorkerPool:
    """The slice's own workers. Each feeder picks the one that has the fewest of its rows."""

    def __init__(self, handles: Sequence[ActorHandle[Any]]) -> None:
        # Names stay the same when the engine is started again for the remaining rows.
        self._workers = [_OwnWorker(str(number), handle) for number, handle in enumerate(handles)]
        # Shuffled, so that feeders do not all pick the same idle worker.
        random.shuffle(self._workers)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def least_busy(self, rows: int) -> Iterator[_OwnWorker]:
        worker = self._reserve(rows)
        try:
            yield worker
        finally:
            with self._lock:
                worker.rows -= rows

    def _reserve(self, rows: int) -> _OwnWorker:
        import ray
        from ray.exceptions import RayActorError

        while True:
            workers = {w.ready: w for w in self._workers}
            ray.wait(list(workers), num_returns=1)
            ready, _ = ray.wait(list(workers), num_returns=len(workers), timeout=0)
            with self._lock:
                worker = min((workers[ref] for ref in ready), key=lambda w: w.rows)
                worker.rows += rows
            try:
                worker.process = ray.get(worker.ready)["process"]
                return worker
            except RayActorError:
                with self._lock:
                    worker.rows -= rows
                    if self._workers == [worker]:
                        raise
                    self._workers = [w for w in self._workers if w is not worker]


class _OwnWorker:
    def __init__(self, name: str, handle: ActorHandle[Any]) -> None:
        self.name = name
        self._handle = handle
        self.process: dict[str, Any] = {}
        self.rows = 0
        self.ready = ready_ref(handle)

    def generate(self, batch: pa.Table) -> Iterator[pa.Table]:
        import ray
        from ray.exceptions import RayActorError

        try:
            for group in self._handle.generate.options(num_returns="streaming").remote(batch):
                yield add_worker_name(ray.get(group), self.name)
        except RayActorError:
            self.ready = ready_ref(self._handle)  # Ray restarts it
