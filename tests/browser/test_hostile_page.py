"""Whatever rows, labels, names, paths and errors hold, the page shows it as text: nothing runs, nothing
reorders what stands beside it, and no page grows wider than its window."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.models.dag import DagModel
from playwright.sync_api import Page, expect

from airflow_provider_raydatallm.contract.result.report import Advice
from airflow_provider_raydatallm.processor import slice_report
from airflow_provider_raydatallm.processor.ray_runtime.own_task import CONFIG
from airflow_provider_raydatallm.task.slice_entry import SliceEntry
from tests.support.in_process import job_of, run_in_process
from tests.support.looks import sticks_out, take
from tests.support.slice_index import Run, write_runs
from tests.support.slice_jobs import changed
from tests.support.ui_server import UiServer

#: Each sets a global, or opens a dialog, where it is not text.
MARKUP = (
    "<img src=x onerror=\"window.ran='img'\">", "<script>window.ran='script'</script>",
    "<svg onload=\"window.ran='svg'\">", "\"><iframe srcdoc=\"<script>parent.ran='frame'</script>\">",
    "javascript:alert(document.domain)", "{{constructor.constructor('window.ran=1')()}}",
    "[link](javascript:alert(1))",
)  # fmt: skip
TURNED = "\u202egnp.\u2066\u2067\u2069\u2069\u2069 \u05d0\u05d1\u05d2 \u200f9\u202c"
BINARY = "a\x00b\x07\x1b[31mred\x7f\x85 \ufffd\ufeff"
LONG = "w" * 4_000
HOSTILE = f"{''.join(MARKUP)}{TURNED}{BINARY}"
DAG, TASK, PLAIN = "hostile", "ask", "plain"
IDENTITY = {"dag_id": DAG, "task_id": TASK}
RUNS = {"finished": f"manual__{MARKUP[0]}{TURNED}", "failed": "failed", "long": f"manual__{LONG[:200]}"}
WIDTHS = (1280, 390)


@pytest.fixture(scope="module", autouse=True)
def slices(ui: UiServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tables") / (MARKUP[0].replace("/", "") + TURNED)
    cells = [*MARKUP, TURNED, BINARY, LONG, "x" * (1 << 20), f"fail {HOSTILE}", f"fail {LONG}", None]
    (folder / "in").mkdir(parents=True)
    pq.write_table(pa.table({"name": cells, MARKUP[0]: [HOSTILE] * len(cells)}), folder / "in/rows.parquet")
    job = job_of(
        input_path=f"{folder}/in/", output_path=f"{folder}/out", quality__max_quarantine=1.0,
    )  # fmt: skip
    labels = {**{f"{text}{i}": 5 - i % 5 for i, text in enumerate([*MARKUP, TURNED, BINARY, LONG])}, "ok": 1}
    advice = Advice(code="hostile", evidence=HOSTILE, change=LONG + HOSTILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONFIG, json.dumps({"metadata": IDENTITY}))
        patch.setattr(slice_report, "advise", lambda facts: (advice,))
        patch.setattr(slice_report, "reported", lambda counts: labels)
        run_in_process(job)
        report = run_in_process(changed(job, rerun__force=True))  # two versions to compare
    result = report.to_xcom(
        report_path=None, ray_job_id=HOSTILE, dashboard_url="javascript:alert(1)", queued=1.0, total=9.0
    )
    entry = SliceEntry.of(job, result).model_dump(mode="json")
    texts = [f"a{HOSTILE}", LONG]
    failure = {
        "kind": "input", "sentence": HOSTILE + LONG, "advice": texts, "row_texts": texts,
        "cause": HOSTILE + LONG, "frames": texts, "log": texts, "log_of": HOSTILE,
        "counts": {HOSTILE: 3, "planned": 9, "finished": 4, "failed": 3},
        "place": dict.fromkeys(("file", "column", "worker", "node"), HOSTILE + LONG),
    }  # fmt: skip
    failed = job_of(input_path=job.input_path, output_path=f"{folder}/failed")
    unfinished = SliceEntry.of(failed).model_dump(mode="json")
    with ui.database() as session:
        write_runs(session, DAG, TASK, [
            Run("", run_id=RUNS["finished"], entry={**entry, "slice_key": HOSTILE}),
            Run("", run_id=RUNS["long"], entry={**entry, "slice_key": LONG, "model": LONG, "paths": {}}),
            Run("", "failed", RUNS["failed"], entry={**unfinished, "slice_key": TURNED}, failure=failure),
        ])  # fmt: skip
        write_runs(session, PLAIN, TASK, [Run("2026-01-01"), Run("2026-01-02", run_id="b")])
        for dag_id, name in ((DAG, HOSTILE + LONG[:1000]), (PLAIN, "\u05d0\u05d1\u05d2")):
            dag = session.get(DagModel, dag_id)
            assert dag is not None
            dag._dag_display_property_value = name
        session.commit()


@pytest.fixture
def harmless(page: Page) -> Iterator[Page]:
    """Fails when anything ran, or was fetched from elsewhere."""
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.on("popup", lambda popup: dialogs.append(popup.url))
    yield page
    assert page.evaluate("() => window.ran") is None
    assert dialogs == []


def look(page: Page, name: str, ready: str) -> None:
    """At each width: no wider than the window, and no markup, link or turning character of the data."""
    own = page.locator("#ray-llm")
    expect(own).to_contain_text(ready)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 2_600})
        page.wait_for_timeout(400)  # charts are drawn anew
        take(page, f"hostile-{name}-{width}")
        assert sticks_out(page) == [], f"{name} at {width}"
    shown = own.evaluate(_SHOWN)
    assert len(shown) > 10
    assert [text for text in shown if re.search("[\u202a-\u202e\u2066-\u2069\u0000\u001b]", text)] == []
    assert own.locator("script, iframe, img[src=x], [onerror], [onload]").count() == 0
    assert [link for link in links(page) if not link.startswith(page.url.split("/plugin")[0])] == []


#: All texts and tips.
_SHOWN = """own => [
    own.innerText.split("\\n"),
    ...["title", "aria-label", "alt"].map(name =>
        [...own.querySelectorAll(`[${name}]`)].map(e => e.getAttribute(name))),
    [...own.querySelectorAll("text, option")].map(e => e.textContent),
].flat().filter(text => text)"""


def links(page: Page) -> list[Any]:
    found: list[Any] = page.locator("#ray-llm a").evaluate_all("links => links.map(link => link.href)")
    return found


def path_of(run: str) -> str:
    return f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}/runs/{quote(RUNS[run], safe='')}/-1"


def test_names_of_dags_and_slices_are_text(harmless: Page) -> None:
    harmless.goto("/plugin/ray-llm")
    look(harmless, "tasks", "window.ran='img'")
    # Names that are written from right to left stand before what follows them.
    dag, task = (
        harmless.locator("#ray-llm bdi", has_text=re.compile(f"^{text}$"))
        for text in ("\u05d0\u05d1\u05d2", TASK)
    )
    before, after = dag.bounding_box(), task.last.bounding_box()
    assert before is not None
    assert after is not None
    assert before["x"] + before["width"] <= after["x"]


def test_calendar_and_trends_are_text(harmless: Page) -> None:
    harmless.goto(f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}")
    look(harmless, "calendar", "Trends")
    harmless.set_viewport_size({"width": 1280, "height": 900})
    # A tip over the last of the charts, which has the labels.
    harmless.locator("#ray-llm [role=img] svg").last.hover()
    harmless.wait_for_timeout(500)


def test_slice_and_its_rows_are_text(harmless: Page) -> None:
    harmless.goto(path_of("finished"))
    expect(harmless.get_by_text("planned =")).to_be_visible()
    harmless.get_by_role("button", name="Published rows").click()
    look(harmless, "slice", "<svg onload=")
    expect(harmless.get_by_text(re.compile("202E.gnp")).first).to_be_visible()
    harmless.get_by_role("button", name="Rows in quarantine").click()
    look(harmless, "quarantine", "ValueError")
    # As much of a long cell as there is room for.
    for cell in harmless.locator("#ray-llm td").all():
        assert len(cell.inner_text()) < 2_200


def test_slice_with_a_very_long_key_and_model_is_as_wide_as_the_window(harmless: Page) -> None:
    harmless.goto(path_of("long"))
    look(harmless, "long", LONG[:100])


def test_error_of_a_failed_run_is_text(harmless: Page) -> None:
    harmless.goto(path_of("failed"))
    expect(harmless.locator("summary")).to_have_count(2)
    for fold in harmless.locator("summary").all():
        fold.click()
    look(harmless, "failed", "Rows at that moment")
    for log in harmless.locator("pre").all():
        expect(log).to_contain_text("<script>window.ran='script'</script>")
