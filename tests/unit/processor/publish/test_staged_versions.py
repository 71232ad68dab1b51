"""A staged version waits with nobody alive, and is published once or not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError, StorageError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.__main__ import main
from airflow_provider_raydatallm.processor.publish import commit as publish_commit
from airflow_provider_raydatallm.processor.publish import garbage, staged_commands, version_numbers
from airflow_provider_raydatallm.processor.publish.commit import (
    OtherColumnsError,
    PublishedByOthersError,
    SupersededError,
    UnusableError,
    commit,
    discard,
)
from airflow_provider_raydatallm.processor.publish.staged_commands import (
    commit_for_people,
    discard_for_people,
    get_staged,
)
from airflow_provider_raydatallm.processor.slice_run import stage_slice
from airflow_provider_raydatallm.processor.storage import disk, documents
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.column_agreement import ColumnAgreement, table_metadata
from airflow_provider_raydatallm.processor.store.file_names import LAST_NUMBER, PROGRESS
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import (
    StagedVersion,
    StagedVersionError,
    document_name,
    staged_names,
)
from tests.support.in_process import InProcess, answer_fixed, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.paths import ROOT
from tests.support.self_naming_rows import Killed, kill_after
from tests.support.slice_files import (
    answers,
    checkpoint_folders,
    files_below,
    folders_of,
    metadata,
    newest,
    staged_marker,
)

ROWS = 30


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    names = [f"n{i}" for i in range(ROWS)]
    pq.write_table(pa.table({"name": names}), tmp_path / "in.parquet")
    return job_of(
        input_path=f"{tmp_path}/in.parquet",
        output_path=f"{tmp_path}/out",
        rerun__on_config_change="recompute",
    )


def asked(job: SliceJob, text: str) -> SliceJob:
    return changed(job, prompt=f"{{name}} {text}")


def stage(job: SliceJob, cluster: InProcess | None = None, **more: Any) -> StagedVersion:
    staged = stage_slice(job, lambda progress: None, cluster or InProcess(), **more)
    assert isinstance(staged, StagedVersion)
    return staged


def void(job: SliceJob) -> None:
    folders = folders_of(job)
    number = versions.Commits.list(folders.metadata).next_number
    assert versions.void(folders.metadata, number, "a test")


def all_files(job: SliceJob, besides: str = "\0") -> dict[str, bytes]:
    root = Path(job.slice_path).parent.parent
    return {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file() and besides not in str(p)}


def test_staged_version_is_published_as_it_was_staged(job: SliceJob) -> None:
    cluster = InProcess()
    staged = stage(job, cluster)
    assert not Path(job.slice_path).exists()
    assert cluster.answered == ROWS
    version = commit_for_people(job.address, None)
    assert answers(job) == [f"n{i}" for i in range(ROWS)]
    known_at_commit = ("published_at", "provider_version", "staged_version", "format")
    body = {k: v for k, v in newest(job).body.items() if k not in known_at_commit}
    assert body == json.loads(json.dumps(staged.body["commit"]))
    assert (version.number, newest(job).number) == (1, 1)
    assert checkpoint_folders(job) == []
    assert staged_names(folders_of(job).metadata) == []
    assert not (metadata(job) / "lease").exists()
    assert run(job, cluster).outcome == "unchanged"
    assert cluster.answered == ROWS


def test_later_run_publishes_what_is_staged_and_answers_nothing(job: SliceJob) -> None:
    staged = stage(job)
    cluster = InProcess()
    report = run(job, cluster)
    assert (report.outcome, report.counts.succeeded, cluster.answered) == ("published", ROWS, 0)
    assert newest(job).body["staged_version"] == staged.name
    assert staged_names(folders_of(job).metadata) == []
    assert checkpoint_folders(job) == []


def test_commit_that_comes_between_the_steps_of_a_discard_wins(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(job)
    folders = folders_of(job)
    look = version_numbers._highest_shown

    def late(of: SliceFolders) -> tuple[int, str]:
        monkeypatch.setattr(version_numbers, "_highest_shown", look)
        with monkeypatch.context() as patch:  # killed before the table shows it
            patch.setattr(publish_commit, "reconcile", lambda folders: None)
            commit(folders, job.slice_key, staged)
        return look(of)

    monkeypatch.setattr(version_numbers, "_highest_shown", late)
    with pytest.raises(StagedVersionError, match="was published, as version 1"):
        discard(folders, staged)
    assert run(job).outcome == "unchanged"
    assert answers(job) == [f"n{i}" for i in range(ROWS)]


def test_command_that_was_killed_after_its_commit_leaves_nothing_that_the_next_one_does_not_remove(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(job)
    stage(job)  # whose lease is later than the version's
    with monkeypatch.context() as patch:
        patch.setattr(staged_commands, "remove_what_runs_kept", lambda *_: None)
        commit_for_people(job.address, staged.name)
    assert (metadata(job) / "lease").exists()
    with pytest.raises(StagedVersionError, match="published already, as version 1"):
        commit_for_people(job.address, staged.name)
    assert not (metadata(job) / "lease").exists()


def test_file_that_was_replaced_by_another_of_its_size_is_not_published(job: SliceJob) -> None:
    staged = stage(job)
    [file] = staged.version.files
    path = metadata(job) / staged.version.staged_name(file)
    path.write_bytes(b"X" * path.stat().st_size)
    with pytest.raises(UnusableError, match="has other content than was staged"):
        commit_for_people(job.address, staged.name)
    assert not Path(job.slice_path).exists()
    cluster = InProcess()
    assert run(job, cluster).outcome == "published"
    assert (answers(job), cluster.answered) == ([f"n{i}" for i in range(ROWS)], 0)


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf"), 40_000])
def test_time_to_keep_is_one_that_a_document_can_have(job: SliceJob, days: float) -> None:
    cluster = InProcess()
    with pytest.raises(SliceError, match="cannot be kept"):
        stage(job, cluster, keep_days=days)
    assert cluster.answered == 0


@pytest.mark.parametrize("kind", ["link", "folder", "garbage"])
def test_what_is_no_plan_or_staged_file_any_more_is_not_published(
    job: SliceJob, tmp_path: Path, kind: str
) -> None:
    staged = stage(job)
    for name in (staged.version.plan, staged.version.staged_name(staged.version.files[0])):
        path = metadata(job) / name
        content = path.read_bytes()
        path.unlink()
        match kind:
            case "link":
                (tmp_path / "elsewhere").write_bytes(content)
                path.symlink_to(tmp_path / "elsewhere")
            case "folder":
                path.mkdir()
            case _:
                path.write_bytes(b"x" * len(content))
        with pytest.raises(UnusableError):
            commit_for_people(job.address, staged.name)
        assert not Path(job.slice_path).exists()
        path.rmdir() if kind == "folder" else path.unlink()
        path.write_bytes(content)
    assert commit_for_people(job.address, staged.name).number == 1


def add_input(job: SliceJob, *names: str) -> None:
    pq.write_table(pa.table({"name": list(names)}), job.resolved_input_path)


def test_commit_leaves_the_rows_of_a_run_over_another_input(job: SliceJob) -> None:
    staged = stage(job)
    add_input(job, *(f"m{i}" for i in range(8)))
    killed = changed(job, rerun__on_input_change="recompute")
    with pytest.raises(Killed):
        run(killed, kill_after(1))
    assert (metadata(job) / "progress.json").exists()
    commit_for_people(job.address, staged.name)
    with pytest.raises(StagedVersionError, match="published already"):
        commit_for_people(job.address, staged.name)
    assert (metadata(job) / "progress.json").exists()
    cluster = InProcess()
    run(killed, cluster)
    assert cluster.answered == 4
    assert answers(job) == [f"m{i}" for i in range(8)]


def test_rows_of_a_version_that_waits_stay_whatever_else_is_published(job: SliceJob) -> None:
    first = stage(job)
    add_input(job, *(f"m{i}" for i in range(8)))
    other = changed(job, rerun__on_input_change="recompute")
    second = stage(other)
    commit_for_people(job.address, first.name)
    discard_for_people(job.address, second.name)
    cluster = InProcess()
    run(other, cluster)
    assert cluster.answered == 0


@pytest.mark.parametrize("fault", ["foreign files", "lost commit", "damaged commit"])
def test_commit_refuses_where_a_run_does(job: SliceJob, fault: str) -> None:
    if fault != "foreign files":
        run(asked(job, "first"))
        run(asked(job, "second"))
    staged = stage(job)
    commit_file = metadata(job) / versions.commit_name(2)
    match fault:
        case "foreign files":
            Path(job.slice_path).mkdir(parents=True)
            pq.write_table(pa.table({"name": ["theirs"]}), Path(job.slice_path, "theirs.parquet"))
        case "lost commit":
            commit_file.unlink()
        case _:
            commit_file.write_text("{")
    before = all_files(job, besides="/lease/")
    for act in (lambda: commit_for_people(job.address, staged.name), lambda: run(job)):
        with pytest.raises(SliceError) as refused:
            act()
        assert refused.value.kind == "input"
    (metadata(job) / PROGRESS).unlink(missing_ok=True)  # why the run failed
    assert all_files(job, besides="/lease/") == before


def test_version_of_another_date_is_published_by_no_run(job: SliceJob) -> None:
    staged = stage(changed(job, slice_instant="2026-01-31T00:00:00+00:00"))
    run(changed(job, slice_instant="2026-01-31T01:00:00+00:00"))
    assert newest(job).body.get("staged_version") != staged.name


def test_date_that_was_published_under_the_name_of_another_clock_is_not_published_twice(
    job: SliceJob,
) -> None:
    instant = "2026-01-30T16:00:00+00:00"
    in_utc = changed(job, slice_key="2026-01-30", slice_instant=instant, other_slice_keys=["2026-01-31"])
    in_taipei = changed(job, slice_key="2026-01-31", slice_instant=instant)
    stage(in_utc)
    run(in_taipei)
    with pytest.raises(SliceError, match="which is published as '2026-01-31'"):
        commit_for_people(in_utc.address, None)
    assert versions.newest_version(SliceFolders.open(in_utc.paths).metadata) is None


def test_version_that_gc_found_too_old_is_not_published_whatever_number_the_table_shows(
    job: SliceJob,
) -> None:
    run(asked(job, "first"))
    run(asked(job, "second"))
    shutil.rmtree(metadata(job) / "commits")
    shutil.rmtree(job.slice_path)
    staged = stage(job, keep_days=30)
    age(job, 31)
    late = get_staged(folders_of(job), staged.name)
    collect(job)
    with pytest.raises(StagedVersionError):
        commit(folders_of(job), job.slice_key, late)
    assert versions.newest_version(folders_of(job).metadata) is None


def test_version_whose_plan_is_gone_is_not_published(job: SliceJob) -> None:
    staged = stage(job)
    (metadata(job) / staged.version.plan).unlink()
    before = all_files(job)
    with pytest.raises(UnusableError, match=r"plan-.* is gone"):
        commit_for_people(job.address, staged.name)
    assert all_files(job) == before
    cluster = InProcess()
    assert run(job, cluster).outcome == "published"
    assert cluster.answered == 0


def test_command_that_names_none_takes_the_only_one(job: SliceJob) -> None:
    staged = stage(job)
    assert commit_for_people(job.address, None).body["staged_version"] == staged.name


def test_run_that_only_stages_finds_what_is_staged(job: SliceJob) -> None:
    cluster = InProcess()
    assert stage(job) == stage(job, cluster)
    assert cluster.answered == 0


def test_staged_version_is_published_once_whoever_is_late(job: SliceJob) -> None:
    staged = stage(job)
    late = get_staged(folders_of(job), staged.name)
    commit(folders_of(job), job.slice_key, staged)
    with pytest.raises(PublishedByOthersError, match="as version 1"):
        commit(folders_of(job), job.slice_key, late)
    with pytest.raises(StagedVersionError, match="was published already, as version 1"):
        commit_for_people(job.address, staged.name)
    with pytest.raises(StagedVersionError, match="nothing is discarded"):
        discard(folders_of(job), late)
    run(asked(job, "new"))
    with pytest.raises(PublishedByOthersError, match="as version 1"):
        commit(folders_of(job), job.slice_key, late)
    assert versions.Commits.list(folders_of(job).metadata).numbers == (1, 2)
    assert answers(job)[0] == "n0 new"


@pytest.mark.parametrize("voids", [1, 2])
def test_number_that_was_used_up_by_a_void_is_followed_by_the_next(job: SliceJob, voids: int) -> None:
    run(asked(job, "first"))
    staged = stage(job)
    for _ in range(voids):
        void(job)
    assert commit_for_people(job.address, staged.name).number == staged.number + voids
    assert newest(job).body["report"]["published_version"] == staged.number + voids
    assert answers(job) == [f"n{i}" for i in range(ROWS)]
    assert files_below(metadata(job) / "staged") == {staged_marker(job)}
    assert run(job).outcome == "unchanged"


def test_version_whose_base_was_replaced_is_refused_and_can_be_discarded(job: SliceJob) -> None:
    run(asked(job, "first"))
    staged = stage(job)
    late = get_staged(folders_of(job), staged.name)
    run(asked(job, "other"))
    with pytest.raises(StagedVersionError, match="published since"):
        commit_for_people(job.address, staged.name)
    with pytest.raises(SupersededError):
        commit(folders_of(job), job.slice_key, late)
    assert answers(job)[0] == "n0 other"
    assert staged_names(folders_of(job).metadata) == [staged.name]
    commits = files_below(metadata(job) / "commits")
    assert discard_for_people(job.address, None) == staged.name
    assert staged_names(folders_of(job).metadata) == []
    assert files_below(metadata(job) / "commits") == commits  # no void: nobody could commit it
    assert answers(job)[0] == "n0 other"


def test_of_two_staged_versions_one_is_published(job: SliceJob) -> None:
    first, second = stage(job), stage(asked(job, "new"))
    commit_for_people(job.address, second.name)
    with pytest.raises(StagedVersionError):
        commit_for_people(job.address, first.name)
    assert answers(job)[0] == "n0 new"


def test_discarded_version_is_published_by_nobody_who_read_it_before(job: SliceJob) -> None:
    staged = stage(job)
    discard(folders_of(job), staged)
    with pytest.raises(UnusableError):
        commit(folders_of(job), job.slice_key, staged)
    assert versions.newest_version(folders_of(job).metadata) is None
    assert files_below(metadata(job) / "staged") == set()
    cluster = InProcess()
    assert (run(job, cluster).published_version, cluster.answered) == (2, 0)


def test_discard_between_the_copies_and_the_commit_wins(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies for another number are there, and the document is gone when it is looked at."""
    staged = stage(job)
    void(job)
    copy = "airflow_provider_raydatallm.processor.publish.commit._copy"
    from airflow_provider_raydatallm.processor.publish import commit as module

    original = module._copy

    def then_discarded(*args: Any) -> Any:
        copied = original(*args)
        discard(folders_of(job), staged)
        return copied

    monkeypatch.setattr(copy, then_discarded)
    with pytest.raises(UnusableError, match="discarded meanwhile"):
        commit(folders_of(job), job.slice_key, staged)
    assert versions.newest_version(folders_of(job).metadata) is None


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """As somebody who also makes the checksum right."""
    body = json.loads(path.read_text())["body"]
    change(body)
    path.write_bytes(documents.encode(body))


