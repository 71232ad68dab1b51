"""Text files, as blocks of whole records.

A scan parses the whole file, so that a broken line is found before anything is spent and row counts are
those of the parser that reads the rows later.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.processor.input.formats.base import (
    FileFormat,
    FileScan,
    PlannedFile,
    RangeReader,
    RowRange,
    read_error,
)
from airflow_provider_raydatallm.processor.input.listing import InputFile
from airflow_provider_raydatallm.processor.input.problems import split_column
from airflow_provider_raydatallm.processor.input.types.lossless import ValueRange
from airflow_provider_raydatallm.processor.input.types.plain import ColumnPath, leaves
from airflow_provider_raydatallm.processor.input.types.values import has_range, range_of, values_at

#: Bytes of text in a range: small enough to parse in memory, large enough that parsing dominates the cost.
TEXT_RANGE_BYTES = 16 << 20
#: A longer record counts as an unbalanced quote.
MAX_RECORD_BYTES = 256 << 20

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: Codecs by file suffix.
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}

#: What to do about bytes that are not text.
ENCODING_HINT = "If it is written in another encoding, set source.encoding='latin-1' or the like"
CORRECT_VALUE = "Correct it, or declare the column as another type in source.column_types, such as 'string'"
DECLARE_OTHER_TYPE = "Declare it as another type, such as decimal128(38, 3)"


def _record(row: int | None, start: int) -> str:
    """:param start: the byte of the file that it begins at."""
    return f"the record at byte {start:,}" if row is None else f"row {row:,} (byte {start:,})"


class ColumnTypes:
    """The types of a file's columns, as its blocks show them one after the other.

    :ivar value_ranges: of the values so far.
    """

    def __init__(self) -> None:
        self.value_ranges: dict[ColumnPath, ValueRange] = {}

    @abstractmethod
    def add(self, block: bytes) -> int:
        """Parses a block of whole records, and returns their number.

        :raises pa.ArrowException: naming the record.
        """

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Plain types of all blocks together."""

    @property
    def absent(self) -> frozenset[str]:
        """Declared columns that no record has."""
        return frozenset()

    def add_values(self, table: pa.Table, types: pa.Schema) -> None:
        """:param types: of the columns. Those with ranges have them in the table, too."""
        for path, kind in leaves(pa.struct(list(types)), ()):
            if not has_range(kind):
                continue
            for values in values_at(table.column(path[0]), path[1:]):
                if (found := range_of(values)) is not None:
                    self.value_ranges[path] = self.value_ranges.get(path, found) | found


