"""`progress.json`: up to date during a run, kept after a failed one, gone when the slice is published."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import KEPT, Failure, Kind
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.metrics import progress as progress_module
from airflow_provider_raydatallm.processor.metrics.progress import ProgressReporter, diagnose_run
from airflow_provider_raydatallm.processor.publish import garbage
from airflow_provider_raydatallm.processor.root_error import root_error
from airflow_provider_raydatallm.processor.slice_run import run_slice
from airflow_provider_raydatallm.processor.storage.store import Store
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
    return Path(job.paths.metadata) / "progress.json"


def run(job: SliceJob, before_batch: Callable[[pa.Table], None] = lambda batch: None) -> None:
    run_slice(job, lambda progress: None, InProcess(before_batch=before_batch))


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 300
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Gets an item before each attempt to write the file."""
    writes: list[None] = []
    write = ProgressReporter._write

    @functools.wraps(write)
    def counted(self: ProgressReporter) -> None:
        writes.append(None)
        write(self)

    monkeypatch.setattr(ProgressReporter, "_write", counted)
    return writes


def fail_at_third_batch() -> Callable[[pa.Table], None]:
    batches = itertools.count(1)

    def before_batch(batch: pa.Table) -> None:
        if next(batches) == 3:
            raise SliceError("the third batch failed", kind="input")

    return before_batch


def test_progress_is_up_to_date_during_a_run_and_gone_after_publishing(job: SliceJob) -> None:
    seen: list[dict[str, Any]] = []

    def read(rows: int) -> dict[str, Any] | None:
        progress = json.loads(file_of(job).read_text()) if file_of(job).exists() else {}
        return progress if progress.get("rows") == rows else None

    run(job, lambda batch: seen.append(wait_for(lambda: read(10 * len(seen)))))
    assert [p["step"] for p in seen] == ["start", "answer", "answer"]
    assert {p["planned"] for p in seen} == {30}
    assert [p["input_tokens"] for p in seen] == [None, 70, 140]
    assert seen[-1]["recent_rows_per_s"] > 0
    assert seen[-1]["slice_key"] == job.slice_key
    assert not file_of(job).exists()


def test_slice_with_too_many_failed_rows_has_their_number_beside_the_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["fail"] * 20 + ["a"] * 10}), tmp_path / "rows.parquet")
    job = job_of(
        input_path=f"{tmp_path}/rows.parquet", output_path=f"{tmp_path}/other", quality__max_quarantine=0.1
    )
    with pytest.raises(SliceError, match="20 of 30 rows failed") as raised:
        run_slice(job, lambda progress: None, InProcess())
    counts = raised.value.failure.counts
    assert (counts["planned"], counts["finished"], counts["failed"]) == (30, 30, 20)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "We couldn't connect to 'https://huggingface.co' to load the files",
            "the model m/m: OSError: We couldn't connect to 'https://huggingface.co' to load the files",
        ),
        ("m/m is not a valid git identifier", "OSError: m/m is not a valid git identifier"),
        ("the disk is full", "OSError: the disk is full"),
    ],
)  # fmt: skip
def test_failure_of_the_hub_names_the_model(job: SliceJob, words: str, sentence: str) -> None:
    def fail(batch: pa.Table) -> None:
        raise OSError(words)

    with pytest.raises(OSError, match=words[:9]) as raised:
        run(job, fail)
    assert getattr(raised.value, "failure", None).sentence == sentence


def test_failed_run_keeps_its_progress_until_the_next_one_publishes(
    job: SliceJob, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SliceError, match="third batch failed") as raised:
        run(job, fail_at_third_batch())
    progress = json.loads(file_of(job).read_text())
    assert Failure.parse(progress["failure"]) == raised.value.failure
    counts = raised.value.failure.counts
    assert (counts["planned"], counts["finished"], counts["failed"]) == (30, 20, 0)
    assert (progress["step"], progress["rows"], progress["planned"]) == ("failed", 20, 30)
    spec = tmp_path / "spec.json"
    spec.write_text(job.model_dump_json())
    assert main(["show", str(spec)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"the run failed at {progress['when']}: the third batch failed"
    assert "Rows: 30 planned = 20 answered + 10 left" in lines

    run(job)
    assert not file_of(job).exists()
    assert pq.read_table(job.slice_path, partitioning=None).num_rows == 30


def test_log_of_a_dead_process_is_read_and_told_once(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def log_of(*, pid: int) -> str:
        read.append(pid)
        return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"

    def die(batch: pa.Table) -> None:
        raise SliceError("the engine died 3 times", kind="engine", log={"pid": 7})

    monkeypatch.setattr(progress_module, "process_log", log_of)
    with pytest.raises(SliceError) as raised:
        run(job, die)
    failure = root_error(raised.value, log_of)
    assert read == [7]
    assert failure.sentence.count("OutOfMemoryError") == 1
    assert len(failure.advice) == len(set(failure.advice)) == 1
    assert failure.kind == "gpu_memory"


def test_gc_removes_the_progress_of_an_abandoned_checkpoint(job: SliceJob) -> None:
    with pytest.raises(SliceError):
        run(job, fail_at_third_batch())
    for found in garbage.find_leftovers(job.address, 0):
        garbage.remove_leftovers(found)
    assert not file_of(job).exists()


def test_unwritable_progress_fails_no_run(
    job: SliceJob, caplog: pytest.LogCaptureFixture, written: list[None]
) -> None:
    file_of(job).mkdir(parents=True)
    run(job, lambda batch: wait_for(lambda: len(written) > 2))
    assert pq.read_table(job.slice_path, partitioning=None).num_rows == 30
    assert caplog.text.count("could not report progress") == 1


def lease_of(store: Store) -> Lease:
    lease = Lease.acquire(
        store, me="me", slice_key="k", known_epoch=lambda: 0, wait=True, stop_waiting=lambda other: False,
        stale_seconds=0,
    )  # fmt: skip
    assert lease is not None
    return lease


def test_run_without_its_lease_writes_no_progress(job: SliceJob, written: list[None]) -> None:
    store = Store(job.paths.metadata)
    lost = lease_of(store)
    other = lease_of(store)
    with (
        contextlib.suppress(LeaseLostError),
        ProgressReporter(job, store, lost, lambda progress: None) as reporter,
    ):
        reporter.report({"step": "answer"})
        wait_for(lambda: len(written) > 2)
        lost.check()
    assert not file_of(job).exists()
    other.close()


def test_write_after_a_lost_lease_is_rolled_back(job: SliceJob) -> None:
    class SlowStore(Store):
        """Its first write comes after another run took the slice over and released it."""

        overtaken = False

        def put_json(self, name: str, value: Any) -> None:
            if not self.overtaken:
                lease_of(Store(self.url)).close()
            self.overtaken = True
            super().put_json(name, value)

    store = SlowStore(job.paths.metadata)
    with ProgressReporter(job, store, lease_of(store), lambda progress: None):
        wait_for(lambda: store.overtaken)
        wait_for(lambda: not file_of(job).exists())
    assert not file_of(job).exists()


@pytest.mark.parametrize(("finished", "kind", "advice"), [
    (0, "engine", ()), (3, "engine", (KEPT,)), (3, "input", ()),
])  # fmt: skip
def test_finished_rows_are_said_to_be_kept_where_there_are_any(
    finished: int, kind: Kind, advice: tuple[str, ...]
) -> None:
    error = SliceError("it died", kind=kind)
    for _ in range(2):  # who reports it asks again
        failure = diagnose_run(error, job_of(input_path="/in", output_path="/out"), {"finished": finished})
        assert failure.advice == advice
