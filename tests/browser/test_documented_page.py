"""The pictures of the documentation, and what they show: `PAGE_SCREENSHOTS=docs/pictures` writes them."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, expect

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.report import Advice
from airflow_provider_raydatallm.processor import slice_report
from airflow_provider_raydatallm.processor.metrics.meter import Meter
from airflow_provider_raydatallm.processor.ray_runtime.own_task import CONFIG
from airflow_provider_raydatallm.task.slice_entry import SliceEntry
from tests.support.in_process import job_of, run_in_process
from tests.support.looks import serious, sticks_out, take
from tests.support.slice_index import Run, figures, write_runs, write_schedule
from tests.support.ui_server import UiServer

DAG, TASK = "support_mails", "label_topic"
FIRST = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DAYS, SHOWN = 58, 47
MISSING, FAILED, RUNNING = {21, 22}, {34}, {DAYS - 1}
TOPICS = {
    "Spam": 0.29,
    "Billing": 0.21,
    "Feature request": 0.17,
    "Outage": 0.14,
    "Other": 0.1,
    "Praise": 0.09,
}
WHY = Failure(
    "input", "5,210 of 61,640 rows failed: 8.5%, more than quality.max_quarantine of 5%",
    advice=("Raise max_tokens: 5,102 answers were cut",),
)  # fmt: skip
SECONDS = {"queued": 38.0, "engine_start": 96.0, "inference": 1_410.0, "publish": 9.0, "total": 1_575.0}


def key(day: int) -> str:
    return (FIRST + day * dt.timedelta(1)).date().isoformat()


def figures_of(day: int) -> dict[str, Any]:
    rows = 60_000 + int(9_000 * math.sin(day / 3)) + 400 * day
    bad = 0 if day % 11 else 160 + 3 * day
    drift = 0.003 * day
    shares = {**TOPICS, "Outage": TOPICS["Outage"] + drift, "Spam": TOPICS["Spam"] - drift}
    slower = 1.3 if day == SHOWN else 1.0
    seconds = {name: round(value * slower, 1) for name, value in SECONDS.items()}
    gpu_seconds = round(8 * (seconds["engine_start"] + seconds["inference"]), 1)
    return figures(
        rows, bad, seconds=seconds, labels={name: int(share * rows) for name, share in shares.items()},
        rows_per_s=round(rows / seconds["inference"], 1), gpu_seconds=gpu_seconds, gpu_mean=91.0 / slower,
        tokens_per_s=round(rows * 27 / seconds["inference"], 1), model="meta-llama/Llama-3.1-8B-Instruct",
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def slices(ui: UiServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    runs = [
        Run(
            key(day), "failed" if day in FAILED else "running" if day in RUNNING else "success",
            run_id=f"scheduled__{key(day)}", date=FIRST + day * dt.timedelta(1),
            at=FIRST + day * dt.timedelta(1, 600),
            entry=None if day in FAILED | RUNNING else figures_of(day),
            failure=WHY.to_json() if day in FAILED else None,
        )
        for day in range(DAYS) if day not in MISSING | {SHOWN}
    ]  # fmt: skip
    entry = shown_slice(tmp_path_factory)
    at = FIRST + SHOWN * dt.timedelta(1, 600)
    with ui.database() as session:
        date = FIRST + SHOWN * dt.timedelta(1)
        run = Run(key(SHOWN), run_id=f"scheduled__{key(SHOWN)}", at=at, entry=entry, date=date)
        write_runs(session, DAG, TASK, [*runs, run])
        write_schedule(session, DAG, TASK, following=FIRST + DAYS * dt.timedelta(1))


def shown_slice(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A slice with a folder, in which one of eight workers began late."""
    folder = tmp_path_factory.mktemp("lake")
    pq.write_table(pa.table({"name": [f"row {i}" for i in range(50)]}), folder / "rows.parquet")
    job = job_of(input_path=f"{folder}/rows.parquet", output_path=f"{folder}/mails", slice_key=key(SHOWN))
    known = figures_of(SHOWN)
    rows, spans, span_s = known["counts"]["planned"], 115, 16.0
    busy = [round(92 + 4 * math.sin(i / 3) - (48 if 44 <= i < 56 else 0), 1) for i in range(spans)]
    per_span = [int(rows * b / sum(busy)) for b in busy]
    per_span[0], per_span[-1] = per_span[0] // 2, per_span[-1] // 4  # it has little of these
    history = {"span_s": span_s, "offset_s": -3.0, "rows": per_span, "gpu_busy": busy, "cpu_busy": busy}
    shares = [0.99, 0.98, 0.98, 0.97, 0.96, 0.96, 0.95, 0.62]
    workers = [
        {"name": f"worker-{i}", "rows": int(rows * share / sum(shares)), "busy_share": share}
        for i, share in enumerate(shares)
    ]
    advice = Advice(
        code="workers_unbalanced", evidence="the longest of 8 workers was busy 1.07 times the mean",
        change="set max_tokens from a column where rows differ, so that the longest go first",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONFIG, json.dumps({"metadata": {"dag_id": DAG, "task_id": TASK}}))
        patch.setattr(Meter, "details", lambda meter: {"history": history, "per_worker": workers})
        patch.setattr(slice_report, "advise", lambda facts: (advice,))
        report = run_in_process(job)
    result = report.to_xcom(report_path=None, ray_job_id=None, dashboard_url=None, queued=1.0, total=9.0)
    entry = SliceEntry.of(job, result).model_dump(mode="json")
    return {**entry, **known, "advice": ["workers_unbalanced"]}


