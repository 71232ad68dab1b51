"""What a Parquet footer says of its columns' chunks, read without pyarrow.

pyarrow ends the process when it is asked for the chunk of an encrypted column, or of one whose statistics are
damaged (an exception of C++ that nothing catches). So the footer, a struct of Thrift's compact protocol, is
parsed here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.types.lossless import ValueRange

#: Physical types.
_INT32, _INT64, _INT96, _BYTE_ARRAY = 1, 2, 3, 6
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_DATA_PAGES = (0, 3)
#: Nested structs and lists of a footer; damage may claim any depth.
_MAX_DEPTH = 32
#: Numbers of fields: of the footer, a row group, a chunk, its metadata, statistics, an encoding's count, an
#: element of the schema, a logical type. https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
_SCHEMA, _ROW_GROUPS = 2, 4
_COLUMNS = 1
_METADATA, _CRYPTO = 3, 8
_TYPE, _VALUES, _SIZE, _DICTIONARY_PAGE, _STATISTICS, _ENCODINGS = 1, 5, 6, 11, 12, 13
_OLD_MAX, _OLD_MIN, _NULLS, _MAX, _MIN = 1, 2, 3, 5, 6
_PAGE_TYPE, _ENCODING = 1, 2
_CHILDREN, _LOGICAL_TYPE = 5, 10
_TIME, _IS_ADJUSTED, _VARIANT = 7, 1, 16


@dataclass(frozen=True)
class ColumnChunk:
    """The values of a leaf column in a row group.

    :ivar values: their number, nulls too.
    :ivar size: bytes of all pages before compression; a dictionary's values count once there.
    :ivar has_dictionary: whether some pages refer to a dictionary.
    :ivar all_dictionary: whether all of them do.
    """

    is_encrypted: bool
    physical_type: int = -1
    values: int = 0
    size: int = 0
    has_dictionary: bool = False
    all_dictionary: bool = False
    nulls: int | None = None
    low: bytes | None = None
    high: bytes | None = None
    #: As older writers have them, whose order is that of signed numbers.
    signed_low: bytes | None = None
    signed_high: bytes | None = None

    @property
    def has_texts(self) -> bool:
        """Whether its values have lengths of their own."""
        return self.physical_type == _BYTE_ARRAY

    def value_range(self, kind: pa.DataType) -> ValueRange | None:
        """The range that its statistics tell of a column of integers, decimals or counts of time; None where
        they do not."""
        low, high = self.low, self.high
        if low is None and not pt.is_unsigned_integer(kind):
            low, high = self.signed_low, self.signed_high
        if not low or not high or self.physical_type == _INT96:
            return None
        is_little = self.physical_type in (_INT32, _INT64)
        order, signed = "little" if is_little else "big", not pt.is_unsigned_integer(kind)
        return ValueRange(*(int.from_bytes(v, order, signed=signed) for v in (low, high)))  # type: ignore[arg-type]


def read_chunks(footer: bytes) -> list[list[ColumnChunk]]:
    """The chunks of each row group, in the order of the leaf columns.

    :raises ValueError: for a damaged footer.
    """
    return [
        [_chunk(column) for column in group.get(_COLUMNS, ())]
        for group in _parse(footer).get(_ROW_GROUPS, ())
    ]


def times_in_utc(footer: bytes) -> list[bool]:
    """Whether each leaf column is a time of day that says it is in UTC, as `TIME WITH TIME ZONE` is
    stored."""
    elements = _parse(footer).get(_SCHEMA, ())
    logical = (e.get(_LOGICAL_TYPE, {}).get(_TIME) for e in elements if not e.get(_CHILDREN))
    return [isinstance(time, dict) and time.get(_IS_ADJUSTED) is True for time in logical]


def hold_variants(footer: bytes) -> list[bool]:
    """Whether each column, or a part of it, holds values that have their own types (VARIANT)."""
    elements: Iterator[dict[int, Any]] = iter(_parse(footer).get(_SCHEMA, ()))
    root = next(elements, {})
    columns = [list(_with_parts(elements)) for _ in range(root.get(_CHILDREN, 0))]
    return [any(_VARIANT in part.get(_LOGICAL_TYPE, {}) for part in column) for column in columns]


def _with_parts(elements: Iterator[dict[int, Any]]) -> Iterator[dict[int, Any]]:
    """Yields an element of a schema and the parts of it, which follow it."""
    left = 1
    while left and (element := next(elements, None)) is not None:
        left += element.get(_CHILDREN, 0) - 1
        yield element


def _chunk(column: dict[int, Any]) -> ColumnChunk:
    found = column.get(_METADATA)
    if not isinstance(found, dict) or _CRYPTO in column:
        return ColumnChunk(is_encrypted=True)
    statistics = found.get(_STATISTICS, {})
    encodings = {e.get(_ENCODING) for e in found.get(_ENCODINGS, ()) if e.get(_PAGE_TYPE) in _DATA_PAGES}
    return ColumnChunk(
        is_encrypted=False,
        physical_type=found.get(_TYPE, -1),
        values=found.get(_VALUES, 0),
        size=found.get(_SIZE, 0),
        has_dictionary=_DICTIONARY_PAGE in found or bool(encodings & {_PLAIN_DICTIONARY, _RLE_DICTIONARY}),
        all_dictionary=bool(encodings) and encodings <= {_PLAIN_DICTIONARY, _RLE_DICTIONARY},
        nulls=statistics.get(_NULLS),
        low=statistics.get(_MIN),
        high=statistics.get(_MAX),
        signed_low=statistics.get(_OLD_MIN),
        signed_high=statistics.get(_OLD_MAX),
    )


def _parse(footer: bytes) -> dict[int, Any]:
    try:
        return _Compact(footer).read_struct(0)
    except (IndexError, struct.error, AttributeError, TypeError) as e:
        raise ValueError(f"its footer is damaged: {type(e).__name__}") from e


class _Compact:
    """Thrift's compact protocol: a struct is a dict of its fields by their numbers."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read_struct(self, depth: int) -> dict[int, Any]:
        if depth > _MAX_DEPTH:
            raise ValueError(f"its footer is nested in more than {_MAX_DEPTH} levels")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            kind, step = head & 15, head >> 4
            number = number + step if step else self._signed()
            fields[number] = kind == 1 if kind in (1, 2) else self._read(kind, depth)
        return fields

    def _read(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # in a list, each has a byte
            return self._byte() == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return struct.unpack("<d", self._bytes(8))[0]
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            return list(self._items(depth + 1))
        if kind == 11:
            return self._read_map(depth + 1)
        if kind == 12:
            return self.read_struct(depth + 1)
        raise ValueError(f"its footer is damaged: no value has the type {kind}")

    def _items(self, depth: int) -> Iterator[Any]:
        if depth > _MAX_DEPTH:
            raise ValueError(f"its footer is nested in more than {_MAX_DEPTH} levels")
        head = self._byte()
        kind, size = head & 15, head >> 4
        size = self._varint() if size == 15 else size
        if size > len(self._data) - self._at:
            raise ValueError("its footer is damaged: a list is longer than it")
        for _ in range(size):
            yield self._read(kind, depth)

    def _read_map(self, depth: int) -> dict[Any, Any]:
        size = self._varint()
        if size > len(self._data) - self._at or depth > _MAX_DEPTH:
            raise ValueError("its footer is damaged: a map is longer than it")
        kinds = self._byte() if size else 0
        return {self._read(kinds >> 4, depth): self._read(kinds & 15, depth) for _ in range(size)}

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, size: int) -> bytes:
        self._at += size
        if self._at > len(self._data):
            raise IndexError
        return self._data[self._at - size : self._at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("its footer is damaged: a number has more than 64 bits")

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
