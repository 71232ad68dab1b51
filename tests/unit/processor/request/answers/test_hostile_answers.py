"""Whatever a model answers and a postprocess function returns: one row's value stops no other row."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import io
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raydatallm.processor.columns import failed_table
from airflow_provider_raydatallm.processor.request.answers.shape import TextParser
from tests.support.in_process import job_of
from tests.unit.processor.request.answers.test_shape import parse, reasons


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


HOSTILE: dict[str, Any] = {
    "lone surrogate": "a\ud800b", "over 64 bits": 2**70, "set": {1}, "object": object(), "deep": nested(2000),
    "NaN key": {float("nan"): 1}, "int key": {1: 1}, "surrogate key": {"\ud800": 1}, "function": len,
    "surrogate inside": [{"a": ["\udfff"]}], "mixed list": [1, "a"], "complex": 1j,
    "NaN decimal": Decimal("NaN"), "type": dict,
    "long decimal": Decimal("1e100"), "zoned time": dt.time(1, tzinfo=dt.UTC), "range": range(3),
    "nanoseconds": np.datetime64("2020-01-01T00:00:00.000000001"), "generator": (i for i in range(3)),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("place", ["first", "last"])
def test_hostile_value_is_its_rows_failure(case: str, place: str) -> None:
    texts = ["bad", "a", "b"] if place == "first" else ["a", "b", "bad"]
    rows, failed = parse(texts, lambda row: {"x": HOSTILE[case] if row["answer"] == "bad" else row["answer"]})
    assert rows.column("x").to_pylist() == ["a", "b"]
    [(offset, kind, message)] = reasons(failed)
    assert (texts[offset], kind) == ("bad", "TypeMismatch")
    assert message.startswith("postprocess: ")


@pytest.mark.parametrize("result", [
    "\ud800", {"\ud800": 1}, {float("nan"): 1}, {None: 1}, {"": 1}, {"x": {1}}, None, {}, [], {"y": "other"},
])  # fmt: skip
def test_hostile_result_stops_no_other_row(result: Any) -> None:
    rows, failed = parse(
        ["a", "b", "bad"], lambda row: result if row["answer"] == "bad" else {"x": row["answer"]}
    )
    assert rows.column("x").to_pylist()[:2] == ["a", "b"]
    assert rows.num_rows + failed.num_rows == 3


def test_failure_whose_text_cannot_be_read_or_stored_is_kept_all_the_same() -> None:
    def fail(row: dict[str, Any]) -> Any:
        raise Unreadable if row["answer"] == "a" else ValueError("a\ud800" * 9000)

    _, failed = parse(["a", "b"], fail)
    [(_, kind, unreadable), (_, _, unstorable)] = reasons(failed)
    assert kind == "Unreadable"
    assert unreadable.endswith("): Unreadable, whose text cannot be read (ValueError)")
    assert "): a\\ud800a\\ud800" in unstorable
    table = failed_table(pa.table({"__unit": [0], "__offset": [0]}), [(0, "\ud800", "\udfff")])
    assert table.column("error").to_pylist() == [r"\udfff"]


def test_answer_of_json_with_a_lone_surrogate_fails_its_row_alone() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    rows, failed = parse([r'{"a": "\ud800"}', '{"a": "b"}'], output_schema=schema)
    assert rows.column("answer").to_pylist() == [{"a": "b"}]
    assert [r[:2] for r in reasons(failed)] == [(0, "InvalidOutput")]


def test_name_with_a_lone_surrogate_in_an_invalid_answer_fails_its_row_alone() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    rows, failed = parse([r'{"\ud800": "x"}', '{"a": 1}'], output_schema=schema)
    assert rows.column("answer").to_pylist() == ['{"a": 1}']
    [problem] = failed.column("problem").to_pylist()
    assert r"\ud800" in problem
    assert [r[:2] for r in reasons(failed)] == [(0, "InvalidOutput")]


def test_names_that_a_model_writes_do_not_widen_the_table_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("airflow_provider_raydatallm.processor.request.answers.shape._MAX_FIELDS", 3)
    rows, failed = parse(
        ["a", "bb", "e", "d", "a"], lambda row: {row["answer"]: {"x": 1} if row["answer"] == "bb" else 1}
    )
    assert rows.column("__offset").to_pylist() == [0, 1, 4]
    assert all("more than 3 columns" in message for _, _, message in reasons(failed))


def test_text_over_the_limit_of_a_cell_fails_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_raydatallm.processor.value_types.MAX_CELL_BYTES", 100)
    rows, failed = parse(["a", "b"], lambda row: {"x": "é" * (60 if row["answer"] == "a" else 50)})
    assert rows.column("x").to_pylist() == ["é" * 50]
    assert "it has 120 bytes, more than the 100" in reasons(failed)[0][2]


def test_answer_of_an_engine_that_is_no_text_fails_its_row_alone() -> None:
    rows, failed = parse(["a", "b\ud800", "c"], errors=[None, None, "broken \udfff"])
    assert rows.column("answer").to_pylist() == ["a"]
    assert reasons(failed) == [
        (1, "UnicodeError", "the answer is not valid Unicode"), (2, "ValueError", r"broken \udfff"),
    ]  # fmt: skip


class Color(enum.StrEnum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Model(pydantic.BaseModel):
    name: str
    points: list[Point]


@pytest.mark.parametrize(("value", "kind", "published"), [
    (np.float32(0.5), "float", 0.5), (np.arange(2), "list<item: int64>", [0, 1]),
    (np.bool_(True), "bool", True), (np.ones((1, 2), np.float32), "list<item: list<item: float>>", [[1, 1]]),
    (Color.RED, "string", "red"), (Point(1, 2.0), "struct<x: int64, y: double>", {"x": 1, "y": 2.0}),
    (Model(name="a", points=[Point(1, 2)]),
     "struct<name: string, points: list<item: struct<x: int64, y: int64>>>",
     {"name": "a", "points": [{"x": 1, "y": 2}]}),
    (np.datetime64("2020-01-01"), "timestamp[us]", dt.datetime(2020, 1, 1)), (b"\xff", "binary", b"\xff"),
    (dt.datetime(2020, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))), "timestamp[us, tz=UTC]",
     dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    (Decimal("1.50"), "decimal128(3, 2)", Decimal("1.50")),
    (dt.date(1, 1, 1), "date32[day]", dt.date(1, 1, 1)),
    (2**63 - 1, "int64", 2**63 - 1), ((1, None), "list<item: int64>", [1, None]),
    (dt.time(1), "time64[us]", dt.time(1)),
    (np.datetime64("NaT"), "null", None), ({}, "null", None),
])  # fmt: skip
def test_values_of_usual_types_are_published_as_they_are(value: Any, kind: str, published: Any) -> None:
    rows, failed = parse(["a"], lambda row: {"v": value})
    assert failed.num_rows == 0
    assert str(rows.schema.field("v").type) == kind
    assert rows.column("v").to_pylist() == [published]


def test_numbers_of_one_column_are_published_without_a_change() -> None:
    values = [1, None, 2.5, -(2**53), True, 2**53 + 1]
    rows, failed = parse([str(i) for i in range(6)], lambda row: {"x": values[int(row["answer"])]})
    assert rows.column("x").to_pylist() == [1.0, None, 2.5, -(2.0**53)]
    assert [r[0] for r in reasons(failed)] == [4, 5]
    big = [1, 2**53 + 1, 0.5]
    rows, failed = parse(["0", "1", "2"], lambda row: {"x": big[int(row["answer"])]})
    assert rows.column("x").to_pylist() == [1, 2**53 + 1]
    assert [r[0] for r in reasons(failed)] == [2]


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**63), 2**63 - 1), st.floats(),
    st.binary(max_size=4), st.text(max_size=4), st.text(st.characters(), max_size=3), st.dates(),
    st.datetimes(), st.decimals(),
    st.datetimes(timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=-23))])), st.times(),
    st.timedeltas(), st.sets(st.integers(), max_size=1), st.just(Color.RED),
)  # fmt: skip
keys = st.one_of(st.text(max_size=2), st.sampled_from("ab"), st.floats(), st.none(), st.just("\ud800"))
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
results = st.one_of(
    values, st.dictionaries(st.sampled_from(["p", "q", "__z", "c", "\udfff", 5]), values, max_size=3)
)


def same(one: Any, other: Any) -> bool:
    """Equal but for what a table changes by design: nulls for missing fields, tuples, float for int."""
    if isinstance(one, dict):
        if not one:
            return other is None or not any(other.values())
        return isinstance(other, dict) and all(same(one.get(k), v) for k, v in other.items())
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    if isinstance(one, dt.date) and not isinstance(one, dt.datetime) and isinstance(other, dt.datetime):
        return dt.datetime(one.year, one.month, one.day) == other
    return bool(one == other or (one != one and other != other))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(results, min_size=1, max_size=6), st.integers(1, 6))
def test_every_row_is_published_unchanged_or_fails_alone(returned: list[Any], group: int) -> None:
    """In groups of any size, of which the first decides: the rest of the rows, the columns' types and Parquet
    hold."""
    returned = [{"p": 0}, *returned]
    job = job_of(input_path="/i", output_path="/o")
    parser = TextParser(job, lambda row: returned[int(row["answer"])], ["c"])
    published, failures = 0, 0
    for first in range(0, len(returned), group):
        texts: list[str | None] = [str(i) for i in range(first, min(first + group, len(returned)))]
        rows, failed = parse(texts, parser=parser)
        assert rows.num_rows + failed.num_rows == len(texts)
        published, failures = published + rows.num_rows, failures + failed.num_rows
        for row in rows.to_pylist():
            result = returned[first + row["__offset"]]
            result = result if isinstance(result, dict) else {"answer": result}
            columns = {k: v for k, v in row.items() if not k.startswith("__")}
            assert {k for k, v in columns.items() if v is not None} <= result.keys()
            assert all(same(result.get(name), value) for name, value in columns.items()), (result, columns)
        pq.write_table(rows, io.BytesIO())
        json.dumps(reasons(failed), ensure_ascii=False).encode()
    assert published + failures == len(returned)
