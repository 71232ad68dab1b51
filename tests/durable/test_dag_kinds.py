"""The three kinds of DAG runs - scheduled, backfilled, triggered by a person - each made by Airflow itself,
in both modes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support import browser
from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, Task, wait_for
from tests.support.marks import long
from tests.support.outcomes import Line, Outcomes
from tests.support.ray_door import Cluster
from tests.support.tables import Table

MakeTable = Callable[..., Table]

DAYS = ("2025-01-01", "2025-01-02", "2025-01-03")


def day_of(run: dict[str, Any]) -> str:
    return str(run["partition_key"] or run["logical_date"])[:10]


def tasks_of(airflow: Airflow, dag_id: str, *days: str) -> list[Task]:
    """The task of every run, of these days only if any are named, by what the run owns."""
    runs = airflow.api.runs(dag_id)
    return [Task(dag_id, run["dag_run_id"]) for run in runs if not days or day_of(run) in days]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        # Runs with dates are those of the backfill below, too.
        long("scheduled", "waiting"), long("scheduled", "deferred"), ("partitioned", "deferred"),
        long("partitioned", "waiting"),
    ],
    indirect=["mode"],
)  # fmt: skip
def test_scheduler_runs_past_days_by_itself(
    airflow: Airflow, outcomes: Outcomes, make_table: MakeTable, kind: str, mode: str
) -> None:
    dag_id = f"{kind}_{mode}"
    table = make_table(*DAYS[:2], name=dag_id)
    airflow.api.pause(dag_id, False)
    runs = airflow.api.wait_runs(dag_id, 2)
    assert [(r["run_type"], day_of(r)) for r in runs] == [("scheduled", day) for day in DAYS[:2]]
    line = outcomes.see(f"{kind} run", mode, tasks_of(airflow, dag_id), table, *DAYS[:2])
    assert line == Line(f"{kind} run", mode, "published x2", 2, 0, "right", "success x2")


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        long("backfill", "waiting"), long("backfill", "deferred"), long("backfill_partitioned", "deferred"),
        long("backfill_partitioned", "waiting"),
    ],
    indirect=["mode"],
)  # fmt: skip
def test_backfill_runs_again_what_it_is_told_to_and_answers_nothing_twice(
    airflow: Airflow, outcomes: Outcomes, make_table: MakeTable, kind: str, mode: str
) -> None:
    """A partitioned DAG gets new runs beside the old ones; other DAGs have their runs cleared. The one is
    backfilled as the UI does it, the other by `airflow backfill create`."""
    dag_id, beside = f"{kind}_{mode}", kind == "backfill_partitioned"
    table = make_table(DAYS[0], DAYS[2], name=dag_id)
    # What a person's run would take its slice from counts in none of these.
    conf = {} if beside else {"slice": "2025-01-09"}
    create = partial(airflow.api.backfill if beside else airflow.backfill, conf=conf)

    def backfill(reprocess: str, runs: int) -> list[Task]:
        create(dag_id, DAYS[0], DAYS[2], reprocess=reprocess)
        airflow.api.wait_runs(dag_id, runs)
        airflow.api.end_backfills(dag_id)
        return tasks_of(airflow, dag_id)

    def tries(tasks: list[Task]) -> list[int]:
        return [airflow.api.get(task)["try_number"] for task in tasks]

    event = f"{kind} of 3 days, one without input"
    for day in (DAYS[0], DAYS[2]):
        table.hold(day, 1)
    create(dag_id, DAYS[0], DAYS[2])
    for day in (DAYS[0], DAYS[2]):
        table.wait_answered(day, 1)  # both are at work: days run side by side
    for day in (DAYS[0], DAYS[2]):
        table.release(day)
    airflow.api.wait_runs(dag_id, 3)
    airflow.api.end_backfills(dag_id)
    tasks = tasks_of(airflow, dag_id)
    line = outcomes.see(event, mode, tasks, table, *DAYS)
    assert line == Line(event, mode, "-, published x2", 2, 0, "some", "failed, success x2")

    assert backfill("none", 3) == tasks
    assert tries(tasks) == [1, 1, 1]

    table.write(DAYS[1])
    published = table.version(DAYS[0])
    event = f"{kind} again: failed"
    tasks = backfill("failed", 3 + beside)
    assert tries(tasks) == ([1, 1, 1, 1] if beside else [1, 2, 1])
    last = [tasks[2 if beside else 1]]
    line = outcomes.see(event, mode, last, table, *DAYS)
    assert line == Line(event, mode, "published", 1, 0, "right", "success")

    event = f"{kind} again: completed"
    tasks = backfill("completed", 3 + 4 * beside)
    assert tries(tasks) == ([1] * 7 if beside else [2, 3, 2])
    last = [tasks[1], tasks[4], tasks[6]] if beside else tasks
    line = outcomes.see(event, mode, last, table, *DAYS)
    assert line == Line(event, mode, "unchanged x3", 0, 0, "right", "success x3")
    assert table.version(DAYS[0]) == published


@pytest.mark.long
@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_mapped_tasks_answer_a_slice_each(
    airflow: Airflow, outcomes: Outcomes, make_table: MakeTable, mode: str
) -> None:
    table = make_table(*DAYS[:2])
    task = airflow.api.trigger(f"mapped_{mode}", conf={"table": table.name, "days": DAYS[:2]})
    airflow.api.wait_runs(f"mapped_{mode}", 1)
    line = outcomes.see("mapped run", mode, [task.at(0), task.at(1)], table, *DAYS[:2])
    assert line == Line("mapped run", mode, "published x2", 2, 0, "right", "success x2")
    shown = [t["rendered_map_index"] for t in airflow.api.tasks(task) if t["task_id"] == "ask"]
    assert shown == list(DAYS[:2])


@pytest.mark.long
@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_two_runs_of_one_slice_ask_the_engine_once(
    airflow: Airflow, cluster: Cluster, outcomes: Outcomes, make_table: MakeTable, mode: str
) -> None:
    table = make_table(DAYS[0])
    table.hold(DAYS[0], 1)
    conf = {"table": table.name, "slice": DAYS[0]}
    first = airflow.api.trigger(f"manual_{mode}", conf=conf)
    table.wait_answered(DAYS[0], 1)
    second = airflow.api.trigger(f"manual_{mode}", conf=conf)

    def attached() -> bool | None:
        jobs = cluster.jobs(run_id=second.run_id)
        return any('"attach"' in cluster.log(job["submission_id"]) for job in jobs) or None

    wait_for(attached, LIMIT, "the second run to wait for the first", lambda: airflow.api.log(second))
    table.release(DAYS[0])
    line = outcomes.see("two runs of a slice at once", mode, [first, second], table, DAYS[0])
    assert line == Line(
        "two runs of a slice at once", mode, "attached, published", 1, 0, "right", "success x2"
    )
    assert airflow.api.xcom(second)["outcome"] == "attached"


@pytest.mark.long
@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_person_triggers_a_slice_with_the_form_of_the_ui(
    airflow: Airflow, outcomes: Outcomes, make_table: MakeTable, mode: str
) -> None:
    program = browser.chromium()
    if program is None:
        pytest.skip("no Chromium: install chromium, or run `playwright install chromium`")
    dag_id, table = f"manual_{mode}", make_table(DAYS[2])
    before = tasks_of(airflow, dag_id)
    with browser.logged_in(airflow, program) as page:
        browser.trigger(page, dag_id, slice=DAYS[2], table=table.name)
    airflow.api.wait_runs(dag_id, len(before) + 1)
    [task] = set(tasks_of(airflow, dag_id)) - set(before)
    run = airflow.api.run(task)
    assert (run["run_type"], run["conf"]) == ("manual", {"slice": DAYS[2], "table": table.name})
    line = outcomes.see("form of the UI", mode, task, table, DAYS[2])
    assert line == Line("form of the UI", mode, "published", 1, 0, "right", "success")


@pytest.mark.long
def test_long_backfill_answers_every_day_once(
    airflow: Airflow, outcomes: Outcomes, make_table: MakeTable, mode: str
) -> None:
    """More days than run at once; then the same days again, which cost nothing."""
    dag_id, days = f"backfill_{mode}", [f"2025-01-{day:02}" for day in range(5, 29)]
    table = make_table(*days, name=f"long_backfill_{mode}")
    for event, reprocess, outcome, jobs in (
        ("backfill of 24 days", "none", "published", 24),
        ("backfill of 24 days again", "completed", "unchanged", 0),
    ):
        conf = {"table": table.name}
        airflow.backfill(dag_id, days[0], days[-1], reprocess=reprocess, max_active_runs=6, conf=conf)
        airflow.api.wait_runs(dag_id, len(days), timeout=900)
        airflow.api.end_backfills(dag_id)
        line = outcomes.see(event, mode, tasks_of(airflow, dag_id, *days), table, *days)
        assert line == Line(event, mode, f"{outcome} x24", jobs, 0, "right", "success x24")
