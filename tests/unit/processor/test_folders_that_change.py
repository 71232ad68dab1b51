"""Folders that are elsewhere, move, are shared or half emptied: no row is paid twice, and nothing wrong is
shown."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish import garbage
from tests.support.in_process import InProcess, changed, job_of, run_in_process
from tests.support.s3_dialect import Dialect
from tests.support.self_naming_rows import Killed, assert_own_answers, kill_after, published, write_rows


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    write_rows(tmp_path / "in" / "a.parquet", [*(f"row {i}" for i in range(20)), "fail"])
    return job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", rerun__on_config_change="recompute"
    )


@pytest.mark.slow
def test_quarantine_on_other_storage_is_refused_before_a_row_is_paid(job: SliceJob, dialect: Dialect) -> None:
    cluster = InProcess()
    with pytest.raises(SliceError, match="is on other storage than"):
        run_in_process(changed(job, publish__quarantine_path="s3://lake/quarantine"), cluster)
    assert cluster.answered == 0


def test_quarantine_that_is_to_be_elsewhere_moves_with_the_next_version(
    job: SliceJob, tmp_path: Path
) -> None:
    run_in_process(job)
    moved, cluster = changed(job, publish__quarantine_path=f"{tmp_path}/failed"), InProcess()
    assert (run_in_process(moved, cluster).outcome, cluster.answered) == ("unchanged", 0)
    run_in_process(changed(moved, prompt="{name} again"))
    failed = [p.parent.parent.name for p in tmp_path.rglob("quarantine-*.parquet")]
    assert failed == ["failed"]
    assert len(published(job)) == 20


def test_metadata_of_another_table_is_refused_and_nothing_removed(job: SliceJob, tmp_path: Path) -> None:
    one = changed(job, publish__metadata_path=f"{tmp_path}/metadata")
    run_in_process(one)
    other, cluster = changed(one, output_path=f"{tmp_path}/other"), InProcess()
    with pytest.raises(
        SliceError, match=r"holds the metadata of .*/out/ds=2026-01-31.*publish.metadata_path of its own"
    ):
        run_in_process(other, cluster)
    assert cluster.answered == 0
    assert run_in_process(one).outcome == "unchanged"


@pytest.mark.parametrize("versions", [1, 2])
def test_table_that_begins_anew_beside_its_old_quarantine_shows_its_own_rows_only(
    job: SliceJob, tmp_path: Path, versions: int
) -> None:
    for number in range(versions):
        run_in_process(changed(job, prompt="{name} " * number + "{name}"))
    shutil.rmtree(tmp_path / "out")
    shutil.rmtree(tmp_path / "out.ray_llm")
    run_in_process(job)
    assert len(list(tmp_path.glob("out.quarantine/*/*.parquet"))) == 1
    assert_own_answers(job)


def test_table_whose_commits_are_lost_keeps_its_versions_when_it_begins_anew(
    job: SliceJob, tmp_path: Path
) -> None:
    again = changed(job, prompt="{name} again")
    for one in (job, again):
        run_in_process(one)
    for commit in tmp_path.glob("out.ray_llm/*/commits/commit-*"):
        commit.unlink()
    with pytest.raises(SliceError, match="has no commit of it"):
        run_in_process(again)
    shutil.rmtree(tmp_path / "out")
    numbers = [run_in_process(one).published_version for one in (job, again)]
    assert numbers == [3, 4]
    assert len(list((tmp_path / "out.ray_llm" / "ds=2026-01-31" / "kept" / "000003").iterdir())) == 2


def test_rows_of_a_damaged_version_that_is_built_again_are_kept_while_others_see_it_whole(
    job: SliceJob,
) -> None:
    run_in_process(job)
    [file] = Path(job.slice_path).glob("part-*")
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(bytes([content[0], content[1], content[2], content[3], content[4] ^ 1]) + content[5:])
    checked = changed(job, rerun__verify="content")
    with pytest.raises(Killed):
        run_in_process(checked, kill_after(12))
    assert run_in_process(job).outcome == "unchanged"
    rest = InProcess()
    run_in_process(checked, rest)
    assert rest.answered <= 21 - 12 + 4
    assert_own_answers(job)


@pytest.mark.parametrize("column", ["DS", "NAME"])
def test_column_whose_name_readers_take_for_another_is_refused(job: SliceJob, column: str) -> None:
    cluster = InProcess()
    with pytest.raises(SliceError, match=f"the answer column '{column}' is also"):
        run_in_process(changed(job, output_column=column), cluster)
    assert cluster.answered == 0


def test_gc_takes_the_characters_of_a_path_as_they_are(job: SliceJob, tmp_path: Path) -> None:
    for name in ("out[12]", "out1"):
        with pytest.raises(Killed):
            run_in_process(changed(job, output_path=f"{tmp_path}/{name}"), kill_after(8))
    found = garbage.find_leftovers(
        changed(job, output_path=f"{tmp_path}/out[12]").address, 0, stale_seconds=0.1
    )
    assert [Path(f.folders.table.root).parent.name for f in found] == ["out[12]"]


def test_file_of_an_older_version_stays_in_sight_where_the_newer_one_is_lost(
    job: SliceJob, tmp_path: Path
) -> None:
    """Both commits are there, and what was staged for the newer one is not: until it is built again, readers
    see the older one."""
    run_in_process(job)
    before = pq.read_table(job.slice_path, partitioning=None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_raydatallm.processor.publish.commit.reconcile", lambda folders: None)
        run_in_process(changed(job, prompt="{name} again"))
    for staged in tmp_path.glob("out.ray_llm/*/staged/000002-*/part-*"):
        staged.unlink()

    def die(*args: object) -> None:
        raise Killed

    cluster = InProcess()
    cluster.run_inference = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        run_in_process(changed(job, prompt="{name} again"), cluster)
    assert pq.read_table(job.slice_path, partitioning=None).equals(before)