@pytest.mark.parametrize(
    "fault", ["edited", "older format", "newer format", "another table", "files gone", "cut"]
)
def test_staged_version_that_is_not_as_it_was_staged_is_refused(job: SliceJob, fault: str) -> None:
    run(asked(job, "first"))
    staged = stage(job)
    path = metadata(job) / document_name(staged.name)
    match fault:
        case "edited":
            path.write_text(path.read_text().replace('"rows": 30', '"rows": 31'))
            says = "was edited"
        case "older format":
            edit(path, lambda body: body.update(format=0))
            says = "of format 0, .* Run the slice again"
        case "newer format":
            edit(path, lambda body: body.update(format=99))
            says = "of format 99, .* Upgrade the provider"
        case "another table":
            edit(path, lambda body: body.update(table=f"{job.slice_path}-b"))
            says = "was staged for .*-b, and this slice"
        case "files gone":
            (metadata(job) / "staged" / staged.name / staged.version.files[0].plain_name).unlink()
            says = "is gone: the staged version"
        case _:
            path.write_bytes(path.read_bytes()[:100])
            says = "is damaged"
    before = all_files(job)
    with pytest.raises(StagedVersionError, match=says):
        commit_for_people(job.address, staged.name)
    assert all_files(job) == before
    assert answers(job)[0] == "n0 first"
    cluster = InProcess()
    assert (run(job, cluster).outcome, cluster.answered) == ("published", 0)
    assert answers(job) == [f"n{i}" for i in range(ROWS)]


