"""The workers of an engine, as those see them that feed it."""

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
        """Which one it is (`node_id`, `pid`), where that is known."""

    def generate(self, batch: pa.Table) -> Iterator[pa.Table]:
        """Groups of answers (`GROUP_SCHEMA`, and `worker`: who answered), until the batch is finished or the
        worker dies."""


class WorkerPool(Protocol):
    def least_busy(self, rows: int) -> contextlib.AbstractContextManager[Worker]:
        """The worker to ask next, as soon as there is one.

        :raises RayActorError: when the last one has died for good.
        """


#: Called where they are needed; picklable.
OpenWorkerPool = Callable[[], WorkerPool]


def from_worker(group: pa.Table, name: str) -> pa.Table:
    return group.append_column("worker", pa.array([name] * group.num_rows))


def ready(worker: ActorHandle[Any]) -> ObjectRef[Any]:
    """What it says when its engine is there (`VllmWorker.ready`); an error when it never will be. A worker
    that dies before is started again."""
    ref: ObjectRef[Any] = worker.ready.options(max_task_retries=-1).remote()
    return ref


class OwnWorkerPool:
    """The slice's own. Each feeder asks the one that has the fewest rows of it."""

    def __init__(self, handles: Sequence[ActorHandle[Any]]) -> None:
        # An engine that is started once more, for what is left, has the same workers.
        self._workers = [_OwnWorker(str(number), handle) for number, handle in enumerate(handles)]
        # Of those that are equally busy the first is asked: another one by each feeder.
        random.shuffle(self._workers)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def least_busy(self, rows: int) -> Iterator[_OwnWorker]:
        found = self._take(rows)
        try:
            yield found
        finally:
            with self._lock:
                found.rows -= rows

    def _take(self, rows: int) -> _OwnWorker:
        import ray
        from ray.exceptions import RayActorError

        while True:
            ready = {w.ready: w for w in self._workers}
            ray.wait(list(ready), num_returns=1)
            there, _ = ray.wait(list(ready), num_returns=len(ready), timeout=0)
            with self._lock:
                found = min((ready[ref] for ref in there), key=lambda w: w.rows)
                found.rows += rows
            try:
                found.process = ray.get(found.ready)["process"]
                return found
            except RayActorError:
                with self._lock:
                    found.rows -= rows
                    if self._workers == [found]:
                        raise
                    self._workers = [w for w in self._workers if w is not found]


class _OwnWorker:
    def __init__(self, name: str, handle: ActorHandle[Any]) -> None:
        self.name = name
        self._handle = handle
        self.process: dict[str, Any] = {}
        self.rows = 0
        self.wait_for_start()

    def wait_for_start(self) -> None:
        """`ready` is there when the engine has started, also when that is not for the first time."""
        self.ready = ready(self._handle)

    def generate(self, batch: pa.Table) -> Iterator[pa.Table]:
        import ray
        from ray.exceptions import RayActorError

        try:
            for group in self._handle.generate.options(num_returns="streaming").remote(batch):
                yield from_worker(ray.get(group), self.name)
        except RayActorError:
            self.wait_for_start()
