"""`_progress.json`: true while a run is at work, there after one that failed, gone when the slice is
published."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.__main__ import main
from airflow_provider_raydatallm.processor.metrics import progress as progress_module
from airflow_provider_raydatallm.processor.metrics.progress import ProgressReporter
from airflow_provider_raydatallm.processor.slice_run import run_slice
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store import garbage
from airflow_provider_raydatallm.processor.store.lease import Lease, LeaseLostError
from tests.support.in_process import InProcess, job_of


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_EXPORT_SECONDS", 0.02)


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(30)]}), tmp_path / "in.parquet")
    return job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out")


def file_of(job: SliceJob) -> Path:
    return Path(job.slice_path) / "_progress.json"


def run(job: SliceJob, before_batch: Callable[[pa.Table], None] = lambda batch: None) -> None:
    run_slice(job, lambda progress: None, InProcess(before_batch=before_batch))


def wait_for(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 300
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Has an item for each time that somebody was about to write the file."""
    found: list[None] = []
    write = ProgressReporter._write

    @functools.wraps(write)
    def noted(self: ProgressReporter) -> None:
        found.append(None)
        write(self)

    monkeypatch.setattr(ProgressReporter, "_write", noted)
    return found


def break_at_third_batch(job: SliceJob) -> Callable[[pa.Table], None]:
    batches = 0

    def strike(batch: pa.Table) -> None:
        nonlocal batches
        batches += 1
        if batches == 3:
            raise SliceError("the third batch is one too many", kind="input")

    return strike


def test_progress_is_true_while_a_run_is_at_work_and_gone_when_it_has_published(job: SliceJob) -> None:
    seen: list[dict[str, Any]] = []

    def look(batch: pa.Table) -> None:
        rows = 10 * len(seen)
        seen.append(
            wait_for(
                lambda: (
                    file_of(job).exists()
                    and (p := json.loads(file_of(job).read_text())).get("rows") == rows
                    and p
                )
            )
        )

    run(job, look)
    assert [p["step"] for p in seen] == ["start", "answer", "answer"]
    assert {p["planned"] for p in seen} == {30}
    assert [p["input_tokens"] for p in seen] == [None, 70, 140]
    assert seen[-1]["recent_rows_per_s"] > 0
    assert seen[-1]["slice_key"] == job.slice_key
    assert "_progress.json" not in {p.name for p in Path(job.slice_path).iterdir()}


def test_failed_run_leaves_how_far_it_came_until_the_next_one_publishes(
    job: SliceJob, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SliceError, match="one too many"):
        run(job, break_at_third_batch(job))
    said = json.loads(file_of(job).read_text())
    assert (said["step"], said["rows"], said["planned"]) == ("failed", 20, 30)
    spec = tmp_path / "spec.json"
    spec.write_text(job.model_dump_json())
    assert main(["status", str(spec)]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) is None
    assert f"{said['when']}: failed (the third batch is one too many): 20 of 30 rows (67%)" in shown.err

    run(job)
    assert not file_of(job).exists()
    assert pq.read_table(job.slice_path, partitioning=None).num_rows == 30


def test_progress_goes_with_an_abandoned_checkpoint(job: SliceJob) -> None:
    with pytest.raises(SliceError):
        run(job, break_at_third_batch(job))
    for store, _ in garbage.abandoned_checkpoints(job, 0):
        garbage.collect(store)
    assert not file_of(job).exists()


def test_progress_that_cannot_be_written_fails_nothing(
    job: SliceJob, capsys: pytest.CaptureFixture[str], written: list[None]
) -> None:
    file_of(job).mkdir(parents=True)
    run(job, lambda batch: wait_for(lambda: len(written) > 2))
    assert pq.read_table(job.slice_path, partitioning=None).num_rows == 30
    assert capsys.readouterr().err.count("warning: progress cannot be told") == 1


def lease_of(store: Store) -> Lease:
    taken = Lease.acquire(
        store, me="me", floor=lambda: 0, wait=True, waiting=lambda other: False, stale_seconds=0
    )
    assert taken is not None
    return taken


def test_holder_that_lost_its_lease_writes_no_progress(job: SliceJob, written: list[None]) -> None:
    store = Store(job.slice_path)
    lost = lease_of(store)
    other = lease_of(store)
    with (
        contextlib.suppress(LeaseLostError),
        ProgressReporter(job, store, lost, lambda said: None) as reporter,
    ):
        reporter.report({"step": "answer"})
        wait_for(lambda: len(written) > 2)
        lost.check()
    assert not file_of(job).exists()
    other.close()


def test_holder_that_slept_before_it_wrote_takes_that_back(job: SliceJob) -> None:
    class Slept(Store):
        """Its next write comes when another run has taken the slice over and released it."""

        slept = False

        def put_json(self, name: str, value: Any) -> None:
            if not self.slept:
                lease_of(Store(self.url)).close()
            self.slept = True
            super().put_json(name, value)

    store = Slept(job.slice_path)
    with ProgressReporter(job, store, lease_of(store), lambda said: None):
        wait_for(lambda: store.slept)
        wait_for(lambda: not file_of(job).exists())
    assert not file_of(job).exists()
