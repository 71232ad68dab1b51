"""The same promises on an object store, which has neither links nor folders, and may copy late."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish import garbage
from airflow_provider_raydatallm.processor.publish.restore import restore_version
from airflow_provider_raydatallm.processor.sinks import folder
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import lease
from airflow_provider_raydatallm.reader import published_dataset
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.paths import ROOT
from tests.support.s3_dialect import Dialect
from tests.support.slice_files import folders_of, newest, staged_marker

NAMES = [f"n{i}" for i in range(19)]


@pytest.fixture
def job(tmp_path: Path, s3_store: Store) -> SliceJob:
    pq.write_table(pa.table({"name": [*NAMES, "fail"]}), tmp_path / "in.parquet")
    return job_of(
        input_path=f"{tmp_path}/in.parquet",
        output_path=f"{s3_store.url}/out",
        rerun__on_config_change="recompute",
    )


@pytest.fixture(autouse=True)
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Gets the waits for late copies, which take no time here."""
    waits: list[float] = []
    monkeypatch.setattr(folder, "time", SimpleNamespace(sleep=waits.append))
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


@pytest.mark.slow
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
    assert sleeps == [folder.COPY_TIMEOUT_SECONDS]
    assert restore_version(job.address, 1).number == 3
    assert answers(job) == NAMES
    old = published_dataset(job.slice_path, version=2).to_table()
    assert old.column("answer").to_pylist() == [f"{name} new" for name in NAMES]
    assert run(job).outcome == "unchanged"
    assert sleeps == [folder.COPY_TIMEOUT_SECONDS] * 2
    staging = folders_of(job).staging
    assert staging.tree("staged") == [staged_marker(job)]
    assert staging.names("kept") == ["000002"]


@pytest.mark.slow
@pytest.mark.parametrize("is_longer", [False, True])
def test_copy_that_outlives_its_sender_is_seen_only_if_it_takes_longer_than_the_wait(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch, is_longer: bool
) -> None:
    run(job)
    table, name = folders_of(job).table, newest(job).files[0].name
    content = table.read(name)
    assert content is not None
    copies = [partial(table.put, name, content)]  # which the store still has to carry out
    if not is_longer:
        monkeypatch.setattr(folder, "time", SimpleNamespace(sleep=lambda seconds: copies.pop()()))
    run(asked(job, "new"))
    for copy in copies:
        copy()
    assert (name in names(job)) == is_longer
    new = [f"{name} new" for name in NAMES]
    assert published_dataset(job.slice_path).to_table().column("answer").to_pylist() == new
    assert run(asked(job, "new")).outcome == "unchanged"
    assert answers(job) == new


@pytest.mark.slow
@pytest.mark.parametrize(("bad_rows", "batch"), [(0, 100), (1, 4)])
def test_slice_costs_a_store_as_many_requests_as_the_docs_say(
    job: SliceJob,
    dialect: Dialect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bad_rows: int,
    batch: int,
) -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    [(base, per_file, per_fragment)] = re.findall(
        r"all of a slice\*\* \| \*\*(\d+) \+ (\d+) \*P\* \+ (\d+) \*F\*", page
    )
    [no_op] = re.findall(r"finished slice \(no-op\) \| (\d+),", page)
    monkeypatch.setattr(lease, "BEAT_SECONDS", 600.0)
    run(changed(job, slice_key="another"))  # a table's first run tries the store, too
    pq.write_table(pa.table({"name": [*NAMES, *["fail"] * bad_rows]}), tmp_path / "in.parquet")
    dialect.requests.clear()
    run(job, InProcess(batch=batch))
    requests = len(dialect.requests)
    files, fragments = len(newest(job).all_files), newest(job).body["fragments"]["count"]
    allowed = int(base) + int(per_file) * files + int(per_fragment) * fragments
    assert allowed - 5 < requests <= allowed
    dialect.requests.clear()
    run(job)
    assert len(dialect.requests) == int(no_op)


@pytest.mark.slow
def test_leftovers_on_an_object_store_are_found_and_removed(job: SliceJob) -> None:
    run(job)
    with pytest.raises(SliceError, match=r"quality.max_quarantine"):
        run(changed(asked(job, "new"), prompt="{name}!", quality__max_quarantine=0))
    before = answers(job)
    [found] = garbage.find_leftovers(job.address, -1, stale_seconds=0)
    garbage.remove_leftovers(found)
    assert garbage.find_leftovers(job.address, -1, stale_seconds=0) == []
    assert folders_of(job).metadata.names("checkpoint") == []
    assert (answers(job), run(job).outcome) == (before, "unchanged")
    assert run(asked(job, "new")).published_version == 3


def test_own_checks_read_what_is_staged_in_the_object_store(job: SliceJob) -> None:
    counts = {"of": "sql:SELECT count(*) FROM answers", "max": len(NAMES)}
    held = run(changed(job, quality__gates=[{**counts, "max": 0, "then": "hold"}]))
    assert (held.outcome, (held.gates or ())[0].value) == ("held", len(NAMES))
    report = run(changed(job, quality__gates=[counts]))
    assert (report.outcome, (report.gates or ())[0].value) == ("published", len(NAMES))
