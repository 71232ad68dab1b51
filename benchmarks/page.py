"""The page in Airflow's UI over three years of daily slices of 20 tasks, 22,000 runs, and as many that an
asset keeps after Airflow has cleaned their runs; on PostgreSQL and on SQLite.

* Each route of the API, one request after the other: medians and 95th percentiles, goal under 200 ms.
* Chromium, from a click in Airflow's loaded UI to the tasks, a task's calendar, and a slice. Goal: under 1 s.
* The bundle's size, goal under 600 KB gzipped.
* What the plugin adds to the start of each Airflow process, and to one that then parses a DAG file: new
  processes with and without it by turns, the difference of their medians. Goal: under 100 ms, once. In
  seconds of CPU, which are those of the clock on an idle machine.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
from playwright.sync_api import Page, sync_playwright

from airflow_provider_raydatallm.processor.ray_runtime.own_task import CONFIG
from airflow_provider_raydatallm.task.slice_entry import SliceEntry
from benchmarks.table import Figure, say, show
from tests.support import browser
from tests.support.in_process import job_of, run_in_process
from tests.support.paths import ROOT
from tests.support.postgres import Postgres
from tests.support.slice_index import Run, write_runs, write_years
from tests.support.ui_server import UiServer, ui_server

TASKS, DAYS = 20, 1_100
REQUESTS = int(os.environ.get("BENCH_REQUESTS", 50))
VIEWS = int(os.environ.get("BENCH_VIEWS", 9))
PROCESSES = int(os.environ.get("BENCH_PROCESSES", 15))
DAG, TASK = "customers", "task_07"
_TASK = f"dags/{DAG}/tasks/{TASK}"
_DAY = f"{_TASK}/runs/manual__2025-01-01/-1"
_STORED = f"dags/{DAG}/tasks/stored/runs/stored/-1"
ROUTES = {
    "settings": "settings", "tasks": "tasks", "400 slices": f"{_TASK}/slices?limit=400",
    "400 slices, most of them cleaned": f"{_TASK}/slices?limit=400&offset=1000", "a run": _DAY,
    "a slice's folder": f"{_STORED}/stored", "rows of a slice": f"{_STORED}/samples/published",
}  # fmt: skip
API_MS, VIEW_S, BUNDLE_KB, START_MS = 200, 1.0, 600, 100


def run() -> bool:
    figures = _bundle() + _processes()
    postgres = Postgres()
    try:
        for name, address in (("PostgreSQL", postgres.url), ("SQLite", None)):
            with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
                environment = {"AIRFLOW__RAY_LLM__SHOW_SAMPLES": "true"}
                with ui_server(Path(folder), environment, address) as server:
                    say(f"writing {TASKS * DAYS:,} runs into {name}")
                    _write(server, Path(folder))
                    say("asking the API")
                    figures += _routes(server, name)
                    if name == "PostgreSQL":
                        say("looking at the page")
                        figures += _views(server)
    finally:
        postgres.close()
    return show(figures)


def _write(server: UiServer, folder: Path) -> None:
    with server.database() as session:
        write_years(session, DAG, TASKS, DAYS)
    pq.write_table(pa.table({"name": [f"row {i}" for i in range(600)]}), folder / "rows.parquet")
    job = job_of(input_path=f"{folder}/rows.parquet", output_path=f"{folder}/table")
    os.environ[CONFIG] = json.dumps({"metadata": {"dag_id": DAG, "task_id": "stored"}})
    report = run_in_process(job)
    result = report.to_xcom(report_path=None, ray_job_id="j", dashboard_url=None, queued=1.0, total=9.0)
    entry = SliceEntry.of(job, result).model_dump(mode="json")
    with server.database() as session:
        write_runs(session, DAG, "stored", [Run("", run_id="stored", entry=entry)])


def _routes(server: UiServer, name: str) -> list[Figure]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.headers["Authorization"] = f"Bearer {client.get('/auth/token').json()['access_token']}"
        return [_route(client, f"{name}: {what}", path) for what, path in ROUTES.items()]


def _route(client: httpx.Client, what: str, path: str) -> Figure:
    times = []
    for _ in range(REQUESTS + 3):
        began = time.perf_counter()
        answer = client.get(f"/ray-llm/api/{path}")
        times.append(1000 * (time.perf_counter() - began))
        assert answer.status_code == 200, answer.text
    times = sorted(times[3:])
    p95 = times[int(0.95 * len(times))]
    measured = f"{statistics.median(times):.0f} ms, p95 {p95:.0f} ms, {len(answer.content) / 1000:,.0f} KB"
    return Figure(what, measured, f"< {API_MS} ms", p95 < API_MS)


def _views(server: UiServer) -> list[Figure]:
    program = browser.chromium()
    assert program is not None, "no Chromium"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--disable-gpu"])
        page = chromium.new_page(base_url=server.url, viewport={"width": 1280, "height": 900})
        page.goto("/")
        page.get_by_role("link", name="Ray LLM").wait_for()
        times: dict[str, list[float]] = {}
        for _ in range(VIEWS):
            _look(page, times)
        chromium.close()
    return [
        Figure(what, f"{statistics.median(seconds):.2f} s, slowest {max(seconds):.2f} s", f"< {VIEW_S:g} s",
               statistics.median(seconds) < VIEW_S)
        for what, seconds in times.items()
    ]  # fmt: skip


def _look(page: Page, times: dict[str, list[float]]) -> None:
    def timed(what: str, click: Callable[[], Any], seen: Callable[[], Any]) -> None:
        began = time.perf_counter()
        click()
        seen()
        times.setdefault(what, []).append(time.perf_counter() - began)

    page.goto("/")
    page.get_by_role("link", name="Ray LLM").wait_for()
    page.wait_for_load_state("networkidle")
    task = page.get_by_role("link", name=f"{DAG} / {TASK}")
    timed("tasks, with the bundle's load", page.get_by_role("link", name="Ray LLM").click, task.wait_for)
    day = page.get_by_role("link", name="2026-01-01: ")
    timed("a task's calendar of 400 days", task.click, day.wait_for)
    timed("a slice", day.click, page.get_by_text("planned =").wait_for)


def _bundle() -> list[Figure]:
    size = len(gzip.compress((ROOT / "airflow_provider_raydatallm/page/www/ray_llm.js").read_bytes())) / 1000
    return [Figure("bundle, gzipped", f"{size:.0f} KB", f"< {BUNDLE_KB} KB", size < BUNDLE_KB)]


_WITHOUT = """
from importlib.metadata import EntryPoint
load = EntryPoint.load
EntryPoint.load = lambda self: object if self.name == "ray_llm_page" else load(self)
"""
_START = "from airflow import plugins_manager; plugins_manager.get_plugin_info()"
_PARSE = f"""
{_START}
from airflow.dag_processing.dagbag import DagBag
bag = DagBag({str(ROOT / "dags" / "customers_by_industry.py")!r})
assert bag.dags and not bag.import_errors, bag.import_errors
"""


def _processes() -> list[Figure]:
    say(f"starting {4 * (PROCESSES + 1)} processes")
    return [
        _figure("plugin, of an Airflow process's start", *_added(_START)),
        _figure("plugin, of a process that parses a DAG file", *_added(_PARSE)),
    ]


def _figure(what: str, without: float, plugged: float, spread: float) -> Figure:
    added = 1000 * (plugged - without)
    words = f"{added:+.0f} ms of CPU of {without:.2f} s, quartiles {1000 * spread:.0f} ms apart"
    return Figure(what, words, f"< {START_MS} ms", added < START_MS)


def _added(code: str) -> tuple[float, float, float]:
    """Medians of the CPU seconds without and with the plugin, and the larger spread between quartiles."""
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as home:
        environment = {**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "false"}
        times: dict[str, list[float]] = {"": [], _WITHOUT: []}
        for i in range(PROCESSES + 1):
            for before, seconds in times.items():
                began = _cpu_seconds()
                subprocess.run(
                    [sys.executable, "-c", before + code], env=environment, check=True, capture_output=True
                )
                if i:  # the first one compiles bytecode
                    seconds.append(_cpu_seconds() - began)
    quartiles = [statistics.quantiles(seconds) for seconds in times.values()]
    spread = max(high - low for low, _, high in quartiles)
    return statistics.median(times[_WITHOUT]), statistics.median(times[""]), spread


def _cpu_seconds() -> float:
    """Of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