def picture(page: Page, name: str) -> None:
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        page.wait_for_timeout(600)
        take(page, f"page-{name}-{theme}")
        assert sticks_out(page) == []
        assert serious(page) == []


def test_overview_shows_each_task_with_its_last_slices(page: Page, ui: UiServer) -> None:
    at = FIRST + DAYS * dt.timedelta(1)
    reviews = [
        Run(key(day), run_id=f"scheduled__{key(day)}", date=FIRST + day * dt.timedelta(1), at=at, entry=entry)
        for day in range(DAYS - 30, DAYS)
        for entry in [figures(12_000 + 310 * day, 0 if day % 7 else 24)]
    ]
    with ui.database() as session:
        write_runs(session, "product_reviews", "score_sentiment", reviews)
        write_schedule(session, "product_reviews", "score_sentiment", following=at)
    page.set_viewport_size({"width": 1280, "height": 520})
    page.goto("/plugin/ray-llm")
    page.get_by_label("Search").fill("_")
    for name in (f"{DAG} / {TASK}", "product_reviews / score_sentiment"):
        expect(page.get_by_role("link", name=name)).to_be_visible()
    picture(page, "overview")


def test_calendar_shows_gaps_failures_and_trends(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 1400})
    page.goto(f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}")
    for day in MISSING:
        expect(page.get_by_label(f"{key(day)}: Missing")).to_be_visible()
    expect(page.get_by_role("link", name=f"{key(34)}: Failed")).to_be_visible()
    expect(page.get_by_role("img", name="Cost of GPUs of")).to_be_visible()
    picture(page, "calendar")


def test_slice_shows_where_its_time_went(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 1640})
    page.goto(f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}/runs/scheduled__{key(SHOWN)}/-1")
    expect(page.get_by_role("img", name="GPUs busy over time")).to_be_visible()
    expect(page.get_by_text("62%, ")).to_be_visible()
    where = f"Output: s3://lake/mails/ds={key(SHOWN)}"  # it could lie there
    page.get_by_text("Output: ").evaluate("(line, text) => line.textContent = text", where)
    picture(page, "slice")
    # On a phone its tables are wider than the window: whoever has no mouse can move them, too.
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(600)
    assert serious(page) == []
