"""All slices of a table publish the same columns, so that every reader reads it as a whole: what would break
that is refused before a row is paid, unless the job accepts it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.report import Report
from tests.support.in_process import InProcess, changed, job_of, run_in_process


class Table:
    """A table whose slices are days of January."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.job = job_of(input_path="-", output_path=f"{folder}/out", prompt="{x}")
        self.cluster = InProcess()

    def give(self, day: int, **columns: Any) -> None:
        source = self._folder / "in" / str(day)
        source.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), source / "a.parquet")

    def run(self, day: int, cluster: InProcess | None = None, **given: Any) -> Report:
        job = changed(
            self.job, input_path=f"{self._folder}/in/{day}/", slice_key=f"2026-01-{day:02}", **given
        )
        return run_in_process(job, cluster or self.cluster)

    def refuse(self, day: int, match: str, **given: Any) -> None:
        cluster = InProcess()
        with pytest.raises(SliceError, match=match) as refused:
            self.run(day, cluster, **given)
        assert (refused.value.kind, cluster.answered) == ("input", 0)

    def read(self, name: str) -> list[Any]:
        """A column of the whole table, as each reader sees it."""
        url = self.job.paths.of_table.table.removeprefix("file://")
        by_duckdb = duckdb.sql(f"select {name} from '{url}/*/*.parquet' order by x").fetchall()
        seen = [[value for (value,) in by_duckdb]]
        seen.append(pl.scan_parquet(f"{url}/*/*.parquet").sort("x").collect().get_column(name).to_list())
        seen.append(ds.dataset(url, partitioning="hive").to_table().sort_by("x").column(name).to_pylist())
        assert all(values == seen[0] for values in seen)
        return seen[0]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_column_of_nulls_alone_takes_the_type_of_the_table(table: Table) -> None:
    table.give(1, x=["a"], y=[1])
    table.give(2, x=["b"], y=pa.nulls(1))
    table.run(1)
    table.run(2)
    assert table.read("y") == [1, None]


def test_column_that_was_null_on_the_first_day_may_be_anything_that_its_slice_is_published_as(
    table: Table,
) -> None:
    table.give(1, x=["a"], y=pa.nulls(1))
    table.give(2, x=["b"], y=["text"])
    table.run(1)
    table.run(2)
    assert table.read("y") == [None, "text"]


def test_type_that_the_table_holds_is_widened_to_it(table: Table) -> None:
    table.give(1, x=["a"], y=pa.array([dt.datetime(2026, 1, 31)], pa.timestamp("us")), z=[1])
    table.give(2, x=["b"], y=pa.array([1], pa.timestamp("ms")), z=pa.array([2], pa.int8()))
    table.run(1)
    table.run(2)
    assert table.read("y") == [dt.datetime(2026, 1, 31), dt.datetime(1970, 1, 1, 0, 0, 0, 1000)]
    assert table.read("z") == [1, 2]


def test_column_of_nulls_alone_that_no_slice_decided_is_text(table: Table) -> None:
    table.give(1, x=["a"], y=pa.nulls(1))
    table.give(2, x=["b"], y=[1])
    table.run(1)
    table.refuse(2, "column 'y' is int64, and string in the table")


@pytest.mark.parametrize(("columns", "match"), [
    ({"y": ["text"]}, r"column 'y' is string, and int64 in the table .*2026-01-01"),
    ({"y": [1.5]}, r"column 'y' is double, and int64 in the table"),
    ({"y": [{"a": 1}]}, r"column 'y' is struct of 1 field, and int64 in the table"),
    ({"y": [1], "z": [1]}, r"the table has no column 'z' .*2026-01-01.*as int64"),
])  # fmt: skip
def test_other_columns_than_the_tables_are_refused_before_a_row_is_paid(
    table: Table, columns: dict[str, Any], match: str
) -> None:
    table.give(1, x=["a"], y=[1])
    table.give(2, x=["b"], **columns)
    table.run(1)
    table.refuse(2, rf"(?s){match}.*source.column_types.*columns=.*publish.on_schema_change='accept'")
    table.run(2, publish__on_schema_change="accept")


def test_column_of_the_prompt_that_a_day_renamed_is_what_the_error_is_about(table: Table) -> None:
    table.give(1, airline=["a"], y=[1])
    table.run(1, prompt="{airline}")
    for renamed, near in (("airlines", "Did you mean 'airlines'.*"), ("z", "")):
        table.give(2, **{renamed: ["b"], "y": [1]})
        says = rf"^prompt names the column 'airline', .*{near}if the input renamed it, rename it back$"
        table.refuse(2, says, prompt="{airline}")


def test_column_that_a_slice_lacks_is_null_there(table: Table) -> None:
    table.give(1, x=["a"], y=[1])
    table.give(2, x=["b"])
    table.run(1)
    table.run(2)
    assert table.read("y") == [1, None]


def test_accepted_change_is_the_tables_from_then_on_and_costs_no_token_where_the_request_stays(
    table: Table,
) -> None:
    table.give(1, x=["a"], y=[1])
    table.give(2, x=["b"], y=[1.5])
    table.run(1)
    table.run(2, publish__on_schema_change="accept")
    table.refuse(
        1, "column 'y' is int64, and double in the table", rerun__on_config_change="recompute", prompt="{x}!"
    )
    paid = table.cluster.answered
    table.run(
        1,
        rerun__on_config_change="recompute",
        publish__on_schema_change="accept",
        source__column_types={"y": "float64"},
    )
    assert (table.read("y"), table.cluster.answered) == ([1.0, 1.5], paid)


def test_slice_that_is_alone_in_its_table_may_change_its_columns(table: Table) -> None:
    table.give(1, x=["a"], y=[1])
    table.run(1)
    table.give(1, x=["a"], y=["text"], z=[1])
    table.run(1, rerun__on_input_change="recompute")
    assert (table.read("y"), table.read("z")) == (["text"], [1])


def test_answers_are_columns_of_the_table_too(table: Table) -> None:
    table.give(1, x=["a"])
    table.give(2, x=["b"])
    table.run(1)
    table.refuse(
        2, "the table has .*answer.*choose another output_path|no column 'other'", output_column="other"
    )


def test_two_first_slices_that_run_at_once_agree_or_one_is_refused(table: Table) -> None:
    table.give(1, x=["a"], y=[1])
    table.give(2, x=["b"], y=["text"])

    def publish_the_other(batch: pa.Table) -> None:
        table.run(2)

    racing = InProcess(before_batch=_once(publish_the_other))
    with pytest.raises(SliceError, match="column 'y' is int64, and string in the table"):
        table.run(1, racing)
    assert table.read("y") == ["text"]
    again = InProcess()
    table.run(1, again, columns=["x"])
    assert (again.answered, table.read("y")) == (0, [None, "text"])


def _once(call: Callable[[pa.Table], None]) -> Callable[[pa.Table], None]:
    calls = [call]
    return lambda batch: calls.pop()(batch) if calls else None


@pytest.mark.parametrize("given", [{"columns": ["x"]}, {"source__column_types": {"y": "float64"}}])
def test_refused_slice_is_published_by_what_its_error_says(table: Table, given: dict[str, Any]) -> None:
    table.give(1, x=["a"], y=[1.5])
    table.give(2, x=["b"], y=[1])
    table.run(1)
    table.refuse(2, "column 'y' is int64, and double in the table")
    table.run(2, **given)
    assert table.read("y") == [1.5, None if "columns" in given else 1.0]
