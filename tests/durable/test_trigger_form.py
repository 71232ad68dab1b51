"""The Params of `slice_params`, as the trigger form shows them and Airflow's REST API checks them."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import expect

from tests.support import browser
from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, Task, wait_for
from tests.support.tables import Table

DAG_ID, DAY = "notified_deferred", "2025-01-02"


@pytest.mark.parametrize("conf", [
    {"slice": "yesterday"}, {"model": "other/model"}, {"max_quarantine": 5}, {"max_rows": 0},
    {"force": "yes"},
])  # fmt: skip
def test_rest_api_refuses_wrong_values_and_makes_no_run(airflow: Airflow, conf: dict[str, object]) -> None:
    with pytest.raises(httpx.HTTPStatusError) as refused:
        airflow.api.trigger(DAG_ID, conf=conf)
    assert refused.value.response.status_code == 400
    assert next(iter(conf)) in refused.value.response.text


def test_form_names_each_param_and_starts_a_run_with_its_values(
    airflow: Airflow, make_table: Callable[..., Table]
) -> None:
    program = browser.chromium()
    if program is None:
        pytest.skip("no Chromium: install chromium, or run `playwright install chromium`")
    table = make_table(DAY, name="formed")
    with browser.logged_in(airflow, program) as page:
        page.goto(f"/dags/{DAG_ID}")
        page.get_by_role("button", name="Trigger Dag").click()
        form = page.get_by_role("dialog")
        for title, description in {
            "Day": "Empty: that of the run", "Model": "Another one replaces the day's answers",
            "Rows of a trial": "Empty: the whole day", "Answer quarantined rows again": "Of a published day",
            "Answer all rows again": "Also where nothing changed",
            "Share of rows that may fail": "From 0 to 1",
        }.items():  # fmt: skip
            expect(form.get_by_text(title, exact=True).first).to_be_visible()
            expect(form.get_by_text(re.compile(re.escape(description))).first).to_be_visible()
        form.locator("#element_table").fill(table.name)
        form.locator("#element_slice").fill(DAY)
        form.locator("#element_max_rows").fill("7")
        form.get_by_test_id("trigger-dag-submit").click()
        form.wait_for(state="hidden")

    def find_run() -> Task | None:
        runs = airflow.api.call("GET", f"/dags/{DAG_ID}/dagRuns", params={"order_by": "-start_date"})[
            "dag_runs"
        ]
        return next(
            (Task(DAG_ID, r["dag_run_id"]) for r in runs if r["conf"].get("table") == table.name), None
        )

    task = wait_for(find_run, LIMIT, "the run that the form started")
    assert airflow.api.finish(task) == "success"
    result = airflow.api.xcom(task)
    assert (result["slice_key"], result["counts"]["planned"]) == (DAY, 7)
    assert "first-7" in result["output_path"]
    assert not table.has_output(DAY)
