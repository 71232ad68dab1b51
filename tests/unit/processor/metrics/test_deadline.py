from __future__ import annotations

import time as clock
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.log.progress_text import progress_text
from airflow_provider_raydatallm.processor import build_run
from airflow_provider_raydatallm.processor.inference.ray_cluster import InferenceRun, OnUpdate
from airflow_provider_raydatallm.processor.metrics.deadline import lateness, workers_wanted
from airflow_provider_raydatallm.processor.metrics.meter import WriterUpdate
from airflow_provider_raydatallm.processor.sizing.facts import PastThroughput
from airflow_provider_raydatallm.processor.slice_run import run_slice
from airflow_provider_raydatallm.task.arguments import finish_time, parse_finish_by
from tests.support.in_process import InProcess, changed, job_of

BEGAN = datetime(2026, 3, 28, 4, 30, tzinfo=UTC)  # 05:30 in Berlin, the night before its clocks go forward
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (timedelta(hours=2), datetime(2026, 3, 28, 6, 30, tzinfo=UTC)),
        (90, datetime(2026, 3, 28, 4, 31, 30, tzinfo=UTC)),
        ("07:00", datetime(2026, 3, 28, 6, 0, tzinfo=UTC)),  # today, by the schedule's clock
        (time(5), datetime(2026, 3, 29, 3, 0, tzinfo=UTC)),  # tomorrow, in summer time
        (time(5, tzinfo=UTC), datetime(2026, 3, 28, 5, 0, tzinfo=UTC)),
    ],
)
def test_finish_by_is_a_duration_or_the_next_time_of_day(value: Any, expected: datetime) -> None:
    by = parse_finish_by(value)
    assert by is not None
    assert finish_time(by, BEGAN, lambda: BERLIN) == expected


def test_time_in_the_repeated_hour_of_autumn_is_in_the_future() -> None:
    began = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)  # 02:30 in Berlin, for the second time
    assert finish_time(time(2, 45), began, lambda: BERLIN) > began


@pytest.mark.parametrize("wrong", ["tomorrow", "25:00", 0, timedelta(0), [1]])
def test_invalid_finish_by_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"limits.finish_by"):
        parse_finish_by(wrong)


def test_lateness_is_predicted_with_the_workers_needed() -> None:
    # Two workers, 720,000 rows left at 100 a second, which takes two hours.
    progress: dict[str, Any] = {
        "rows": 280_000, "planned": 1_000_000, "eta_s": 7200.0, "workers": 2,
        "worker_rows_per_s": None, "longest_row_s": 0.0, "engine_start_s": None, "step": "answer",
    }  # fmt: skip
    # Of the rate 85% last, so that five would do it.
    assert lateness(3600, 0, progress) == {"late_s": 3600, "workers_needed": 5}
    assert lateness(8000, 0, progress) == {"late_s": -800, "workers_needed": 3}
    assert lateness(9000, 0, progress) == {"late_s": -1800, "workers_needed": 2}
    unknown = {"late_s": None, "workers_needed": None}
    assert lateness(3600, 0, {**progress, "eta_s": None}) == unknown
    assert lateness(3600, 4000, progress) == {"late_s": 7600, "workers_needed": None}
    assert lateness(3600, 4000, {**progress, "eta_s": None}) == {"late_s": 400, "workers_needed": None}
    slow_start = {**progress, "engine_start_s": 1800.0}  # further workers answer for half of the time
    assert lateness(3600, 0, slow_start) == {"late_s": 3600, "workers_needed": 8}
    assert lateness(1800, 0, slow_start) == {"late_s": 5400, "workers_needed": None}
    assert lateness(100, 0, {**progress, "rows": 1_000_000, "eta_s": 0.0})["workers_needed"] == 2
    # One of them has just come: the run's rate is that of the other.
    assert lateness(3600, 0, {**progress, "worker_rows_per_s": 100.0})["workers_needed"] == 3
    for longest_s, needed in ((1200.0, 8), (3000.0, 10)):  # of the time left no more than half
        assert lateness(3600, 0, {**progress, "longest_row_s": longest_s})["workers_needed"] == needed


@pytest.mark.parametrize(("hours", "late_s", "workers"), [(3, -1800, 4), (2, 1800, 6), (0.4, 7560, None)])
def test_slice_that_cannot_be_in_time_says_so_at_its_start(
    hours: float, late_s: int, workers: int | None
) -> None:
    # A worker answers 50 rows a second, after half an hour; there may be four.
    progress = {
        "rows": 0, "planned": 1_440_000, "eta_s": None, "workers": None, "engine_start_s": None,
        "step": "start",
    }  # fmt: skip
    late = lateness(hours * 3600, 0, progress, PastThroughput("2026-01-30", 50.0, 1800.0), 4)
    assert late == {"late_s": late_s, "workers_needed": workers}


@pytest.mark.parametrize(
    ("late_s", "needed", "wanted"), [(None, None, 1), (-60, 2, 2), (60, 5, 5), (60, None, None)]
)
def test_as_many_workers_are_wanted_as_finish_in_time_or_all(
    late_s: int | None, needed: int | None, wanted: int | None
) -> None:
    assert workers_wanted({"late_s": late_s, "workers_needed": needed}) == wanted


def test_late_run_says_so_and_still_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_run, "PROGRESS_SECONDS", 0.0)
    pq.write_table(pa.table({"name": ["a"] * 30}), tmp_path / "in.parquet")
    job = job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out")
    reports: list[dict[str, Any]] = []
    report = run_slice(job, reports.append, InProcess(), finish_by=clock.time() - 90)
    assert report.outcome == "published"
    assert [a.code for a in report.advice or ()] == ["finished_late"]
    late = [progress for progress in reports if progress.get("late_s")]
    assert late
    assert late[0]["late_s"] >= 90
    assert "s later than finish_by" in progress_text(late[0])
    assert "later" not in progress_text({**late[0], "late_s": -5})


def test_run_tells_from_earlier_slices_that_it_will_be_late_before_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_run, "_START_SECONDS", 0.0)
    known = {"2026-01-31": PastThroughput("2026-01-30", 0.1, 60.0)}
    monkeypatch.setattr(build_run, "newest_throughput", lambda job: known.get(job.slice_key))
    wanted: list[int | None] = []

    class Starting(InProcess):
        def _answer_run(self, run: InferenceRun, on_update: OnUpdate) -> None:
            wanted.append(on_update(WriterUpdate()))
            super()._answer_run(run, on_update)

    pq.write_table(pa.table({"name": ["a"] * 30}), tmp_path / "in.parquet")
    job = job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out")
    reports: list[dict[str, Any]] = []
    run_slice(job, reports.append, Starting(), finish_by=clock.time() + 120)
    told = next(progress for progress in reports if progress.get("late_s") is not None)
    assert (told["step"], told["workers_needed"]) == ("start", 6)
    assert 235 <= told["late_s"] <= 245  # a minute to start, and 300 s for 30 rows
    unknown = changed(job, slice_key="2026-02-02")
    run_slice(unknown, reports.append, Starting(), finish_by=clock.time() + 3600)
    assert wanted == [6, 1]
