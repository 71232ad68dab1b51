"""Which slices a schedule has, its own timetable says: in a DAG file and in the scheduler alike."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pendulum
import pytest
from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    MultipleCronTriggerTimetable,
)
from airflow.timetables import _cron
from airflow.timetables._cron import CronMixin
from airflow.timetables.base import DagRunInfo, TimeRestriction
from airflow.timetables.events import EventsTimetable

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.task.expected_slices import (
    ExpectedSlices,
    UnknownSlicesError,
    serialized,
)
from tests.support.arguments import written

BERLIN = "Europe/Berlin"
TABLE = Asset("table")


def slices_of(schedule: Any, *, mapped: bool = False, **given: Any) -> ExpectedSlices:
    with DAG("daily", schedule=schedule, start_date=at(2026, 1, 1), max_active_runs=1) as dag:
        arguments = written(
            model_source="m", prompt="{a}", input_path="/in", output_path="/out",
            **{k: v for k, v in given.items() if not mapped},
        )  # fmt: skip
        if mapped:
            RayLLMBatchOperator.partial(task_id="ask", **arguments).expand(**given)
        else:
            RayLLMBatchOperator(task_id="ask", **arguments)
    return ExpectedSlices(serialized(dag), "ask")


def at(*date: int, tz: str = BERLIN) -> dt.datetime:
    return pendulum.datetime(*date, tz=tz)


def keys(slices: ExpectedSlices, first: dt.datetime, last: dt.datetime) -> list[str]:
    return [one.key for one in slices.between(first, last)]


@pytest.mark.parametrize(
    "schedule",
    [
        CronDataIntervalTimetable("0 0 * * *", timezone=BERLIN),
        CronTriggerTimetable("0 0 * * *", timezone=BERLIN),
        CronPartitionTimetable("0 0 * * *", timezone=BERLIN, key_format="%Y-%m-%d"),
        AssetOrTimeSchedule(timetable=CronTriggerTimetable("0 0 * * *", timezone=BERLIN), assets=[TABLE]),
    ],
    ids=lambda schedule: type(schedule).__name__,
)  # fmt: skip
def test_year_of_days_has_each_day_once_over_both_changes_of_the_clock(schedule: Any) -> None:
    days = [dt.date(2026, 1, 1) + dt.timedelta(days=n) for n in range(365)]
    found = keys(slices_of(schedule), at(2026, 1, 1), at(2026, 12, 31))
    assert found == [day.isoformat() for day in days]


def test_year_of_hours_has_the_hours_that_the_clock_shows() -> None:
    schedule = CronDataIntervalTimetable("0 * * * *", timezone=BERLIN)
    slices = slices_of(schedule, source__slice_format="%Y-%m-%dT%H%z")
    found = list(slices.between(at(2026, 3, 28), at(2026, 3, 30)))
    assert len(found) == 48  # with its end, and without the hour that is left out
    assert {(b.date - a.date).total_seconds() for a, b in pairwise(found)} == {3600}
    assert [s.key for s in found][25:28] == ["2026-03-29T01+0100", "2026-03-29T03+0200", "2026-03-29T04+0200"]
    twice = keys(slices, at(2026, 10, 25), at(2026, 10, 25, 4))
    assert twice[2:4] == ["2026-10-25T02+0200", "2026-10-25T02+0100"]


@pytest.mark.parametrize("kind", [CronDataIntervalTimetable, CronTriggerTimetable])
@pytest.mark.parametrize("cron", ["0 * * * *", "*/30 1-3 * * *", "30 2 * * *", "15 2,3 * * 0", "0 0 1 * *"])
def test_dates_of_a_year_are_those_that_airflow_finds(kind: Any, cron: str) -> None:
    """Also where the clock is set forward and back."""
    slices = slices_of(kind(cron, timezone=BERLIN), source__slice_format="%Y-%m-%dT%H%M%z")
    found = [(one.date, one.due) for one in slices.between(at(2026, 1, 1), at(2026, 12, 31))]
    with DAG("own", schedule=kind(cron, timezone=BERLIN), start_date=at(2026, 1, 1)) as dag:
        pass
    restriction = TimeRestriction(at(2026, 1, 1), at(2026, 12, 31), catchup=True)
    timetable, info, expected = serialized(dag).timetable, None, []
    while info := timetable.next_dagrun_info_v2(last_dagrun_info=info, restriction=restriction):
        expected.append((info.data_interval.start, info.run_after))
    assert found == expected
    assert len(found) >= 12


def test_no_date_of_cron_is_computed_five_times(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    for name in ("_get_next", "_get_prev"):
        compute = getattr(CronMixin, name)

        def noted(self: Any, current: Any, name: str = name, compute: Any = compute) -> Any:
            computed.append(name)
            return compute(self, current)

        monkeypatch.setattr(CronMixin, name, noted)
    slices = slices_of(CronDataIntervalTimetable("0 * * * *", timezone=BERLIN))
    found = keys(slices, at(2026, 1, 1), at(2026, 1, 31))
    assert len(computed) <= 2 * len(found) + 10


def test_expression_is_parsed_once_and_not_for_each_date(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = _cron.croniter.__init__

    def noted(self: Any, expression: str, *given: Any, **named: Any) -> None:
        parsed.append(expression)
        parse(self, expression, *given, **named)

    monkeypatch.setattr(_cron.croniter, "__init__", noted)
    slices = slices_of(CronDataIntervalTimetable("0 * * * *", timezone=BERLIN))
    assert len(keys(slices, at(2026, 1, 1), at(2026, 1, 31))) > 700
    assert len(parsed) < 20


def test_dates_may_be_of_python() -> None:
    slices = slices_of(CronDataIntervalTimetable("0 * * * *", timezone=BERLIN))
    first = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    assert len(keys(slices, first, first + dt.timedelta(hours=3))) == 4


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (
            MultipleCronTriggerTimetable("0 0 * * 1", "0 0 * * 4", timezone=BERLIN),
            ["2026-03-02", "2026-03-05"],
        ),
        (DeltaDataIntervalTimetable(dt.timedelta(days=3)), ["2026-03-01", "2026-03-04", "2026-03-07"]),
        (EventsTimetable([at(2026, 3, 4), at(2027, 1, 1)]), ["2026-03-04"]),
        ("0 0 1 * *", ["2026-03-01"]),
        (None, []), (TABLE, []), ([TABLE], []), ("@once", ["2026-03-01"]),
    ],
    ids=["several", "timedelta", "events", "monthly", "none", "asset", "assets", "once"],
)  # fmt: skip
def test_schedule_says_itself_what_it_has(schedule: Any, expected: list[str]) -> None:
    assert keys(slices_of(schedule), at(2026, 3, 1), at(2026, 3, 7)) == expected


def test_timetable_that_never_ends_is_not_followed() -> None:
    assert len(keys(slices_of("@continuous"), at(2026, 3, 1), at(2026, 3, 7))) <= 1


def test_timetable_that_fails_is_not_taken_for_one_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = slices_of("0 0 * * *")
    ask: Callable[..., DagRunInfo | None] = slices._timetable.next_dagrun_info_v2

    def asked(**given: Any) -> DagRunInfo | None:
        if given["last_dagrun_info"] is not None:
            raise ZeroDivisionError("in a user's timetable")
        return ask(**given)

    monkeypatch.setattr(slices._timetable, "next_dagrun_info_v2", asked)
    with pytest.raises(ZeroDivisionError):
        keys(slices, at(2026, 3, 1), at(2026, 3, 7))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"slice_key": "{{ ds }}"}, "slice_key of its own"),
        ({"source__slice_format": "{{ var.value.f }}"}, "slice_format is a template"),
        ({"mapped": True, "slice_key": ["a", "b"]}, "mapped"),
    ],
    ids=["slice_key", "slice_format", "mapped"],
)  # fmt: skip
def test_slices_that_only_a_run_knows_are_unknown(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UnknownSlicesError, match=why):
        slices_of("0 0 * * *", **given)


def test_task_that_is_gone_is_unknown() -> None:
    with DAG("empty", schedule="0 0 * * *", start_date=at(2026, 1, 1)) as dag:
        pass
    with pytest.raises(UnknownSlicesError, match="no such task"):
        ExpectedSlices(serialized(dag), "ask")
