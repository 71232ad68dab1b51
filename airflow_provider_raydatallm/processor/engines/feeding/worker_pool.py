"""An engine's workers, as its feeders reach them."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from airflow_provider_raydatallm.processor.ray_runtime.actor_deaths import is_death
from airflow_provider_raydatallm.processor.ray_runtime.cluster_store import ClusterStore
from airflow_provider_raydatallm.processor.ray_runtime.leaving_nodes import leaving_nodes

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

#: Seconds between two looks for a worker that was started again, and between two questions whether one lives.
_LOOKUP_SECONDS = 1.0
_PING_SECONDS = 5.0
#: Between two questions which nodes leave.
_NOTICE_SECONDS = 5.0
#: What Ray says of an actor whose process ended by itself, not by `ray.kill`, with its node or its owner.
_PROCESS_DIED = "worker process has died"


class WorkerDiedError(Exception):
    """A worker ended before it answered all its rows. `by_itself`: its rows may be the reason."""

    def __init__(self, by_itself: bool) -> None:
        super().__init__()
        self.by_itself = by_itself

    @classmethod
    def of(cls, error: Exception) -> WorkerDiedError:
        """:param error: Ray's."""
        return cls(_PROCESS_DIED in str(error))


class Worker(Protocol):
    name: str
    #: `node_id` and `pid`, where they are known.
    process: Mapping[str, Any]
    #: Whether one stream carries the answers to all of a feeder's calls, so that they end together.
    has_one_stream: bool
    #: Rows that it takes at once, at most.
    largest_call: int

    def generate(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yields groups of answers (`GROUP_SCHEMA` and `worker`, its name) until the rows are finished, or
        the next call takes over.

        :raises WorkerDiedError: when it died.
        """

    def cancel(self, rows: Sequence[int]) -> None:
        """Cancels rows that another worker has answered."""

    def silent_s(self) -> float:
        """Seconds for which it has not answered whether it lives."""

    def leaves_in_s(self) -> float | None:
        """Seconds until its node leaves the cluster, as far as that was announced; infinity where the node
        waits for it, and None where it stays."""


class WorkerPool(Protocol):
    def ready(self) -> Sequence[Worker]:
        """The workers that can take rows now. Never waits."""


#: Opens the pool for a feeder, by its name; picklable.
OpenWorkerPool = Callable[[str], WorkerPool]


def add_worker_name(group: pa.Table, name: str) -> pa.Table:
    return group.append_column("worker", pa.array([name] * group.num_rows))


class OwnWorkerPool:
    """The slice's own workers, which the driver starts again when they die (`OwnWorkers`)."""

    def __init__(self, actors: ClusterStore, workers: int, feeder: str) -> None:
        """:param actors: `OwnWorkers.actors`."""
        self._actors, self._names, self._feeder = actors, [str(i) for i in range(workers)], feeder
        self._workers: dict[str, OwnWorker] = {}
        self._looked_up_at = -_LOOKUP_SECONDS
        self._noticed_at = -_NOTICE_SECONDS
        self._leaving: Mapping[str, float] = {}
        self._asking: threading.Thread | None = None

    def ready(self) -> Sequence[OwnWorker]:
        self._look_up()
        self._heed_notices()
        return [worker for worker in self._workers.values() if worker.is_ready()]

    def _look_up(self) -> None:
        import ray

        if time.monotonic() - self._looked_up_at < _LOOKUP_SECONDS:
            return
        self._looked_up_at = time.monotonic()
        for name in self._names:
            known = self._workers.get(name)
            if known is not None and not known.is_dead:
                continue
            actor = self._actors.get(name)
            if actor is None or (known is not None and known.actor == actor):
                continue  # it is not started again yet
            with contextlib.suppress(ValueError):  # it died meanwhile
                # A worker that was started again has the same name in the report.
                self._workers[name] = OwnWorker(name, actor, ray.get_actor(actor), self._feeder)

    def _heed_notices(self) -> None:
        for worker in self._workers.values():
            worker.leaves_at = self._leaving.get(worker.process.get("node_id", ""))
        is_asking = self._asking is not None and self._asking.is_alive()
        if is_asking or time.monotonic() - self._noticed_at < _NOTICE_SECONDS:
            return
        self._noticed_at = time.monotonic()
        self._asking = threading.Thread(target=self._ask_who_leaves, name="ray-llm-notices", daemon=True)
        self._asking.start()

    def _ask_who_leaves(self) -> None:
        """While the head is away, it answers late."""
        self._leaving = leaving_nodes()


class OwnWorker:
    has_one_stream = True
    largest_call = 512

    def __init__(self, name: str, actor: str, handle: ActorHandle[Any], feeder: str) -> None:
        """:param actor: its name."""
        self.name = name
        self.actor = actor
        self.is_dead = False
        self.process: Mapping[str, Any] = {}
        #: Epoch seconds; see `leaves_in_s`.
        self.leaves_at: float | None = None
        self._handle = handle
        self._feeder = feeder
        self._ready: ObjectRef[Any] | None = handle.ready.remote()
        self._ping: ObjectRef[Any] | None = None
        # Feeders do not all ask at the same time.
        self._pinged_at = time.monotonic() - random.uniform(0, _PING_SECONDS)

    def is_ready(self) -> bool:
        import ray

        if self.is_dead or self._ready is None:
            return not self.is_dead
        done, _ = ray.wait([self._ready], timeout=0)
        if done:
            try:
                self.process, self._ready = ray.get(self._ready)["process"], None
            except Exception:  # the driver reports why it did not start
                self.is_dead = True
        return self._ready is None and not self.is_dead

    def generate(self, rows: pa.Table) -> Iterator[pa.Table]:
        import ray

        try:
            for group in self._handle.generate.options(num_returns="streaming").remote(rows, self._feeder):
                yield add_worker_name(ray.get(group), self.name)
        except Exception as e:
            if not is_death(e):
                raise
            self.is_dead = True
            raise WorkerDiedError.of(e) from e

    def cancel(self, rows: Sequence[int]) -> None:
        self._handle.cancel.remote(self._feeder, list(rows))

    def leaves_in_s(self) -> float | None:
        return None if self.leaves_at is None else self.leaves_at - time.time()

    def silent_s(self) -> float:
        import ray

        if self._ping is not None:
            if not ray.wait([self._ping], timeout=0)[0]:
                return time.monotonic() - self._pinged_at
            self._ping = None  # an error counts as an answer: the stream tells of a death
        if time.monotonic() - self._pinged_at >= _PING_SECONDS:
            self._ping, self._pinged_at = self._handle.is_alive.remote(), time.monotonic()
        return 0.0
