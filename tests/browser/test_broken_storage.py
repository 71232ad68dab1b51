"""A slice's folder may be gone, damaged, of another version or not answer: the page says so, and shows what
Airflow knows at once."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, expect

from airflow_provider_raydatallm.contract.slice_paths import slice_paths
from airflow_provider_raydatallm.processor.ray_runtime.own_task import CONFIG
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.versions import commit_name
from airflow_provider_raydatallm.task.slice_entry import SliceEntry
from tests.support.in_process import job_of, run_in_process
from tests.support.slice_index import Run, write_runs
from tests.support.ui_server import UiServer

DAG, TASK = "stored", "ask"
ROWS = 12
FIGURES = f"{ROWS} planned = {ROWS} answered + 0 in quarantine"


@pytest.fixture(scope="module")
def publish(ui: UiServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Store]:
    folder = tmp_path_factory.mktemp("tables")
    pq.write_table(pa.table({"name": [f"row {i}" for i in range(ROWS)]}), folder / "rows.parquet")

    def publish(name: str, paths: dict[str, str] | None = None) -> Store:
        """Publishes a slice, writes what Airflow knows of it, and returns its folder of metadata."""
        job = job_of(input_path=f"{folder}/rows.parquet", output_path=f"{folder}/{name}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(CONFIG, json.dumps({"metadata": {"dag_id": DAG, "task_id": TASK}}))
            report = run_in_process(job)
        result = report.to_xcom(report_path=None, ray_job_id="j", dashboard_url=None, queued=1.0, total=9.0)
        entry = SliceEntry.of(job, result).model_dump(mode="json")
        with ui.database() as session:
            run = Run("", run_id=name, entry={**entry, **({"paths": paths} if paths else {})})
            write_runs(session, DAG, TASK, [run])
        return Store(job.paths.metadata)

    return publish


def damage(store: Store) -> None:
    store.put(commit_name(1), b'{"body": {"format"')


def remove(store: Store) -> None:
    shutil.rmtree(store.path(""))


def forget(store: Store) -> None:
    Path(store.path(commit_name(1))).unlink()


def upgrade_report(store: Store) -> None:
    body = store.read_document(commit_name(1))
    assert body is not None
    body["report"]["version"] = 2
    body["report"]["weather"] = {"sun": True}
    store.put_document(commit_name(1), body)


def upgrade_commit(store: Store) -> None:
    body = store.read_document(commit_name(1))
    assert body is not None
    store.put_document(commit_name(1), {**body, "format": 99})


@pytest.mark.parametrize(("name", "change", "says"), [
    ("damaged", damage, "cannot read the slice's folder"),
    ("removed", remove, "Storage has no report of version 1 any more"),
    ("forgotten", forget, "Storage has no report of version 1 any more"),
    ("newer-report", upgrade_report, "Another version of the provider wrote this slice's report"),
    ("newer-commit", upgrade_commit, "cannot read the slice's folder"),
])  # fmt: skip
def test_page_says_what_is_wrong_with_a_slices_folder(
    publish: Callable[..., Store], page: Page, name: str, change: Callable[[Store], None], says: str
) -> None:
    change(publish(name))
    page.goto(address(name))
    expect(page.get_by_text(FIGURES)).to_be_visible()
    expect(page.get_by_text(says)).to_be_visible()


def test_storage_that_never_answers_holds_no_figure_back(publish: Callable[..., Store], page: Page) -> None:
    publish("stalled", asdict(slice_paths("s3://lake/table/ds=2026-01-31")))
    page.goto("/plugin/ray-llm")
    expect(page.get_by_role("link", name=f"{DAG} / {TASK}")).to_be_visible()
    began = time.monotonic()
    page.goto(address("stalled"))
    expect(page.get_by_text(FIGURES)).to_be_visible()
    assert not page.get_by_text("Storage did not answer").is_visible()
    expect(page.get_by_text("Storage did not answer within 5 s")).to_be_visible()
    assert time.monotonic() - began < 30


def address(run: str) -> str:
    return f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}/runs/{run}/-1"
