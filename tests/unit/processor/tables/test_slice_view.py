"""What the page is shown of a slice's folder, and to whom."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import MARK
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.ray_runtime.own_task import CONFIG
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.marks import add_task
from airflow_provider_raydatallm.processor.tables.slice_view import SliceView
from tests.support.in_process import changed, job_of
from tests.support.in_process import run_in_process as run

TASK = {"dag_id": "customers", "task_id": "infer"}
OTHER = {"dag_id": "salaries", "task_id": "infer"}
HOSTILE = "<script>alert(1)</script>\u202e\x00"


@pytest.fixture(autouse=True)
def submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a job of the task's."""
    metadata = {**TASK, "job_submission_id": "j", "run_id": "r"}
    monkeypatch.setenv(CONFIG, json.dumps({"metadata": metadata}))


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    rows = {
        "name": ["fail here", HOSTILE, "x" * 100_000, "plain", None],
        "blob": [b"\x00" * 5_000] * 5, "nested": [[{"a": 1}]] * 5,
    }  # fmt: skip
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "in" / "rows.parquet")
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", quality__max_quarantine=1.0)


def view(job: SliceJob, task: dict[str, str] = TASK) -> SliceView:
    return SliceView(job.paths, task)


def test_rows_that_wait_for_a_person_are_shown_to_the_task_that_staged_them(job: SliceJob) -> None:
    gates = [{"of": "rows", "then": "hold"}]
    name = str(run(changed(job, quality__gates=gates)).staged_version)
    names, rows = view(job).sample("published", 5, name)
    assert [row[names.index("name")] for row in rows][2:3] == ["plain"]
    assert len(view(job).sample("quarantined", 5, name)[1]) == 1
    with pytest.raises(FileNotFoundError, match="nothing is published"):
        view(job).sample("published", 5)
    with pytest.raises(FileNotFoundError, match="nothing is staged any more"):
        view(job).sample("published", 5, "000001-00000000")
    with pytest.raises(PermissionError, match="names other tasks"):
        view(job, OTHER).sample("published", 5, name)
    add_task(Store(job.table_paths.staging), OTHER)
    with pytest.raises(PermissionError, match="another task staged"):
        view(job, OTHER).sample("published", 5, name)


def test_versions_are_shown_to_the_task_that_published_them(job: SliceJob) -> None:
    assert view(job).versions() == []
    run(job)
    run(changed(job, rerun__force=True))
    assert [v.number for v in view(job).versions()] == [2, 1]
    for ask in (lambda v: v.versions(), lambda v: v.sample("published", 5)):
        with pytest.raises(PermissionError, match="names other tasks"):
            ask(view(job, OTHER))


def test_progress_is_shown_to_the_task_that_runs(job: SliceJob) -> None:
    store = Store(job.paths.metadata)
    assert view(job).progress() is None
    store.put_json("progress.json", {"rows": 5, "task": TASK})
    assert view(job).progress() == {"rows": 5, "task": TASK}
    assert view(job, OTHER).progress() is None
    add_task(Store(job.table_paths.staging), OTHER)
    with pytest.raises(PermissionError, match="names other tasks"):
        view(job).progress()
    add_task(Store(job.table_paths.staging), TASK)
    store.put_json("progress.json", [1])
    assert view(job).progress() is None


def test_failed_run_says_whose_job_it_was(job: SliceJob) -> None:
    with pytest.raises(SliceError):
        run(changed(job, quality__max_quarantine=0.0))
    progress = view(job).progress()
    assert progress is not None
    assert (progress["step"], progress["job"]) == ("failed", "j")


@pytest.mark.slow
def test_sample_is_short_text_whatever_is_in_the_rows(job: SliceJob) -> None:
    run(job)
    columns, rows = view(job).sample("published", 10)
    assert columns == ["name", "blob", "nested", "answer"]
    by_name = {str(row[0])[:5]: row for row in rows}
    assert by_name["<scri"][0] == HOSTILE
    assert [len(str(cell)) for cell in by_name["xxxxx"]] == [2001, 11, 10, 2001]
    assert by_name["None"][0] is None
    assert by_name["plain"][1:3] == ["5,000 bytes", "[{'a': 1}]"]
    assert len(view(job).sample("published", 2)[1]) == 2

    columns, rows = view(job).sample("quarantined", 10)
    assert [row[columns.index("__error_type")] for row in rows] == ["ValueError"]


def test_sample_of_nothing_says_so(job: SliceJob) -> None:
    with pytest.raises(FileNotFoundError, match="nothing is published"):
        view(job).sample("published", 5)


def test_version_of_no_task_is_nobodys(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG)
    run(job)
    assert not list(Path(job.table_paths.staging).glob("_tasks/*"))
    for task in (TASK, {"dag_id": "", "task_id": ""}):
        with pytest.raises(PermissionError):
            view(job, task).versions()


# Whoever edits the task's record, or forges files of a table of their own


