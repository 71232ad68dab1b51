"""The workers of one slice: started, and started again when they die, each for itself.

A slice goes on with the workers that it has. One that died is started again at once, then after longer and
longer pauses, and given up after some deaths in a row. The run ends only when no worker is left. There are as
many as the slice may have, or as finish it in time. One that is idle while the last rows are in others ends:
its GPUs are free before the slice is finished. Feeders find the current actor of a worker by a key in the
cluster's key-value store.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.processor.engines.base import EngineGivenUpError
from airflow_provider_raydatallm.processor.engines.vllm.repetition import RepetitionSample
from airflow_provider_raydatallm.processor.ray_runtime.cluster_store import ClusterStore
from airflow_provider_raydatallm.processor.root_error import root_error

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

logger = logging.getLogger(__name__)

#: Seconds before each further start of a worker, as many as it has; what took its memory may need as long.
RESTARTS = (0.0, 10.0, 60.0)
#: Deaths of a worker that lived for so long begin to count anew.
_LONG_LIFE_SECONDS = 600.0
#: What Ray says of an actor whose constructor raised.
_START_RAISED = "creation task"
#: A worker that is still starting does not respond.
_STOP_SECONDS = 5.0
#: Without a row, after which a worker ends whose place the last rows do not need.
_IDLE_SECONDS = 10.0


class OwnWorkers:
    """In the driver."""

    def __init__(
        self,
        actor: Any,
        arguments: Sequence[Any],
        options: Callable[[], Mapping[str, Any]],
        workers: tuple[int, int],
        restarts: Sequence[float] | None,
    ) -> None:
        """Starts the fewest.

        :param actor: the remote class.
        :param arguments: of its constructor.
        :param options: makes those of a worker's actor, beside those of the class, before it starts.
        :param workers: the fewest and the most.
        :param restarts: seconds before each further start; None: at once, as often as it takes.
        """
        #: Of each worker, by its number: the name of its current actor.
        self.actors = ClusterStore.of_kind("worker", uuid.uuid4().hex[:12])
        self._fewest, most = workers
        self._workers = [
            _Worker(actor, arguments, options, self.actors, str(number), restarts) for number in range(most)
        ]
        for worker in self._workers[: self._fewest]:
            worker.start()
        #: Of the first worker that started.
        self.startup_seconds: Mapping[str, float] = {}
        #: Of those that were stopped.
        self.repetition: list[RepetitionSample] = []

    @property
    def is_ready(self) -> bool:
        """Whether one of them has ever been ready."""
        return any(worker.was_ready for worker in self._workers)

    def check(self) -> None:
        """Notices which are ready and which died, and starts those again whose time has come.

        :raises Exception: what ended the last one, when none is left.
        """
        for worker in self._workers:
            worker.check()
            if worker.was_ready and not self.startup_seconds:
                self.startup_seconds = worker.startup_seconds
        left = [worker for worker in self._workers if not worker.is_released]
        # Where all raise at their first start, later starts would, too.
        if all(w.is_given_up or (w.cannot_start and not self.is_ready) for w in left):
            if len(left) < len(self._workers) and self.is_ready:
                self._start_released(len(self._workers))
                return
            raise next(w.error for w in reversed(self._workers) if w.error is not None)
        for worker in self._workers:
            worker.start_again()

    def fit(self, rows: int, rows_each: int, wanted: int | None) -> set[str]:
        """Starts the workers that are wanted, as long as there are rows for them, and ends idle ones that the
        last rows do not need. Returns the nodes that have none of them any more.

        :param rows: unfinished ones.
        :param rows_each: that a worker takes at once.
        :param wanted: None: as many as there may be.
        """
        living = [worker for worker in self._workers if worker.lives]
        needed = max(1, math.ceil(rows / rows_each))
        if needed > len(living):
            # One that starts changes how many are wanted, once it answers.
            if wanted is None:
                self._start_released(len(self._workers))
            elif not any(worker.is_starting for worker in self._workers):
                self._start_released(max(wanted, self._fewest))
        spare = [worker for worker in living if worker.can_be_released] if needed < len(living) else []
        idle = [worker for worker in spare if worker.is_idle()][: len(living) - needed]
        for worker in idle:
            self._stop([worker])
            worker.is_released = True
            logger.info("engine worker %s ends: what is left is in others (rows: %d)", worker.name, rows)
        return {worker.node_id for worker in idle} - {
            worker.node_id for worker in self._workers if worker.lives
        }

    def _start_released(self, workers: int) -> None:
        """Starts workers, until there are so many, without those that were given up."""
        released = [worker for worker in self._workers if worker.is_released]
        given_up = [worker for worker in self._workers if worker.is_given_up]
        further = released[: max(workers - (len(self._workers) - len(released) - len(given_up)), 0)]
        if further and self.is_ready:
            logger.info("engine workers that start, beside those that run: %d", len(further))
        for worker in further:
            worker.start()

    def stop(self) -> None:
        self._stop([worker for worker in self._workers if not worker.is_released])
        self.actors.clear()

    def _stop(self, workers: Sequence[_Worker]) -> None:
        import ray

        handles = [worker.handle for worker in workers if worker.handle is not None]
        stopped = [handle.stop.remote() for handle in handles]
        done, _ = ray.wait(stopped, num_returns=len(stopped), timeout=_STOP_SECONDS) if stopped else ([], [])
        for worker in done:
            with contextlib.suppress(Exception):  # it was dead already
                self.repetition.append(ray.get(worker))
        for handle in handles:
            ray.kill(handle)


class _Worker:
    #: What it said of its process once it was ready.
    _process: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        actor: Any,
        arguments: Sequence[Any],
        options: Callable[[], Mapping[str, Any]],
        actors: ClusterStore,
        name: str,
        restarts: Sequence[float] | None,
    ) -> None:
        self._actors, self.name = actors, name
        self._actor, self._arguments, self._restarts = actor, arguments, restarts
        self._make_options = options
        self.handle: ActorHandle[Any] | None = None
        self.was_ready = False
        self.startup_seconds: Mapping[str, float] = {}
        #: What ended it, while it is not started again.
        self.error: Exception | None = None
        self._deaths = 0
        self._next_start = 0.0
        self._ready_at: float | None = None
        self._idle: ObjectRef[Any] | None = None
        #: Not needed, yet or any more.
        self.is_released = True

    @property
    def node_id(self) -> str:
        return str(self._process.get("node_id", ""))

    @property
    def is_given_up(self) -> bool:
        return self.error is not None and self._restarts is not None and self._deaths > len(self._restarts)

    @property
    def lives(self) -> bool:
        """Whether it is ready, and not known to be dead."""
        return self._ready_at is not None and self.error is None and not self.is_released

    @property
    def is_starting(self) -> bool:
        return self._ready_at is None and self.error is None and not self.is_released

    @cached_property
    def _options(self) -> Mapping[str, Any]:
        return self._make_options()

    @property
    def can_be_released(self) -> bool:
        """Not if it holds a group of nodes' GPUs, which it could not get again."""
        return "scheduling_strategy" not in self._options

    def is_idle(self) -> bool:
        """Whether it said that it had no row for some seconds; asks it."""
        import ray

        if self._idle is None:
            assert self.handle is not None
            self._idle = self.handle.idle_s.remote()
        if not ray.wait([self._idle], timeout=0)[0]:
            return False
        said, self._idle = self._idle, None
        try:
            return float(ray.get(said)) >= _IDLE_SECONDS
        except Exception:  # `check` notices what ended it
            return False

    @property
    def cannot_start(self) -> bool:
        return self.error is not None and _START_RAISED in str(self.error)

    def start(self) -> None:
        # A name cannot be used again while a process remembers the dead actor.
        actor = f"{self._actors.prefix}{self.name} {uuid.uuid4().hex[:8]}"
        self.handle = self._actor.options(**self._options, name=actor).remote(*self._arguments)
        self._actors.put(self.name, actor)
        self.error, self._ready_at, self._idle, self.is_released = None, None, None, False
        self._ready: ObjectRef[Any] = self.handle.ready.remote()
        self._ended: ObjectRef[Any] = self.handle.wait_forever.remote()

    def check(self) -> None:
        import ray

        if self.error is not None or self.is_released:
            return
        done, _ = ray.wait([self._ready, self._ended], num_returns=2, timeout=0)
        try:
            if self._ready in done and self._ready_at is None:
                ready = ray.get(self._ready)
                self._process, self.startup_seconds = ready["process"], ready["startup_seconds"]
                self._ready_at, self.was_ready = time.monotonic(), True
            if self._ended in done:
                ray.get(self._ended)
        except Exception as e:
            self._die(e)

    def _die(self, error: Exception) -> None:
        was_ready, ready_at = self._ready_at is not None, self._ready_at
        if ready_at is not None and time.monotonic() - ready_at >= _LONG_LIFE_SECONDS:
            self._deaths = 0
        self._deaths += 1
        self.error = error
        if was_ready:
            failure = root_error(error)  # of memory, its log holds nothing
            self.error = EngineGivenUpError(
                f"an engine worker died {self._deaths} time(s) in a row, and no other is left: "
                f"{failure.sentence}",
                kind="engine",
                advice=failure.advice,
                place=Place(worker=self.name),
                log=self._process,
            )
        pause = self._restarts[self._deaths - 1] if self._restarts and not self.is_given_up else 0.0
        self._next_start = time.monotonic() + pause
        what = "it is not started again" if self.is_given_up else f"it is started again in {pause:g} s"
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        logger.warning("engine worker %s died: %s: %s", self.name, what, reason)

    def start_again(self) -> None:
        if self.error is not None and not self.is_given_up and time.monotonic() >= self._next_start:
            self.start()
