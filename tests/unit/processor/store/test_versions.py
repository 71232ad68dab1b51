"""Which version is the slice's content: the highest commit that is not void."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish.published import current_report
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.versions import Commits
from airflow_provider_raydatallm.reader import published_dataset, published_files
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import answers, folders_of, newest, shown


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    return job_of(
        input_path=f"{tmp_path}/in.parquet",
        output_path=f"{tmp_path}/out",
        rerun__on_config_change="recompute",
    )


def asked(job: SliceJob, text: str) -> SliceJob:
    return changed(job, prompt=f"{text} {{name}}")


def rewrite(job: SliceJob, number: int, **change: Any) -> None:
    store = folders_of(job).metadata
    body = store.read_document(versions.commit_name(number))
    store.remove(versions.commit_name(number))
    store.create_document(versions.commit_name(number), {**body, **change})


def test_void_number_is_used_up_and_changes_nothing_that_is_published(job: SliceJob) -> None:
    run(job)
    store = folders_of(job).metadata
    assert versions.void(store, 2, "a test") is True
    assert versions.void(store, 2, "a test") is False
    assert versions.void(store, 1, "a test") is False
    assert (Commits.list(store).highest, newest(job).number) == (2, 1)
    cluster = InProcess()
    assert run(job, cluster).outcome == "unchanged"
    assert (cluster.answered, current_report(job) is not None) == (0, True)
    assert published_dataset(job.slice_path).count_rows() == 2
    assert run(asked(job, "new")).published_version == 3
    assert answers(job) == ["new a", "new b"]


def test_number_has_one_owner(job: SliceJob) -> None:
    store = folders_of(job).metadata
    bodies: list[dict[str, Any]] = [{"void": True, "reason": str(i)} for i in range(2)]
    assert [versions.create_commit(store, 1, body) for body in bodies] == [True, False]
    assert store.read_document(versions.commit_name(1))["reason"] == "0"


def test_slice_that_a_newer_provider_published_is_refused_and_named(job: SliceJob) -> None:
    run(job)
    rewrite(job, 1, format=versions.FORMAT + 1, provider_version="99.0")
    before = shown(job)
    for read in (lambda: run(job), lambda: published_files(job.slice_path)):
        with pytest.raises(SliceError, match=r"commit-000001\.json was written by version 99\.0 .*Upgrade"):
            read()
    assert shown(job) == before


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b'{"sha256": "0", "body": {}}'])
def test_damaged_commit_publishes_nothing_and_hides_nothing(job: SliceJob, damage: bytes) -> None:
    run(job)
    path = Path(job.paths.metadata) / versions.commit_name(1)
    path.write_bytes(damage)
    before = shown(job)
    with pytest.raises(SliceError, match=r"commit-000001\.json is damaged.*rerun.force=True"):
        run(job)
    assert shown(job) == before


def test_damaged_commit_of_an_older_version_stops_nobody(job: SliceJob) -> None:
    run(job)
    run(asked(job, "new"))
    (Path(job.paths.metadata) / versions.commit_name(1)).write_bytes(b"")
    assert run(asked(job, "new")).outcome == "unchanged"
    assert run(asked(job, "newer")).published_version == 3
    assert answers(job) == ["newer a", "newer b"]


def test_lost_commits_of_a_slice_are_noticed_before_a_row_is_paid(job: SliceJob) -> None:
    """Whoever deletes the metadata leaves files that nobody can vouch for."""
    run(job)
    for path in sorted(Path(job.paths.metadata).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    cluster = InProcess()
    with pytest.raises(SliceError, match="has no commit of it"):
        run(job, cluster)
    assert cluster.answered == 0
