"""Gates of slices: what they stop, and what that costs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.slice_run import stage_slice
from airflow_provider_raydatallm.processor.store.staged_versions import StagedVersion
from tests.support.in_process import InProcess, answer_with, changed, job_of, run_in_process

CUT = answer_with(finish_reason="length")


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"name": ["a", "b", "c"]}), tmp_path / "in" / "a.parquet")
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")


def with_gates(job: SliceJob, *gates: dict[str, Any]) -> SliceJob:
    return changed(job, quality__gates=gates)


def files(job: SliceJob) -> list[Path]:
    return [*Path(job.slice_path).glob("*")]


def test_slice_that_does_not_pass_publishes_nothing_and_another_limit_pays_for_no_row(job: SliceJob) -> None:
    cluster = InProcess(answer=CUT)
    with pytest.raises(SliceError, match=r"did not pass: truncated is 1, above max 0\.5") as raised:
        run_in_process(with_gates(job, {"of": "truncated", "max": 0.5}), cluster)
    assert raised.value.kind == "input"
    assert cluster.answered == 3
    assert files(job) == []
    report = run_in_process(with_gates(job, {"of": "truncated", "max": 1}), cluster)
    assert cluster.answered == 3
    assert report.outcome == "published"
    assert files(job)


def test_report_tells_what_each_gate_said(job: SliceJob, caplog: pytest.LogCaptureFixture) -> None:
    gates = [
        {"of": "truncated", "max": 0.5, "then": "warn"},
        {"of": "quarantined", "max": 0},
        {"of": "cached", "max": 0.9},
    ]
    with caplog.at_level(logging.WARNING):
        report = run_in_process(with_gates(job, *gates), InProcess(answer=CUT))
    assert report.gates is not None
    assert [(one.of, one.verdict, one.value) for one in report.gates] == [
        ("truncated", "warned", 1.0), ("quarantined", "passed", 0.0), ("cached", "unknown", None),
    ]  # fmt: skip
    assert "truncated is 1, above max 0.5" in caplog.text
    assert "cached is not known" in caplog.text


def test_slice_is_compared_with_those_before_it_and_no_later_ones(job: SliceJob) -> None:
    def publish(key: str, rows: int, **given: Any) -> Any:
        pq.write_table(pa.table({"name": [str(n) for n in range(rows)]}), f"{job.input_path}/a.parquet")
        return run_in_process(changed(job, slice_key=key, **given))

    for day, rows in [("01", 10), ("02", 12), ("03", 11), ("09", 1000)]:
        publish(f"2026-01-{day}", rows)
    gates = {"quality__gates": [{"of": "rows", "against": 7, "min": 0.5, "max": 2}]}
    with pytest.raises(SliceError, match=r"rows against 3 slice\(s\) is 0\.3636, below min 0\.5"):
        publish("2026-01-04", 4, **gates)
    report = publish("2026-01-05", 12, **gates)
    assert [(one.slices, one.verdict) for one in report.gates] == [(3, "passed")]


def test_version_that_was_staged_before_is_judged_by_the_gates_of_now(job: SliceJob) -> None:
    cluster = InProcess(answer=CUT)
    staged = stage_slice(job, lambda progress: None, cluster)
    assert isinstance(staged, StagedVersion)
    strict = with_gates(job, {"of": "truncated", "max": 0.5})
    for _ in range(2):
        with pytest.raises(SliceError, match="did not pass"):
            run_in_process(strict, cluster)
        assert files(job) == []
    assert run_in_process(job, cluster).outcome == "published"
    assert cluster.answered == 3


def test_gate_changes_no_published_slice(job: SliceJob) -> None:
    report = run_in_process(job)
    asks = with_gates(job, {"of": "rows", "min": 100})
    assert fingerprint(asks) == fingerprint(job)
    assert run_in_process(asks).outcome == "unchanged"
    assert report.gates is None
