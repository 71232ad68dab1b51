"""Slices that wait for a person, by Airflow's required actions, answered as its UI does."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from airflow_provider_raydatallm.triggers.task_trigger import EARLIEST_EVENT_SECONDS
from tests.support import browser
from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, Task, wait_for
from tests.support.marks import long
from tests.support.ray_door import Cluster
from tests.support.tables import ROWS, Table

DAY = "2025-01-01"


def held(airflow: Airflow, table: Table, dag_id: str) -> tuple[Task, dict[str, Any]]:
    task = airflow.api.trigger(dag_id, conf={"table": table.name, "slice": DAY})
    return task, airflow.api.wait_asked(task)


def answer(airflow: Airflow, task: Task, option: str, **form: str) -> None:
    """No person is so fast that Airflow still has to hear of the end of the process that asked: it would take
    the try for lost, and try again."""
    time.sleep(EARLIEST_EVENT_SECONDS)
    airflow.api.answer(task, option, **form)


def answered(table: Table) -> int:
    return sum(rows for _, rows in table.answered(DAY))


@pytest.mark.parametrize("mode", [long("waiting"), "deferred"], indirect=True)
def test_slice_is_published_once_a_person_has_approved_it_whatever_ends_meanwhile(
    airflow: Airflow, cluster: Cluster, make_table: Callable[..., Table], mode: str
) -> None:
    table = make_table(DAY)
    task, question = held(airflow, table, f"reviewed_{mode}")
    assert not table.has_output(DAY)
    wait_for(lambda: not cluster.running(run_id=task.run_id) or None, LIMIT, "the job to end")
    assert question["subject"] == f"Publish slice {DAY}?"
    assert question["options"] == ["Approve", "Reject", "Answer again"]
    assert f"All rows of slice `{DAY}` are answered" in question["body"]
    assert airflow.api.xcom(task, "ray_llm_slice")["gates"][0]["verdict"] == "held"
    for component in ("scheduler", "triggerer", "api_server"):
        airflow.restart(component)
    assert not table.has_output(DAY)
    airflow.api.answer(task, "Approve")
    assert airflow.api.finish(task) == "success"
    assert table.rows_right(DAY)
    result = airflow.api.xcom(task)
    assert (result["outcome"], result["published_version"], answered(table)) == ("published", 1, ROWS)
    with pytest.raises(httpx.HTTPStatusError, match="409"):
        airflow.api.answer(task, "Approve")


def test_rejected_slice_is_not_published_and_asked_about_again_without_a_token(
    airflow: Airflow, make_table: Callable[..., Table]
) -> None:
    """Here by jobs on the cluster, as where Airflow's workers do not reach the storage."""
    table = make_table(DAY)
    task, _ = held(airflow, table, "reviewed_afar_deferred")
    answer(airflow, task, "Reject")
    assert airflow.api.finish(task) == "failed"
    failure = airflow.api.xcom(task, "ray_llm_failure")
    assert failure["sentence"].startswith(f"slice '{DAY}' was rejected by ")
    assert airflow.api.get(task)["try_number"] == 1  # a retry would ask the same
    assert not table.has_output(DAY)
    airflow.api.clear(task)
    airflow.api.wait_asked(task)
    answer(airflow, task, "Approve")
    assert airflow.api.finish(task) == "success"
    assert table.rows_right(DAY)
    assert answered(table) == ROWS


def test_rejection_of_a_task_that_was_cleared_counts(
    airflow: Airflow, make_table: Callable[..., Table]
) -> None:
    """Airflow takes it while the new try waits for its worker, and tells nobody."""
    table = make_table(DAY)
    task, _ = held(airflow, table, "reviewed_waiting")
    for _ in range(2):
        time.sleep(EARLIEST_EVENT_SECONDS)
        airflow.api.clear(task)
        airflow.api.wait_asked(task)
    time.sleep(EARLIEST_EVENT_SECONDS)
    airflow.api.clear(task)
    airflow.api.answer(task, "Reject")
    assert airflow.api.finish(task) == "failed"
    failure = airflow.api.xcom(task, "ray_llm_failure")
    assert failure["sentence"].startswith(f"slice '{DAY}' was rejected by ")
    assert not table.has_output(DAY)
    airflow.api.clear(task)
    airflow.api.wait_asked(task)
    answer(airflow, task, "Approve")
    assert airflow.api.finish(task) == "success"
    assert answered(table) == ROWS


