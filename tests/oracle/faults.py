"""Faults to plant in what the reader gets of Arrow: a property test that does not find them proves nothing.

They damage what pyarrow's readers return, whichever of them the product calls, and while it runs only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import accumulate, pairwise
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.formats.text import TextFormat
from tests.oracle.cells import is_text

_WIDE = Context(prec=160)
#: What becomes of an array; the same one for types that the fault leaves alone.
Damage = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class Fault:
    """:ivar within: cases of the format in which it must be found.
    :ivar found_as: how causes of violations begin that it may be found by: not by a crash of this harness.
    """

    name: str
    planted: Callable[[], AbstractContextManager[None]]
    format: str = "parquet"
    within: int = 300
    found_as: str = "changed|prompt"


def _table_damaged(table: Any, damage: Damage) -> Any:
    """A Table or RecordBatch whose arrays are damaged at every depth, with the types that they had."""
    if not table.num_columns:
        return table
    columns = []
    for column in table.columns:
        if isinstance(column, pa.ChunkedArray):
            columns.append(pa.chunked_array([_deeply(chunk, damage) for chunk in column.chunks], column.type))
        else:
            columns.append(_deeply(column, damage))
    return type(table).from_arrays(columns, schema=table.schema)


def _deeply(array: pa.Array, damage: Damage) -> pa.Array:
    """The very array where nothing in it is damaged."""
    kind = array.type
    if pt.is_struct(kind):
        fields = [array.field(i) for i in range(kind.num_fields)]
        damaged = [_deeply(field, damage) for field in fields]
        if any(new is not old for new, old in zip(damaged, fields, strict=True)):
            array = pa.StructArray.from_arrays(damaged, fields=list(kind), mask=array.is_null())
    elif _is_list(kind):
        values = array.flatten()
        if (new := _deeply(values, damage)) is not values:
            array = _lists(array, new)
    return damage(array)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind))


def _lists(array: pa.Array, values: pa.Array, mask: pa.Array | None = None, shift: int = 0) -> pa.Array:
    """Lists of those values, of the lengths that the array's have.

    :param shift: values at the beginning of each list that the list before takes.
    """
    lengths = [0 if n is None else n for n in pc.list_value_length(array).to_pylist()]
    ends = list(accumulate(lengths, initial=0))
    ends[1:-1] = [min(end + shift, following) for end, following in pairwise(ends[1:])]
    is_large = pt.is_large_list(array.type)
    array_of = pa.LargeListArray if is_large else pa.ListArray
    offsets = pa.array(ends, pa.int64() if is_large else pa.int32())
    return array_of.from_arrays(
        offsets, values, type=array.type, mask=array.is_null() if mask is None else mask
    )


@contextlib.contextmanager
def _damaging(damage: Damage, *, written: bool) -> Iterator[None]:
    """:param written: also what is written, of types that the reader may give to what it read as integers."""

    def damaged(read: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: _table_damaged(read(*args, **kwargs), damage)

    iter_batches = pq.ParquetFile.iter_batches

    def batches(self: pq.ParquetFile, *args: Any, **kwargs: Any) -> Iterator[pa.RecordBatch]:
        return (_table_damaged(batch, damage) for batch in iter_batches(self, *args, **kwargs))

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(pq.ParquetFile, "iter_batches", batches))
        for owner, name in [
            (pq.ParquetFile, "read"), (pq.ParquetFile, "read_row_group"), (pq.ParquetFile, "read_row_groups"),
            (pa_csv, "read_csv"), (pa_json, "read_json"),
        ]:  # fmt: skip
            patches.enter_context(mock.patch.object(owner, name, damaged(getattr(owner, name))))
        if written:
            write = pq.ParquetWriter.write_table

            def write_damaged(self: pq.ParquetWriter, table: pa.Table, *args: Any, **kwargs: Any) -> None:
                write(self, _table_damaged(table, damage), *args, **kwargs)

            patches.enter_context(mock.patch.object(pq.ParquetWriter, "write_table", write_damaged))
        yield


def _damages(
    is_hit: Callable[[pa.DataType], bool], change: Damage, *, written: bool = False
) -> Callable[[], AbstractContextManager[None]]:
    def damage(array: pa.Array) -> pa.Array:
        return change(array) if len(array) and is_hit(array.type) else array

    return lambda: _damaging(damage, written=written)


def _as_numbers(change: Callable[[pa.Array], pa.Array]) -> Damage:
    """Changes what a temporal array is inside."""

    def changed(array: pa.Array) -> pa.Array:
        storage = pa.int32() if array.type.bit_width == 32 else pa.int64()
        return change(array.view(storage)).cast(storage, safe=False).view(array.type)

    return changed


def _rounded_to_float(array: pa.Array) -> pa.Array:
    values = array.to_pylist()
    limit = 2**63 - 1024
    return pa.array([v if v is None or abs(v) > limit else int(float(v)) for v in values], array.type)


def _decimal_as_float(array: pa.Array) -> pa.Array:
    step = Decimal(1).scaleb(-array.type.scale)

    def rounded(value: Decimal) -> Decimal:
        other = Decimal(float(value)).quantize(step, context=_WIDE)
        return other if len(other.as_tuple().digits) <= array.type.precision else value

    return pa.array([v if v is None else rounded(v) for v in array.to_pylist()], array.type)


def _local_instants(array: pa.Array) -> pa.Array:
    """Local times taken for UTC: eight hours off."""
    hours = 8 * 3600 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[array.type.unit]
    return _as_numbers(lambda numbers: pc.add(numbers, hours))(array)


def _fields_swapped(array: pa.StructArray) -> pa.Array:
    kinds = [f.type for f in array.type]
    for i, kind in enumerate(kinds):
        for j in range(i + 1, len(kinds)):
            if kinds[j] == kind and array.type[i].nullable == array.type[j].nullable:
                columns = [array.field(n) for n in range(len(kinds))]
                columns[i], columns[j] = columns[j], columns[i]
                return pa.StructArray.from_arrays(columns, fields=list(array.type), mask=array.is_null())
    return array


def _offsets_shifted(array: pa.Array) -> pa.Array:
    """The first value of each list belongs to the list before, which is no null."""
    return _lists(array, array.flatten(), mask=pa.array([False] * len(array)), shift=1)


def _empty_is_null(array: pa.Array) -> pa.Array:
    mask = pa.array([v is None or len(v) == 0 for v in array.to_pylist()])
    return _lists(array, array.flatten(), mask=mask)


@contextlib.contextmanager
def _int96_in_nanoseconds() -> Iterator[None]:
    opened = pq.ParquetFile.__init__

    def open_coarsely(self: pq.ParquetFile, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("coerce_int96_timestamp_unit", None)
        opened(self, *args, **kwargs)

    with mock.patch.object(pq.ParquetFile, "__init__", open_coarsely):
        yield


@contextlib.contextmanager
def _rows_taken(order: Callable[[int], list[int]]) -> Iterator[None]:
    """Rows of each batch of Parquet in another order."""
    iter_batches = pq.ParquetFile.iter_batches

    def batches(self: pq.ParquetFile, *args: Any, **kwargs: Any) -> Iterator[pa.RecordBatch]:
        for batch in iter_batches(self, *args, **kwargs):
            yield batch.take(pa.array(order(batch.num_rows))) if batch.num_columns else batch

    with mock.patch.object(pq.ParquetFile, "iter_batches", batches):
        yield


@contextlib.contextmanager
def _last_row_group_skipped() -> Iterator[None]:
    iter_batches = pq.ParquetFile.iter_batches

    def batches(
        self: pq.ParquetFile, batch_size: int = 65536, row_groups: Any = None, *args: Any, **kwargs: Any
    ) -> Iterator[pa.RecordBatch]:
        last = self.num_row_groups - 1
        groups = [g for g in (range(last + 1) if row_groups is None else row_groups) if g < last or not last]
        return iter_batches(self, batch_size, groups, *args, **kwargs)

    with mock.patch.object(pq.ParquetFile, "iter_batches", batches):
        yield


def _text_read_leniently() -> AbstractContextManager[None]:
    """Bytes that are not UTF-8 become a replacement character, before Arrow could see them."""

    def lenient(self: TextFormat, path: str, row: int, block: bytes, header: Any) -> bytes:
        return block.decode(errors="replace").encode()

    return mock.patch.object(TextFormat, "_valid", lenient)


#: The reader notices by itself: then good tables are refused.
_REFUSED = "refused|unnamed"
FAULTS = [
    Fault("durations in another unit", _damages(
        pt.is_duration, _as_numbers(lambda n: pc.divide(n, 1000)), written=True
    )),
    Fault("INT96 read in nanoseconds", _int96_in_nanoseconds, found_as=_REFUSED),
    Fault("int64 by way of float64", _damages(lambda t: t == pa.int64(), _rounded_to_float)),
    Fault("decimals by way of float64", _damages(pt.is_decimal, _decimal_as_float)),
    Fault("zone dropped", _damages(lambda t: pt.is_timestamp(t) and t.tz is not None, _local_instants)),
    Fault("sub-microseconds cut", _damages(lambda t: pt.is_timestamp(t) and t.unit == "ns", _as_numbers(
        lambda n: pc.multiply(pc.divide(n, 1000), 1000)
    ))),
    Fault("struct fields swapped", _damages(pt.is_struct, _fields_swapped)),
    Fault("null turned to empty text", _damages(is_text, lambda a: pc.fill_null(a, ""))),
    Fault("empty list turned to null", _damages(_is_list, _empty_is_null)),
    Fault("list offsets shifted", _damages(_is_list, _offsets_shifted)),
    Fault("minus zero turned to zero", _damages(pt.is_floating, lambda a: pc.add(a, pa.scalar(0, a.type)))),
    Fault("last row group skipped", _last_row_group_skipped, found_as=_REFUSED),
    Fault("rows in another order", lambda: _rows_taken(lambda n: list(range(n))[::-1])),
    Fault("a row read for all others", lambda: _rows_taken(lambda n: [0] * n)),
    Fault("invalid text replaced", _text_read_leniently, "csv", within=600, found_as="accepted"),
    Fault("texts trimmed", _damages(is_text, pc.utf8_trim_whitespace), "csv"),
    Fault("NA read as null", _damages(is_text, lambda a: pc.if_else(pc.equal(a, "NA"), None, a)), "csv"),
    Fault(
        "JSON's integers by way of float64", _damages(lambda t: t == pa.int64(), _rounded_to_float), "jsonl"
    ),
    Fault("false turned to null", _damages(pt.is_boolean, lambda a: pc.if_else(a, a, None)), "jsonl"),
]  # fmt: skip
