"""Writes Parquet files byte by byte: what other writers, and old ones, leave in a file, and pyarrow does not.

Plain encoding, uncompressed, a page a column; levels and values are given as they are stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
REQUIRED, OPTIONAL, REPEATED = range(3)
#: Converted types, which logical types replace in newer files.
UTF8, MAP, MAP_KEY_VALUE, LIST, ENUM, DECIMAL, DATE, TIME_MILLIS, TIME_MICROS, TIMESTAMP_MILLIS, \
    TIMESTAMP_MICROS, UINT_8, UINT_16, UINT_32, UINT_64, INT_8, INT_16, INT_32, INT_64, JSON, BSON, \
    INTERVAL = range(22)  # fmt: skip
_PLAIN, _RLE = 0, 3


@dataclass(frozen=True)
class Node:
    """A column, or a group of them.

    :ivar kind: of values; None for a group.
    :ivar length: of values of FIXED.
    :ivar logical: a field of Thrift's union LogicalType, and what it holds, such as `(8, {1: True, ...})`.
    """

    name: str
    repetition: int = OPTIONAL
    kind: int | None = None
    children: Sequence[Node] = ()
    converted: int | None = None
    logical: tuple[int, dict[int, Any]] | None = None
    length: int | None = None
    precision: int | None = None
    scale: int | None = None


@dataclass(frozen=True)
class Chunk:
    """A column's part of a row group.

    :ivar statistics: fields of Thrift's Statistics, true or not.
    """

    path: str
    kind: int
    values: Sequence[Any]
    definitions: Sequence[int] = ()
    repetitions: Sequence[int] = ()
    max_definition: int = 0
    max_repetition: int = 0
    statistics: dict[int, Any] = field(default_factory=dict)


def write_parquet(
    path: Path,
    columns: Sequence[Node],
    groups: Sequence[tuple[int, Sequence[Chunk]]],
    rows: int | None = None,
) -> None:
    """:param groups: row groups: numbers of rows, and their columns.
    :param rows: that the footer counts; those of the groups by default.
    """
    data = bytearray(b"PAR1")
    row_groups = []
    for count, chunks in groups:
        written = []
        for chunk in chunks:
            start = len(data)
            data += _page(chunk)
            size = len(data) - start
            path_in_schema = [name.encode() for name in chunk.path.split("/")]
            meta = {
                1: _I32(chunk.kind), 2: [_I32(_PLAIN), _I32(_RLE)], 3: path_in_schema,
                4: _I32(0), 5: len(chunk.definitions) or len(chunk.values), 6: size, 7: size, 9: start,
            }  # fmt: skip
            if chunk.statistics:
                meta[12] = chunk.statistics
            written.append({2: start, 3: meta})
        row_groups.append({1: written, 2: len(data), 3: count})
    total = sum(count for count, _ in groups) if rows is None else rows
    schema = [{4: b"schema", 5: _I32(len(columns))}, *(e for node in columns for e in _elements(node))]
    footer = _struct({1: _I32(1), 2: schema, 3: total, 4: row_groups, 6: b"another writer"})
    path.write_bytes(bytes(data) + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def _page(chunk: Chunk) -> bytes:
    levels = b"".join(
        _levels(given, most)
        for given, most in (
            (chunk.repetitions, chunk.max_repetition),
            (chunk.definitions, chunk.max_definition),
        )
        if most
    )
    body = levels + b"".join(_plain(chunk.kind, chunk.values))
    count = len(chunk.definitions) or len(chunk.values)
    encodings = {1: _I32(count), 2: _I32(_PLAIN), 3: _I32(_RLE), 4: _I32(_RLE)}
    return _struct({1: _I32(0), 2: _I32(len(body)), 3: _I32(len(body)), 5: encodings}) + body


def _levels(levels: Iterable[int], most: int) -> bytes:
    """Runs of one level each."""
    assert most < 256
    runs = b"".join(_varint(1 << 1) + bytes([level]) for level in levels)
    return len(runs).to_bytes(4, "little") + runs


def _plain(kind: int, values: Sequence[Any]) -> Iterable[bytes]:
    if kind == BOOLEAN:
        bits = sum(bool(value) << i for i, value in enumerate(values))
        yield bits.to_bytes((len(values) + 7) // 8, "little")
    for value in () if kind == BOOLEAN else values:
        if kind == BYTE_ARRAY:
            yield len(value).to_bytes(4, "little") + value
        elif kind in (FIXED, INT96):
            yield value
        else:
            yield struct.pack({INT32: "<i", INT64: "<q", FLOAT: "<f", DOUBLE: "<d"}[kind], value)


def _elements(node: Node) -> Iterable[dict[int, Any]]:
    element: dict[int, Any] = {3: _I32(node.repetition), 4: node.name.encode()}
    numbers = {
        1: node.kind, 2: node.length, 5: len(node.children) or None, 6: node.converted, 7: node.scale,
        8: node.precision,
    }  # fmt: skip
    element |= {key: _I32(value) for key, value in numbers.items() if value is not None}
    if node.logical is not None:
        element[10] = {node.logical[0]: node.logical[1]}
    yield element
    for child in node.children:
        yield from _elements(child)


class _I32(int):
    """Of 32 bits; a plain int has 64."""


class I8(int):
    """Of 8 bits."""


def _struct(fields: dict[int, Any]) -> bytes:
    """Thrift's compact protocol."""
    out, last = bytearray(), 0
    for key in sorted(fields):
        value = fields[key]
        kind = _kind(value) if not isinstance(value, bool) else 1 if value else 2
        out += bytes([(key - last) << 4 | kind]) + (b"" if isinstance(value, bool) else _value(value))
        last = key
    return bytes(out) + b"\0"


def _kind(value: Any) -> int:
    kinds = [(I8, 3), (_I32, 5), (int, 6), (bytes, 8), (list, 9), (dict, 12)]
    return next(number for kind, number in kinds if isinstance(value, kind))


def _value(value: Any) -> bytes:
    if isinstance(value, I8):
        return bytes([value])
    if isinstance(value, int):
        return _varint(value << 1 if value >= 0 else ((-value) << 1) - 1)
    if isinstance(value, bytes):
        return _varint(len(value)) + value
    if isinstance(value, dict):
        return _struct(value)
    kind = _kind(value[0]) if value else 12
    head = bytes([len(value) << 4 | kind]) if len(value) < 15 else bytes([0xF0 | kind]) + _varint(len(value))
    return head + b"".join(map(_value, value))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