class TextFormat(FileFormat):
    """Compressed files are one range, since they allow no seek; so are files whose records can be told apart
    only by parsing all text before them (`parsed_whole`)."""

    position_sizes = (0, 2)
    may_be_empty = True
    scans_all = True

    #: Finds the row's number in the parser's message, which counts from `_first_number` in a block.
    _row_in_message = re.compile(r"(?!)")
    _first_number = 1

    @property
    def parsed_whole(self) -> bool:
        return self.options.encoding != "utf-8"

    @abstractmethod
    def column_types(self, path: str, header: Sequence[str]) -> ColumnTypes:
        """Returns what finds the types of a file's columns."""

    @abstractmethod
    def parse(self, block: bytes, header: Sequence[str], fields: pa.Schema) -> pa.Table:
        """Parses whole records into those of some fields that the file has."""

    @abstractmethod
    def parse_texts(self, block: bytes, header: Sequence[str]) -> pa.Table:
        """Parses whole records into all their fields, as what they are without declared types."""

    def last_record_end(self, block: bytes) -> int:
        """Bytes of `block`, which starts with a record, up to the end of its last whole record, if any."""
        return block.rfind(b"\n") + 1

    def read_header(self, block: bytes, path: str) -> tuple[tuple[str, ...], int]:
        """Column names at the start of the file, and the bytes before its first record."""
        return (), len(BYTE_ORDER_MARK) if block.startswith(BYTE_ORDER_MARK) else 0

    def scan(self, file: InputFile) -> FileScan:
        path = file.path
        types: ColumnTypes | None = None
        ranges, rows = [], 0

        def next_row() -> int | None:
            return rows + 1 if types is not None else None

        with self.open(file) as (raw, _):
            for start, block in self._read_blocks(path, raw, next_row):
                if types is None:
                    header, skip = self.read_header(block, path)
                    start, block = start + skip, block[skip:]
                    types = self.column_types(path, header)
                if not block:
                    continue
                with self._errors(path, rows, block):
                    added = types.add(self._valid(path, rows, block, header))
                ranges.append(RowRange(rows, added, (start, start + len(block))))
                rows += added
        if ranges and (self.parsed_whole or self._get_codec(path)):
            ranges = [RowRange(0, rows)]
        if types is None:
            return FileScan(pa.schema([]), ())
        return FileScan(types.schema(), tuple(ranges), absent=types.absent, value_ranges=types.value_ranges)

    @contextlib.contextmanager
    def reader(self, file: PlannedFile) -> Iterator[RangeReader]:
        with self.open(file, read_ahead=self._is_one_range(file.path)) as (raw, check):

            def read(part: RowRange, fields: pa.Schema) -> Iterator[pa.Table]:
                first_row = part.first_row
                for block in self._blocks_of(file.path, raw, part):
                    with self._errors(file.path, first_row, block):
                        block = self._valid(file.path, first_row, block, file.header)
                        table = self.parse(block, file.header, fields)
                    first_row += table.num_rows
                    check()
                    yield table

            yield read

    def value_range(self, file: InputFile, scan: FileScan, path: ColumnPath) -> ValueRange | None:
        return scan.value_ranges.get(path)

    def _is_one_range(self, path: str) -> bool:
        return self.parsed_whole or self._get_codec(path) is not None

    def _blocks_of(self, path: str, raw: pa.NativeFile, part: RowRange) -> Iterator[bytes]:
        """Yields the whole records of a range."""
        if part.position:
            first, end = part.position
            try:
                raw.seek(first)
                data = bytes(raw.read(end - first))
            except OSError as e:
                raise read_error(path, e, f"cannot be read from byte {first:,} on") from e
            yield data
            return
        for start, block in self._read_blocks(path, raw):
            if start == 0:
                block = block[self.read_header(block, path)[1] :]
            if block:
                yield block

    def _read_blocks(
        self, path: str, raw: pa.NativeFile, next_row: Callable[[], int | None] = lambda: None
    ) -> Iterator[tuple[int, bytes]]:
        """Yields the file as (start byte, whole records), about `TEXT_RANGE_BYTES` each.

        :param next_row: returns the number of the row after those so far; None in the header, or where nobody
            counts.
        """
        codec = self._get_codec(path)
        start, rest = 0, b""
        try:
            raw.seek(0)
            stream = pa.CompressedInputStream(raw, codec) if codec else raw
            if self.parsed_whole:
                yield 0, self._to_utf8(path, stream.read())
                return
            while chunk := stream.read(TEXT_RANGE_BYTES):
                block = rest + chunk
                end = self._records_end(block, start)
                if not end and len(block) > MAX_RECORD_BYTES:
                    row = next_row()
                    raise SliceError(
                        f"{path}: {_record(row, start)} is longer than {MAX_RECORD_BYTES >> 20} MiB",
                        kind="input",
                        advice="Is a quote in it never closed?",
                        place=Place(file=path, row=row),
                    )
                if end:
                    yield start, block[:end]
                start, rest = start + end, block[end:]
        except (pa.ArrowException, OSError, EOFError) as e:
            raise read_error(
                path, e, f"cannot be read after byte {start:,}", advice="Is it truncated?"
            ) from e
        if rest:
            if self._records_end(rest + b"\n", start) != len(rest) + 1:
                row = next_row()
                raise SliceError(
                    f"{path}: a quote that is opened in {_record(row, start)} is never closed",
                    kind="input",
                    advice=(
                        "Is the file truncated?",
                        "If quotes are plain text there, set another source.csv={'quote_char': ...}",
                    ),
                    place=Place(file=path, row=row),
                )
            yield start, rest

    def _records_end(self, block: bytes, start: int) -> int:
        """`last_record_end` of a block that begins at a byte of the file."""
        skip = len(BYTE_ORDER_MARK) if start == 0 and block.startswith(BYTE_ORDER_MARK) else 0
        end = self.last_record_end(block[skip:])
        return skip + end if end else 0

    def _to_utf8(self, path: str, data: bytes) -> bytes:
        encoding = self.options.encoding
        if encoding == "utf-8":  # which is checked with the columns' names at hand
            return data
        try:
            return data.decode(
                encoding, "replace" if self.options.replaces_invalid_text else "strict"
            ).encode()
        except UnicodeError as e:
            raise SliceError(
                f"{path} is not written in {encoding}",
                kind="input",
                advice="Set source.encoding",
                place=Place(file=path),
                row_texts=(str(e),),
            ) from e

    def _valid(self, path: str, row: int, block: bytes, header: Sequence[str]) -> bytes:
        """The block, in valid UTF-8.

        :raises SliceError: when it is not, and nobody said to replace what is not.
        """
        if block.isascii():
            return block
        try:
            block.decode()
        except UnicodeDecodeError as e:
            if self.options.replaces_invalid_text:
                return block.decode(errors="replace").encode()
            line = row + block.count(b"\n", 0, e.start) + 1
            column = self._find_column(block, e.start, header)
            raise SliceError(
                f"{path} holds text that is not valid UTF-8, in or before row {line:,}",
                kind="input",
                advice=(ENCODING_HINT, "source.on_invalid_text='replace' puts U+FFFD there"),
                place=Place(file=path),
                # A header may be a row, and keys may be data.
                row_texts=(
                    "" if column is None else f"column {column!r}",
                    repr(block[e.start : e.start + 4]),
                ),
            ) from e
        return block

    def _find_column(self, block: bytes, at: int, header: Sequence[str]) -> str | None:
        """The column of a byte that is no UTF-8; None where the rest does not tell."""
        mark = uuid.uuid4().hex
        rest = block[at:].decode(errors="replace").encode()
        try:
            table = self.parse_texts(block[:at] + mark.encode() + rest, header)
        except (pa.ArrowException, SliceError):
            return None
        for name, column in zip(table.column_names, table.itercolumns(), strict=True):
            for path, kind in leaves(column.type, ()):
                texts = values_at(column, path) if pt.is_string(kind) else iter(())
                if any(pc.any(pc.match_substring(values, mark)).as_py() for values in texts):
                    return str(name)
        return None

    @contextlib.contextmanager
    def _errors(self, path: str, row: int, block: bytes) -> Iterator[None]:
        """Errors of the parser name the file and the row."""
        try:
            yield
        except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError, RecursionError) as e:
            where, number, message = f"in or after row {row + 1:,}", None, str(e)
            if match := self._row_in_message.search(message):
                number = row + int(match[1]) - self._first_number + 1
                where = f"in row {number:,}"
                message = f"{message[: match.start(1)]}{number}{message[match.end(1) :]}"
            column, problem = split_column(message.strip())
            top = None if column is None else self.top_column(column)
            of_column = "" if top is None else f", column {top!r}"
            fault = self.fault(problem)
            raise SliceError(
                f"{path} cannot be read {where}{of_column}{fault and f': {fault}'}",
                kind="input",
                advice=self.hint(problem, block),
                place=Place(file=path, column=top, row=number),
                row_texts=("" if top == column else f"at {column}", problem[:500]),
            ) from e

    def top_column(self, column: str) -> str:
        """The column of one that a parser's error names, or of a part of it."""
        return column

    def fault(self, problem: str) -> str:
        """What a parser's error says without the row's texts; "" where that is nothing."""
        return ""

    def hint(self, problem: str, block: bytes) -> str:
        """What to do about a parser's error; "" where the error says enough."""
        return ""

    @staticmethod
    def _get_codec(path: str) -> str | None:
        return next((codec for ext, codec in COMPRESSIONS.items() if path.lower().endswith(ext)), None)
