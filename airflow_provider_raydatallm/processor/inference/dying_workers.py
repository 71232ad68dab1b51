"""Detects workers that die again and again before a row is answered. Ray Data starts an actor or a task again
at once, without end, and reports nothing."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.processor.engines.base import EngineGivenUpError
from airflow_provider_raydatallm.processor.metrics.meter import Deaths
from airflow_provider_raydatallm.processor.ray_runtime.job_state import JobWorker, WorkerExit

#: Of each worker, after which none is expected to live.
_MOST_DEATHS = 5
_LOOK_SECONDS = 2.0


class DyingWorkers:
    """Raises when all workers of a stage died too often."""

    def __init__(
        self,
        list_workers: Callable[[], Sequence[JobWorker]],
        exit_of: Callable[[int], WorkerExit | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        :param list_workers: this job's.
        :param exit_of: of a process by its id; None when it has not ended.
        """
        self._list_workers = list_workers
        self._exit_of = exit_of
        self._clock = clock
        self._looked = clock()
        #: Of each worker, its processes that were seen, the last one last.
        self._pids: dict[str, list[int]] = defaultdict(list)
        self._deaths = Deaths()
        self._exit: WorkerExit | None = None

    def observe(self) -> Deaths:
        """Returns the deaths so far. Called until a row is answered.

        :raises EngineGivenUpError: of which rows that may kill an engine can be the reason, too.
        """
        if self._clock() - self._looked < _LOOK_SECONDS:
            return self._deaths
        self._looked = self._clock()
        stages: dict[str, list[int]] = defaultdict(list)
        died = []
        for worker in self._list_workers():
            pids = self._pids[worker.id]
            if worker.pid and worker.pid not in pids:
                pids.append(worker.pid)
            if pids:  # else it waits for its resources
                stages[worker.name].append(worker.deaths)
            if worker.deaths:
                died.append(worker)
        if (total := sum(worker.deaths for worker in died)) != self._deaths.total:
            pids = [pid for worker in died for pid in reversed(self._pids[worker.id][-2:])]
            found = next(filter(None, map(self._exit_of, pids)), None)
            self._exit = found or self._exit
            self._deaths = Deaths(total, self._exit.reason if self._exit is not None else "")
        for name, deaths in stages.items():
            if min(deaths) >= _MOST_DEATHS:
                raise self._given_up(name, sum(deaths))
        return self._deaths

    def _given_up(self, name: str, deaths: int) -> EngineGivenUpError:
        why = self._exit
        error = EngineGivenUpError.of(
            Failure(
                "engine",
                f"workers of {name} died {deaths:,} times, and no row was answered",
                advice=("Fix what ended the worker: its log may say it",),
                cause=why.text if why is not None else "",
            )
        )
        error.log = why.process if why is not None else None
        return error
