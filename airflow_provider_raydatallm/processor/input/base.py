"""The interface of an input format: scan a file into ranges, and read one of them.

A range is a part of a file that can be read alone: a Parquet row group, or bytes of a text file from the
start of a record. The same range always yields the same rows in the same order, because publishing reads the
input again and joins the answers by position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import CsvOptions
from airflow_provider_raydatallm.processor.input.schema import parse_type


@dataclass(frozen=True)
class RowRange:
    """Rows of one file that are read together: a `row_group` of Parquet, bytes from `start` to `end` of text,
    or the whole file."""

    first_row: int
    rows: int
    row_group: int | None = None
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True)
class FileScan:
    """A file's columns, in its order, and its ranges."""

    schema: pa.Schema
    ranges: tuple[RowRange, ...]


class FileFormat(ABC):
    def __init__(
        self, fs: fsspec.AbstractFileSystem, column_types: Mapping[str, str], csv_options: CsvOptions
    ) -> None:
        self.fs = fs
        self.csv_options = csv_options
        self.column_types = {name: parse_type(name, text) for name, text in column_types.items()}

    @abstractmethod
    def scan(self, path: str) -> FileScan:
        """Cuts a file into ranges.

        :raises SliceError: for a broken file, with the file and the position.
        """

    @abstractmethod
    def read(self, path: str, part: RowRange, header: Sequence[str], fields: pa.Schema) -> Iterator[pa.Table]:
        """Yields the rows of a range, in order, with those `fields` that the file has.

        :param header: all of the file's columns, in its order.
        """

    def open(self, path: str) -> pa.NativeFile:
        if isinstance(self.fs, LocalFileSystem):
            return pa.OSFile(path, "rb")
        return pa.PythonFile(self.fs.open(path, "rb"), mode="r")


def read_error(path: str, error: Exception, problem: str) -> SliceError:
    """The error for a file that cannot be read: transient when the storage failed, not the content."""
    refused = isinstance(error, (PermissionError, ConnectionError, TimeoutError))
    if refused or getattr(error, "errno", None) is not None:
        return SliceError(f"{path} could not be read: {error}", kind="transient")
    return SliceError(f"{path}{problem}: {error}", kind="input")
