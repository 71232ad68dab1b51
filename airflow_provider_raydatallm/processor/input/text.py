"""Text files: CSV and JSON Lines.

A scan parses the whole file, so that a broken line is found before anything is spent and row counts are
those of the parser that reads the rows later. CSV columns are strings unless `column_types` says otherwise:
inference would alter "01234".
"""

from __future__ import annotations

import csv
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.base import (
    FileFormat,
    FileScan,
    PlannedFile,
    RowRange,
    read_error,
)
from airflow_provider_raydatallm.processor.input.listing import InputFile

#: Bytes of text in a range: small enough to parse in memory, large enough that parsing dominates the cost.
TEXT_RANGE_BYTES = 16 << 20
#: A longer record counts as an unbalanced quote.
MAX_RECORD_BYTES = 256 << 20

#: Codecs by file suffix.
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


class TextFormat(FileFormat):
    """A text file as blocks of whole records.

    Compressed files are one range, since they allow no seek; so are files whose records can be told apart
    only by parsing all text before them (`parsed_whole`).
    """

    parsed_whole = False

    #: Finds the record's number in the parser's message, and the number of the first record there.
    _row_in_message = re.compile(r"(?!)")
    _first_number = 1

    @abstractmethod
    def parse(self, block: bytes, header: Sequence[str], fields: pa.Schema | None) -> pa.Table:
        """Parses whole records into `fields`, or infers them where they are None."""

    def last_record_end(self, block: bytes) -> int:
        """Bytes of `block`, which starts with a record, up to the end of its last whole record, if any."""
        return block.rfind(b"\n") + 1

    def read_header(self, block: bytes, path: str) -> tuple[tuple[str, ...], int]:
        """Column names at the start of the file, and the bytes before its first record."""
        return (), 3 if block.startswith(b"\xef\xbb\xbf") else 0

    def scan(self, file: InputFile) -> FileScan:
        path = file.path
        header: tuple[str, ...] | None = None
        schema, ranges, rows = pa.schema([]), [], 0
        with self.open(file) as (raw, _):
            for start, block in self._read_blocks(path, raw):
                if header is None:
                    header, skip = self.read_header(block, path)
                    start, block = start + skip, block[skip:]
                if not block:
                    continue
                table = self._parse(path, rows, block, header)
                schema = self._unify(path, schema, table.schema)
                ranges.append(RowRange(rows, table.num_rows, start=start, end=start + len(block)))
                rows += table.num_rows
        if ranges and (self.parsed_whole or self._get_codec(path)):
            ranges = [RowRange(0, rows)]
        if not ranges and header:
            schema = self._parse(path, 0, b"", header).schema
        return FileScan(schema, tuple(ranges))

    def read(self, file: PlannedFile, part: RowRange, fields: pa.Schema) -> Iterator[pa.Table]:
        path, header, first_row = file.path, file.header, part.first_row
        if part.start is not None and part.end is not None:
            try:
                with self.open(file, read_ahead=False) as (raw, _):
                    raw.seek(part.start)
                    data = bytes(raw.read(part.end - part.start))
            except OSError as e:
                raise read_error(path, e, f", from byte {part.start:,}") from e
            yield self._parse(path, first_row, data, header, fields)
            return
        with self.open(file) as (raw, check):
            for start, block in self._read_blocks(path, raw):
                if start == 0:
                    block = block[self.read_header(block, path)[1] :]
                if block:
                    table = self._parse(path, first_row, block, header, fields)
                    first_row += table.num_rows
                    check()
                    yield table

    def _read_blocks(self, path: str, raw: pa.NativeFile) -> Iterator[tuple[int, bytes]]:
        """Yields the file as (start byte, whole records), about `TEXT_RANGE_BYTES` each."""
        codec = self._get_codec(path)
        start, rest = 0, b""
        try:
            stream = pa.CompressedInputStream(raw, codec) if codec else raw
            if self.parsed_whole:
                yield 0, self._to_utf8(path, stream.read())
                return
            while chunk := stream.read(TEXT_RANGE_BYTES):
                block = rest + chunk
                end = self.last_record_end(block)
                if not end and len(block) > MAX_RECORD_BYTES:
                    raise SliceError(
                        f"{path}: the record at byte {start:,} is longer than {MAX_RECORD_BYTES >> 20} "
                        "MiB; is a quote in it never closed?",
                        kind="input",
                    )
                if end:
                    yield start, block[:end]
                start, rest = start + end, block[end:]
        except (pa.ArrowException, OSError, EOFError) as e:
            raise read_error(path, e, f", after byte {start:,}: is it truncated?") from e
        if rest:
            if self.last_record_end(rest + b"\n") != len(rest) + 1:
                raise SliceError(
                    f"{path}: a quote after byte {start:,} is never closed; is the file truncated?",
                    kind="input",
                )
            yield start, rest

    def _to_utf8(self, path: str, data: bytes) -> bytes:
        encoding = self.csv_options.encoding
        try:
            return data if encoding == "utf-8" else data.decode(encoding).encode()
        except UnicodeDecodeError as e:
            raise SliceError(f"{path} is not written in {encoding}: {e}. Set source.csv", kind="input") from e

    def _parse(
        self, path: str, row: int, block: bytes, header: Sequence[str], fields: pa.Schema | None = None
    ) -> pa.Table:
        try:
            return self.parse(block, header, fields)
        except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError, RecursionError) as e:
            place = f"in or after record {row + 1:,}"
            if match := self._row_in_message.search(str(e)):
                place = f"record {row + int(match.group(1)) - self._first_number + 1:,}"
            is_other_encoding = "invalid UTF8" in str(e)
            hint = f": {_ENCODING}" if is_other_encoding else ""
            raise SliceError(f"{path}, {place}: {str(e).strip()[:500]}{hint}", kind="input") from e

    @staticmethod
    def _get_codec(path: str) -> str | None:
        return next((codec for ext, codec in COMPRESSIONS.items() if path.lower().endswith(ext)), None)

    @staticmethod
    def _unify(path: str, one: pa.Schema, other: pa.Schema) -> pa.Schema:
        try:
            return pa.unify_schemas([one, other], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
            raise SliceError(
                f"{path}: a field changes its type within the file ({e}); set source.column_types for it",
                kind="input",
            ) from e


class CsvFormat(TextFormat):
    """RFC 4180 (comma, double quotes, doubled inside quotes, newlines allowed inside quotes) in UTF-8, or
    what `csv_options` says instead."""

    _row_in_message = re.compile(r"Row #(\d+)")

    @property
    def parsed_whole(self) -> bool:  # type: ignore[override]
        return self.csv_options.escape_char is not None or self.csv_options.encoding != "utf-8"

    def read_header(self, block: bytes, path: str) -> tuple[tuple[str, ...], int]:
        _, skip = super().read_header(block, path)
        options = self.csv_options
        end = skip + _first_record_end(block[skip:], options.quote_char.encode())
        try:
            lines = csv.reader(
                [block[skip:end].decode().rstrip("\r\n")],
                delimiter=options.delimiter,
                quotechar=options.quote_char,
                escapechar=options.escape_char,
            )
            names = tuple(next(lines, []))
        except (UnicodeDecodeError, csv.Error) as e:
            raise SliceError(
                f"{path}: the header cannot be read ({e}): use UTF-8 and LF or CRLF line ends; {_ENCODING}",
                kind="input",
            ) from e
        if not names:
            raise SliceError(f"{path}: the header names no column", kind="input")
        if duplicates := sorted({n for n in names if names.count(n) > 1}):
            raise SliceError(
                f"{path}: the header names {', '.join(map(repr, duplicates))} twice", kind="input"
            )
        return names, end

    def parse(self, block: bytes, header: Sequence[str], fields: pa.Schema | None) -> pa.Table:
        types = {name: self.column_types.get(name, pa.string()) for name in header}
        if not block:
            return pa.schema(list(types.items())).empty_table()
        return pa_csv.read_csv(
            pa.BufferReader(block),
            read_options=pa_csv.ReadOptions(
                column_names=list(header), use_threads=False, block_size=len(block) + 1
            ),
            parse_options=pa_csv.ParseOptions(
                newlines_in_values=True,
                delimiter=self.csv_options.delimiter,
                quote_char=self.csv_options.quote_char,
                escape_char=self.csv_options.escape_char or False,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=None if fields is None else [n for n in fields.names if n in types],
                # Only an empty field is null: "NA" and "NaN" are texts that people write.
                null_values=[""],
                strings_can_be_null=False,
                quoted_strings_can_be_null=True,
            ),
        )

    def last_record_end(self, block: bytes) -> int:
        quote = self.csv_options.quote_char.encode()
        if quote not in block:
            return super().last_record_end(block)
        data = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(data == quote[0])
        opening, delimiter = quotes[::2], ord(self.csv_options.delimiter)
        before = data[opening[opening > 0] - 1]
        if np.isin(before, (delimiter, ord("\n"), ord("\r"), quote[0])).all():
            # A newline ends a record when an even number of quotes stands before it. The sum may wrap; its
            # parity does not.
            is_quoted = np.cumsum(data == quote[0], dtype=np.uint8) & 1
        else:
            is_quoted = _find_quoted(data, quotes, delimiter)
        ends = np.flatnonzero((data == ord("\n")) & (is_quoted == 0))
        return int(ends[-1]) + 1 if ends.size else 0


class JsonLinesFormat(TextFormat):
    """One JSON object a line. Strings stay strings: what looks like a date becomes one only by
    `column_types`."""

    _row_in_message = re.compile(r"in row (\d+)")
    _first_number = 0

    def parse(self, block: bytes, header: Sequence[str], fields: pa.Schema | None) -> pa.Table:
        if match := _NO_OBJECT.search(block):  # Arrow would crash on some
            row, line = block[: match.start()].count(b"\n"), match[0].strip()[:40].decode(errors="replace")
            raise pa.ArrowInvalid(f"{line!r} is not a JSON object, in row {row}")
        options = pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
        if fields is None:
            inferred = pa_json.read_json(pa.BufferReader(block), read_options=options).schema
            types = [(f.name, self.column_types.get(f.name, _without_timestamps(f.type))) for f in inferred]
            fields = pa.schema(types)
        table = pa_json.read_json(
            pa.BufferReader(block),
            read_options=options,
            parse_options=pa_json.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore"),
        )
        _refuse_rounded_integers(table, block)
        return table.select([n for n in fields.names if n in table.schema.names])


#: Arrow names no encoding when it meets bytes that are not UTF-8.
_ENCODING = "if it is written in another encoding, set source.csv={'encoding': 'latin-1'} or the like"
_NO_OBJECT = re.compile(rb"^[ \t]*[^\s{][^\n]*", re.MULTILINE)
#: An integer of a JSON text that a float64 may not hold.
_LONG_INTEGER = re.compile(rb"(?<![\w.+\-])-?\d{16,}(?![\w.])")


def _refuse_rounded_integers(table: pa.Table, block: bytes) -> None:
    """:raises pa.ArrowInvalid: when integers over 2^53 (ids, mostly) became floats, which alters them."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if not pa.types.is_floating(column.type) or (pc.max(pc.abs(column)).as_py() or 0) < 2**53:
            continue
        floats = set(column.drop_null().to_pylist())
        for integer in (match.group() for match in _LONG_INTEGER.finditer(block)):
            if float(integer) in floats and int(float(integer)) != int(integer):
                raise pa.ArrowInvalid(
                    f"field {name!r} mixes floats with integers that they cannot hold, such as "
                    f"{integer.decode()}: set source.column_types={{{name!r}: 'uint64'}}, or "
                    "'decimal128(38, 3)'"
                )


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
    return np.cumsum(edges[:-1], dtype=np.int8)


def _without_timestamps(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_timestamps(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _without_timestamps(f.type)) for f in kind])
    return kind


def _first_record_end(block: bytes, quote: bytes) -> int:
    inside = False
    for match in re.finditer(b"[" + re.escape(quote) + b"\n]", block):
        if match.group() == quote:
            inside = not inside
        elif not inside:
            return match.end()
    return len(block)
