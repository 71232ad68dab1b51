"""Text files: CSV and JSON Lines.

They are parsed while they are scanned, so that a broken line is found before anything is spent, and row
counts are those of the parser that reads them later. CSV columns are strings unless `column_types` says
otherwise: inference would alter "01234".
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

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.input.formats import Format, Range, Scan, unreadable

#: Bytes of text in a range: small enough to parse in memory, large enough to make its parsing the only cost.
TEXT_RANGE_BYTES = 16 << 20
#: A record longer than this is taken for an unbalanced quote.
MAX_RECORD_BYTES = 256 << 20

#: Codecs by the suffix that names them.
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


class Text(Format):
    """A text file as blocks of whole records. Compressed files are one range, since no byte of them can be
    sought; so are those whose records cannot be told apart without parsing all before them
    (`parsed_whole`)."""

    parsed_whole = False

    #: What the parser's message calls a record, and how far its number is from the first record's 1.
    _row_in_message = re.compile(r"(?!)")
    _numbered_from = 1

    @abstractmethod
    def parse(
        self, block: bytes, header: Sequence[str], schema: pa.Schema | None, columns: Sequence[str] | None
    ) -> pa.Table: ...

    @abstractmethod
    def last_record_end(self, block: bytes) -> int:
        """Bytes of `block` up to the end of its last whole record; 0 when there is none. `block` begins at a
        record."""

    def read_header(self, first: bytes, path: str) -> tuple[tuple[str, ...], int]:
        """Column names that the file begins with and the bytes they take."""
        return (), 3 if first.startswith(b"\xef\xbb\xbf") else 0

    def scan(self, path: str) -> Scan:
        one_range = self.parsed_whole or self._compression(path) is not None
        header: tuple[str, ...] | None = None
        schema, ranges, first = pa.schema([]), [], 0
        for start, block in self._blocks(path):
            if header is None:
                header, skip = self.read_header(block, path)
                start, block = start + skip, block[skip:]
            if not block:
                continue
            table = self._parse(path, first, block, header, None, None)
            schema = self._merge(path, schema, table.schema)
            ranges.append(Range(first_row=first, rows=table.num_rows, start=start, end=start + len(block)))
            first += table.num_rows
        if one_range and ranges:
            ranges = [Range(first_row=0, rows=first)]
        if not ranges and header:
            schema = self._parse(path, 0, b"", header, None, None).schema
        return Scan(schema, tuple(ranges))

    def read(
        self, path: str, part: Range, *, header: Sequence[str], schema: pa.Schema, columns: Sequence[str]
    ) -> Iterator[pa.Table]:
        first = part.first_row
        if part.start is not None and part.end is not None:
            data = self.fs.cat_file(path, start=part.start, end=part.end)
            yield self._parse(path, first, data, header, schema, columns)
            return
        for index, (_, block) in enumerate(self._blocks(path)):
            if index == 0:
                block = block[self.read_header(block, path)[1] :]
            if block:
                table = self._parse(path, first, block, header, schema, columns)
                first += table.num_rows
                yield table

    def _blocks(self, path: str) -> Iterator[tuple[int, bytes]]:
        """The file as (start byte, whole records), about `TEXT_RANGE_BYTES` each."""
        codec = self._compression(path)
        start, rest = 0, b""
        try:
            with self.open(path) as raw:
                stream = pa.CompressedInputStream(raw, codec) if codec else raw
                if self.parsed_whole:
                    yield 0, self._as_utf8(path, stream.read())
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
        except (pa.ArrowInvalid, OSError, EOFError) as e:
            raise unreadable(path, e, f", after byte {start:,}: is it truncated?") from e
        if rest:
            if self.last_record_end(rest + b"\n") != len(rest) + 1:
                raise SliceError(
                    f"{path}: a quote after byte {start:,} is never closed; is the file truncated?",
                    kind="input",
                )
            yield start, rest

    def _as_utf8(self, path: str, data: bytes) -> bytes:
        encoding = self.csv_options.encoding
        try:
            return data if encoding == "utf-8" else data.decode(encoding).encode()
        except UnicodeDecodeError as e:
            raise SliceError(
                f"{path} is not written in {encoding}: {e}. Set csv_options", kind="input"
            ) from e

    def _parse(
        self,
        path: str,
        first_row: int,
        block: bytes,
        header: Sequence[str],
        schema: pa.Schema | None,
        columns: Sequence[str] | None,
    ) -> pa.Table:
        try:
            return self.parse(block, header, schema, columns)
        except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError) as e:
            found = self._row_in_message.search(str(e))
            where = (
                f"record {first_row + int(found.group(1)) - self._numbered_from + 1:,}"
                if found
                else f"in or after record {first_row + 1:,}"
            )
            raise SliceError(f"{path}, {where}: {str(e).strip()[:500]}", kind="input") from e

    @staticmethod
    def _compression(path: str) -> str | None:
        return next((codec for ext, codec in COMPRESSIONS.items() if path.lower().endswith(ext)), None)

    @staticmethod
    def _merge(path: str, one: pa.Schema, other: pa.Schema) -> pa.Schema:
        try:
            return pa.unify_schemas([one, other], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
            raise SliceError(
                f"{path}: a field changes its type within the file ({e}); set column_types for it",
                kind="input",
            ) from e


class Csv(Text):
    """RFC 4180: comma, double quotes, quotes doubled inside quotes, newlines allowed inside quotes, in UTF-8;
    or what `csv_options` says instead."""

    _row_in_message = re.compile(r"Row #(\d+)")
    _numbered_from = 1

    @property
    def parsed_whole(self) -> bool:  # type: ignore[override]
        return self.csv_options.escape_char is not None or self.csv_options.encoding != "utf-8"

    def read_header(self, first: bytes, path: str) -> tuple[tuple[str, ...], int]:
        skip = super().read_header(first, path)[1]
        options = self.csv_options
        end = _first_record_end(first[skip:], options.quote_char.encode())
        try:
            text = first[skip : skip + end].decode()
            lines = csv.reader(
                [text.rstrip("\r\n")],
                delimiter=options.delimiter,
                quotechar=options.quote_char,
                escapechar=options.escape_char,
            )
            names = tuple(next(lines, []))
        except (UnicodeDecodeError, csv.Error) as e:
            raise SliceError(
                f"{path}: the header cannot be read ({e}): use UTF-8 and LF or CRLF line ends", kind="input"
            ) from e
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice or not names:
            raise SliceError(
                f"{path}: the header names "
                f"{', '.join(map(repr, twice)) or 'no column'}{' twice' * bool(twice)}",
                kind="input",
            )
        return names, skip + end

    def parse(
        self, block: bytes, header: Sequence[str], schema: pa.Schema | None, columns: Sequence[str] | None
    ) -> pa.Table:
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
                include_columns=None if columns is None else [c for c in columns if c in types],
                # Nothing but an empty field is null: "NA" and "NaN" are texts that people write.
                null_values=[""],
                strings_can_be_null=False,
                quoted_strings_can_be_null=True,
            ),
        )

    def last_record_end(self, block: bytes) -> int:
        data = np.frombuffer(block, np.uint8)
        quote = self.csv_options.quote_char.encode()
        if quote not in block:
            return block.rfind(b"\n") + 1
        # A newline ends a record when an even number of quotes stands before it; the sum may wrap, its parity
        # does not.
        open_quote = np.cumsum(data == quote[0], dtype=np.uint8) & 1
        ends = np.flatnonzero((data == ord("\n")) & (open_quote == 0))
        return int(ends[-1]) + 1 if ends.size else 0


def _first_record_end(block: bytes, quote: bytes) -> int:
    inside = False
    for match in re.finditer(b"[" + re.escape(quote) + b"\n]", block):
        if match.group() == quote:
            inside = not inside
        elif not inside:
            return match.end()
    return len(block)


class JsonLines(Text):
    """One JSON object a line. Texts stay texts: what looks like a date is not made one, unless `column_types`
    says so."""

    _row_in_message = re.compile(r"in row (\d+)")
    _numbered_from = 0

    def parse(
        self, block: bytes, header: Sequence[str], schema: pa.Schema | None, columns: Sequence[str] | None
    ) -> pa.Table:
        options = pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
        if schema is None:
            inferred = pa_json.read_json(pa.BufferReader(block), read_options=options).schema
            schema = pa.schema(
                [(f.name, self.column_types.get(f.name, _without_timestamps(f.type))) for f in inferred]
            )
            columns = schema.names
        assert columns is not None
        table = pa_json.read_json(
            pa.BufferReader(block),
            read_options=options,
            parse_options=pa_json.ParseOptions(
                explicit_schema=pa.schema([f for f in schema if f.name in columns]),
                unexpected_field_behavior="ignore",
            ),
        )
        _refuse_rounded_integers(table, block)
        return table.select([c for c in columns if c in table.schema.names])

    def last_record_end(self, block: bytes) -> int:
        return block.rfind(b"\n") + 1


#: An integer of a JSON text that a float64 may not hold.
_LONG_INTEGER = re.compile(rb"(?<![\w.+\-])-?\d{16,}(?![\w.])")


def _refuse_rounded_integers(table: pa.Table, block: bytes) -> None:
    """:raises pa.ArrowInvalid: when integers over 2^53 became floats, which alters them (ids, mostly)."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if pa.types.is_floating(column.type) and (pc.max(pc.abs(column)).as_py() or 0) >= 2**53:
            floats = set(column.drop_null().to_pylist())
            for found in _LONG_INTEGER.finditer(block):
                if float(found.group()) in floats and int(float(found.group())) != int(found.group()):
                    raise pa.ArrowInvalid(
                        f"field {name!r} mixes floats with integers that they cannot hold, such as "
                        f"{found.group().decode()}: set column_types={{{name!r}: 'uint64'}}, or "
                        "'decimal128(38, 3)'"
                    )


def _without_timestamps(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_timestamps(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _without_timestamps(f.type)) for f in kind])
    return kind
