"""How a run went over time, as a person sees it: the numbers are the report's."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, expect

from airflow_provider_raydatallm.processor.metrics.meter import Meter
from airflow_provider_raydatallm.processor.ray_runtime.own_task import CONFIG
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.task.slice_entry import SliceEntry
from tests.support.in_process import job_of, run_in_process
from tests.support.looks import look
from tests.support.slice_index import Run, write_runs
from tests.support.ui_server import UiServer

DAG, TASK = "timed", "ask"
IDENTITY = {"dag_id": DAG, "task_id": TASK}
SECONDS = {"queued": 45.0, "engine_start": 130.0, "inference": 1790.0, "publish": 12.0, "total": 2010.0}
SPANS = 112
BUSY = [round(88 + 8 * math.sin(i / 4) - (60 if 40 <= i < 52 else 0), 1) for i in range(SPANS)]
HISTORY = {
    "span_s": 16.0, "offset_s": -2.5, "rows": [4 * int(busy) for busy in BUSY],
    "gpu_busy": [None if i == 70 else busy for i, busy in enumerate(BUSY)], "cpu_busy": [21.0] * SPANS,
}  # fmt: skip
WORKERS = [
    {"name": f"vllm-{i}", "rows": 5_100 - 137 * i, "busy_share": round(0.985 - 0.004 * i * i, 3)}
    for i in range(8)
]


@pytest.fixture(scope="module")
def publish(ui: UiServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    folder = tmp_path_factory.mktemp("tables")
    pq.write_table(pa.table({"name": [f"row {i}" for i in range(20)]}), folder / "rows.parquet")

    def publish(name: str, history: dict[str, Any], **seconds: float) -> None:
        job = job_of(input_path=f"{folder}/rows.parquet", output_path=f"{folder}/{name}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(CONFIG, json.dumps({"metadata": IDENTITY}))
            patch.setattr(Meter, "details", lambda meter: {"history": history, "per_worker": WORKERS})
            report = run_in_process(job)
        result = report.to_xcom(report_path=None, ray_job_id="j", dashboard_url=None, queued=1.0, total=9.0)
        entry = SliceEntry.of(job, {**result, "seconds": {**SECONDS, **seconds}}).model_dump(mode="json")
        with ui.database() as session:
            write_runs(session, DAG, TASK, [Run("", run_id=name, entry=entry)])

    return publish


def open_run(page: Page, run: str) -> None:
    page.goto(f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}/runs/{run}/-1")


def test_gpus_rows_and_workers_are_those_of_the_report(publish: Callable[..., None], page: Page) -> None:
    publish("gpus", HISTORY)
    open_run(page, "gpus")
    chart = page.get_by_role("img", name="GPUs busy over time")
    chart.scroll_into_view_if_needed()
    expect(page.get_by_text("On the scale of the bar above.")).to_be_visible()
    box = chart.bounding_box()
    assert box is not None
    # Where the run was idle: after 45 spans of the inference.
    at = SECONDS["queued"] + SECONDS["engine_start"] + 45.5 * 16
    page.mouse.move(box["x"] + box["width"] * at / SECONDS["total"], box["y"] + 40)
    expect(chart).to_contain_text(re.compile(rf"{BUSY[45]}|{BUSY[46]}"))
    for worker in (WORKERS[0], WORKERS[-1]):
        expect(page.get_by_text(f"{worker['rows']:,} rows")).to_be_visible()
    look(page, "over-time")


def test_cpus_are_shown_where_there_is_no_gpu(publish: Callable[..., None], page: Page) -> None:
    publish("cpus", {**HISTORY, "gpu_busy": None}, queued=90_000.0, total=92_000.0)
    open_run(page, "cpus")
    expect(page.get_by_role("img", name="CPUs busy over time")).to_be_visible()
    expect(page.get_by_text("From the first request on. No GPU was measured")).to_be_visible()


def test_running_slice_shows_what_it_did_so_far(
    ui: UiServer, page: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job = job_of(input_path="/in", output_path=str(tmp_path_factory.mktemp("running")))
    progress = {
        "step": "answer", "rows": 30_000, "planned": 80_000, "failed": 3, "workers": 8, "eta_s": 1650.0,
        "recent_rows_per_s": 22.4, "history": HISTORY, "per_worker": WORKERS, "task": IDENTITY,
    }  # fmt: skip
    Store(job.paths.metadata).put_json("progress.json", progress)
    entry = SliceEntry.of(job).model_dump(mode="json")
    with ui.database() as session:
        write_runs(session, DAG, TASK, [Run("", "running", run_id="running", entry=entry)])
    open_run(page, "running")
    expect(page.get_by_role("img", name="GPUs busy over time")).to_be_visible()
    expect(page.get_by_text(f"{WORKERS[-1]['rows']:,} rows")).to_be_visible()
    look(page, "over-time-running")
