"""Rows of any Arrow type with any value: each becomes a request or a failed row, once, whatever its
neighbours hold; and what Parquet holds is read as it was written."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.request.prompt import as_text
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder, RequestReader
from airflow_provider_raydatallm.processor.request.row_values import read_rows
from tests.support.in_process import job_of

Draw = Callable[[st.SearchStrategy[Any]], Any]
#: Draws an array of a length.
Column = Callable[[Draw, int], pa.Array]

_SETTINGS = settings(max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def values(kind: pa.DataType, elements: st.SearchStrategy[Any]) -> Column:
    return lambda draw, size: pa.array(draw(_exactly(size, st.none() | elements)), kind)


def numbered(kind: pa.DataType, bits: int) -> Column:
    """A column whose values are numbers inside, of which Python knows some only."""
    storage = pa.int32() if bits == 32 else pa.int64()
    edges = [0, 1, -1, 2 ** (bits - 1) - 1, 1 - 2 ** (bits - 1), 253402300799 * 10**6, 2**62]
    numbers = st.sampled_from([e for e in edges if abs(e) < 2 ** (bits - 1)]) | st.integers(-(10**6), 10**6)
    return lambda draw, size: pa.array(draw(_exactly(size, st.none() | numbers)), storage).view(kind)


def text(kind: pa.DataType) -> Column:
    """Also a byte order mark; and bytes of which not all are UTF-8."""
    is_bytes = kind in (pa.binary(), pa.large_binary(), pa.binary_view())
    cells = st.sampled_from([
        b"", b"plain", "ü\U0001f600".encode(), b"a\x00b", b"{braces}", b"\xef\xbb\xbf", b"x" * (1 << 20),
    ]) | st.text(max_size=5).map(str.encode)  # fmt: skip
    if is_bytes:
        cells |= st.sampled_from([b"\xff\xfe", b"\xc3", b"\xed\xa0\x80"]) | st.binary(max_size=5)

    def build(draw: Draw, size: int) -> pa.Array:
        array = pa.array(draw(_exactly(size, st.none() | cells)), pa.binary())
        if is_bytes:
            return array.cast(kind)
        return pa.Array.from_buffers(pa.string(), size, array.buffers()).cast(kind)

    return build


def _exactly(size: int, elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(elements, min_size=size, max_size=size)


def nested(inner: Column) -> Iterator[Column]:
    def offsets(draw: Draw, size: int, kind: pa.DataType) -> tuple[pa.Array, int]:
        lengths = draw(_exactly(size, st.integers(0, 2)))
        return pa.array([sum(lengths[:i]) for i in range(size + 1)], kind), sum(lengths)

    def a_list(draw: Draw, size: int) -> pa.Array:
        at, count = offsets(draw, size, pa.int32())
        return pa.ListArray.from_arrays(at, inner(draw, count))

    def a_large_list(draw: Draw, size: int) -> pa.Array:
        at, count = offsets(draw, size, pa.int64())
        return pa.LargeListArray.from_arrays(at, inner(draw, count))

    def pairs(draw: Draw, size: int) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(inner(draw, 2 * size), 2)

    def a_struct(draw: Draw, size: int) -> pa.Array:
        mask = pa.array(draw(_exactly(size, st.booleans())), pa.bool_())
        return pa.StructArray.from_arrays([inner(draw, size), inner(draw, size)], ["a", "b"], mask=mask)

    def a_map(draw: Draw, size: int) -> pa.Array:
        at, count = offsets(draw, size, pa.int32())
        keys = pa.array(draw(_exactly(count, st.sampled_from([1.5, 2.5]))), pa.float64())
        return pa.MapArray.from_arrays(at, keys, inner(draw, count))

    yield from (a_list, a_large_list, pairs, a_struct, a_map)


def dictionary(draw: Draw, size: int) -> pa.Array:
    words = text(pa.string())(draw, 3)
    return pa.DictionaryArray.from_arrays(
        pa.array(draw(_exactly(size, st.sampled_from([0, 1, 2]))), pa.int8()), words
    )


def runs(draw: Draw, size: int) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays([size + 1], numbered(pa.date32(), 32)(draw, 1)).slice(0, size)


def union(draw: Draw, size: int) -> pa.Array:
    return pa.UnionArray.from_sparse(pa.array([0] * size, pa.int8()), [text(pa.string())(draw, size)])


_FLOATS = st.sampled_from([0.0, -0.0, 1.5, float("inf"), float("-inf"), 65504.0])
#: Types that come back from Parquet as they are. Not NaN, which equals nothing.
_STORED: list[Column] = [
    values(pa.bool_(), st.booleans()), values(pa.uint64(), st.integers(0, 2**64 - 1)),
    *(values(kind, _FLOATS) for kind in (pa.float16(), pa.float32(), pa.float64())),
    values(pa.decimal128(38, 2), st.decimals(-(10**30), 10**30, places=2)),
    values(pa.decimal256(76, 0), st.sampled_from([0, 10**75, -(10**75)])),
    *(numbered(kind, 32) for kind in (pa.int32(), pa.date32(), pa.time32("ms"))),
    *(numbered(kind, 64) for kind in (
        pa.int64(), pa.time64("us"), pa.time64("ns"), pa.timestamp("ms"), pa.timestamp("us"),
        pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "Asia/Taipei"),
        pa.timestamp("us", "+05:30"), pa.timestamp("us", "America/New_York"),
        pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns"),
    )),
    *(text(kind) for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())),
    values(pa.binary(16), st.binary(min_size=16, max_size=16)),
]  # fmt: skip
#: Types that are stored as others, and those that Parquet cannot hold (or pyarrow cannot read back: null in a
#: list of lists).
_OTHERS: list[Column] = [
    values(pa.null(), st.none()),
    values(pa.float64(), st.just(float("nan"))), text(pa.string_view()), text(pa.binary_view()), dictionary,
    *(numbered(kind, 64) for kind in (pa.timestamp("s"), pa.timestamp("us", "Nowhere/None"))),
    values(pa.month_day_nano_interval(), st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 3)),
    runs, union,
]  # fmt: skip


def columns(leaves: Sequence[Column]) -> st.SearchStrategy[Column]:
    return st.recursive(
        st.sampled_from(leaves), lambda inner: inner.flatmap(lambda c: st.sampled_from(list(nested(c)))),
        max_leaves=3,
    )  # fmt: skip


@st.composite
def tables(draw: Draw, leaves: Sequence[Column]) -> pa.Table:
    size = draw(st.integers(1, 5))
    made = draw(st.lists(columns(leaves), min_size=1, max_size=3))
    arrays = [column(draw, size) for column in made]
    names = [f"c{i}" for i in range(len(arrays))]
    return pa.table([*arrays, [str(i) for i in range(size)]], names=[*names, "number"])


@pytest.mark.slow
@given(tables([*_STORED, *_OTHERS]))
@_SETTINGS
def test_every_row_is_a_request_or_a_failed_row_once(table: pa.Table) -> None:
    _check_requests(cast(Plan, _InMemory(table)))


@pytest.mark.slow
@given(tables(_STORED), st.integers(1, 5))
@_SETTINGS
def test_what_parquet_holds_is_read_as_it_was_written(table: pa.Table, row_group_size: int) -> None:
    with tempfile.TemporaryDirectory(prefix="any-rows-") as folder:
        pq.write_table(table, Path(folder) / "a.parquet", row_group_size=row_group_size)
        plan = make_plan(job_of(input_path=folder, output_path="/elsewhere", prompt="{number}"))
        plan = Plan.from_json(json.loads(json.dumps(plan.to_json())))
        assert pa.concat_tables([t for unit in plan.units for t in plan.read(unit)]).equals(table)
        _check_requests(plan)


def _check_requests(plan: Plan) -> None:
    table = pa.concat_tables([t for unit in plan.units for t in plan.read(unit)])
    fields = [name for name in table.column_names if name != "number"]
    builder = RequestBuilder(table.column_names, prompt="|".join(f"{{{n}}}" for n in [*fields, "number"]))
    reader = RequestReader(plan, builder, carry_row=True)
    requests: dict[int, str] = {}
    failures: dict[int, str] = {}
    first = 0
    for index, unit in enumerate(plan.units):
        for good, bad in reader(index, np.array([[0, unit.rows]])):
            for row in good.to_pylist():
                request = json.loads(row["__request"])
                offset = first + row["__offset"]
                assert offset not in requests
                requests[offset] = request["messages"][-1]["content"]
                assert json.loads(row["__row"])["number"] == str(offset)
            for row in bad.to_pylist():
                assert first + row["__offset"] not in failures
                failures[first + row["__offset"]] = row["error"]
        first += unit.rows
    assert sorted([*requests, *failures]) == list(range(table.num_rows))
    for i in range(table.num_rows):
        [alone], unreadable = read_rows(table.slice(i, 1))
        if unreadable:
            assert failures[i].startswith("column 'c")
        else:
            assert requests[i] == "|".join(as_text(alone[n]) for n in [*fields, "number"])


@dataclass(frozen=True)
class _Rows:
    rows: int


class _InMemory:
    """Stands for a plan of rows that no file can hold, and none of which is published."""

    schema, columns = pa.schema([]), ()

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.units = [_Rows(table.num_rows)]

    def reader(self) -> _InMemory:
        return self

    def read(self, unit: _Rows, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        yield self._table.select(list(names or self._table.column_names))
