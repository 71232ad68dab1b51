"""Gates of a slice, with a function of the DAG's own code, on a real cluster."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.airflow_processes import Airflow
from tests.support.tables import ROWS, Table

DAY = "2025-01-01"


def test_slice_that_does_not_pass_a_function_is_published_by_another_limit_for_no_row(
    airflow: Airflow, make_table: Callable[..., Table]
) -> None:
    table = make_table(DAY)
    conf = {"table": table.name, "slice": DAY}
    stopped = airflow.api.trigger("checked_deferred", conf={**conf, "least": ROWS + 1})
    assert airflow.api.finish(stopped) == "failed"
    failure = airflow.api.xcom(stopped, "ray_llm_failure")
    assert failure["sentence"] == (
        f"slice '{DAY}' did not pass: held_engine:count_rows is {ROWS}, below min {ROWS + 1}"
    )
    assert airflow.api.get(stopped)["try_number"] == 1
    assert not table.has_output(DAY)
    passed = airflow.api.trigger("checked_deferred", conf={**conf, "least": ROWS})
    assert airflow.api.finish(passed) == "success"
    [gate] = airflow.api.xcom(passed)["gates"]
    assert (gate["value"], gate["verdict"]) == (ROWS, "passed")
    assert table.rows_right(DAY)
    assert sum(rows for _, rows in table.answered(DAY)) == ROWS
