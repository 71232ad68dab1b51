"""Parquet files of one slice whose types drift."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from tests.oracle import rules
from tests.oracle.arrays import build
from tests.oracle.case import LACKING, Case, Must, Truth, concat
from tests.oracle.cells import Cell, as_local, cell
from tests.oracle.dice import Dice
from tests.oracle.drift import drift_field
from tests.oracle.judges import Columns, View, depth_of, has_int96, leaf_types, read_parquet
from tests.oracle.parquet_files import ParquetWriter, draw_writer
from tests.oracle.raws import draw_field, draw_raw, without_views

#: Names of columns: those that a reader may take for a path, a position, or Parquet's own.
_NAMES = [
    "c",
    "x.y",
    "\u00e9t\u00e9 \u00df",
    "With Space",
    "q'uo\"te",
    "list",
    "element",
    "7",
    "a-b,c;d",
    "key_value",
]
_MAX_FILES, _MAX_COLUMNS = 3, 4
_TYPE_LANE, _FILE_LANE, _VALUES_LANE = 40, 24, 64
#: Bytes of a case.
SIZE = 24 + _MAX_COLUMNS * _TYPE_LANE + _MAX_FILES * (_FILE_LANE + _MAX_COLUMNS * _VALUES_LANE)
#: Types of DuckDB's that Arrow has none for, and reads as something else.
_REFUSED = ("INTERVAL", "TIME WITH TIME ZONE")
_EPOCH = dt.date(1970, 1, 1)
_DAY_NS = 86_400 * 10**9
#: Of years that are written alike everywhere.
_FIRST_DAY, _LAST_DAY = (dt.date(1000, 1, 1) - _EPOCH).days, (dt.date.max - _EPOCH).days


@dataclass(frozen=True)
class Column:
    field: pa.Field
    raws: Sequence[Any]


@dataclass(frozen=True)
class ParquetFile:
    columns: Sequence[Column]
    rows: int
    writer: ParquetWriter

    def write(self, path: str) -> str:
        """Returns the name of the writer."""
        try:
            return self.writer.write(self._build(), path)
        except (pa.ArrowException, ValueError):  # pyarrow writes no views inside of lists
            return ParquetWriter().write(self._build(views=False), path)

    def _build(self, *, views: bool = True) -> pa.Table:
        fields = [c.field if views else c.field.with_type(without_views(c.field.type)) for c in self.columns]
        arrays = [build(f.type, c.raws) for f, c in zip(fields, self.columns, strict=True)]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


@dataclass(frozen=True)
class Written:
    """A file that lies there: what it holds, and who sees what in it.

    :ivar columns: what it holds.
    :ivar other: what it holds for readers with another idea of INT96's zone.
    """

    path: str
    rows: int
    columns: Columns
    other: Columns
    views: Mapping[str, View]
    types: Mapping[str, pa.DataType]

    def keep(self, rows: Sequence[int]) -> Written:
        def kept(columns: Columns) -> Columns:
            return {name: [column[i] for i in rows] for name, column in columns.items()}

        views = {
            name: View(None if view.columns is None else kept(view.columns), view.problem, view.types)
            for name, view in self.views.items()
        }
        return Written(self.path, len(rows), kept(self.columns), kept(self.other), views, self.types)


@dataclass(frozen=True)
class ParquetCase(Case):
    """:ivar day: a column and a day of it: the slice is its rows of that day."""

    files: Sequence[ParquetFile]
    prompt: str | None = None
    drifts: Sequence[str] = ()
    day: tuple[str, str] | None = None
    steps: bool = False
    format = "parquet"

    @property
    def arguments(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {} if self.day is None else {"source__column": self.day[0], "slice_key": self.day[1]}

    def write(self, folder: Path) -> Truth:
        features = [f"format {self.format}", f"files {len(self.files)}"]
        features += [f"drift {drift}" for drift in self.drifts or ["none"]]
        files = [
            _write(file, str(folder / f"part-{i}.parquet"), features) for i, file in enumerate(self.files)
        ]
        must, why = _verdict(files, self.prompt)
        if self.day is not None:
            features.append("slice by day")
            name, day = self.day
            if why == "a text is not UTF-8" or not all(name in file.columns for file in files):
                must = "either"  # the text may be in another slice's row
            files = [
                f.keep([i for i, c in enumerate(f.columns.get(name, ())) if _day(c) == day]) for f in files
            ]
        types = {name: [f.types[name] for f in files if name in f.types] for f in files for name in f.types}
        for kinds in types.values():
            features.append(f"depth {max(map(depth_of, kinds))}")
            features += {f"type {_family(leaf)}" for kind in kinds for leaf in leaf_types(kind)}
        views = {
            reader: concat([(file.views[reader].columns or {}, file.rows) for file in files])
            for reader in ("pyarrow", "duckdb", "polars")
            if all(file.views[reader] for file in files)
        }
        return Truth(
            columns=concat([(file.columns, file.rows) for file in files]),
            rows={file.path: file.rows for file in files}, types=types, must=must, why=why, features=features,
            type_problem=lambda name, kind: rules.types_not_kept(kind, types.get(name, ())), views=views,
            others=concat([(file.other, file.rows) for file in files]),
        )  # fmt: skip


def _write(file: ParquetFile, path: str, features: list[str]) -> Written:
    features.append(f"writer {file.write(path)}")
    views = read_parquet(path)
    schema = pq.ParquetFile(path).schema_arrow
    columns = _true_columns(file, schema.names, views, features)
    other = columns
    if has_int96(path):
        features.append("writer int96")
        seen = views["pyarrow"].columns or {}
        instants = [f.name for f in schema if any(map(pt.is_timestamp, leaf_types(f.type)))]
        other = {
            **columns,
            **{name: _without_zones(columns[name], seen.get(name, []), file.rows) for name in instants},
        }
    return Written(path, file.rows, columns, other, views, {f.name: f.type for f in schema})


def _without_zones(column: Sequence[Cell], seen: Sequence[Cell], rows: int) -> Sequence[Cell]:
    """The values as pyarrow sees them, which takes INT96 for local times, where it reads them all."""
    return seen if len(seen) == rows else [as_local(value) for value in column]


def _verdict(files: Sequence[Written], asked: str | None) -> tuple[Must, str]:
    """Whether the files must be published, or refused; and why.

    :param asked: the column that the prompt shows.
    """
    names = dict.fromkeys(name for file in files for name in file.columns)

    def cells() -> Iterator[Cell]:
        return (cell for file in files for column in file.columns.values() for cell in column)

    if any(map(_has_invalid_text, cells())):
        return "refuse", "a text is not UTF-8"
    odd = (kind for file in files for kind in (file.views["duckdb"].types or {}).values())
    if found := next((name for kind in odd for name in _REFUSED if name in kind), None):
        return "refuse", f"a column is {found}"
    if len({name.casefold() for name in names}) < len(names):
        return "refuse", "names differ in case only"
    if asked in names and any(file.rows and asked not in file.columns for file in files):
        return "refuse", LACKING
    parts = (
        [(file.types[name], file.columns[name]) for file in files if name in file.columns] for name in names
    )
    if any(has_int96(file.path) for file in files) and any(map(_is_beyond_nanoseconds, cells())):
        return "either", "Parquet's type, of nanoseconds, says nothing of these times"
    if all(map(_reads_all, files)) and all(map(rules.surely_fit, parts)):
        return "publish", "types are equal, or fit"
    return "either", "no rule says so"


def _reads_all(file: Written) -> bool:
    """Whether pyarrow does: it reads no row of some nested columns."""
    columns = file.views["pyarrow"].columns
    return columns is not None and all(len(column) == file.rows for column in columns.values())


def _day(cell: Cell) -> str | None:
    """The day of a date or a timestamp, in UTC; a text itself."""
    if isinstance(cell, tuple) and cell[0] in ("date", "local", "instant"):
        days = cell[1] if cell[0] == "date" else cell[1] // _DAY_NS
        return str(_EPOCH + dt.timedelta(days=days)) if _FIRST_DAY <= days <= _LAST_DAY else None
    return cell if isinstance(cell, str) else None


def _true_columns(
    file: ParquetFile, names: Sequence[str], views: Mapping[str, View], features: list[str]
) -> Columns:
    """The values that were written; as they are in the file, where the writer changed them."""
    written = {c.field.name: [cell(c.field.type, raw) for raw in c.raws] for c in file.columns}
    if len(names) == len(written) and set(names) != set(written):  # a flavor with other names
        written = dict(zip(names, written.values(), strict=True))
    found: Columns = {}
    for name in names:
        readings = [v.columns[name] for v in views.values() if v.columns is not None and name in v.columns]
        agreed = [r for i, r in enumerate(readings) if any(r == other for other in readings[i + 1 :])]
        if name in written and written[name] in readings:
            found[name] = written[name]
            continue
        features.append("truth of readers" if agreed else "truth undecided")
        found[name] = agreed[0] if agreed else readings[0] if readings else written[name]
    return found


def _has_invalid_text(value: Cell) -> bool:
    if not isinstance(value, tuple):
        return False
    if value[0] == "invalid text":
        return True
    if value[0] == "struct":
        return any(_has_invalid_text(v) for _, v in value[1])
    if value[0] == "map":
        return any(_has_invalid_text(v) for pair in value[1] for v in pair)
    return value[0] == "list" and any(map(_has_invalid_text, value[1]))


def _is_beyond_nanoseconds(value: Cell) -> bool:
    match value:
        case ("local" | "instant", int(ns)):
            return abs(ns) >= 2**63
        case ("list", values):
            return any(map(_is_beyond_nanoseconds, values))
        case ("struct", fields):
            return any(_is_beyond_nanoseconds(v) for _, v in fields)
        case ("map", pairs):
            return any(_is_beyond_nanoseconds(v) for pair in pairs for v in pair)
    return False


def _family(kind: pa.DataType) -> str:
    return str(kind).split("[")[0].split("(")[0].replace("extension<", "").rstrip(">")


def draw_case(dice: Dice) -> ParquetCase:
    settings = dice.lane(24)
    lanes = [dice.lane(_TYPE_LANE) for _ in range(_MAX_COLUMNS)]
    count = settings.pick([1, 2, 2, 3, 4])
    names = list(dict.fromkeys(settings.pick(_NAMES) for _ in range(count)))
    columns = [draw_field(lane, name, 3) for lane, name in zip(lanes, names, strict=False)]
    drifts: set[str] = set()
    bad_text = settings.chance(40)
    files = [
        _draw_file(dice, i, columns, drifts, bad_text=bad_text)
        for i in range(settings.pick([1, 1, 2, 2, 2, 3]))
    ]
    prompt = settings.pick([None, *names])
    day = _draw_day(settings, files[0]) if settings.chance(3) else None
    prompt = prompt if day is None else None
    return ParquetCase(files, prompt, tuple(sorted(drifts)), day, steps=settings.chance(3))


def _draw_day(dice: Dice, file: ParquetFile) -> tuple[str, str] | None:
    """A column of dates or timestamps, and a day of it."""
    found = [
        (column.field.name, day)
        for column in file.columns
        for raw in column.raws
        if not set(column.field.name) & set(" ,;{}()\n\t=")  # else Spark's flavor writes another name
        and (pt.is_timestamp(column.field.type) or pt.is_date(column.field.type))
        and (day := _day(cell(column.field.type, raw))) is not None
    ]
    return dice.pick(found) if found else None


def _draw_file(
    dice: Dice, index: int, columns: Sequence[pa.Field], drifts: set[str], *, bad_text: bool
) -> ParquetFile:
    lane = dice.lane(_FILE_LANE)
    lanes = [dice.lane(_VALUES_LANE) for _ in range(_MAX_COLUMNS)]
    rows = 1 + lane.upto(3) if index == 0 else lane.upto(3)
    made: list[Column] = []
    for values, base in zip(lanes, columns, strict=False):
        changed = base
        match lane.pick(["same"] * 6 + ["drift"] * 4 + ["missing"]) if index else "same":
            case "drift":
                drift = Dice(bytes(values.upto(255) for _ in range(20)))
                changed = drift_field(drift, base)
                if changed != base:
                    drifts.add("nullability" if changed.type == base.type else "type")
            case "missing" if made:  # else a file might have rows and no columns
                drifts.add("missing")
                continue
        if index and lane.chance(60) and base.name.swapcase() != base.name:
            changed = changed.with_name(base.name.swapcase())
            drifts.add("case")
        values.bad_texts = bad_text
        raws = [draw_raw(values, changed.type, changed.nullable) for _ in range(rows)]
        made.append(Column(changed, raws))
    if index and lane.chance(4):
        drifts.add("order")
        made.reverse()
    return ParquetFile(made, rows, draw_writer(lane, pa.schema([c.field for c in made])))
