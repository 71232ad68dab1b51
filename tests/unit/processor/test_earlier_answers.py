"""The plan of a run tells what it keeps of earlier ones, what it asks again, and why it keeps no others."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.run_plan import as_json, as_table, plan_run
from airflow_provider_raydatallm.processor.slice_run import stage_slice
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.self_naming_rows import Killed, kill_after


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    write(tmp_path / "in" / "a.parquet", [*(f"n{i}" for i in range(15)), *["fail"] * 5])
    return job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", quality__max_quarantine=0.1,
        sampling_params={"max_tokens": 16}, rerun__on_config_change="recompute",
        rerun__on_input_change="recompute",
    )  # fmt: skip


def write(path: Path, names: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"name": names}), path)


def fail(job: SliceJob) -> None:
    with pytest.raises(SliceError, match="5 of 20 rows failed"):
        run(job)


def planned(job: SliceJob) -> list[str]:
    """The lines between the rows and the rest of the plan."""
    lines = [" ".join(line.split()) for line in as_table(plan_run(job, None)).splitlines()]
    return [line for line in lines if line.startswith(("to answer", "kept", "asked", "not kept", "staged"))]


def test_first_run_keeps_nothing_and_says_nothing_of_it(job: SliceJob) -> None:
    assert planned(job) == ["to answer 20"]


def test_rows_in_quarantine_stay_there_and_the_run_would_fail_again(job: SliceJob) -> None:
    fail(job)
    kept = "kept 15 answered rows, 5 in quarantine, which rerun.retry_quarantined asks again"
    assert planned(job) == ["to answer 0", kept]
    plan = plan_run(job, None)
    assert [finding.code for finding in plan.findings] == ["too_many_failed"]
    assert as_json(plan)["earlier"] == {
        "answered": 15, "quarantined": 5, "asked_again": 0, "not_kept": (),
    }  # fmt: skip


def test_rows_that_failed_are_asked_again_where_the_job_says_so(job: SliceJob) -> None:
    fail(job)
    again = changed(job, rerun__retry_quarantined=True)
    assert planned(again) == ["to answer 5", "kept 15 answered rows", "asked again 5 rows that failed"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sampling_params": {"max_tokens": 64}}, "sampling_params.max_tokens was 16 and is 64"),
        ({"model_source": "other/model"}, "model_source was m/m and is other/model"),
        ({"prompt": "{name} " + "x" * 99}, "prompt changed"),
    ],
    ids=["max_tokens", "model", "prompt"],
)  # fmt: skip
def test_answers_to_another_question_are_not_kept_and_it_says_why(
    job: SliceJob, change: dict[str, Any], why: str
) -> None:
    fail(job)
    asked = changed(job, **change)
    assert planned(asked) == ["to answer 20", f"not kept 15 answered rows: {why}"]
    run(changed(job, quality__max_quarantine=1))  # published
    assert planned(asked) == ["to answer 20", f"not kept 15 answered rows: version 1, {why}"]


def test_rows_of_a_changed_file_are_not_kept(job: SliceJob, tmp_path: Path) -> None:
    with contextlib.suppress(Killed):
        run(job, kill_after(8))
    write(tmp_path / "in" / "a.parquet", [f"m{i}" for i in range(30)])
    [answer, not_kept] = planned(job)
    assert answer == "to answer 30"
    assert not_kept.startswith("not kept 8 answered rows: their files changed or are gone")


def test_rows_of_the_published_version_are_taken_over(job: SliceJob, tmp_path: Path) -> None:
    job = changed(job, quality__max_quarantine=1)
    run(job)
    again = changed(job, rerun__retry_quarantined=True)
    assert planned(again) == ["to answer 5", "kept 15 answered rows", "asked again 5 rows that failed"]
    write(tmp_path / "in" / "b.parquet", ["more"])
    kept = "kept 15 answered rows, 5 in quarantine, which rerun.retry_quarantined asks again"
    assert planned(changed(job, rerun__on_input_change="extend")) == ["to answer 1", kept]
    cluster = InProcess()
    run(changed(job, rerun__on_input_change="extend"), cluster)
    assert cluster.answered == 1


def test_forced_run_says_that_it_asks_all_again(job: SliceJob) -> None:
    job = changed(job, quality__max_quarantine=1)
    run(job)
    why = "version 1, rerun.force asks again"
    assert planned(changed(job, rerun__force=True)) == ["to answer 20", f"not kept 15 answered rows: {why}"]


def test_version_that_waits_is_published_by_the_run(job: SliceJob) -> None:
    staged = stage_slice(changed(job, quality__max_quarantine=1), lambda progress: None, InProcess())
    assert f"staged {getattr(staged, 'name', None)}, which the run publishes" in planned(job)
