"""JSON Lines files of one slice: numbers of every kind, nested, with missing keys and drifting types.

A shape says what a column holds: the name of a leaf, `("list", shape)` or `("object", {name: shape})`.
What a file holds is what Python's `json` reads in its lines, numbers as they are written.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.types as pt

from tests.oracle import rules
from tests.oracle.case import LACKING, Case, Truth, concat
from tests.oracle.cells import Cell, Either, number, struct
from tests.oracle.compressed import SUFFIXES, write_text
from tests.oracle.dice import Dice
from tests.oracle.judges import Columns
from tests.oracle.raws import INVALID_TEXTS, TEXTS

SIZE = 16 + 3 * 24 + 3 * (24 + 3 * 64)
Shape = Any
_EPOCH = dt.datetime(1970, 1, 1)

_NAMES = ["c", "x.y", "With Space", "q'uo\"te", "7", "n\u00e4me", ""]
_FIELDS = ["a", "b", "x.y", "A b", "\u00e9"]
#: How a leaf is written, by what it is.
_LEAVES: dict[str, list[str]] = {
    "int": ["1", "0", "-1", "7", "9007199254740991", "-9007199254740991", "2147483648"],
    "bigint": ["9007199254740993", "1", "-9007199254740993", "9223372036854775807", "-9223372036854775808"],
    "uint64": ["18446744073709551615", "9223372036854775808", "1"],
    "huge": ["170141183460469231731687303715884105727", "-18446744073709551616", "1"],
    "float": ["1.5", "0.1", "-0.0", "1e16", "1E5", "123456789.123456789", "5e-324", "1.7976931348623157e308"],
    "text": [json.dumps(text) for text in (*TEXTS, "order 10000000000000001 shipped")],
    "bool": ["true", "false"],
    "null": ["null"],
    "day": ['"2026-01-31"', '"1500-01-01"', '"9999-12-31"'],
    "moment": ['"2026-01-31T10:00:00"', '"1500-01-01 00:00:00.000001"', '"9999-12-31T23:59:59.999999"'],
    "instant": ['"2026-01-31T10:00:00Z"', '"2026-01-31T10:00:00+05:00"', '"1500-01-01T00:00:00.000001Z"'],
    "either": ['"2026-01-31T10:00:00"', '"2026-01-31T10:00:00+05:00"'],
}
_INTEGERS = {"int", "bigint", "uint64", "huge"}
_LEAF_NAMES = [
    "int", "text", "float", "bigint", "bool", "null", "uint64", "day", "huge", "moment", "instant", "either",
]  # fmt: skip
_SHAPES = ["leaf"] * 5 + ["list", "object", "object"]
#: Types that `source.column_types` may name for a leaf.
_TYPES = {
    "int": ["float64", "decimal128(38, 3)", "uint64", "int32"], "bigint": ["int64", "decimal128(38, 3)"],
    "uint64": ["uint64", "decimal128(38, 0)"], "huge": ["decimal128(38, 0)"], "float": ["float64"],
    "text": ["string"], "bool": ["bool"],
    "day": ["date32", "timestamp[us]"],
    **{leaf: ["timestamp[us]", "timestamp[us, tz=UTC]"] for leaf in ("moment", "instant", "either")},
}  # fmt: skip


@dataclass(frozen=True)
class JsonFile:
    """:ivar lines: of JSON, as they are written."""

    lines: Sequence[str]
    suffix: str = ""
    line_end: str = "\n"
    bom: bool = False
    ends_with_newline: bool = True


@dataclass(frozen=True)
class JsonCase(Case):
    files: Sequence[JsonFile]
    prompt: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    drifts: Sequence[str] = ()
    #: Bytes that are not UTF-8, as a text of the first file's last row.
    bad: bytes = b""
    steps: bool = False
    format = "jsonl"

    @property
    def arguments(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {"source__column_types": dict(self.types)}

    def write(self, folder: Path) -> Truth:
        known: list[tuple[Columns, int]] = []
        rows: dict[str, int] = {}
        features = [
            f"format {self.format}",
            f"files {len(self.files)}",
            *(f"drift {d}" for d in self.drifts or ["none"]),
        ]
        features += [f"type json as {kind}" for kind in self.types.values()]
        objects: list[dict[str, Any]] = []
        for i, file in enumerate(self.files):
            path = folder / f"part-{i}.jsonl{file.suffix}"
            data = file.line_end.join(file.lines).encode()
            data += file.line_end.encode() * (file.ends_with_newline and bool(file.lines))
            count = len(file.lines)
            if self.bad and i == 0:
                data = data.rstrip(b"\r\n") + b'\n{"c": "' + self.bad + b'"}\n'
                count += 1
            write_text(path, (b"\xef\xbb\xbf" if file.bom else b"") + data)
            read = [json.loads(line, parse_int=_Integer, parse_float=_Float) for line in file.lines]
            objects += read
            bad = ["c"] if self.bad and i == 0 else []
            names = dict.fromkeys([*(name for row in read for name in row), *bad])
            known.append(({n: [_typed(row.get(n), self.types.get(n)) for row in read] for n in names}, count))
            rows[str(path)] = count
            features += [f"compression {file.suffix or 'none'}", "writer jsonl"]
            features += _confirming(data, known[-1][0])
        values = {name: [row[name] for row in objects if name in row] for name in _names(objects)}
        for column in values.values():
            features.append(f"depth {_depth(column)}")
            features += {f"type json {kind}" for kind in _kinds(column)}
        must, why = "either", "no rule says so"
        if self.bad:
            must, why = "refuse", "a text is not UTF-8"
        elif not values:
            must, why = "refuse", "rows have no columns"
        elif len({name.casefold() for name in values}) < len(values):
            must, why = "refuse", "names differ in case only"
        elif self.prompt in values and any(self.prompt not in columns for columns, n in known if n):
            must, why = "either", LACKING
        elif not self.types and all(map(_surely_fit, values.values())):
            must, why = "publish", "values of each field are of one type, or fit"
        columns = concat(known)
        if must == "publish" and any(str(kind).startswith("float") for kind in self.types.values()):
            must, why = "either", "a declared float may not hold an integer"
        if must != "refuse" and any(WRONG in column for column in columns.values()):
            must, why = "refuse", "a value is not of its type in column_types"
        return Truth(
            columns, rows, {}, must, why, features=features,
            type_problem=lambda name, kind: "" if name in self.types else _problem(kind, values[name]),
        )  # fmt: skip


class _Integer(int):
    """So that a bool and a number are not one."""


class _Float(Decimal):
    """A number with a point or an exponent, as it is written."""


def _cell(value: Any) -> Cell:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, _Integer):
        return int(value)
    if isinstance(value, _Float):
        return Either(number(float(value)), Decimal(value))
    if isinstance(value, list):
        return ("list", tuple(map(_cell, value)))
    return struct({name: _cell(v) for name, v in value.items()})


#: A value that its type in `column_types` cannot be.
WRONG = ("wrong",)


def _typed(value: Any, kind: str | None) -> Cell:
    if kind is None or not kind.startswith(("timestamp", "date")) or value is None:
        return _cell(value)
    if not isinstance(value, str):
        return WRONG
    try:
        moment = dt.datetime.fromisoformat(value)
    except ValueError:
        return WRONG
    if kind == "date32":
        return ("date", (moment.date() - _EPOCH.date()).days) if len(value) == 10 else WRONG
    if len(value) > 10 and (moment.tzinfo is None) != ("tz" not in kind):
        return WRONG
    since = moment.astimezone(dt.UTC).replace(tzinfo=None) - _EPOCH if moment.tzinfo else moment - _EPOCH
    return ("instant" if "tz" in kind else "local", since // dt.timedelta(microseconds=1) * 1000)


def _problem(kind: pa.DataType, values: Sequence[Any]) -> str:
    """What is wrong with a published type of values, whatever they are."""
    some = [v for v in values if v is not None]
    if pt.is_null(kind):
        return rules.UNTYPED
    if pt.is_struct(kind):
        found = (_problem(f.type, [v[f.name] for v in some if f.name in v]) for f in kind)
        return next(filter(None, found), "")
    if pt.is_list(kind):
        return _problem(kind.value_type, [item for v in some for item in v])
    if pt.is_floating(kind) and not any(isinstance(v, _Float) for v in some):
        return "integers became floats"
    return ""


def _names(objects: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in objects for name in row))


def _surely_fit(values: Sequence[Any]) -> bool:
    """Whether one type obviously holds the values of a field."""
    some = [v for v in values if v is not None]
    if all(isinstance(v, dict) for v in some):
        names = _names(some)
        folded = {name.casefold() for name in names}
        nothing = bool(some) and not names  # no reader knows a struct without fields
        return not nothing and len(folded) == len(names) and all(
            _surely_fit([v[name] for v in some if name in v]) for name in names
        )  # fmt: skip
    if all(isinstance(v, list) for v in some):
        return _surely_fit([item for v in some for item in v])
    if all(isinstance(v, _Integer) for v in some):
        return all(-(2**63) <= v < 2**63 for v in some)
    if all(isinstance(v, (_Integer, _Float)) for v in some):
        return all(abs(v) <= 2**53 for v in some if isinstance(v, _Integer))
    return all(isinstance(v, str) for v in some) or all(isinstance(v, bool) for v in some)


def _kinds(values: Iterable[Any]) -> set[str]:
    found: set[str] = set()
    for value in values:
        if isinstance(value, dict):
            found |= {"object"} | _kinds(value.values())
        elif isinstance(value, list):
            found |= {"list"} | _kinds(value)
        elif isinstance(value, _Integer):
            found.add(
                "int" if abs(value) <= 2**53 else "int64" if -(2**63) <= value < 2**63 else "big integer"
            )
        else:
            found.add({_Float: "float", str: "text", bool: "bool", type(None): "null"}[type(value)])
    return found


def _depth(values: Iterable[Any]) -> int:
    below = [v.values() if isinstance(v, dict) else v for v in values if isinstance(v, (dict, list))]
    return 1 + max(map(_depth, below)) if below else 0


def _confirming(data: bytes, columns: Columns) -> list[str]:
    """Whether Polars sees texts and booleans as Python does; its numbers may be rounded."""
    plain = {n: c for n, c in columns.items() if all(isinstance(v, str) for v in c)}
    if not plain:
        return []
    try:
        frame = pl.read_ndjson(io.BytesIO(data), schema=dict.fromkeys(plain, pl.String))
    except BaseException as e:  # a panic of Rust is not an Exception
        if isinstance(e, (KeyboardInterrupt, SystemExit, NameError)):
            raise
        return ["confirmed by nobody"]
    return [
        "confirmed by polars" if frame[n].to_list() == c else "confirmed by nobody" for n, c in plain.items()
    ]


def draw_case(dice: Dice) -> JsonCase:
    settings = dice.lane(16)
    lanes = [dice.lane(24) for _ in range(3)]
    names = list(dict.fromkeys(settings.pick(_NAMES) for _ in range(settings.pick([1, 2, 3]))))
    shapes = {name: _draw_shape(lane, 3) for name, lane in zip(names, lanes, strict=False)}
    types: dict[str, str] = {}
    for name, shape in shapes.items():
        if isinstance(shape, str) and shape in _TYPES and settings.chance(6):
            types[name] = settings.pick(_TYPES[shape])
    drifts: set[str] = set()
    files = [_draw_file(dice, i, shapes, types, drifts) for i in range(settings.pick([1, 1, 2, 2, 3]))]
    present = {name for file in files for line in file.lines for name in json.loads(line)}
    types = {name: kind for name, kind in types.items() if name in present}
    prompt = settings.pick([None, *(n for n in names if n in present and n)])
    bad = settings.pick(INVALID_TEXTS) if shapes.get("c") == "text" and settings.chance(8) else b""
    return JsonCase(files, prompt, types, tuple(sorted(drifts)), bad, steps=settings.chance(3))


def _draw_shape(lane: Dice, depth: int) -> Shape:
    shape = lane.pick(_SHAPES) if depth else "leaf"
    if shape == "list":
        return ("list", _draw_shape(lane, depth - 1))
    if shape == "object":
        names = dict.fromkeys(lane.pick(_FIELDS) for _ in range(1 + lane.upto(2)))
        return ("object", {name: _draw_shape(lane, depth - 1) for name in names})
    return lane.pick(_LEAF_NAMES)


def _drift(lane: Dice, shape: Shape) -> Shape:
    if isinstance(shape, str):
        numbers = ["int", "float", "bigint", "uint64", "huge", "null"]
        return lane.pick(numbers if shape in {*_INTEGERS, "float"} and not lane.chance(6) else _LEAF_NAMES)
    kind, below = shape
    if kind == "list":
        return (kind, _drift(lane, below))
    names = list(below)
    changed = dict(below)
    name = lane.pick(names)
    match lane.pick(["change", "change", "add", "remove"]):
        case "add":
            changed["added"] = _draw_shape(lane, 1)
        case "remove" if len(names) > 1:
            del changed[name]
        case _:
            changed[name] = _drift(lane, below[name])
    return (kind, changed)


def _draw_file(
    dice: Dice, index: int, shapes: Mapping[str, Shape], typed: Iterable[str], drifts: set[str]
) -> JsonFile:
    lane = dice.lane(24)
    lanes = [dice.lane(64) for _ in range(3)]
    rows = 1 + lane.upto(3) if index == 0 else lane.upto(3)
    escaped = lane.chance(3)
    space = lane.pick(["", " "])
    columns: dict[str, list[str | None]] = {}
    for values, (name, shape) in zip(lanes, shapes.items(), strict=False):
        name, kind = name, shape
        match lane.pick(["same"] * 5 + ["drift"] * 4 + ["missing"]) if index else "same":
            case "drift" if name not in typed:
                kind = _drift(Dice(bytes(values.upto(255) for _ in range(16))), shape)
                drifts |= {"type"} if kind != shape else set()
            case "missing":
                drifts.add("missing")
                continue
        if index and lane.chance(60) and name.swapcase() != name:
            name = name.swapcase()
            drifts.add("case")
        columns[name] = [_draw_value(values, kind, space, escaped=escaped) for _ in range(rows)]
    if lane.chance(4):
        columns = dict(reversed(columns.items()))
    lines = []
    for i in range(rows):
        members = [_member(n, c[i], space, escaped=escaped) for n, c in columns.items() if c[i] is not None]
        lines.append("{" + f",{space}".join(members) + "}")
    return JsonFile(
        lines, lane.pick(SUFFIXES), lane.pick(["\n", "\n", "\r\n"]), lane.chance(8), not lane.chance(5)
    )


def _draw_value(lane: Dice, shape: Shape, space: str, *, escaped: bool) -> str | None:
    """The JSON text of a value; None where its key is missing."""
    match lane.upto(9):
        case 9:
            return None
        case 8:
            return "null"
    if isinstance(shape, str):
        text = lane.pick(_LEAVES[shape])
        return (
            text if escaped else json.dumps(json.loads(text), ensure_ascii=False) if text[0] == '"' else text
        )
    kind, below = shape
    if kind == "list":
        items = [_draw_value(lane, below, space, escaped=escaped) or "null" for _ in range(lane.upto(3))]
        return f"[{f',{space}'.join(items)}]"
    drawn = {name: _draw_value(lane, inner, space, escaped=escaped) for name, inner in below.items()}
    members = [
        _member(name, text, space, escaped=escaped) for name, text in drawn.items() if text is not None
    ]
    return "{" + f",{space}".join(members) + "}"


def _member(name: str, text: str | None, space: str, *, escaped: bool) -> str:
    return f"{json.dumps(name, ensure_ascii=escaped)}:{space}{text}"
