"""What the page is shown of a slice's folder, and to whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.ray_runtime.own_task import CONFIG
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.tables.slice_view import SliceView
from tests.support.in_process import job_of
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
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", max_quarantine_fraction=1.0)


def view(job: SliceJob, task: dict[str, str] = TASK) -> SliceView:
    return SliceView(job.paths, task)


def test_versions_are_shown_to_the_task_that_published_them(job: SliceJob) -> None:
    assert view(job).versions() == []
    run(job)
    run(job.model_copy(update={"force_rerun": True}))
    assert [v.number for v in view(job).versions()] == [2, 1]
    for ask in (lambda v: v.versions(), lambda v: v.sample("published", 5)):
        with pytest.raises(PermissionError, match="another task published this slice"):
            ask(view(job, OTHER))


def test_progress_is_shown_to_the_task_that_runs(job: SliceJob) -> None:
    store = Store(job.paths.metadata)
    assert view(job).progress() is None
    store.put_json("progress.json", {"rows": 5, "task": TASK})
    assert view(job).progress() == {"rows": 5, "task": TASK}
    assert view(job, OTHER).progress() is None
    store.put_json("progress.json", [1])
    assert view(job).progress() is None


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
    for task in (TASK, {"dag_id": "", "task_id": ""}):
        with pytest.raises(PermissionError):
            view(job, task).versions()


def test_address_that_is_not_accepted_is_not_read(job: SliceJob) -> None:
    from dataclasses import replace

    paths: Any = replace(job.paths, metadata="http://internal/secrets")
    with pytest.raises(Exception, match="http:// are not accepted"):
        SliceView(paths, TASK).versions()
