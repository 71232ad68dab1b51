"""What abandoned runs left goes, and only that."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.__main__ import main
from airflow_provider_raydatallm.processor.publish import garbage
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import lease as lease_module
from airflow_provider_raydatallm.processor.store.file_names import CHECKPOINT
from airflow_provider_raydatallm.processor.store.lease import LEASE, Lease, LeaseLostError
from airflow_provider_raydatallm.processor.store.versions import Commits, read_version
from tests.support.in_process import InProcess, changed, job_of, run_in_process
from tests.support.slice_files import answers, files_below, folders_of, metadata


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    names = [f"n{i}" for i in range(20)] + [f"fail {i}" for i in range(10)]
    pq.write_table(pa.table({"name": names}), tmp_path / "in.parquet")
    return job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out")


def half_finished(job: SliceJob) -> Path:
    """A run that answered its rows and may not publish them; returns the slice's metadata."""
    with pytest.raises(SliceError, match=r"quality.max_quarantine"):
        run_in_process(job)
    return metadata(job)


def age(folder: Path, days: float) -> None:
    then = time.time() - days * 86400
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def collect(job: SliceJob, days: float = 7) -> set[str]:
    """Removes leftovers; returns the metadata folders in which there were some."""
    found = garbage.find_leftovers(job.address, days, stale_seconds=0.5)
    for one in found:
        garbage.remove_leftovers(one)
    return {one.folders.metadata.root for one in found}


def all_rows(job: SliceJob) -> SliceJob:
    return changed(job, quality__max_quarantine=1)


@pytest.mark.parametrize("fault", ["commit", "link"])
def test_slice_that_cannot_be_read_keeps_what_runs_left_and_stops_no_other(
    job: SliceJob, tmp_path: Path, fault: str
) -> None:
    damaged, other = half_finished(job), half_finished(changed(job, slice_key="2026-02-01"))
    if fault == "commit":
        (damaged / "commits").mkdir(exist_ok=True)
        (damaged / "commits" / "commit-000001.json").write_text("x")
    else:
        (damaged / CHECKPOINT).rename(tmp_path / "elsewhere")
        (damaged / CHECKPOINT).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    age(damaged.parent, 8)
    before = files_below(damaged)
    main(["gc", str(tmp_path / "spec.json")])
    assert files_below(damaged) == before
    assert not (other / CHECKPOINT).exists()


def test_old_leftovers_go_and_young_ones_stay(job: SliceJob) -> None:
    old, young = half_finished(job), half_finished(changed(job, slice_key="2026-02-01"))
    trial = half_finished(changed(job, source__max_rows=25))
    age(old, 8)
    age(trial, 8)
    ages = [found.age_days for found in garbage.find_leftovers(job.address, 7)]
    assert [7.9 < days < 8.1 for days in ages] == [True, True]
    assert collect(job) == {str(old), str(trial)}
    for folder in (old, trial):
        assert files_below(folder) == {"commits/commit-000001.json"}
    assert any(p.suffix == ".arrow" for p in young.rglob("*"))
    assert collect(job) == set()


def test_number_that_a_removed_run_could_still_publish_under_is_void(job: SliceJob) -> None:
    age(half_finished(job), 8)
    collect(job)
    store = folders_of(job).metadata
    assert (Commits.list(store).highest, read_version(store, 1)) == (1, None)
    cluster = InProcess()
    report = run_in_process(all_rows(job), cluster)
    assert (report.outcome, report.published_version, cluster.answered) == ("published", 2, 30)
    assert answers(job) == [f"n{i}" for i in range(20)]


def test_run_that_was_taken_for_dead_and_wakes_up_loses_time_and_no_row(job: SliceJob) -> None:
    """It publishes neither a part of the rows nor under a number that was decided meanwhile."""

    def remove(batch: pa.Table) -> None:
        if cluster.answered == 20:  # its beat comes too late
            for found in garbage.find_leftovers(job.address, -1, stale_seconds=0):
                garbage.remove_leftovers(found)

    cluster = InProcess(before_batch=remove)
    with pytest.raises(LeaseLostError):
        run_in_process(all_rows(job), cluster)
    report = run_in_process(all_rows(job))
    assert (report.outcome, report.counts.planned, report.published_version) == ("published", 30, 2)
    assert answers(job) == [f"n{i}" for i in range(20)]


