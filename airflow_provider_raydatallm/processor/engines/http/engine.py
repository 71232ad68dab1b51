"""An HTTP endpoint as an engine: nothing runs on the cluster but what reads, asks and writes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from functools import partial

from airflow_provider_raydatallm.contract.fingerprint import answer_cache_key
from airflow_provider_raydatallm.contract.spec.engines.http import Http
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.embed import Embed
from airflow_provider_raydatallm.processor.engines.base import AnswerSink, Engine, OpenFeeder
from airflow_provider_raydatallm.processor.engines.dedup.slice_dedup import SliceDedup
from airflow_provider_raydatallm.processor.engines.feeding.active_feeders import ActiveFeeders
from airflow_provider_raydatallm.processor.engines.feeding.feeder import FeederSetup
from airflow_provider_raydatallm.processor.engines.feeding.row_budget import RowBudget
from airflow_provider_raydatallm.processor.engines.feeding.suspect_keys import SuspectKeys
from airflow_provider_raydatallm.processor.engines.http.feeder import (
    HttpFeeder,
    NoWorkers,
    ask_vector_size,
    open_api,
)
from airflow_provider_raydatallm.processor.engines.http.limits import SpentTokens
from airflow_provider_raydatallm.processor.sizing import sizes as sizing
from airflow_provider_raydatallm.processor.sizing.facts import Resources

#: Of them all, so that the limits of the job hold.
_FEEDERS = 1
#: The feeder, one to read and one to split blocks.
_CPUS = 3


class HttpEngine(Engine):
    supports_dedup = True

    def __init__(self, job: SliceJob, rows: int) -> None:
        super().__init__(job, rows)
        self._asked = job.engine_as(Http)
        self._dedup = SliceDedup(job)
        self._suspect_keys: SuspectKeys | None = None
        #: Of this round, and the tokens that earlier ones spent.
        self._spent: SpentTokens | None = None
        self._spent_before = 0.0
        #: Of a vector, as the endpoint answers them now.
        self._numbers: int | None = None
        #: Of its feeder, while it runs; rows may be asked again.
        self._feeding: Callable[..., FeederSetup] | None = None

    @property
    def resources(self) -> Resources:
        return Resources(
            cpus=_CPUS, gpus=0, breakdown="1 process that asks the endpoint, 2 to read and write"
        )

    @property
    def batch_size(self) -> int:
        return sizing.block_rows(self.rows, _FEEDERS)

    def take_no_earlier_answers(self) -> None:
        self._dedup.takes_no_earlier_answers = True

    def doubt_answers(self, since: float) -> None:
        self._dedup.doubt_answers(since)

    @property
    def feeders(self) -> tuple[int, int]:
        return _FEEDERS, _FEEDERS

    @property
    def is_ready(self) -> bool:
        return True

    def start_for_feeders(self, *, alone: bool = False) -> OpenFeeder:
        if self._feeding is None:
            self._feeding = self._start_feeding(alone)
        else:
            self._dedup.forget_claims()
        return partial(_open_feeder, self._feeding, self._spent, self._numbers)

    def _start_feeding(self, alone: bool) -> Callable[..., FeederSetup]:
        """Returns what makes the setup of the feeder; `deliver` is left."""
        self._numbers = numbers = self._vector_size()
        cache = self._dedup.next_namespace(partial(self._cache_key, numbers), numbers=numbers)
        run = uuid.uuid4().hex[:12]
        self._suspect_keys = SuspectKeys(run)
        if self._asked.token_budget is not None:
            self._spent = SpentTokens(run, self._spent_before)
        return partial(
            FeederSetup,
            self.job,
            partial(open_api, self.job),
            NoWorkers,
            budget=RowBudget(self._asked.in_flight, sizing.TOKENS_IN_FLIGHT),
            window_rows=self._asked.in_flight,
            active_feeders=ActiveFeeders(run),
            suspect_keys=self._suspect_keys,
            dedup=self._dedup.start(cache, in_one_process=alone),
        )

    def _cache_key(self, numbers: int | None) -> str:
        # Slices of other tables share the cache, and endpoints may serve other models under one name: at
        # another address, or later.
        return answer_cache_key(self.job, {}, {"endpoint": self._asked.url, "numbers": numbers})

    def _vector_size(self) -> int | None:
        """Returns how many numbers the endpoint's vectors have now: all of the slice, cached ones too, are to
        have as many.

        :raises SliceError: when the endpoint answers nothing.
        """
        task = self.job.task
        if not isinstance(task, Embed):
            return None
        return task.embedding.dimensions or asyncio.run(ask_vector_size(self.job))

    def stop(self) -> None:
        self._dedup.stop()
        if self._suspect_keys is not None:
            self._suspect_keys.forget()
        if self._spent is not None:
            self._spent_before = self._spent.read()
            self._spent.forget()
            self._spent = None
        self._suspect_keys = self._feeding = None


def _open_feeder(
    setup: Callable[..., FeederSetup],
    spent: SpentTokens | None,
    vector_size: int | None,
    deliver: AnswerSink,
) -> HttpFeeder:
    return HttpFeeder(setup(deliver=deliver), spent, vector_size)
