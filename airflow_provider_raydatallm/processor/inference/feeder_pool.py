"""The feeders of a run, for the driver, which gives each block to the one with the most room.

A feeder's call returns when the feeder has taken the block over, and says nothing of its rows: what is
unfinished is the feeder's account, which the driver has drained before the run ends. Actors of Ray Data would
keep a block's call until its last row, or lose what they hold: they are ended without a word. What a feeder
held when it died is read again, and answered by others, in the same run. A feeder ends with its last row, and
does not keep its node until the last row of the slice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import AnswerSink, OpenFeeder
from airflow_provider_raydatallm.processor.inference.death_error import death_error
from airflow_provider_raydatallm.processor.ray_runtime.actor_deaths import is_death
from airflow_provider_raydatallm.processor.ray_runtime.bounded_calls import wait_for_refs
from airflow_provider_raydatallm.processor.ray_runtime.slice_log import start_log
from airflow_provider_raydatallm.processor.ray_runtime.slow_imports import keep_pandas_from_pyarrow

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

#: Blocks on their way into a feeder: while it tokenizes one, the next one comes to its node.
_BLOCKS = 2
#: Calls that a feeder has at once: with blocks, or with the last one.
_OPTIONS = {"num_cpus": 1, "max_restarts": 0, "max_concurrency": _BLOCKS}
#: Feeders in a row that died before they were ready, after which the run ends.
_MOST_FAILED_STARTS = 4
#: What Ray says of an actor whose constructor raised.
_START_RAISED = "creation task"


class FeederProcess:
    """A feeder, as an actor."""

    def __init__(self, job: SliceJob, open_feeder: OpenFeeder, deliver: AnswerSink) -> None:
        start_log(job.slice_key)
        if not job.runs_user_code:
            keep_pandas_from_pyarrow()
        self._feeder = open_feeder(deliver)

    def node_id(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def take(self, block: pa.Table) -> None:
        self._feeder(block)

    def drain(self) -> None:
        self._feeder.drain()


@dataclass(eq=False)
class _Feeder:
    actor: ActorHandle[Any]
    #: Returns its node's id.
    start: ObjectRef[Any]
    node_id: str | None = None
    blocks: int = 0
    calls: list[ObjectRef[Any]] = field(default_factory=list)
    is_draining: bool = False

    @property
    def is_ready(self) -> bool:
        return self.node_id is not None


class FeederPool:
    """`with` it: its feeders end with it."""

    def __init__(
        self, job: SliceJob, open_feeder: OpenFeeder, deliver: AnswerSink, feeders: tuple[int, int]
    ) -> None:
        """:param feeders: the fewest and the most; more start when all are full."""
        import ray

        self._actor: Any = ray.remote(**_OPTIONS)(FeederProcess)
        self._arguments = job, open_feeder, deliver
        self._fewest, self._most = feeders
        self._feeders: list[_Feeder] = []
        self._failed_starts = 0
        #: The last death of a feeder: what it held is missing.
        self.death: Exception | None = None

    def __enter__(self) -> FeederPool:
        for _ in range(self._fewest):  # before tasks that read take their CPUs
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import ray

        for feeder in self._feeders:
            ray.kill(feeder.actor)

    def hand_in(self, block: ObjectRef[Any]) -> None:
        """Gives a block to a feeder, as soon as one has room.

        :raises Exception: what kept rows from being delivered.
        """
        feeder = self._with_room()
        feeder.blocks += 1
        feeder.calls.append(feeder.actor.take.remote(block))

    def drain(self, on_empty: Callable[[str], None]) -> None:
        """Waits until no feeder holds a row, and ends each that holds none.

        :param on_empty: called with the id of each node whose last feeder has ended.
        :raises Exception: what kept rows from being delivered.
        """
        for feeder in [feeder for feeder in self._feeders if not feeder.is_ready]:  # it has no block
            self._end(feeder)
        while self._feeders:
            for feeder in [feeder for feeder in self._feeders if not feeder.calls]:
                if not feeder.is_draining:
                    feeder.is_draining = True
                    feeder.calls.append(feeder.actor.drain.remote())
                    continue
                self._end(feeder)
                if feeder.node_id not in {other.node_id for other in self._feeders}:
                    on_empty(str(feeder.node_id))
            self._wait(self._feeders)
            self._check()

    def _with_room(self) -> _Feeder:
        while True:
            self._check()
            ready = [f for f in self._feeders if f.is_ready]
            open_ones = [f for f in ready if len(f.calls) < _BLOCKS]
            if open_ones:
                return min(open_ones, key=lambda f: (len(f.calls), f.blocks))
            are_starting = len(ready) < len(self._feeders)
            while len(self._feeders) < self._fewest or (not are_starting and len(self._feeders) < self._most):
                self._start()
                are_starting = True
            self._wait(self._feeders)

    @staticmethod
    def _wait(feeders: Sequence[_Feeder]) -> None:
        """Waits until something is to be checked of one of them."""
        calls = [ref for feeder in feeders for ref in (feeder.calls if feeder.is_ready else [feeder.start])]
        if calls:
            wait_for_refs(calls, num_returns=1, timeout_s=None)

    def _start(self) -> None:
        actor = self._actor.remote(*self._arguments)
        self._feeders.append(_Feeder(actor, actor.node_id.remote()))

    def _check(self) -> None:
        """Notices which feeders are ready, which took their blocks, and which died."""
        import ray

        for feeder in list(self._feeders):
            refs = feeder.calls if feeder.is_ready else [feeder.start]
            done, left = ray.wait(refs, num_returns=len(refs), timeout=0) if refs else ([], [])
            try:
                results = ray.get(done)
            except Exception as e:
                if not is_death(e) or _START_RAISED in str(e):
                    raise
                self._bury(feeder, e)
                continue
            if feeder.is_ready:
                feeder.calls = left
            elif done:
                feeder.node_id, self._failed_starts = results[0], 0

    def _bury(self, feeder: _Feeder, error: Exception) -> None:
        self._end(feeder)  # Ray may only have lost sight of it
        self.death = error
        if not feeder.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= _MOST_FAILED_STARTS:
                raise death_error(
                    f"{self._failed_starts} feeders in a row died while they started",
                    error,
                    kind="engine",
                ) from error

    def _end(self, feeder: _Feeder) -> None:
        import ray

        ray.kill(feeder.actor)
        self._feeders.remove(feeder)
