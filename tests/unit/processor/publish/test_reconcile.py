"""What the table shows is the newest version, whole: it is healed where it is not, and built again where
files are lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish.published import current_report, finished_report
from airflow_provider_raydatallm.processor.publish.reconcile import reconcile
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.reader import published_dataset
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import (
    answers,
    files_below,
    folders_of,
    metadata,
    newest,
    parts,
    shown,
    staged_marker,
)


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    for f in range(2):
        pq.write_table(
            pa.table({"name": [f"{f}-{i}" for i in range(9)] + ["fail"]}), tmp_path / "in" / f"{f}.parquet"
        )
    return job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", rerun__on_config_change="recompute",
        publish__file_per_input=True,
    )  # fmt: skip


ALL = [f"{f}-{i}" for f in range(2) for i in range(9)]


def asked(job: SliceJob, text: str, **given: int) -> SliceJob:
    """Another question; it still lets one row of each file fail."""
    return changed(job, prompt=f"{{name}} {text}", **given)


def test_table_quarantine_and_marker_show_what_the_commit_names(job: SliceJob) -> None:
    run(job)
    version = newest(job)
    assert shown(job) == {"_SUCCESS", *(f.name for f in version.files)}
    assert files_below(Path(job.paths.quarantine)) == {f.name for f in version.quarantine}
    assert len(version.files) == len(version.quarantine) == 2
    assert (Path(job.slice_path) / "_SUCCESS").stat().st_size == 0


@pytest.mark.parametrize("gone", ["_SUCCESS", "marker", "complete", "report", "all of them"])
def test_what_derives_from_a_commit_is_healed_by_the_next_run_without_an_engine(
    job: SliceJob, gone: str
) -> None:
    report = run(job)
    paths = {
        "_SUCCESS": Path(job.slice_path, "_SUCCESS"), "marker": metadata(job) / "staged" / staged_marker(job),
        "complete": metadata(job) / versions.complete_name(newest(job).staged),
        "report": metadata(job) / "reports" / "report-000001.json",
    }  # fmt: skip
    before = files_below(Path(job.output_path).parent)
    for name, path in paths.items():
        if gone in (name, "all of them"):
            path.unlink()
    if gone in ("_SUCCESS", "all of them"):
        assert current_report(job) is finished_report(job) is None
    cluster = InProcess()
    assert run(job, cluster) == report.model_copy(update={"outcome": "unchanged"})
    assert (cluster.answered, answers(job)) == (0, ALL)
    assert "_SUCCESS" in shown(job)
    if gone in ("_SUCCESS", "complete"):
        assert files_below(Path(job.output_path).parent) == before


def test_healed_slice_can_still_be_replaced(job: SliceJob) -> None:
    run(job)
    (metadata(job) / "staged" / staged_marker(job)).unlink()
    Path(job.slice_path, "_SUCCESS").unlink()
    run(job)
    run(asked(job, "new"))
    assert answers(job) == [f"{name} new" for name in ALL]
    assert files_below(metadata(job) / "staged") == {staged_marker(job)}


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["table", "quarantine"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_file_that_is_gone_or_has_another_size_has_its_slice_built_again(
    job: SliceJob, folder: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    run(job)
    version = newest(job)
    file = version.files[1] if folder == "table" else version.quarantine[1]
    path = Path(getattr(job.paths, folder), file.name)
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    assert current_report(job) is None
    cluster = InProcess()
    assert run(job, cluster).published_version == 2
    says = "is gone" if damage == "gone" else f"has {file.bytes - 1:,} bytes and was committed with"
    assert f"{file.name} of version 1 in {job.slice_path} {says}" in caplog.text
    assert (cluster.answered, answers(job)) == (20, ALL)
    assert [f.name for f in newest(job).files] == [p.name for p in parts(job)]
    assert run(job).outcome == "unchanged"


def test_altered_content_is_noticed_by_who_asks_for_it(job: SliceJob) -> None:
    run(job)
    content = bytearray(parts(job)[0].read_bytes())
    content[20] ^= 0x40
    parts(job)[0].write_bytes(bytes(content))
    assert run(job).outcome == "unchanged"  # a listing does not tell
    careful = changed(job, rerun__verify="content")
    assert finished_report(careful) is None
    assert run(careful).published_version == 2
    assert answers(job) == ALL
    cluster = InProcess()
    assert (run(careful, cluster).outcome, cluster.answered) == ("unchanged", 0)


def test_files_of_others_before_the_first_version_are_refused(job: SliceJob) -> None:
    folder = Path(job.slice_path)
    folder.mkdir(parents=True)
    (folder / ".hidden").touch()
    (folder / "_note").touch()
    (folder / "theirs.parquet").write_bytes(b"x")
    cluster = InProcess()
    with pytest.raises(SliceError, match=r"holds 'theirs\.parquet' \(1 file\(s\)\), which this provider"):
        run(job, cluster)
    assert cluster.answered == 0
    (folder / "theirs.parquet").unlink()
    assert run(job).outcome == "published"
    assert {".hidden", "_note"} <= shown(job)


@pytest.mark.slow
def test_files_of_others_that_come_later_are_left_alone(job: SliceJob) -> None:
    run(job)
    theirs = {
        Path(job.slice_path, name)
        for name in ("theirs.parquet", "part-00000.parquet", "part-000001.parquet", "notes.txt")
    }
    theirs |= {metadata(job) / name for name in ("notes.txt", "commits/mine", "plans/mine", "staged/mine/x")}
    theirs |= {Path(job.paths.quarantine, "theirs.parquet"), metadata(job) / "kept" / "mine"}
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"theirs")
    assert run(job).outcome == "unchanged"
    for text in ("new", "newer", "newest"):
        run(asked(job, text))
    assert {path.read_bytes() for path in theirs} == {b"theirs"}
    assert current_report(asked(job, "newest")) is not None
    assert published_dataset(job.slice_path).count_rows() == 18


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 1, 2])
def test_window_of_kept_versions_is_as_long_as_asked(job: SliceJob, keep: int) -> None:
    for text in ("one", "two", "three", "four"):
        run(asked(job, text, publish__keep_versions=keep))
    for number, text in enumerate(("one", "two", "three", "four"), start=1):
        if number < 4 - keep:
            with pytest.raises(
                FileNotFoundError, match=f"version {number} of .* is not kept; the newest is 4"
            ):
                published_dataset(job.slice_path, version=number)
        else:
            rows = published_dataset(job.slice_path, version=number).to_table()
            assert rows.column("answer").to_pylist() == [f"{name} {text}" for name in ALL]
    kept = {p.name for p in (metadata(job) / "kept").glob("*")}
    assert kept == {f"{n:06}" for n in range(4 - keep, 4)}
    assert answers(job) == [f"{name} four" for name in ALL]
    plans = {p.name.split("-")[1] for p in (metadata(job) / "plans").iterdir()}
    assert plans == kept | {"000004"}


@pytest.mark.slow
def test_window_shrinks_and_grows_with_the_newest_version(job: SliceJob) -> None:
    for text, keep, kept in (("a", 2, 0), ("b", 2, 1), ("c", 2, 2), ("d", 0, 0), ("e", 2, 1)):
        run(asked(job, text, publish__keep_versions=keep))
        assert len(list((metadata(job) / "kept").glob("*"))) == kept


def test_metadata_and_quarantine_in_folders_of_their_own_work_alike(job: SliceJob, tmp_path: Path) -> None:
    elsewhere = changed(
        job, publish__metadata_path=f"{tmp_path}/m/meta", publish__quarantine_path=f"{tmp_path}/q/bad"
    )
    report = run(elsewhere)
    assert (tmp_path / "m/meta/ds=2026-01-31/reports/report-000001.json").exists()
    assert len(list((tmp_path / "q/bad/ds=2026-01-31").glob("quarantine-*.parquet"))) == 2
    assert not Path(job.paths.quarantine).exists()
    assert {p.name for p in metadata(job).iterdir()} == {"staged"}
    assert run(elsewhere) == report.model_copy(update={"outcome": "unchanged"})
    run(asked(elsewhere, "new"))
    for number, answer in ((1, "0-0"), (2, "0-0 new")):
        rows = published_dataset(
            job.slice_path, version=number, metadata_path=f"{tmp_path}/m/meta"
        ).to_table()
        assert rows.column("answer")[0].as_py() == answer
    with pytest.raises(FileNotFoundError, match="no slice is published"):
        published_dataset(job.slice_path)


@pytest.mark.parametrize("path", ["{slice}/answers", "tables/{slice}/day={slice}"])
def test_key_in_the_middle_of_the_path_makes_a_table_for_each_slice(job: SliceJob, path: str) -> None:
    root = Path(job.output_path).parent
    for key in ("2026-01-31", "2026-02-01"):
        other = changed(job, output_path=f"{root}/{path}", slice_key=key)
        run(other)
        assert answers(other) == ALL
        assert run(other).outcome == "unchanged"
        assert Path(other.paths.metadata).parent.name == f"{Path(other.slice_path).parent.name}.ray_llm"


def test_anybody_may_reconcile_at_any_time(job: SliceJob) -> None:
    assert reconcile(folders_of(job)) is None
    run(job)
    before = files_below(Path(job.output_path).parent)
    version = reconcile(folders_of(job))
    assert version is not None
    assert version.number == 1
    assert files_below(Path(job.output_path).parent) == before