def test_rows_of_a_condition_are_asked_again_and_the_person_then_decides_anew(
    airflow: Airflow, make_table: Callable[..., Table]
) -> None:
    table = make_table(DAY)
    task, question = held(airflow, table, "reviewed_deferred")
    assert question["params"]["condition"]["schema"]["title"] == "Rows where"
    answer(airflow, task, "Answer again", condition=f"name IN ('{DAY} row 0', '{DAY} row 7')")
    airflow.api.wait_asked(task)
    assert not table.has_output(DAY)
    assert answered(table) == ROWS + 2
    answer(airflow, task, "Approve")
    assert airflow.api.finish(task) == "success"
    assert airflow.api.get(task)["try_number"] == 1
    assert table.rows_right(DAY)
    assert answered(table) == ROWS + 2


def test_person_looks_at_a_slice_in_the_browser_has_a_row_answered_again_and_approves_it(
    airflow: Airflow, make_table: Callable[..., Table]
) -> None:
    program = browser.chromium()
    if program is None:
        pytest.skip("no Chromium: install chromium, or run `playwright install chromium`")
    table = make_table(DAY)
    task, _ = held(airflow, table, "reviewed_waiting")
    with browser.logged_in(airflow, program) as page:
        page.goto(f"/plugin/ray-llm/dags/{task.dag_id}/tasks/ask/runs/{quote(task.run_id)}/-1")
        page.get_by_role("row", name=re.compile("rows 40 none Left to a person")).wait_for()
        page.get_by_role("button", name="Staged rows").click()
        page.get_by_role("cell", name=f"{DAY} row 0", exact=True).wait_for()
        page.get_by_role("link", name="Approve or reject").click()
        page.locator("#element_condition").fill("id = 7")
        page.get_by_role("button", name="Answer again").click()
        wait_for(lambda: answered(table) == ROWS + 1 or None, LIMIT, "the row to be answered again")
        airflow.api.wait_asked(task)
        page.reload()
        page.get_by_role("button", name="Approve").click()
        assert airflow.api.finish(task) == "success"
    assert table.rows_right(DAY)


@pytest.mark.parametrize("mode", [long("waiting"), "deferred"], indirect=True)
def test_silence_rejects_a_slice_or_publishes_it_as_the_dag_says(
    airflow: Airflow, make_table: Callable[..., Table], mode: str
) -> None:
    rejected, approved = make_table(DAY), make_table(DAY)
    late, _ = held(airflow, rejected, f"rejected_late_{mode}")
    unseen, _ = held(airflow, approved, f"approved_late_{mode}")
    assert airflow.api.finish(late) == "failed"
    failure = airflow.api.xcom(late, "ray_llm_failure")
    assert failure["sentence"].startswith(f"slice '{DAY}' was rejected")
    assert airflow.api.get(late)["try_number"] == 1
    assert not rejected.has_output(DAY)
    assert airflow.api.finish(unseen) == "success"
    assert approved.rows_right(DAY)
    assert (answered(rejected), answered(approved)) == (ROWS, ROWS)


@pytest.mark.long
def test_answer_to_what_was_asked_before_a_clear_publishes_nothing(
    airflow: Airflow, make_table: Callable[..., Table]
) -> None:
    table = make_table(DAY)
    task, _ = held(airflow, table, "reviewed_deferred")
    time.sleep(EARLIEST_EVENT_SECONDS)
    airflow.api.clear(task)
    wait_for(lambda: airflow.api.get(task)["state"] == "deferred" or None, LIMIT, "the next try's job")
    airflow.api.answer(task, "Approve")
    airflow.api.wait_asked(task)
    assert not table.has_output(DAY)
    answer(airflow, task, "Approve")
    assert airflow.api.finish(task) == "success"
    assert table.rows_right(DAY)
    assert answered(table) == ROWS


def test_approval_whose_process_dies_before_airflow_takes_note_is_asked_for_once(
    airflow: Airflow, make_table: Callable[..., Table]
) -> None:
    """Of a slice that is answered anew each time that it runs."""
    table = make_table(DAY)
    task, _ = held(airflow, table, "reviewed_lastsecond_deferred")
    answer(airflow, task, "Approve")
    assert airflow.api.finish(task) == "success"
    assert airflow.api.get(task)["try_number"] == 2
    assert (airflow.api.xcom(task)["published_version"], answered(table)) == (1, ROWS)
