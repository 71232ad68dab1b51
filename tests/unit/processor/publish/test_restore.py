"""A kept version is published again as a new one, and the command line shows what can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.__main__ import main
from airflow_provider_raydatallm.processor.publish import commit, restore
from airflow_provider_raydatallm.processor.sinks.folder import FolderSink
from airflow_provider_raydatallm.processor.sinks.reading import kept_versions
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import Version
from airflow_provider_raydatallm.reader import published_dataset
from tests.support.in_process import InProcess, answer_fixed, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import answers, files_below, folders_of, metadata, newest, parts, shown


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": ["a", "b", *"cdefghij", "fail"]}), tmp_path / "in.parquet")
    return job_of(
        input_path=f"{tmp_path}/in.parquet",
        output_path=f"{tmp_path}/out",
        rerun__on_config_change="recompute",
    )


@pytest.fixture
def spec(job: SliceJob, tmp_path: Path) -> str:
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    return str(tmp_path / "spec.json")


def asked(job: SliceJob, text: str, **given: Any) -> SliceJob:
    return changed(job, prompt=f"{{name}} {text}", **given)


def test_restored_version_is_a_new_one_with_the_old_rows_quarantine_and_question(job: SliceJob) -> None:
    first = run(job)
    rows, failed = answers(job), pq.read_table(job.paths.quarantine, partitioning=None)
    old = newest(job)
    run(asked(job, "new"))
    version = restore.restore_version(job.address, 1)
    assert (version.number, version.body["base"], version.fingerprint) == (3, 2, old.fingerprint)
    assert answers(job) == rows
    assert pq.read_table(job.paths.quarantine, partitioning=None).equals(failed)
    assert [(f.rows, f.bytes, f.sha256) for f in version.all_files] == [
        (f.rows, f.bytes, f.sha256) for f in old.all_files
    ]
    assert shown(job) == {"_SUCCESS", parts(job)[0].name}
    cluster = InProcess()
    report = run(job, cluster)
    assert cluster.answered == 0
    assert report == first.model_copy(update={"outcome": "unchanged", "published_version": 3})
    assert [v.number for v in kept_versions(folders_of(job))] == [3, 2]
    assert published_dataset(job.slice_path, version=2).count_rows() == 10


def test_restored_version_can_be_retried_and_extended(job: SliceJob) -> None:
    run(job)
    run(asked(job, "new"))
    restore.restore_version(job.address, 1)
    cluster = InProcess(answer=answer_fixed)
    assert run(changed(job, rerun__retry_quarantined=True), cluster).counts.succeeded == 11
    assert cluster.answered == 1
    assert answers(job)[-1] == "fine"


def test_version_that_is_not_kept_is_refused_with_those_that_are(job: SliceJob) -> None:
    with pytest.raises(SliceError, match=r"version 1 of .* is not kept \(kept: none\)"):
        restore.restore_version(job.address, 1)
    for text in ("one", "two", "three"):
        run(asked(job, text))
    before = files_below(Path(job.output_path).parent)
    for number in (1, 4):
        with pytest.raises(SliceError, match=rf"version {number} of .* is not kept \(kept: 3, 2\)") as e:
            restore.restore_version(job.address, number)
        assert e.value.kind == "input"
    assert files_below(Path(job.output_path).parent) == before


@pytest.mark.parametrize("damage", ["gone", "cut", "altered"])
def test_kept_version_that_is_damaged_is_never_restored(job: SliceJob, damage: str) -> None:
    run(job)
    run(asked(job, "new"))
    [path] = (metadata(job) / "kept" / "000001").glob("part-*")
    content = bytearray(path.read_bytes())
    content[20] ^= 0x40
    path.unlink()
    if damage != "gone":
        path.write_bytes(content if damage == "altered" else content[:-1])
    says = rf"{path.name}.* of version 1 .*is not what was published"
    with pytest.raises(SliceError, match="version 1 of .* is not kept" if damage == "gone" else says) as e:
        restore.restore_version(job.address, 1)
    assert e.value.kind == "input"
    assert answers(job)[0] == "a new"
    assert run(asked(job, "new")).outcome == "unchanged"


def test_damaged_commit_of_a_kept_version_stops_neither_readers_nor_restores_of_others(job: SliceJob) -> None:
    for text in ("one", "two", "three"):
        run(asked(job, text, publish__keep_versions=2))
    commit = metadata(job) / versions.commit_name(1)
    commit.write_text(commit.read_text()[:-9])
    assert [v.number for v in kept_versions(folders_of(job))] == [3, 2]
    assert published_dataset(job.slice_path, version=2).count_rows() == 10
    with pytest.raises(SliceError, match=r"version 1 of .* is not kept \(kept: 3, 2\)"):
        restore.restore_version(job.address, 1)
    assert restore.restore_version(job.address, 2).number == 4
    assert answers(job)[0] == "a two"


def test_run_that_publishes_at_the_same_time_wins_and_the_restore_says_so(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job)
    run(asked(job, "new"))
    locate = FolderSink.locate

    def late(*args: Any, **how: Any) -> Any:
        places = locate(*args, **how)
        assert versions.void(folders_of(job).metadata, 3, "another was faster")
        return places

    with monkeypatch.context() as patch:
        patch.setattr(FolderSink, "locate", late)
        with pytest.raises(SliceError, match=r"another run publishes .* Try again") as e:
            restore.restore_version(job.address, 1)
    assert e.value.kind == "transient"
    assert answers(job)[0] == "a new"
    assert restore.restore_version(job.address, 1).number == 4
    assert answers(job)[0] == "a"
    assert len(files_below(metadata(job) / "staged")) == 1  # the marker


def test_version_that_appears_while_another_is_restored_is_not_overtaken(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job)
    run(asked(job, "new"))
    kept = restore.kept_versions

    def late(folders: SliceFolders) -> list[Version]:
        before = kept(folders)
        run(asked(job, "newer"))
        return before

    monkeypatch.setattr(restore, "kept_versions", late)
    with pytest.raises(SliceError, match=r"version 3 of .* was published meanwhile") as e:
        restore.restore_version(job.address, 1)
    assert e.value.kind == "transient"
    assert (newest(job).number, answers(job)[0]) == (3, "a newer")


def test_restore_that_dies_before_its_commit_changes_nothing(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job)
    run(asked(job, "new"))

    def die(*args: Any, **kwargs: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(restore, "put_commit", die)
        with pytest.raises(OSError, match="killed"):
            restore.restore_version(job.address, 1)
    assert run(asked(job, "new")).outcome == "unchanged"
    assert run(asked(job, "newer")).published_version == 3
    assert len(files_below(metadata(job) / "staged")) == 1


def test_run_at_work_while_a_version_is_restored_answers_nothing_twice(job: SliceJob) -> None:
    run(job)
    run(asked(job, "new"))

    def restore_once(batch: pa.Table) -> None:
        if cluster.answered == 10:
            restore.restore_version(job.address, 1)

    cluster = InProcess(before_batch=restore_once)
    report = run(asked(job, "newer"), cluster)
    assert (report.outcome, report.published_version, cluster.answered) == ("published", 4, 11)
    assert answers(job)[0] == "a newer"


def test_program_lists_versions_and_restores_one(
    job: SliceJob, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["versions", spec]) == 1
    assert "error: nothing is published or staged in" in capsys.readouterr().err
    assert main(["files", spec]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"error: no slice is published in {job.slice_path}\n"
    run(job)
    run(asked(job, "new"))
    assert main(["versions", spec]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["2", "1"]
    assert "10 rows, 1 quarantined  m/m  fingerprint " in lines[0]
    assert main(["restore", spec, "1"]) == 0
    assert capsys.readouterr().out == "version 1 is published again, as version 3\n"
    assert answers(job)[0] == "a"
    assert main(["restore", spec, "7"]) == 1
    assert "version 7 of" in capsys.readouterr().err
    assert main(["versions", spec]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["3", "2"]


def test_number_is_taken_only_once(job: SliceJob) -> None:
    run(job)
    version = newest(job)
    with pytest.raises(versions.NumberTakenError, match="number 1 of"):
        commit.put_commit(folders_of(job), 1, None, "000001-0123abcd", version.body, keep=1)