@pytest.fixture
def victim(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> SliceJob:
    """Another task's table."""
    victim = changed(job, output_path=f"{Path(job.output_path).parent}/victim", prompt="{name} secret")
    with monkeypatch.context() as patch:
        patch.setenv(CONFIG, json.dumps({"metadata": OTHER}))
        run(victim)
    return victim


def forge(job: SliceJob, **change: Any) -> None:
    store, name = Store(job.paths.metadata), versions.commit_name(1)
    store.put_document(name, {**store.read_document(name), **change})


def not_shown(view: SliceView) -> None:
    for kind in ("published", "quarantined"):
        with pytest.raises((PermissionError, SliceError, FileNotFoundError)):
            view.sample(kind, 5)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("own", [(), ("metadata",), ("metadata", "staging"), ("staging", "quarantine")])
@pytest.mark.parametrize("is_older", [False, True])
def test_record_that_was_edited_leads_to_no_other_table(
    job: SliceJob, victim: SliceJob, own: tuple[str, ...], is_older: bool
) -> None:
    """Whatever folders it mixes, and with a commit of the victim's files beside the own table."""
    run(job)
    body = Store(victim.paths.metadata).read_document(versions.commit_name(1))
    forge(job, files=body["files"], quarantine=body["quarantine"], quarantine_folder=victim.paths.quarantine)
    if is_older:  # its table names no task
        shutil.rmtree(Path(victim.table_paths.staging) / "_tasks")
    paths = replace(victim.paths, **{name: getattr(job.paths, name) for name in own})
    not_shown(SliceView(paths, TASK))
    with pytest.raises(PermissionError):
        SliceView(paths, TASK).versions()


@pytest.mark.slow
def test_record_that_names_another_table_s_quarantine_leads_nowhere(job: SliceJob, victim: SliceJob) -> None:
    run(job)
    view = SliceView(replace(job.paths, quarantine=victim.paths.quarantine), TASK)
    assert view.sample("quarantined", 5) == SliceView(job.paths, TASK).sample("quarantined", 5)
    body = Store(victim.paths.metadata).read_document(versions.commit_name(1))
    forge(job, quarantine=body["quarantine"], quarantine_folder=victim.paths.quarantine)
    with pytest.raises(SliceError, match="is not known to be of this table"):
        view.sample("quarantined", 5)


@pytest.mark.slow
def test_link_in_place_of_a_published_file_shows_no_other_file(job: SliceJob, victim: SliceJob) -> None:
    run(job)
    [own], [other] = (list(Path(one.slice_path).glob("part-*")) for one in (job, victim))
    own.unlink()
    own.symlink_to(other)
    with pytest.raises(SliceError, match="it is a link"):
        view(job).sample("published", 5)


def test_link_in_place_of_the_table_shows_no_other_table(
    job: SliceJob, victim: SliceJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a commit of the attacker's own that names its files."""
    run(job)
    commit = Store(victim.paths.metadata).read_document(versions.commit_name(1))
    assert commit is not None
    files = {name: commit[name] for name in ("files",) if name in commit}
    forge(job, **files)
    shutil.rmtree(job.table_paths.table)
    Path(job.table_paths.table).symlink_to(victim.table_paths.table)
    not_shown(view(job))


def test_table_that_names_no_task_has_its_metadata_beside_it(
    job: SliceJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CONFIG)  # as by the command line
    elsewhere = changed(job, publish__metadata_path=f"{tmp_path}/meta")
    run(elsewhere)
    forge(elsewhere, task=TASK)
    with pytest.raises(PermissionError, match="names no task"):
        view(elsewhere).versions()


@pytest.mark.slow
def test_metadata_elsewhere_are_read_if_they_say_whose_they_are(job: SliceJob, tmp_path: Path) -> None:
    given = {"publish__metadata_path": f"{tmp_path}/meta", "publish__quarantine_path": f"{tmp_path}/failed"}
    elsewhere = changed(job, output_path=f"{tmp_path}/elsewhere", **given)
    run(elsewhere)
    assert [v.number for v in view(elsewhere).versions()] == [1]
    assert len(view(elsewhere).sample("quarantined", 5)[1]) == 1
    (tmp_path / "meta" / MARK).unlink()
    with pytest.raises(PermissionError, match="not known to be of its table"):
        view(elsewhere).versions()


def test_tasks_of_one_table_see_their_own_slices(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    run(job)
    later = changed(job, slice_key="2026-02-01")
    monkeypatch.setenv(CONFIG, json.dumps({"metadata": OTHER}))
    run(later)
    assert [len(view(one, task).versions()) for one, task in ((job, TASK), (later, OTHER))] == [1, 1]
    for one, task in ((job, OTHER), (later, TASK)):
        with pytest.raises(PermissionError, match="another task published this slice"):
            view(one, task).versions()


def test_table_of_an_older_provider_is_shown_to_the_task_that_its_commits_name(job: SliceJob) -> None:
    run(job)
    shutil.rmtree(Path(job.table_paths.staging) / "_tasks")
    assert [v.number for v in view(job).versions()] == [1]
    with pytest.raises(PermissionError):
        view(job, OTHER).versions()
    run(changed(job, slice_key="2026-02-01"))
    assert len(list(Path(job.table_paths.staging).glob("_tasks/*"))) == 1


def test_table_of_each_slice_names_its_task_itself(job: SliceJob, tmp_path: Path) -> None:
    run(changed(job, output_path=f"{tmp_path}/days/{{slice}}/out"))
    one = changed(job, output_path=f"{tmp_path}/days/{{slice}}/out")
    assert [v.number for v in view(one).versions()] == [1]
    with pytest.raises(PermissionError, match="names other tasks"):
        view(one, OTHER).versions()


def test_commit_that_is_too_large_for_the_page_is_named(job: SliceJob) -> None:
    run(job)
    forge(job, model_source="x" * (4 << 20))
    with pytest.raises(SliceError, match="has more than"):
        view(job).versions()
    assert run(job).outcome == "unchanged"


def test_address_that_is_not_accepted_is_not_read(job: SliceJob) -> None:
    paths: Any = replace(job.paths, metadata="http://internal/secrets")
    with pytest.raises(Exception, match="http:// are not accepted"):
        SliceView(paths, TASK).versions()
