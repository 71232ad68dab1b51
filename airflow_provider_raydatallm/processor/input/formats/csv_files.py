"""CSV files: RFC 4180 (comma, double quotes, doubled inside quotes, newlines allowed inside quotes) in UTF-8,
or what the options say instead. Columns are text unless a type is declared: inference would alter "01234"."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.types as pt

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.spec.source import CsvOptions
from airflow_provider_raydatallm.processor.input.formats.text import (
    BYTE_ORDER_MARK,
    CORRECT_VALUE,
    DECLARE_OTHER_TYPE,
    ENCODING_HINT,
    ColumnTypes,
    TextFormat,
)
from airflow_provider_raydatallm.processor.input.types.convert import conform
from airflow_provider_raydatallm.processor.input.types.declared import parse_path
from airflow_provider_raydatallm.processor.input.types.lossless import holds_number
from airflow_provider_raydatallm.processor.input.types.plain import plain_schema
from airflow_provider_raydatallm.processor.input.types.values import rows_beyond_exact_integers

_MAX_HEADER_BYTES = 1 << 20
#: How the parser names a column.
_COLUMN = re.compile(r"In CSV column #(\d+): ")
#: What it says before it quotes the row.
_FIELD_COUNT = re.compile(r"CSV parse error: (?:Row #\d+: )?Expected (\d+) columns, got (\d+)")
_CONVERSION = re.compile(r"CSV conversion error to ([^:]+): ")
#: The first line that spreadsheets write to name the delimiter.
_SEPARATOR = re.compile(rb'\s*"?sep=(.)"?\r?\n', re.IGNORECASE)


_TABS = {"delimiter": "\t"}


class CsvFormat(TextFormat):
    name = "csv"
    title = "CSV"
    extensions = (".csv",)
    csv_by_extension = {".tsv": _TABS, ".tab": _TABS}
    is_untyped = True
    _row_in_message = re.compile(r"Row #(\d+)")

    @property
    def parsed_whole(self) -> bool:
        return self.options.csv.escape_char is not None or super().parsed_whole

    def read_header(self, block: bytes, path: str) -> tuple[tuple[str, ...], int]:
        _, skip = super().read_header(block, path)
        options = self.options.csv
        if match := _SEPARATOR.match(block[skip : skip + 20]):
            raise SliceError(
                f"{path} begins with the line {match[0].decode(errors='replace').strip()!r}, which "
                "spreadsheets write",
                kind="input",
                advice="Remove it, and set "
                f"source.csv={{'delimiter': {match[1].decode(errors='replace')!r}}}",
                place=Place(file=path),
            )
        try:
            end = skip + _first_record_end(block[skip:], options)
            lines = csv.reader(
                io.StringIO(block[skip:end].decode(), newline=""),
                delimiter=options.delimiter,
                quotechar=options.quote_char,
                escapechar=options.escape_char,
            )
            names = tuple(next(lines, []))
            if next(lines, None) is not None:
                raise ValueError("a CR alone ends its line")
        except (ValueError, csv.Error) as e:
            raise SliceError(
                f"{path}: the header cannot be read",
                kind="input",
                advice=("Use UTF-8 and LF or CRLF line ends", ENCODING_HINT),
                place=Place(file=path),
                row_texts=(str(e),),
            ) from e
        if not names:
            raise SliceError(
                f"{path}: the header names no column",
                kind="input",
                advice="Remove what stands before the header",
                place=Place(file=path),
            )
        if duplicates := sorted(name for name, count in Counter(names).items() if count > 1):
            raise SliceError(
                f"{path}: the header names a column twice",
                kind="input",
                advice="Rename one; or is the header missing?",
                place=Place(file=path),
                row_texts=[repr(name) for name in duplicates],  # the first row's, where there is no header
            )
        return names, end

    def check_headers(self, headers: Sequence[tuple[str, Sequence[str]]]) -> None:
        by_size = sorted(headers, key=lambda header: len(header[1]))
        for (first, names), (path, others) in pairwise(by_size):
            if set(names) - set(others):
                raise SliceError(
                    f"{path} begins with another line than {first}, and files of one slice begin with "
                    "headers that name the same columns",
                    kind="input",
                    advice="Is the header missing?",
                    place=Place(file=path),
                    row_texts=(f"{list(others)!r:.200}", f"{list(names)!r:.200}"),
                )

    def column_types(self, path: str, header: Sequence[str]) -> ColumnTypes:
        return _CsvTypes(self, header)

    def parse(self, block: bytes, header: Sequence[str], fields: pa.Schema) -> pa.Table:
        names = [name for name in fields.names if name in header]
        return self.read_table(block, header, names or header[:1], self.declared(header)).select(names)

    def parse_texts(self, block: bytes, header: Sequence[str]) -> pa.Table:
        return self.read_table(block, header, header, pa.schema([(name, pa.string()) for name in header]))

    def read_table(
        self, block: bytes, header: Sequence[str], names: Sequence[str], types: pa.Schema
    ) -> pa.Table:
        csv_options = self.options.csv
        if block.startswith(BYTE_ORDER_MARK):  # a value begins with it, and Arrow would skip it
            block = b"\n" + block
        return pa_csv.read_csv(
            pa.BufferReader(block),
            read_options=pa_csv.ReadOptions(
                column_names=list(header), use_threads=False, block_size=len(block) + 1
            ),
            parse_options=pa_csv.ParseOptions(
                newlines_in_values=True,
                delimiter=csv_options.delimiter,
                quote_char=csv_options.quote_char,
                escape_char=csv_options.escape_char or False,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=list(names),
                # Only an empty field is null: "NA" and "NaN" are texts that people write.
                null_values=[""],
                strings_can_be_null=False,
                quoted_strings_can_be_null=True,
            ),
        )

    def declared(self, header: Sequence[str]) -> pa.Schema:
        """The columns' types as they are parsed."""
        types = {parse_path(text, header): kind for text, kind in self.options.types.items()}
        return pa.schema([(name, types.get((name,), pa.string())) for name in header])

    def fault(self, problem: str) -> str:
        if match := _FIELD_COUNT.match(problem):
            columns, fields = map(int, match.groups())
            return f"the header has {columns:,} fields, and this row has {fields:,}"
        return f"a value is no {match[1]}" if (match := _CONVERSION.match(problem)) else ""

    def hint(self, problem: str, block: bytes) -> str:
        if _FIELD_COUNT.match(problem):
            return (
                f"Write values that hold {self.options.csv.delimiter!r} or a line end in quotes, or set in "
                "source.csv which delimiter, quote_char and escape_char the file has"
            )
        if _CONVERSION.match(problem):
            return CORRECT_VALUE
        if "invalid UTF8" in problem:
            return ENCODING_HINT
        if "CR without an LF" in problem:
            return "Write the value in quotes, and end lines with LF or CRLF"
        return DECLARE_OTHER_TYPE if " is none of " in problem else ""

    def last_record_end(self, block: bytes) -> int:
        if self.options.csv.quote_char.encode() not in block:
            return super().last_record_end(block)
        ends = np.flatnonzero((np.frombuffer(block, np.uint8) == ord("\n")) & ~self._is_quoted(block))
        return int(ends[-1]) + 1 if ends.size else 0

    def check_line_ends(self, block: bytes) -> None:
        """:raises pa.ArrowInvalid: for a CR that stands alone outside of quotes. Arrow ends a line there;
        writers that end lines with LF mean a value's character."""
        if block.count(b"\r") == block.count(b"\r\n"):
            return
        plain = block
        if self.options.csv.escape_char is not None:
            escaped = re.escape(self.options.csv.escape_char.encode()) + b"."
            plain = re.sub(escaped, b"..", block, flags=re.DOTALL)
        data = np.frombuffer(plain, np.uint8)
        is_quoted, is_newline = self._is_quoted(plain), data == ord("\n")
        alone = np.flatnonzero((data == ord("\r")) & ~is_quoted & ~np.append(is_newline[1:], False))
        if alone.size:
            at = int(alone[0])
            row = int((is_newline & ~is_quoted)[:at].sum()) + 1
            around = block[max(at - 20, 0) : at + 20]
            raise pa.ArrowInvalid(f"Row #{row}: a CR without an LF stands outside of quotes, in {around!r}")

    def _is_quoted(self, block: bytes) -> np.ndarray:
        """Which bytes are within quotes. `block` begins with a record."""
        quote, delimiter = ord(self.options.csv.quote_char), ord(self.options.csv.delimiter)
        data = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(data == quote)
        opening = quotes[::2]
        before = data[opening[opening > 0] - 1]
        if np.isin(before, (delimiter, ord("\n"), ord("\r"), quote)).all():
            # An even number of quotes before a byte leaves it outside. The sum may wrap; its parity does not.
            return (np.cumsum(data == quote, dtype=np.uint8) & 1).astype(bool)
        return _find_quoted(data, quotes, delimiter)


