"""Why a slice failed is the first that its page says, with what can help."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from typing import Any

import pytest
from airflow.models.log import Log
from airflow.models.serialized_dag import SerializedDagModel
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG as Dag
from airflow.serialization.serialized_objects import DagSerialization, LazyDeserializedDAG
from playwright.sync_api import Page, Route, expect
from sqlalchemy import insert

from airflow_provider_raydatallm.contract.result.failure import Failure, Place
from tests.support.looks import scrolled_sideways, serious, sticks_out, take
from tests.support.slice_index import BEGIN, Run, figures, write_dag, write_runs
from tests.support.ui_server import UiServer

DAG, TASK = "broken", "ask"
PATH = f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}"
BAD_ROW = Failure(
    "input", "3 values of column 'age' are no numbers", advice=("Fix the file, or read the column as text",),
    place=Place(file="s3://lake/reviews/ds=2026-03-05/part-7.csv", row=7, column="age"),
    row_texts=("'young <b>'",), counts={"planned": 195, "finished": 65, "failed": 3},
)  # fmt: skip
TOO_MANY = Failure(
    "input", "57 of 195 rows failed, which is more than quality.max_quarantine 0.05 (57 TruncatedAnswer)",
    advice=("Nothing is published, and the answered rows are kept",),
    counts={"planned": 195, "finished": 195, "failed": 57}, code="too_many_failed",
)  # fmt: skip
MEMORY = Failure(
    "gpu_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB",
    advice=("The GPU ran out of memory: lower max_num_seqs or max_model_len in engine.kwargs",),
    cause="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 3 GiB free.",
    frames=("at prompts.py:12 in ask: return model(row)",), place=Place(worker="2", node="10.0.0.7"),
    counts={"planned": 195, "finished": 0},
    log=("INFO loading weights", f"INFO {'a=1,' * 200}{'x' * 150}", "ERROR no memory is left"),
)  # fmt: skip
STOPPED = Failure("stopped", "the Ray job was stopped by somebody, and not by its task")
CHANGED = Failure(
    "input", "slice '2026-03-10' is published with another configuration: the prompt changed",
    advice=("Undo the change",), code="published",
)  # fmt: skip
CUT = {"TruncatedAnswer": 44}
FAILURES = {"input": BAD_ROW, "too-many": TOO_MANY, "memory": MEMORY, "stopped": STOPPED}


@pytest.fixture(scope="module", autouse=True)
def slices(ui: UiServer) -> None:
    with ui.database() as session:
        write_runs(session, DAG, TASK, [
            *(Run(f"2026-03-0{i}", "failed", name, entry=None, at=BEGIN + i * dt.timedelta(days=1),
                  failure=failure.to_json())
              for i, (name, failure) in enumerate(FAILURES.items(), 1)),
            Run("2026-03-05", "failed", run_id="no-record", entry=None, at=BEGIN),
            Run("2026-03-06", "up_for_retry", run_id="again", entry=None, at=BEGIN, failure=MEMORY.to_json()),
            Run("2026-03-07", "running", run_id="starts", entry=None, at=BEGIN),
            Run("2026-03-08", run_id="cut", entry=figures(600, 44, quarantine_reasons=CUT)),
            Run("2026-03-09", "failed", run_id="marked", entry=None, at=BEGIN,
                failure=replace(STOPPED, counts={"planned": 195, "finished": 65}).to_json()),
            Run("2026-03-10", "failed", run_id="changed", entry=None, at=BEGIN, failure=CHANGED.to_json()),
            Run("", "upstream_failed", run_id="before", at=BEGIN + dt.timedelta(days=99), has_slice=False),
        ])  # fmt: skip
        write_runs(session, DAG, "fetch", [Run("", "failed", run_id="before", has_slice=False)])
        mark = {"event": "patch_task_instance", "owner": "eve", "extra": '{"new_state": "failed"}'}
        session.execute(insert(Log.__table__), [
            {**mark, "dag_id": DAG, "task_id": TASK, "run_id": "marked", "dttm": BEGIN + dt.timedelta(days=1)}
        ])  # fmt: skip
        with Dag(DAG, schedule=None, start_date=BEGIN) as dag:
            EmptyOperator(task_id="fetch") >> EmptyOperator(task_id=TASK)
        row = SerializedDagModel(LazyDeserializedDAG(data=DagSerialization.to_dict(dag)))
        row.dag_version_id = write_dag(session, DAG)
        session.add(row)
        session.commit()


def answer_for_airflow(page: Page, *params: str) -> list[Any]:
    """The server's database holds no DAG. Returns the bodies of what the page has Airflow do."""
    sent: list[Any] = []

    def answer(route: Route) -> None:
        place = route.request.url.split(f"/dags/{DAG}/")[1]
        if route.request.method == "POST":
            sent.append((place, route.request.post_data_json))
        answers = {
            "details": {"is_paused": False, "params": {name: {} for name in params}},
            "tasks": {"tasks": [{"task_id": TASK}]}, "dagRuns": {"dag_run_id": "by-hand"},
            "clearTaskInstances": {"task_instances": [], "total_entries": 1},
        }  # fmt: skip
        route.fulfill(json=answers.get(place, {"conf": {}}))

    page.route(f"**/api/v2/dags/{DAG}/**", answer)
    return sent


