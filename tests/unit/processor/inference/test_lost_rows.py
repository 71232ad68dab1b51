"""Rows that were lost with a feeder are asked again in the same run. It ends where feeders die each time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.processor.inference import pipeline
from airflow_provider_raydatallm.processor.inference.ray_cluster import _answer_until_none_is_lost
from airflow_provider_raydatallm.processor.store.ledger import MissingRows

DEATH = ActorDiedError()
PLACE = Place(file="a.parquet", row=1)


def rows(count: int) -> MissingRows:
    units = np.zeros(1 if count else 0, np.int32)
    return MissingRows(units, units + 1, np.array([[0, count]] if count else [], np.int32).reshape(-1, 2))


class Run:
    """Of which so many rows are missing at first, and after each round in which a feeder dies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, missing: Sequence[int], deaths: int) -> None:
        self.asked: list[int] = []
        self._deaths = deaths
        later = iter(missing[1:])
        given: Any = SimpleNamespace(
            missing=rows(missing[0]), reader=None, parser=None, inference=SimpleNamespace(engine=None),
            still_missing=lambda: rows(next(later)), place_of_first=lambda missing: PLACE,
        )  # fmt: skip
        writers: Any = SimpleNamespace(for_tasks=lambda: None, flush=lambda: None, release=None)
        monkeypatch.setattr(pipeline, "run_inference", self._run_inference)
        self.answer = lambda: _answer_until_none_is_lost(given, writers)

    def _run_inference(self, missing: MissingRows, *others: Any) -> Exception | None:
        self.asked.append(missing.rows)
        return DEATH if len(self.asked) <= self._deaths else None


def test_lost_rows_are_asked_again_until_none_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(monkeypatch, [10, 4], 1)
    with caplog.at_level(logging.WARNING):
        run.answer()
    assert run.asked == [10, 4]
    [record] = caplog.records
    assert record.getMessage().startswith("a feeder died, and its rows are answered again (4): ActorDied")


def test_feeder_that_died_and_held_nothing_is_not_mentioned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(monkeypatch, [10, 0], 1)
    with caplog.at_level(logging.WARNING):
        run.answer()
    assert (run.asked, caplog.records) == ([10], [])


@pytest.mark.parametrize("missing", [[10, 10, 10, 10, 10], [3, 10, 10, 10, 10], [10, 9, 9, 9, 9]])
def test_feeders_that_die_in_rounds_without_a_finished_row_end_the_run(
    monkeypatch: pytest.MonkeyPatch, missing: list[int]
) -> None:
    run = Run(monkeypatch, missing, 9)
    with pytest.raises(SliceError, match=rf"4 rounds .* row \(missing: {missing[-1]}\)") as e:
        run.answer()
    assert len(run.asked) == 4
    failure = e.value.failure
    assert (failure.kind, failure.place) == ("transient", PLACE)
    assert "\n" not in failure.sentence
    assert failure.advice[-1].startswith("If every try ends at these rows")


def test_feeders_that_die_while_rows_finish_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, [10, 9, 8, 7, 6, 5], 5)
    run.answer()
    assert run.asked == [10, 9, 8, 7, 6, 5]