@pytest.mark.parametrize(
    ("forged", "says"),
    [
        ({"table": "/elsewhere/ds=2026-01-31"}, "holds the metadata of /elsewhere"),
        ({"quarantine_folder": "/elsewhere_quarantine/ds=2026-01-31"}, "is not known to be of this table"),
        (
            {"report": {"outcome": "published", "counts": {"succeeded": 30, "quarantined": 0}, "tokens": {}}},
            "cannot read",
        ),
        ({"files": []}, "its files have 0 rows succeeded, and its report says 30"),
        ({"quarantine_folder": "a\0b"}, "quarantine_folder: String should match"),
        ({"slice_key": "2026-02-01"}, "is of slice '2026-02-01', and this is '2026-01-31'"),
        ({"format": 99}, "says 'format', which only a commit does"),
        ({"void": True}, "says 'void', which only a commit does"),
        ({"plan": "plans/plan-000002-0123abcd.json"}, "names the plan of another version"),
        ({"epoch": LAST_NUMBER}, f"is of epoch {LAST_NUMBER}, and the newest that a run had is 2"),
    ],
)
def test_document_that_nobody_could_show_once_it_is_committed_is_refused(
    job: SliceJob, forged: dict[str, Any], says: str
) -> None:
    run(asked(job, "first"))
    staged = stage(job)
    edit(metadata(job) / document_name(staged.name), lambda body: body["commit"].update(forged))
    before = all_files(job)
    with pytest.raises(StagedVersionError, match=says):
        commit_for_people(job.address, staged.name)
    assert all_files(job) == before
    cluster = InProcess()
    assert (run(job, cluster).outcome, cluster.answered) == ("published", 0)