def stored(page: Page, **progress: Any) -> None:
    answer = {"versions": [], "report": None, "progress": progress or None, "note": None}
    page.route("**/stored?*", lambda route: route.fulfill(json=answer))


ALL = ("slice", "force", "retry_quarantined", "max_quarantine")


def test_failure_is_the_first_that_the_page_says(page: Page) -> None:
    answer_for_airflow(page, *ALL)
    stored(page)
    page.goto(f"{PATH}/runs/memory/-1")
    alert = page.get_by_role("alert")
    for words in (MEMORY.sentence, *MEMORY.advice, "worker 2, node 10.0.0.7", "195 planned = 0 answered"):
        expect(alert).to_contain_text(words)
    expect(alert.get_by_text("no memory is left")).to_be_hidden()
    alert.get_by_text("The end of the Ray job's log").click()
    expect(alert.get_by_text("no memory is left")).to_be_visible()
    alert.get_by_text("The error itself").click()
    expect(alert.get_by_text(MEMORY.frames[0])).to_be_visible()
    top = alert.bounding_box()
    section = page.get_by_role("heading", name="Actions").bounding_box()
    assert top is not None
    assert section is not None
    assert top["y"] < section["y"]
    assert serious(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert sticks_out(page) == []
    assert scrolled_sideways(page, "pre") == []
    take(page, "failure-phone")


def test_texts_of_rows_are_text_whatever_they_hold(page: Page) -> None:
    answer_for_airflow(page, *ALL)
    stored(page)
    page.goto(f"{PATH}/runs/input/-1")
    expect(page.get_by_role("alert")).to_contain_text("In the rows: 'young <b>'")
    expect(page.get_by_role("alert")).to_contain_text("row 7, column age")


@pytest.mark.parametrize(("run", "offered"), [
    ("input", ["Run again after the change"]),
    ("too-many", ["Answer failed rows again", "Accept its quarantine", "Run again after the change"]),
    ("memory", ["Run again"]),
    ("stopped", ["Run again"]),
    ("again", []),
    ("cut", ["Answer quarantined rows again", "Answer all rows again"]),
])  # fmt: skip
def test_only_actions_that_can_help_are_offered(page: Page, run: str, offered: list[str]) -> None:
    answer_for_airflow(page, *ALL)
    stored(page)
    page.goto(f"{PATH}/runs/{run}/-1")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    if offered:
        expect(page.get_by_role("button", name=offered[0])).to_be_visible()
    said = page.locator("#ray-llm").get_by_role("button").all_inner_texts()
    assert [name for name in said if re.match("Run|Answer|Accept|Clear", name)] == offered
    first = page.get_by_text("first: a run of the same fails again")
    expect(first).to_have_count(1 if run == "input" else 0)
    expect(page.get_by_text("Raise max_tokens: 44 of the answers were cut.")).to_have_count(int(run == "cut"))


def test_dag_without_params_is_offered_a_clear_of_this_task_alone(page: Page) -> None:
    sent = answer_for_airflow(page)
    stored(page)
    page.goto(f"{PATH}/runs/memory/-1")
    page.get_by_role("button", name="Clear the task").click()
    page.get_by_role("dialog").get_by_role("button", name="Clear the task").click()
    expect(page.get_by_text("Cleared: Airflow runs the task again")).to_be_visible()
    [(place, body)] = sent
    assert place == "clearTaskInstances"
    assert (body["task_ids"], body["dag_run_id"], body["dry_run"]) == ([TASK], "memory", False)
    assert not any(body[f"include_{which}"] for which in ("upstream", "downstream", "past", "future"))
    page.goto(f"{PATH}/runs/cut/-1")
    expect(page.get_by_text("With the Params of slice_params()")).to_be_visible()
    expect(page.get_by_role("button", name="Answer")).to_have_count(0)


def test_run_without_a_record_is_not_said_to_be_killed(page: Page) -> None:
    answer_for_airflow(page, *ALL)
    page.goto(f"{PATH}/runs/no-record/-1")
    expect(page.get_by_role("alert")).to_contain_text("Somebody marked it as failed, or its process died")
    expect(page.get_by_text("killed")).to_have_count(0)


def test_reason_that_only_the_table_has_is_the_page_s_too(page: Page) -> None:
    """What its API reads of the table, tests of the API say."""
    answer_for_airflow(page)
    stored(page)
    failure = {"log_of": "", "code": "", "cause": "", "log": [], "frames": [], **BAD_ROW.to_json()}
    told = {"failure": failure, "is_marked": False, "marked_by": None}
    page.route("**/no-record/-1/reason", lambda route: route.fulfill(json=told))
    page.goto(f"{PATH}/runs/no-record/-1")
    alert = page.get_by_role("alert")
    for words in (
        BAD_ROW.sentence,
        *BAD_ROW.advice,
        "row 7, column age",
        "62 answered + 3 failed + 130 left",
    ):
        expect(alert).to_contain_text(words)
    expect(page.get_by_role("button", name="Clear the task after the change")).to_be_visible()
    page.goto(PATH)
    page.get_by_role("button", name="more").first.click()
    expect(page.get_by_role("row", name="2026-03-05")).to_contain_text(BAD_ROW.sentence)


def test_run_that_airflow_tries_again_says_why_the_last_try_failed(page: Page) -> None:
    page.goto(f"{PATH}/runs/again/-1")
    expect(page.get_by_role("alert")).to_contain_text(f"{MEMORY.sentence}.")
    expect(page.get_by_role("alert")).to_contain_text("Airflow tries it again.")


def test_engine_that_starts_is_the_phase_and_no_share_of_rows(page: Page) -> None:
    stored(page, step="start", phase="starting the engine: for 61 s", rows=0, planned=195, workers=0)
    page.goto(f"{PATH}/runs/starts/-1")
    expect(page.get_by_text("starting the engine: for 61 s")).to_be_visible()
    expect(page.get_by_text("of 195 rows")).to_have_count(0)
    expect(page.get_by_role("progressbar")).to_have_count(0)


def test_nothing_live_is_shown_of_a_run_that_failed(page: Page) -> None:
    """Also where an API server of another version answers with it."""
    answer_for_airflow(page, *ALL)
    stored(page, step="failed", rows=0, planned=195, failed=0, eta_s=39.0, workers=2)
    page.goto(f"{PATH}/runs/too-many/-1")
    expect(page.get_by_role("alert")).to_contain_text("195 planned = 138 answered + 57 failed")
    expect(page.get_by_role("button", name="Accept its quarantine")).to_be_visible()
    for words in ("Time left", "Speed now", "0 of 195"):
        expect(page.get_by_text(words)).to_have_count(0)


def test_mark_by_hand_is_the_reason_with_who_made_it_and_what_is_kept(page: Page) -> None:
    answer_for_airflow(page, *ALL)
    stored(page)
    page.goto(f"{PATH}/runs/marked/-1")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("eve marked this run as failed. Its 65 finished rows are kept.")
    expect(alert.get_by_role("link", name="The task's log")).to_be_visible()
    take(page, "failure-marked")


def test_task_that_did_not_run_leads_to_the_one_that_failed_before_it(page: Page) -> None:
    page.goto(f"{PATH}/runs/before/-1")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("It did not run, because fetch failed before it.")
    to = alert.get_by_role("link", name="fetch").get_attribute("href")
    assert str(to).endswith(f"/dags/{DAG}/runs/before/tasks/fetch")
    expect(page.get_by_text("There is no such slice")).to_have_count(0)
    take(page, "failure-upstream")
    page.goto(f"{PATH}/runs/never-there/-1")
    expect(page.get_by_role("alert")).to_contain_text("There is no such slice")


def test_published_slice_whose_rerun_failed_is_both_in_the_calendar(page: Page) -> None:
    page.goto(PATH)
    cell = page.get_by_role(
        "link", name=f"2026-03-10: Failed: {CHANGED.sentence}; what an earlier run published"
    )
    expect(cell).to_contain_text("✓")
    expect(cell).to_contain_text("✕")


def test_why_slices_failed_can_be_read_on_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(PATH)
    page.get_by_role("button", name="more").first.click()
    failed = page.get_by_role("heading", name="Failed: 8").locator("xpath=ancestor::section[1]")
    expect(failed).to_contain_text("It did not run, because fetch failed before it.")
    expect(failed).to_contain_text("eve marked this run as failed.")
    words = failed.inner_text()
    days = ["before", "2026-03-10", "2026-03-09", "2026-03-05", "2026-03-04", "2026-03-01"]
    assert [words.index(day) for day in days] == sorted(words.index(day) for day in days)
    assert sticks_out(page) == []
    assert scrolled_sideways(page, "#ray-llm section:has(h2:has-text('Failed: ')) *") == []
    assert serious(page) == []
    take(page, "task-failures-phone")
