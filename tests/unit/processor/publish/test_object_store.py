"""The same promises on an object store, which has neither links nor folders, and may copy late."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.publish import reconcile
from airflow_provider_raydatallm.processor.publish.restore import restore_version
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store import garbage
from airflow_provider_raydatallm.reader import published_dataset
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import folders_of, newest

NAMES = [f"n{i}" for i in range(19)]


@pytest.fixture
def job(tmp_path: Path, s3_store: Store) -> SliceJob:
    pq.write_table(pa.table({"name": [*NAMES, "fail"]}), tmp_path / "in.parquet")
    return job_of(
        input_path=f"{tmp_path}/in.parquet", output_path=f"{s3_store.url}/out", on_config_change="recompute"
    )


@pytest.fixture(autouse=True)
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Gets the waits for late copies, which take no time here."""
    waits: list[float] = []
    monkeypatch.setattr(reconcile, "time", SimpleNamespace(sleep=waits.append))
    return waits


def asked(job: SliceJob, text: str) -> SliceJob:
    return changed(job, prompt=f"{{name}} {text}")


def answers(job: SliceJob) -> list[str]:
    """What a reader of the folder gets."""
    folder = Store(job.slice_path)
    table = pq.read_table(folder.root, filesystem=folder.fs, partitioning=None)
    return list(table.column("answer").to_pylist())


def names(job: SliceJob) -> list[str]:
    return folders_of(job).table.names()


def test_slice_lives_on_an_object_store_as_on_a_disk(job: SliceJob, sleeps: list[float]) -> None:
    run(job)
    assert names(job) == ["_SUCCESS", newest(job).files[0].name]
    assert folders_of(job).quarantine.names() == [newest(job).quarantine[0].name]
    assert answers(job) == NAMES
    folders_of(job).table.remove("_SUCCESS")
    cluster = InProcess()
    assert (run(job, cluster).outcome, cluster.answered) == ("unchanged", 0)
    assert "_SUCCESS" in names(job)
    assert sleeps == []

    run(asked(job, "new"))
    assert answers(job) == [f"{name} new" for name in NAMES]
    assert sleeps == [reconcile.COPY_TIMEOUT_SECONDS]
    assert restore_version(job, 1).number == 3
    assert answers(job) == NAMES
    old = published_dataset(job.slice_path, version=2).to_table()
    assert old.column("answer").to_pylist() == [f"{name} new" for name in NAMES]
    assert run(job).outcome == "unchanged"
    assert sleeps == [reconcile.COPY_TIMEOUT_SECONDS] * 2
    staging = folders_of(job).staging
    assert staging.tree("staged") == [newest(job).marker.removeprefix("staged/")]
    assert staging.names("kept") == ["000002"]


def test_leftovers_on_an_object_store_are_found_and_removed(job: SliceJob) -> None:
    run(job)
    with pytest.raises(SliceError, match="max_quarantine_fraction"):
        run(changed(asked(job, "new"), prompt="{name}!", max_quarantine_fraction=0))
    before = answers(job)
    [found] = garbage.find_leftovers(job, -1, stale_seconds=0)
    garbage.remove_leftovers(found.folders)
    assert garbage.find_leftovers(job, -1, stale_seconds=0) == []
    assert folders_of(job).metadata.names("checkpoint") == []
    assert (answers(job), run(job).outcome) == (before, "unchanged")
    assert run(asked(job, "new")).published_version == 3