class _CsvTypes(ColumnTypes):
    def __init__(self, csv_format: CsvFormat, header: Sequence[str]) -> None:
        super().__init__()
        self._format = csv_format
        self._header = header

    def add(self, block: bytes) -> int:
        self._format.check_line_ends(block)
        types = self._format.declared(self._header)
        try:
            table = self._format.read_table(block, self._header, self._header, types)
        except pa.ArrowInvalid as e:
            raise pa.ArrowInvalid(_COLUMN.sub(self._name_column, str(e))) from e
        self._check_floats(block, table)
        self.add_values(conform(table, self.schema(), {}), self.schema())
        return int(table.num_rows)

    def _name_column(self, match: re.Match[str]) -> str:
        return f"column {self._header[int(match[1])]!r}: "

    def _check_floats(self, block: bytes, table: pa.Table) -> None:
        """:raises pa.ArrowInvalid: for an integer, or a size, that its float does not hold."""
        large = {
            field.name: rows
            for field in table.schema
            if pt.is_floating(field.type) and len(rows := rows_beyond_exact_integers(table[field.name]))
        }
        if not large:
            return
        texts = self._format.read_table(
            block, self._header, list(large), pa.schema([(name, pa.string()) for name in large])
        )
        for name, rows in large.items():
            kind = table.schema.field(name).type
            for row, text in zip(rows.to_pylist(), texts[name].take(rows).to_pylist(), strict=True):
                if not holds_number(kind, text.strip()):
                    raise pa.ArrowInvalid(
                        f"Row #{row + 1}: column {name!r}: {text.strip()} is none of {kind}"
                    )

    def schema(self) -> pa.Schema:
        return plain_schema(self._format.declared(self._header))


