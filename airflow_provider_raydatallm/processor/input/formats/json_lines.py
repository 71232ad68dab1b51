"""JSON Lines: one object a line. Strings stay strings: what looks like a date becomes one only by a declared
type.

JSON's numbers have no types. A column of integers is one of 64 bits, unsigned where they need it; integers
beside floats become floats, if they are small enough to be the same as floats; anything else is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.formats.base import MAX_FIELDS
from airflow_provider_raydatallm.processor.input.formats.text import (
    CORRECT_VALUE,
    DECLARE_OTHER_TYPE,
    ColumnTypes,
    TextFormat,
)
from airflow_provider_raydatallm.processor.input.types.convert import conform
from airflow_provider_raydatallm.processor.input.types.declared import (
    declared_fields,
    parse_path,
    with_declared,
)
from airflow_provider_raydatallm.processor.input.types.lossless import (
    EXACT_INTS,
    ValueRange,
    holds_integer,
)
from airflow_provider_raydatallm.processor.input.types.plain import (
    ITEMS,
    ColumnPath,
    leaves,
    path_text,
    plain_schema,
    replace_parts,
)
from airflow_provider_raydatallm.processor.input.types.unify import unify_schemas
from airflow_provider_raydatallm.processor.input.types.values import (
    rows_beyond_exact_integers,
    values_at,
)

#: Levels of a value.
MAX_DEPTH = 32
#: Of a block, parsed first: a file whose records have keys of their own is noticed before it fills the
#: memory.
_FIRST_PIECE_BYTES, _FEW_FIELDS = 32 << 10, 100
_PARALLEL_BYTES = 1 << 20
#: Arrow's parser calls itself for each level. A shorter line cannot be nested so deeply that this ends the
#: process.
_SAFE_LINE_BYTES = 1000
_EXACT = EXACT_INTS[64]
_TEXT = bytes(set(range(256)) - set(b'{}[]"\\'))
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
#: At an error's end: before it, the error may quote a text that reads so.
_ROW = re.compile(r"in row (\d+)(?!.*in row \d)", re.DOTALL)


class JsonLinesFormat(TextFormat):
    name = "jsonl"
    title = "JSON Lines"
    extensions = (".jsonl", ".ndjson", ".json")
    may_lack_declared = True
    floats_count = True
    _row_in_message = _ROW
    _first_number = 0

    def column_types(self, path: str, header: Sequence[str]) -> ColumnTypes:
        return _JsonTypes(path, self.options.types)

    def parse(self, block: bytes, header: Sequence[str], fields: pa.Schema) -> pa.Table:
        table = _parse(block, _parsed_schema(fields), "ignore")
        return conform(table, fields, {})

    def parse_texts(self, block: bytes, header: Sequence[str]) -> pa.Table:
        return _parse(block, pa.schema([]), "infer")

    def top_column(self, column: str) -> str:
        return re.split(r"[.\[]", column, maxsplit=1)[0]  # keys below it may be data

    def hint(self, problem: str, block: bytes) -> str:
        if "changed from" in problem:
            return "A field has values of one type; give the others another name, or write all as text"
        if block.lstrip().startswith(b"["):
            return "The file is a JSON array; write its objects one a line (jq -c '.[]' does)"
        if "mixes floats" in problem:
            return (
                "Set the field's type in source.column_types to 'decimal128(38, 3)', or to 'uint64' for "
                "integers alone"
            )
        if " is none of " in problem:
            return DECLARE_OTHER_TYPE
        if "is nested in more" in problem:
            return "Write it as text"
        if "fields together" in problem:
            return "Are their keys data? Write them as lists of keys and values"
        if problem.startswith("Failed to parse"):
            return CORRECT_VALUE
        if "twice" in problem:
            return "Name each field of a record once"
        if "surrogate" in problem or "too big" in problem:
            return ""
        is_no_object = "JSON parse error" in problem or "is not a JSON object" in problem
        return "Write one object a line (jq -c does)" if is_no_object else ""


class _JsonTypes(ColumnTypes):
    """:ivar name: of the file."""

    floats_count = True

    def __init__(self, name: str, declared: Mapping[str, pa.DataType]) -> None:
        super().__init__()
        self.name = name
        self._unresolved = dict(declared)
        self._types: dict[ColumnPath, pa.DataType] = {}
        self._schema = pa.schema([])
        self._fields = 0
        self._absent: set[str] = set()

    @property
    def absent(self) -> frozenset[str]:
        undecided = {parse_path(text, ())[0] for text in self._unresolved}
        return frozenset({*self._absent, *self._unresolved, *undecided})

    def schema(self) -> pa.Schema:
        return self._schema

    def value_range(self, path: ColumnPath) -> ValueRange | None:
        return self.value_ranges.get(path)

    def add(self, block: bytes) -> int:
        _check_lines(block)
        self._resolve(block)
        self._absent -= {name for name in self._absent if _has_column(block, name)}
        rows = 0
        for piece, is_rest in self._pieces(block):
            try:
                rows += self._add_piece(piece, self._types, is_rest)
            except pa.ArrowInvalid as e:
                raise pa.ArrowInvalid(_counted_from(rows, str(e))) from e
        return rows

    def _resolve(self, block: bytes) -> None:
        """A declared text with dots is a column's name or a path: records say which."""
        for text, kind in list(self._unresolved.items()):
            path = parse_path(text, ())
            if len(path) > 1 and _has_column(block, text):
                path = (text,)
            elif len(path) > 1 and not _has_column(block, path[0]):
                continue
            self._types[path] = kind
            self._absent.add(path[0])
            del self._unresolved[text]

    def _pieces(self, block: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yields small pieces while they add fields, larger ones where they add few; then the rest, and
        whether it is that: records whose keys are data add more with each of them, and would fill the
        memory."""
        start, size = 0, _FIRST_PIECE_BYTES
        while start < len(block):
            before = self._fields
            end = block.rfind(b"\n", start, start + size) + 1 or block.find(b"\n", start) + 1 or len(block)
            yield block[start:end], False
            start = end
            if self._fields == before:
                break
            if self._fields < before + _FEW_FIELDS:
                size *= 2
        if start < len(block):
            yield block[start:], True

    def _add_piece(self, piece: bytes, types: Mapping[ColumnPath, pa.DataType], is_large: bool) -> int:
        declared = _parsed_schema(declared_fields(types))
        try:
            table = _parse(piece, declared, "infer", is_parallel=is_large)
        except pa.ArrowInvalid:
            table = _parse_naming(piece, types)  # its error counts rows from the piece's first
        _check_width(table.schema)
        found = plain_schema(pa.schema([(f.name, _without_dates(f.type)) for f in table.schema]))
        wide = {path: pa.uint64() for path in self._wide_integers(piece, table, found, types)}
        typed = plain_schema(with_declared(found, {**wide, **types}))
        self._check_floats(piece, table, types)
        if wide or types:
            table = conform(_parse_naming(piece, {**wide, **types}, typed), typed, {})
        self.add_values(table, typed)
        self._schema = unify_schemas([(self._schema, self), (typed, self)])
        self._fields = _check_width(self._schema)
        return int(table.num_rows)

    def _check_floats(self, piece: bytes, table: pa.Table, types: Mapping[ColumnPath, pa.DataType]) -> None:
        """:raises pa.ArrowInvalid: for an integer, or a size, that its declared float does not hold."""
        for path, kind in types.items():
            if not pt.is_floating(kind) or not _reaches(table.column(path[0]), path[1:]):
                continue
            if any(
                pc.any(pc.is_inf(values)).as_py() for values in values_at(table.column(path[0]), path[1:])
            ):
                raise pa.ArrowInvalid(f"field {path_text(path)!r}: a number is too large for {kind}")
            for record in _records_with_integers(piece, len(str(EXACT_INTS[kind.bit_width]))):
                for number in _numbers_at(record, path):
                    if isinstance(number, int) and not holds_integer(kind, number):
                        raise pa.ArrowInvalid(f"field {path_text(path)!r}: {number} is none of {kind}")

    def _wide_integers(
        self, piece: bytes, table: pa.Table, found: pa.Schema, types: Mapping[ColumnPath, pa.DataType]
    ) -> list[ColumnPath]:
        """Columns that Arrow read as floats, and whose integers need 64 bits without a sign.

        :raises pa.ArrowInvalid: for those that hold floats, too: as such, their integers would be others.
        """
        paths = [
            path
            for path, kind in leaves(pa.struct(list(found)), ())
            if path not in types and pt.is_floating(kind) and _reaches(table.column(path[0]), path[1:])
        ]
        if not paths:
            return []
        wide: dict[ColumnPath, int] = {}
        for record in _records_with_integers(piece, len(str(_EXACT))):
            for path in paths:
                numbers = (v for v in _numbers_at(record, path) if isinstance(v, int) and abs(v) > _EXACT)
                if (number := next(numbers, None)) is not None:
                    wide[path] = number
        for path, value in wide.items():
            try:
                only = declared_fields({path: pa.uint64()})
                _parse(piece, only, "ignore")
            except pa.ArrowInvalid as e:
                raise pa.ArrowInvalid(
                    f"field {path_text(path)!r}: it mixes floats with integers that they cannot hold, such "
                    f"as {value}"
                ) from e
        return list(wide)


def _parse(block: bytes, fields: pa.Schema, unexpected: str, *, is_parallel: bool = False) -> pa.Table:
    return pa_json.read_json(
        pa.BufferReader(block),
        read_options=pa_json.ReadOptions(
            use_threads=is_parallel, block_size=_PARALLEL_BYTES if is_parallel else len(block) + 1
        ),
        parse_options=pa_json.ParseOptions(explicit_schema=fields, unexpected_field_behavior=unexpected),
    )


def _parse_naming(
    piece: bytes, types: Mapping[ColumnPath, pa.DataType], fields: pa.Schema | None = None
) -> pa.Table:
    """Parses some fields, or those that there are.

    :param types: of fields whose values may have another one.
    :raises pa.ArrowInvalid: naming that field.
    """
    try:
        if fields is None:
            return _parse(piece, _parsed_schema(declared_fields(types)), "infer")
        return _parse(piece, _parsed_schema(fields), "ignore")
    except pa.ArrowInvalid:
        for path, kind in types.items():
            try:
                _parse(piece, _parsed_schema(declared_fields({path: kind})), "ignore")
            except pa.ArrowInvalid as e:
                raise pa.ArrowInvalid(f"field {path_text(path)!r}: {e}") from e
        raise


def _counted_from(first_row: int, message: str) -> str:
    """An error's message, which counts rows from a piece's first one."""
    return _ROW.sub(lambda match: f"in row {first_row + int(match[1])}", message)


def _parsed_schema(schema: pa.Schema) -> pa.Schema:
    """The types as they are parsed: dates and times as text, which is then read as CSV's is; and nulls, which
    Arrow parses wrongly in lists."""
    return pa.schema([(field.name, _parsed_type(field.type)) for field in schema])


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    return replace_parts(
        kind, lambda _, part: pa.string() if pt.is_temporal(part) or pt.is_null(part) else None
    )


def _without_dates(kind: pa.DataType) -> pa.DataType:
    return replace_parts(kind, lambda _, part: pa.string() if pt.is_timestamp(part) else None)


def _check_width(schema: pa.Schema) -> int:
    """Counts the fields of records, at all levels.

    :raises pa.ArrowInvalid: for too many of them, or levels.
    """
    level, depth, fields = [field.type for field in schema], 0, 0
    while level:
        depth, fields = depth + 1, fields + len(level)
        if depth > MAX_DEPTH:
            raise pa.ArrowInvalid(f"a value is nested in more than {MAX_DEPTH} levels")
        if fields > MAX_FIELDS:
            raise pa.ArrowInvalid(f"the records have more than {MAX_FIELDS:,} fields together")
        level = [kind.field(i).type for kind in level for i in range(kind.num_fields)]
    return fields


def _check_lines(block: bytes) -> None:
    """:raises pa.ArrowInvalid: for a line that is no object, or nested so deeply that parsing it would end
    the process, as it would for some of the former."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    starts = np.concatenate([[0], ends + 1])
    if starts[-1] == len(block):
        starts = starts[:-1]
    first = np.frombuffer(block, np.uint8)[starts]
    for number in np.flatnonzero(first != ord("{")):
        line = block[starts[number] :].partition(b"\n")[0].strip()
        if line and not line.startswith(b"{"):
            text = line[:40].decode(errors="replace")
            raise pa.ArrowInvalid(f"{text!r} is not a JSON object, in row {number}")
    sizes = np.diff(starts, append=len(block))
    for number in np.flatnonzero(sizes > _SAFE_LINE_BYTES):
        line = block[starts[number] : starts[number] + sizes[number]]
        if sum(map(line.count, (b"{", b"["))) > MAX_DEPTH and _depth(line) > MAX_DEPTH:
            raise pa.ArrowInvalid(f"a value is nested in more than {MAX_DEPTH} levels, in row {number}")


def _depth(line: bytes) -> int:
    structure = np.frombuffer(_STRING.sub(b"", line.translate(None, _TEXT)), np.uint8)
    steps = np.isin(structure, list(b"{[")).astype(np.int64) - np.isin(structure, list(b"}]"))
    return int(np.cumsum(steps).max(initial=0))


def _has_column(block: bytes, name: str) -> bool:
    """Whether a record has such a key, and not only an object or a text within one."""
    for is_ascii in {True, name.isascii()}:
        key, start = json.dumps(name, ensure_ascii=is_ascii).encode(), 0
        while (found := block.find(key, start)) >= 0:
            start = block.find(b"\n", found) + 1 or len(block)
            try:
                if name in json.loads(block[block.rfind(b"\n", 0, found) + 1 : start]):
                    return True
            except (ValueError, RecursionError):
                return False  # parsing says what is wrong
    return False


def _reaches(column: pa.ChunkedArray, path: ColumnPath) -> bool:
    """Whether floats are so large that they hold not each integer."""
    return any(len(rows_beyond_exact_integers(values)) for values in values_at(column, path))


def _records_with_integers(block: bytes, digits: int) -> Iterator[Any]:
    """Yields the records in whose lines are integers of so many digits, perhaps within a text."""
    data = np.frombuffer(block, np.uint8)
    is_digit = (data - ord("0")) < 10
    runs = is_digit
    size = 1
    while size < digits:  # each step finds runs of up to twice the length
        step = min(size, digits - size)
        runs, size = runs[:-step] & runs[step:], size + step
    starts = np.flatnonzero(runs)
    before = np.where(starts > 0, data[starts - 1], ord(" "))
    starts = starts[(before != ord(".")) & ((before - ord("0")) >= 10)]
    ends = np.flatnonzero(data == ord("\n"))
    for number in np.unique(np.searchsorted(ends, starts)).tolist():
        first = ends[number - 1] + 1 if number else 0
        try:
            yield json.loads(block[first : ends[number] if number < len(ends) else len(block)])
        except ValueError as e:
            raise pa.ArrowInvalid(f"{e}, in row {number}") from e


def _numbers_at(value: Any, path: ColumnPath) -> Iterator[Any]:
    if value is None or not path:
        yield value
    elif path[0] == ITEMS:
        for item in value:
            yield from _numbers_at(item, path[1:])
    else:
        yield from _numbers_at(value.get(path[0]), path[1:])
