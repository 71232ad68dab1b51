from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raydatallm.contract.result.report import MOST_SPANS, History
from airflow_provider_raydatallm.processor.metrics.history import RunHistory

#: Time, rows, percent of the CPUs, percent of each GPU.
Event = tuple[float, int, int, list[int]]
PERCENT = st.integers(0, 100)
EVENTS = st.lists(
    st.tuples(st.floats(1.7e9, 1.7e9 + 1e5), st.integers(0, 500), PERCENT, st.lists(PERCENT, max_size=3)),
    min_size=1, max_size=60,
)  # fmt: skip


def history_of(events: list[Event]) -> History:
    history = RunHistory()
    for time, rows, cpu, gpus in events:
        history.add_rows(time, rows)
        history.add_sample(time, cpu, gpus)
    result = history.result(start=min(event[0] for event in events))
    assert result is not None
    return result


@pytest.mark.slow
@given(EVENTS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_history_loses_no_row_and_does_not_depend_on_the_order(
    events: list[Event], order: random.Random
) -> None:
    history = history_of(events)
    assert sum(history.rows) == sum(event[1] for event in events)
    assert len(history.rows) <= MOST_SPANS
    shuffled = list(events)
    order.shuffle(shuffled)
    assert history_of(shuffled) == history


@given(EVENTS)
@settings(deadline=None)
def test_spans_have_the_means_of_their_samples(events: list[Event]) -> None:
    history = history_of(events)
    start = min(event[0] for event in events)
    assert -history.span_s <= history.offset_s <= 0  # rounded
    # The grid's own beginning: the report has milliseconds only.
    first = start // history.span_s
    spans = np.array([time // history.span_s - first for time, *_ in events])
    assert history.cpu_busy is not None
    for span, shown in enumerate(history.cpu_busy):
        here = [event for event, at in zip(events, spans, strict=True) if at == span]
        expected = np.mean([cpu for _, _, cpu, _ in here]) if here else None
        assert shown == (None if expected is None else pytest.approx(expected, abs=0.051))
        gpus = [busy for event in here for busy in event[3]]
        shown_gpu = history.gpu_busy[span] if history.gpu_busy is not None else None
        assert shown_gpu == (pytest.approx(np.mean(gpus), abs=0.051) if gpus else None)


def test_spans_double_so_that_a_long_run_has_as_many_as_a_short_one() -> None:
    history = RunHistory()
    for second in range(100_000):
        history.add_rows(1.7e9 + second, 1)
    result = history.result(1.7e9)
    assert result is not None
    assert result.span_s == 1024.0
    assert MOST_SPANS / 2 < len(result.rows) <= MOST_SPANS
    # All full ones are alike: none was merged with a wrong neighbour.
    assert set(result.rows[1:-1]) == {1024}


def test_what_was_not_measured_is_null() -> None:
    assert RunHistory().result(0.0) is None
    history = RunHistory()
    history.add_rows(10.5, 3)
    history.add_sample(12.5, 40.0, ())
    assert history.result(10.25) == History(
        span_s=1.0, offset_s=-0.25, rows=(3, 0, 0), cpu_busy=(None, None, 40.0)
    )