def _find_quoted(data: np.ndarray, quotes: np.ndarray, delimiter: int) -> np.ndarray:
    """Which bytes are within quotes, as the parser has it: a quote that does not begin a field is text."""
    edges = np.zeros(len(data) + 1, np.int8)
    is_open, i = False, 0
    while i < len(quotes):
        at = int(quotes[i])
        if not is_open:
            is_open = at == 0 or data[at - 1] in (delimiter, ord("\n"), ord("\r"))
            edges[at] += is_open
        elif i + 1 < len(quotes) and quotes[i + 1] == at + 1:
            i += 1  # a doubled quote stands for one
        else:
            is_open = False
            edges[at] -= 1
        i += 1
    return np.cumsum(edges[:-1], dtype=np.int8).astype(bool)


def _first_record_end(block: bytes, options: CsvOptions) -> int:
    """:raises ValueError: when a quote in it is never closed, within `_MAX_HEADER_BYTES`."""
    quote, delimiter = options.quote_char.encode(), options.delimiter.encode()
    escape = options.escape_char.encode() if options.escape_char is not None else b""
    is_field_start, is_open, at = True, False, 0
    while at < min(len(block), _MAX_HEADER_BYTES):
        char = block[at : at + 1]
        at += 1
        if char == escape:
            at += 1
        elif char == quote and is_open and block[at : at + 1] == quote:
            at += 1  # a doubled quote stands for one
        elif char == quote:
            is_open = not is_open and is_field_start
        elif char == b"\n" and not is_open:
            return at
        is_field_start = char == delimiter and not is_open
    if is_open:
        raise ValueError("a quote in it is never closed")
    return len(block)
