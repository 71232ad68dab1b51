"""CSV files of one slice, in many dialects."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl

from tests.oracle.case import HEADERS, LACKING, Case, Truth, concat
from tests.oracle.cells import Cell, number
from tests.oracle.compressed import SUFFIXES, write_text
from tests.oracle.dice import Dice
from tests.oracle.judges import Columns, View, columns_of, duck_table, quoted, see
from tests.oracle.raws import INVALID_TEXTS, TEXTS
from tests.oracle.scratch import SCRATCH

_NAMES = ["c", "x.y", "With Space", "q'uo\"te", "a,b;c", "7", "n\u00e4me", "tab\tname", "new\nline"]
SIZE = 24 + 3 * 56
_DAY_NS = 86_400 * 10**9
_SECOND = 10**9
#: Fields and the values that they are, by the type that `source.column_types` names.
_TYPED: dict[str, list[tuple[str, Cell]]] = {
    "int64": [(str(n), n) for n in (1, 0, -1, 2**63 - 1, -(2**63), 2**53 + 1)],
    "uint64": [(str(n), n) for n in (1, 0, 2**64 - 1)],
    "int8": [(str(n), n) for n in (1, 127, -128)],
    "float64": [(t, number(float(t))) for t in ("1.5", "0.1", "-0.0", "1e300", "5e-324", "9007199254740993")],
    "bool": [("true", ("bool", True)), ("false", ("bool", False))],
    "date32": [
        ("2026-01-31", ("date", 20_484)), ("1500-01-01", ("date", -171_664)),
        ("9999-12-31", ("date", 2_932_896)),
    ],
    "decimal(20, 4)": [(text, Decimal(text)) for text in ("1.5000", "-0.0001", "9007199254740993.0001")],
    "timestamp[us]": [
        ("2026-01-31 10:00:00", ("local", 1_769_853_600 * _SECOND)),
        ("1500-01-01 00:00:00.000001", ("local", -14_831_769_600 * _SECOND + 1000)),
        ("9999-12-31T23:59:59", ("local", 253_402_300_799 * _SECOND)),
    ],
    "timestamp[us, tz=UTC]": [
        ("2026-01-31T10:00:00Z", ("instant", 1_769_853_600 * _SECOND)),
        ("2026-01-31 10:00:00+05:00", ("instant", (1_769_853_600 - 5 * 3600) * _SECOND)),
    ],
    "string": [(text, text) for text in TEXTS],
}  # fmt: skip
_TYPES = list(_TYPED)


@dataclass(frozen=True)
class CsvFile:
    """:ivar columns: fields and the cells that they are, by column."""

    columns: Mapping[str, Sequence[tuple[str, Cell]]]
    rows: int
    suffix: str = ""
    line_end: str = "\n"
    quoted: bool = False
    writer: str = "csv"
    ends_with_newline: bool = True


@dataclass(frozen=True)
class CsvCase(Case):
    files: Sequence[CsvFile]
    prompt: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    drifts: Sequence[str] = ()
    bom: bool = False
    #: Bytes that are not of the encoding, in a cell of the first file.
    bad: bytes = b""
    steps: bool = False
    format = "csv"

    @property
    def arguments(self) -> Mapping[str, Any]:  # type: ignore[override]
        options = dict(self.options)
        encoding = options.pop("encoding", "utf-8")
        return {
            "source__encoding": encoding,
            "source__csv": options,
            "source__column_types": dict(self.types),
        }

    def write(self, folder: Path) -> Truth:
        known: list[tuple[Columns, int]] = []
        rows: dict[str, int] = {}
        encoding = self.options.get("encoding", "utf-8")
        features = [
            f"format {self.format}",
            f"files {len(self.files)}",
            *(f"drift {d}" for d in self.drifts or ["none"]),
        ]
        features += [f"type csv {kind}" for kind in self.types.values()] or ["type csv text"]
        features += [f"csv encoding {encoding}", f"csv delimiter {self.options.get('delimiter', ',')!r}"]
        if "escape_char" in self.options:
            features.append("csv escape")
        for i, file in enumerate(self.files):
            path = folder / f"part-{i}.csv{file.suffix}"
            text = self._text(file)
            data = text.encode(encoding)
            if self.bad and i == 0:
                data = data.rstrip(b"\r\n") + b"\n" + self._bad_row(file) + b"\n"
            data = (b"\xef\xbb\xbf" if self.bom else b"") + data
            write_text(path, data)
            columns = {name: [cell for _, cell in column] for name, column in file.columns.items()}
            known.append((columns, file.rows))
            rows[str(path)] = file.rows
            features += [f"writer csv {file.writer}", f"compression {file.suffix or 'none'}"]
            features += [f"confirmed by {name}" for name in self._confirming(data, columns)]
        must, why = "publish", "all fields are of their types"
        headers = [set(file.columns) for file in self.files]
        names = {name for header in headers for name in header}
        if self.bad:
            must, why = "refuse", f"bytes are not {encoding}"
        elif any(map(self._has_integers_beyond_floats, self.files)):
            must, why = "refuse", "a float does not hold an integer"
        elif any(a - b and b - a for a in headers for b in headers):
            must, why = "refuse", HEADERS
        elif len({name.casefold() for name in names}) < len(names):
            must, why = "refuse", "names differ in case only"
        elif self.prompt in names and any(f.rows and self.prompt not in f.columns for f in self.files):
            must, why = "refuse", LACKING
        return Truth(
            concat(known), rows, {}, must, why, type_problem=lambda name, kind: "",
            features=[*features, "depth 0"],
        )  # fmt: skip

    def _has_integers_beyond_floats(self, file: CsvFile) -> bool:
        texts = (text for name, column in file.columns.items() for text, _ in column if self._is_float(name))
        return any(text.lstrip("+-").isdigit() and int(text) != float(text) for text in texts)

    def _is_float(self, name: str) -> bool:
        return str(self.types.get(name)).startswith("float")

    def _text(self, file: CsvFile) -> str:
        rows = [[text for text, _ in row] for row in zip(*file.columns.values(), strict=True)]
        # Writers that leave a lone carriage return without quotes write another row.
        is_plain = not self.options and not any("\r" in text for row in rows for text in row)
        if file.writer == "polars" and is_plain:
            schema = dict.fromkeys(file.columns, pl.String)
            return pl.DataFrame(rows, schema=schema, orient="row").write_csv(line_terminator=file.line_end)
        if file.writer == "pandas" and is_plain:
            frame = pd.DataFrame(rows, columns=list(file.columns), dtype=str)
            return str(frame.to_csv(index=False, lineterminator=file.line_end))
        lines = (self._line(row, quoted=file.quoted) for row in [list(file.columns), *rows])
        return file.line_end.join(lines) + file.line_end * file.ends_with_newline

    def _line(self, fields: Sequence[str], *, quoted: bool) -> str:
        delimiter, quote = self.options.get("delimiter", ","), self.options.get("quote_char", '"')
        escape = self.options.get("escape_char")
        texts = []
        for text in fields:
            special = any(c in text for c in (delimiter, quote, "\n", "\r"))
            if escape is not None:
                text = text.replace(escape, escape * 2)
            inside = text.replace(quote, f"{escape or quote}{quote}")
            alone = len(fields) == 1 and not text  # a blank line is no row
            texts.append(f"{quote}{inside}{quote}" if quoted or special or alone else text)
        return delimiter.join(texts)

    def _bad_row(self, file: CsvFile) -> bytes:
        quote = self.options.get("quote_char", '"').encode()
        delimiter = self.options.get("delimiter", ",").encode()
        return delimiter.join([quote + self.bad + quote] * len(file.columns))

    def _confirming(self, data: bytes, columns: Columns) -> list[str]:
        """Readers that see the texts that were written."""
        texts = {name: cells for name, cells in columns.items() if name not in self.types}
        found = []
        for name, view in _read_csv(data, self.options).items():
            if view.columns is not None and all(view.columns.get(n) == cells for n, cells in texts.items()):
                found.append(name)
        return found or ["nobody"]


def _read_csv(data: bytes, options: Mapping[str, Any]) -> dict[str, View]:
    delimiter, quote = options.get("delimiter", ","), options.get("quote_char", '"')
    escape, encoding = options.get("escape_char"), options.get("encoding", "utf-8")

    def pandas() -> Columns:
        frame = pd.read_csv(
            io.BytesIO(data), sep=delimiter, quotechar=quote, escapechar=escape, encoding=encoding, dtype=str,
            keep_default_na=False, na_filter=False,
        )  # fmt: skip
        return {str(name): frame[name].tolist() for name in frame.columns}

    def duckdb() -> Columns:
        with tempfile.NamedTemporaryFile(suffix=".csv", dir=SCRATCH) as file:
            file.write(data.decode(encoding).encode())
            file.flush()
            table = duck_table(
                f"read_csv({quoted(file.name)}, delim={quoted(delimiter)}, quote={quoted(quote)}, "
                f"escape={quoted(escape or quote)}, header=true, all_varchar=true, nullstr='never')"
            )
        return columns_of(table)

    return {"pandas": see(pandas), "duckdb": see(duckdb)}


def draw_case(dice: Dice) -> CsvCase:
    settings = dice.lane(24)
    encoding = settings.pick(["utf-8"] * 5 + ["latin-1", "utf-16", "cp1252", "utf-8-sig", "shift_jis"])
    options: dict[str, Any] = {"encoding": encoding} if encoding != "utf-8" else {}
    match settings.pick(["", "", "", "delimiter", "quote", "escape", "all"]):
        case "delimiter":
            options["delimiter"] = settings.pick([";", "\t", "|"])
        case "quote":
            options["quote_char"] = "'"
        case "escape":
            options["escape_char"] = "\\"
        case "all":
            options |= {"delimiter": ";", "quote_char": "'", "escape_char": "\\"}
    names = list(dict.fromkeys(settings.pick(_NAMES) for _ in range(settings.pick([1, 2, 3, 4]))))
    names = [n for n in names if _fits(n, encoding)] or ["c"]
    types = {name: settings.pick(_TYPES) for name in names if settings.chance(3)}
    drifts: set[str] = set()
    files = [
        _draw_file(dice.lane(56), i, names, types, encoding, drifts)
        for i in range(settings.pick([1, 1, 2, 2, 3]))
    ]
    bad = settings.pick(INVALID_TEXTS) if encoding == "utf-8" and settings.chance(30) else b""
    return CsvCase(
        files, settings.pick([None, *names]), options, types, tuple(sorted(drifts)),
        bom=encoding == "utf-8" and settings.chance(5), bad=bad, steps=settings.chance(3),
    )  # fmt: skip


def _draw_file(
    lane: Dice, index: int, names: Sequence[str], types: Mapping[str, str], encoding: str, drifts: set[str]
) -> CsvFile:
    names = list(names)
    if index:
        match lane.pick(["same"] * 5 + ["order", "order", "missing", "missing", "other", "case"]):
            case "order" if len(names) > 1:
                names.reverse()
                drifts.add("order")
            case "missing" if len(names) > 1:
                del names[lane.upto(len(names) - 1)]
                drifts.add("missing")
            case "other":
                names[0] = "another"
                drifts.add("header")
            case "case" if names[0].swapcase() != names[0]:
                names[0] = names[0].swapcase()
                drifts.add("case")
    rows = 1 + lane.upto(3) if index == 0 else lane.upto(3)
    settings = {
        "suffix": lane.pick(SUFFIXES), "line_end": lane.pick(["\n", "\n", "\r\n"]),
        "quoted": lane.chance(3),
        "writer": lane.pick(["csv", "csv", "pandas", "polars"]),
        "ends_with_newline": not lane.chance(5),
    }  # fmt: skip
    columns = {}
    for name in names:
        kind = types.get(name)
        known = [(text, cell) for text, cell in _TYPED[kind or "string"] if _fits(text, encoding)]
        null = [("", None)] if kind not in (None, "string") else []
        columns[name] = [lane.pick([*known, *null]) for _ in range(rows)]
    return CsvFile(columns, rows, **settings)


def _fits(text: str, encoding: str) -> bool:
    try:
        return text.encode(encoding).decode(encoding) == text
    except UnicodeError:
        return False