def test_leftovers_beside_a_published_slice_go_and_the_slice_stays(job: SliceJob) -> None:
    run_in_process(all_rows(job))
    before = files_below(Path(job.output_path).parent)
    half_finished(changed(job, prompt="{name} again", rerun__on_config_change="recompute"))
    (metadata(job) / "staged" / "000002-0123abcd").mkdir(parents=True)
    (metadata(job) / "staged" / "000002-0123abcd" / "part-000002-00000-of-00001-0123abcd").write_bytes(b"x")
    age(metadata(job), 8)
    assert collect(job) == {str(metadata(job))}
    assert files_below(Path(job.output_path).parent) - before == {
        "out.ray_llm/ds=2026-01-31/commits/commit-000002.json"
    }
    assert before <= files_below(Path(job.output_path).parent)
    assert run_in_process(all_rows(job)).outcome == "unchanged"
    assert collect(job, -1) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["lease/epoch-000007", "staged/000001-0123abcd/part-000001-00000-of-00001-0123abcd"]
)
def test_lease_or_staged_file_alone_is_found(job: SliceJob, name: str) -> None:
    """Of a run that died before its first row was finished, or while it staged its files."""
    path = metadata(job) / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{}")
    age(metadata(job), 8)
    assert collect(job) == {str(metadata(job))}
    assert files_below(metadata(job)) == {"commits/commit-000001.json"}


def test_finished_slice_leaves_nothing_to_remove(job: SliceJob) -> None:
    run_in_process(all_rows(job))
    assert collect(job, -1) == set()


def test_key_inside_the_path_is_any_key(job: SliceJob, tmp_path: Path) -> None:
    named = changed(job, output_path=f"{tmp_path}/tables/{{slice}}/day={{slice}}")
    folder = half_finished(named)
    age(folder, 8)
    assert collect(changed(named, slice_key="another")) == {str(folder)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["any-slice-key", "any-trial-name", "*", "[a-z]"])
def test_tables_beside_it_are_left_alone(job: SliceJob, tmp_path: Path, name: str) -> None:
    own = changed(job, output_path=f"{tmp_path}/{name}/out")
    other = changed(job, output_path=f"{tmp_path}/o/out")
    half_finished(other)
    half_finished(changed(other, source__max_rows=25))
    before = files_below(tmp_path / "o")
    assert collect(own, -1) == set()
    expected = {str(half_finished(own)), str(half_finished(changed(own, source__max_rows=25)))}
    assert collect(own, -1) == expected
    assert files_below(tmp_path / "o") == before


@pytest.mark.parametrize(
    ("own", "other"),
    [("own-{slice}", "own-b-{slice}"), ("{slice}/x", "{slice}.b/x"), ("a{slice}", "a{slice}.trial")],
)
def test_slices_whose_names_begin_alike_are_left_alone(
    job: SliceJob, tmp_path: Path, own: str, other: str
) -> None:
    finished = changed(job, output_path=f"{tmp_path}/tables/{other}", slice_key="published")
    run_in_process(all_rows(finished))
    (metadata(finished) / "staged" / "000009-0123abcd").mkdir(parents=True)
    (metadata(finished) / "staged" / "000009-0123abcd" / "part-0.parquet").touch()
    half_finished(changed(finished, slice_key="2026-02-28"))
    before = files_below(tmp_path / "tables")
    mine = changed(job, output_path=f"{tmp_path}/tables/{own}")
    assert collect(mine, -1) == set()
    assert files_below(tmp_path / "tables") == before
    folder = half_finished(mine)
    assert collect(mine, -1) == {str(folder)}


def test_metadata_in_another_folder_is_found(job: SliceJob, tmp_path: Path) -> None:
    elsewhere = changed(job, publish__metadata_path=f"{tmp_path}/meta")
    folder = half_finished(elsewhere)
    assert folder == tmp_path / "meta" / "ds=2026-01-31"
    age(folder, 8)
    assert collect(elsewhere) == {str(folder)}
    assert not (folder / CHECKPOINT).exists()


@contextmanager
def held(job: SliceJob) -> Iterator[Lease]:
    store = Store(job.paths.metadata)
    lease = Lease.acquire(
        store, me="x", slice_key="k", known_epoch=lambda: 0, wait=True, stop_waiting=lambda other: False
    )
    assert lease is not None
    try:
        while not store.read(f"{LEASE}/beat-{lease.epoch:06}"):
            time.sleep(0.01)
        yield lease
    finally:
        lease.close()


@pytest.mark.slow
@pytest.mark.parametrize("days", [0, 7])
def test_slice_on_which_a_run_is_at_work_is_left_alone(
    job: SliceJob, days: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "BEAT_SECONDS", 0.05)
    folder = half_finished(job)
    age(folder, 8)
    before = files_below(folder / CHECKPOINT)
    with held(job):
        assert garbage.find_leftovers(job.address, days, stale_seconds=5) == []
        assert files_below(folder / CHECKPOINT) == before


def test_program_says_what_it_would_remove(
    job: SliceJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = half_finished(job)
    age(folder, 8)
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    assert main(["gc", str(tmp_path / "spec.json"), "--dry-run"]) == 0
    said = f"what runs left in {folder}, 8.0 days old\n"
    assert capsys.readouterr().out == f"would remove {said}"
    assert (folder / CHECKPOINT).exists()
    assert main(["gc", str(tmp_path / "spec.json")]) == 0
    assert capsys.readouterr().out == f"removed {said}"
    assert not (folder / CHECKPOINT).exists()
