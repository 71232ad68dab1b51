"""The example whose days a person looks at: its checks, and its first days and an odd one, in the browser."""

from __future__ import annotations

import csv
import datetime as dt
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from demo.customers import write_customers
from tests.support import browser
from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import Task

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05")


def ask(airflow: Airflow, day: str) -> Task:
    """The day's run, which Airflow makes when the day is over."""
    over = dt.datetime.fromisoformat(day) + dt.timedelta(days=1)
    task = airflow.api.trigger("customers_reviewed", logical_date=f"{over.isoformat()}Z")
    return replace(task, task_id="infer_industry")


def rewrite(file: Path, company: str) -> None:
    """Has all rows name a company whose name says the same industry."""
    with file.open(newline="", encoding="utf-8") as rows:
        customers = list(csv.DictReader(rows))
    with file.open("w", newline="", encoding="utf-8") as rows:
        writer = csv.DictWriter(rows, customers[0].keys())
        writer.writeheader()
        writer.writerows({**customer, "Company": company} for customer in customers)


@pytest.fixture(autouse=True)
def golden(data: Path) -> Path:
    """Of which the engine gets the last wrong."""
    file = data / "golden.csv"
    right = ["Hill Bank,Bank", "Lake Law,Law", "Dental Hall,Dental", "Vale Software,Software"]
    file.write_text("\n".join(["Company,industry", *right, "Law Bank,Bank"]) + "\n")
    return file


def published(data: Path) -> list[str]:
    return sorted(file.parent.name for file in (data / "industries_reviewed").glob("*/_SUCCESS"))


def test_first_days_and_a_day_unlike_them_wait_for_a_person(airflow: Airflow, data: Path) -> None:
    program = browser.chromium()
    if program is None:
        pytest.skip("no Chromium: install chromium, or run `playwright install chromium`")
    files = write_customers(data / "customers", DAYS, rows=2000)
    rewrite(files[-1], "Hill Bank")
    with browser.logged_in(airflow, program) as page:

        def approve(task: Task, says: str) -> None:
            airflow.api.wait_asked(task)
            page.goto(f"/plugin/ray-llm/dags/{task.dag_id}/tasks/{task.task_id}/runs/{quote(task.run_id)}/-1")
            page.get_by_role("row", name=re.compile(says)).wait_for()
            page.get_by_text("4 of 5 golden rows are right").wait_for()
            page.get_by_role("link", name="Approve or reject").click()
            page.get_by_role("button", name="Approve").click()
            assert airflow.api.finish(task) == "success"

        for task in [ask(airflow, day) for day in DAYS[:3]]:
            approve(task, "labels not known")
        usual = ask(airflow, DAYS[3])
        assert airflow.api.finish(usual) == "success"
        result = airflow.api.xcom(usual)
        assert [gate["verdict"] for gate in result["gates"]] == ["passed"] * 4
        assert (result["golden"]["rows"], result["golden"]["correct"]) == (5, 4)
        assert result["golden"]["confusion"] == [{"expected": "Bank", "answered": "Law", "rows": 1}]
        odd = ask(airflow, DAYS[4])
        airflow.api.wait_asked(odd)
        assert len(published(data)) == 4
        approve(odd, r"labels 0\.\d+ .* Left to a person")
    assert published(data) == [f"ds={day}" for day in DAYS]


def test_day_that_does_not_pass_its_own_checks_is_not_published(airflow: Airflow, data: Path) -> None:
    (data / "customers" / "ds=2026-02-01").mkdir(parents=True)
    header = "Customer Id,Company\n"
    (data / "customers" / "ds=2026-02-01" / "customers.csv").write_text(
        header + "A,Hill Bank\nA,Law Bank\nB,Dental Bank\n"
    )
    task = ask(airflow, "2026-02-01")
    assert airflow.api.finish(task) == "failed"
    sentence = airflow.api.xcom(task, "ray_llm_failure")["sentence"]
    assert 'sql:SELECT count(*) - count(DISTINCT "Customer Id") FROM answers is 1, above max 0' in sentence
    assert "industries:share_of_contradictions is 0.6667, above max 0.05" in sentence
    assert "ds=2026-02-01" not in published(data)
