"""Runs that no schedule made and no date names: "Materialize" of an asset, a trigger without a logical date,
an asset event that a person made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, Task, wait_for
from tests.support.outcomes import Line, Outcomes
from tests.support.tables import Table

DAY = "2025-01-01"


@pytest.mark.long
def test_run_without_a_date_takes_its_slice_from_its_form_or_is_refused_at_once(
    airflow: Airflow, outcomes: Outcomes, make_table: Callable[..., Table]
) -> None:
    table = make_table(DAY)
    conf = {"table": table.name}
    materialized = airflow.api.materialize("asset_deferred", {**conf, "slice": DAY})
    refused = [
        airflow.api.materialize("asset_deferred", {**conf, "slice": None}),
        airflow.api.materialize("asset_deferred"),
        airflow.api.trigger("asset_deferred", conf=conf),
    ]
    for task in refused:
        assert airflow.api.finish(task) == "failed"
        assert airflow.api.get(task)["try_number"] == 1
        airflow.api.wait_logged(task, "no slice key: this run has no partition key")
    line = outcomes.see("asset materialized", "deferred", materialized, table, DAY)
    assert line == Line("asset materialized", "deferred", "published", 1, 0, "right", "success")


def test_consumer_of_an_asset_survives_an_event_that_a_person_made_and_a_run_without_events(
    airflow: Airflow,
) -> None:
    dag_id = "customers_by_industry"
    airflow.api.trigger(dag_id)
    airflow.api.create_asset_event("customers_enriched")
    runs = airflow.api.wait_runs(dag_id, 2)
    assert sorted(run["run_type"] for run in runs) == ["asset_triggered", "manual"]
    for run in runs:
        task = Task(dag_id, run["dag_run_id"], "count")
        assert (run["state"], airflow.api.xcom(task)) == ("success", {})


@pytest.mark.long
def test_each_slice_of_a_chain_is_processed_however_many_events_start_a_run(
    airflow: Airflow, make_table: Callable[..., Table], mode: str
) -> None:
    days = ["2025-01-01", "2025-01-02"]
    source, chained = make_table(*days), make_table(*days, name=f"chained_{mode}")
    airflow.api.pause(f"chained_{mode}", paused=False)
    first = airflow.api.trigger(f"chaining_{mode}", conf={"table": source.name, "days": days})
    for map_index in range(len(days)):
        assert airflow.api.finish(first.at(map_index)) == "success"
    # An event that came while Airflow made a run of an earlier one waits for the next event.
    airflow.api.wait_runs(f"chained_{mode}", 1)
    airflow.api.trigger(f"chaining_{mode}", conf={"table": source.name, "days": days})
    wait_for(
        lambda: all(map(chained.rows_right, days)) or None, LIMIT, f"both days of {chained.name}",
        lambda: airflow.api.runs(f"chained_{mode}"),
    )  # fmt: skip
    assert {run["run_type"] for run in airflow.api.runs(f"chained_{mode}")} == {"asset_triggered"}