def test_run_that_only_stages_holds_no_version_of_an_epoch_that_no_run_had(job: SliceJob) -> None:
    staged = stage(job)
    edit(metadata(job) / document_name(staged.name), lambda body: body["commit"].update(epoch=LAST_NUMBER))
    cluster = InProcess()
    assert stage(job, cluster).name != staged.name
    assert cluster.answered == 0
    assert commit_for_people(job.address, None).epoch == 2


@pytest.mark.parametrize("whose", ["published", "staged"])
def test_discard_removes_no_plan_of_another_version(job: SliceJob, whose: str) -> None:
    if whose == "published":
        run(job)
        plan, other = newest(job).plan, ""
    else:
        waiting = stage(job)
        plan, other = waiting.version.plan, waiting.name
    staged = stage(asked(job, "new"))
    path = metadata(job) / document_name(staged.name)
    edit(path, lambda body: body["commit"].update(plan=plan))
    with pytest.raises(StagedVersionError, match="names the plan of another version"):
        discard_for_people(job.address, staged.name)
    assert (metadata(job) / plan).exists()
    if other:
        assert commit_for_people(job.address, other).plan == plan


def test_document_that_says_that_it_follows_itself_hides_no_published_version(job: SliceJob) -> None:
    staged = stage(job)
    path = metadata(job) / document_name(staged.name)
    content = path.read_bytes()
    version = commit_for_people(job.address, None)
    path.parent.mkdir()
    path.write_bytes(content)
    edit(path, lambda body: body.update(follows=1))
    with pytest.raises(StagedVersionError, match="follows version 1, and its number is 1"):
        discard_for_people(job.address, staged.name)
    assert (metadata(job) / version.plan).exists()


