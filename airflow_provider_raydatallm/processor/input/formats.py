"""What every input format can do: scan a file into ranges, and read one of them.

A range is a part of a file that can be read on its own: a Parquet row group, or bytes of a text file that
begin at a record. The same range always reads as the same rows in the same order, because publishing reads
the input again and puts the answers beside it by position.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import CsvOptions


@dataclass(frozen=True)
class Range:
    """Rows of one file that are read together. `row_group` for Parquet; `start`, `end` bytes for text; none
    of them: all of it."""

    first_row: int
    rows: int
    row_group: int | None = None
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True)
class Scan:
    """What a look at a whole file found: its columns, in its order, and its ranges."""

    schema: pa.Schema
    ranges: tuple[Range, ...]


class Format(ABC):
    """How files of one format are scanned and read."""

    def __init__(
        self,
        fs: fsspec.AbstractFileSystem,
        column_types: Mapping[str, str],
        csv_options: CsvOptions | None = None,
    ) -> None:
        self.fs = fs
        self.csv_options = csv_options or CsvOptions()
        self.column_types = {name: parse_type(name, text) for name, text in column_types.items()}

    @abstractmethod
    def scan(self, path: str) -> Scan:
        """Cut a file into ranges.

        :raises SliceError: for a broken file, with the file and the position.
        """

    @abstractmethod
    def read(
        self, path: str, part: Range, *, header: Sequence[str], schema: pa.Schema, columns: Sequence[str]
    ) -> Iterator[pa.Table]:
        """Rows of one range, in order, with those of `columns` that the file has."""

    def open(self, path: str) -> pa.NativeFile:
        if isinstance(self.fs, LocalFileSystem):
            return pa.OSFile(path, "rb")
        return pa.PythonFile(self.fs.open(path, "rb"), mode="r")


def unreadable(path: str, error: Exception, what: str) -> SliceError:
    """Of a file that could not be read: its content is wrong, or the storage did not give it, which a later
    try may mend."""
    refused = isinstance(error, (PermissionError, ConnectionError, TimeoutError))
    if refused or getattr(error, "errno", None) is not None:
        return SliceError(f"{path} could not be read: {error}", kind="transient")
    return SliceError(f"{path}{what}: {error}", kind="input")


_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:,\s*(?:tz=)?([^\]]+))?\]")
_DECIMAL = re.compile(r"decimal(?:128)?\((\d+),\s*(\d+)\)")


def parse_type(column: str, text: str) -> pa.DataType:
    """An Arrow type from its name: `int64`, `float64`, `bool`, `date32`, `timestamp[us, tz=UTC]`,
    `decimal(10, 2)`, ...

    :raises SliceError: naming the column and the type.
    """
    if found := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(found.group(1), found.group(2))
    if found := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(found.group(1)), int(found.group(2)))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        raise SliceError(
            f"column_types[{column!r}] is {text!r}, which is no Arrow type: use string, int64, float64, "
            "bool, date32, timestamp[us], timestamp[us, tz=UTC], decimal(10, 2), ...",
            kind="input",
        ) from None