@pytest.mark.parametrize("name", ["../../x", "000001-0123abcd", "x"])
def test_name_that_no_staged_version_has_is_told_with_those_there_are(job: SliceJob, name: str) -> None:
    staged = stage(job)
    for ask in (commit_for_people, discard_for_people):
        with pytest.raises(StagedVersionError) as e:
            ask(job, name)
        assert str(e.value) == (
            f"no staged version of {job.slice_path} is named {name!r} (it has: {staged.name})"
        )
    assert staged_names(folders_of(job).metadata) == [staged.name]


@pytest.mark.parametrize("taken", [True, False])
def test_run_whose_staged_files_are_removed_with_its_number_decides_again(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """Its last file may be written while who shows the version that has that number removes what else is
    staged for it."""
    make_folder, cluster, used_up = disk.make_folder, InProcess(), []

    def removed_at_once(folder: Path) -> None:
        make_folder(folder)
        if folder.name.startswith("000001-") and folder.parent.name == "staged":
            if taken and not used_up:
                used_up.append(void(job))
            folder.rmdir()

    monkeypatch.setattr(disk, "make_folder", removed_at_once)
    if taken:
        assert stage(job, cluster).number == 2
        assert commit_for_people(job.address, None).number == 2
    else:
        with pytest.raises(StorageError, match="cannot write"):
            stage(job, cluster)
    assert cluster.answered == ROWS


def test_document_does_not_decide_whether_the_table_s_columns_change(job: SliceJob) -> None:
    other = changed(job, slice_key="2026-02-01")
    run(job)
    run(other)
    staged = stage(asked(job, "new"))

    def forge(body: Any) -> None:
        body["columns"] = [["name", "int64", False], ["answer", "int64", True]]

    edit(metadata(job) / document_name(staged.name), forge)
    known = ColumnAgreement.read(table_metadata(folders_of(job))).columns
    with pytest.raises(OtherColumnsError, match=r"column 'name' is int64, and .*slice '2026-02-01'"):
        commit_for_people(job.address, staged.name)
    assert ColumnAgreement.read(table_metadata(folders_of(job))).columns == known
    assert answers(job)[0] == "n0"


def test_document_under_another_name_is_refused(job: SliceJob) -> None:
    staged = stage(job)
    path = metadata(job) / document_name(staged.name)
    path.rename(path.with_name("staged-000001-0123abcd.json"))
    with pytest.raises(StagedVersionError, match=f"it is that of '{staged.name}'"):
        commit_for_people(job.address, None)


def test_run_of_another_question_leaves_a_staged_version_alone(job: SliceJob) -> None:
    run(asked(job, "first"))
    staged = stage(changed(job, rerun__force=True), InProcess(answer=answer_fixed))
    void(job)
    cluster = InProcess()
    assert run(asked(job, "first"), cluster).outcome == "unchanged"
    assert commit_for_people(job.address, staged.name).number == 3


def age(job: SliceJob, days: float) -> None:
    then = time.time() - days * 86400
    for path in metadata(job).rglob("*"):
        os.utime(path, (then, then))


def collect(job: SliceJob, days: float = 7) -> int:
    found = garbage.find_leftovers(job.address, days, stale_seconds=0.2)
    for one in found:
        garbage.remove_leftovers(one, days)
    return len(found)


def test_gc_leaves_a_staged_version_its_files_and_rows_until_it_is_too_old(job: SliceJob) -> None:
    staged = stage(job)
    age(job, 8)
    assert collect(job) == 0
    (metadata(job) / "checkpoint" / "0123456789abcdef").mkdir()
    (metadata(job) / "checkpoint" / "0123456789abcdef" / "x").touch()
    age(job, 8)
    assert collect(job) == 1  # of another run: the slot is void, and the staged version is whole
    assert len(checkpoint_folders(job)) == 1
    assert commit_for_people(job.address, staged.name).number == 2
    assert answers(job) == [f"n{i}" for i in range(ROWS)]


def test_gc_removes_a_staged_version_that_is_too_old(job: SliceJob) -> None:
    staged = stage(job, keep_days=30)
    age(job, 31)
    assert collect(job) == 1
    with pytest.raises(StagedVersionError):
        commit(folders_of(job), job.slice_key, staged)
    assert files_below(metadata(job) / "staged") == set()
    assert staged_names(folders_of(job).metadata) == []
    assert checkpoint_folders(job) == []
    assert versions.newest_version(folders_of(job).metadata) is None


def test_commands_list_commit_and_discard(
    job: SliceJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(job.model_dump_json())

    def said(*command: str) -> tuple[int, str]:
        code = main([command[0], str(spec), *command[1:]])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    first, second = stage(job), stage(asked(job, "new"))
    code, text = said("versions")
    assert code == 0
    assert f"staged {first.name}" in text
    [*_, entry] = json.loads(said("versions", "--json")[1])
    assert (entry["version"], entry["rows"], entry["problem"]) == (None, ROWS, None)
    code, text = said("commit")
    assert (code, "Name one of them" in text) == (1, True)
    assert said("discard", second.name, "--json") == (0, json.dumps({"discarded": second.name}) + "\n")
    assert said("commit", first.name)[1] == f"{first.name} is published, as version 2\n"
    assert said("commit", first.name)[0] == 1
    assert said("discard", "000009-0123abcd")[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["commit", "discard", "versions"])
def test_commands_on_what_is_staged_need_neither_arrow_nor_ray(
    job: SliceJob, tmp_path: Path, command: str
) -> None:
    """They run where Airflow is, too."""
    staged = stage(job)
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    code = (
        "import sys; from airflow_provider_raydatallm.processor.__main__ import main; "
        f"code = main([{command!r}, {str(tmp_path / 'spec.json')!r}]); "
        "print(code, [m for m in ('pyarrow', 'ray', 'pandas', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    *_, said, ended = done.stdout.splitlines()
    assert staged.name in said
    assert ended == "0 []"
