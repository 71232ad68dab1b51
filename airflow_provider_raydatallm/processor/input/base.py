"""The interface of an input format: scan a file into ranges, and read one of them.

A range is a part of a file that can be read alone: a Parquet row group, or bytes of a text file from the
start of a record. The same range always yields the same rows in the same order, because publishing reads the
input again and joins the answers by position.
"""

from __future__ import annotations

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import CsvOptions
from airflow_provider_raydatallm.processor.input.listing import (
    InputFile,
    describe_disk_file,
    describe_object,
    get_input_file,
)
from airflow_provider_raydatallm.processor.input.schema import parse_type
from airflow_provider_raydatallm.processor.storage.filesystem import reason


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
    """A file's columns, in its order, and its ranges.

    :ivar digest: of the part of the content that the scan knows whole (a Parquet footer); else "".
    """

    schema: pa.Schema
    ranges: tuple[RowRange, ...]
    digest: str = ""


@dataclass(frozen=True)
class PlannedFile(InputFile):
    """An input file with what its scan found.

    :ivar header: all of its columns, in its order.
    :ivar key: hash of all that decides which rows its units have and how they read.
    """

    header: tuple[str, ...] = ()
    digest: str = ""
    key: str = ""


class FileFormat(ABC):
    def __init__(
        self, fs: fsspec.AbstractFileSystem, column_types: Mapping[str, str], csv_options: CsvOptions
    ) -> None:
        self.fs = fs
        self.csv_options = csv_options
        self.column_types = {name: parse_type(name, text) for name, text in column_types.items()}

    @abstractmethod
    def scan(self, file: InputFile) -> FileScan:
        """Cuts a file into ranges.

        :raises SliceError: for a broken file, with the file and the position.
        """

    @abstractmethod
    def read(self, file: PlannedFile, part: RowRange, fields: pa.Schema) -> Iterator[pa.Table]:
        """Yields the rows of a range, in order, with those `fields` that the file has."""

    @contextlib.contextmanager
    def open(
        self, file: InputFile, *, read_ahead: bool = True
    ) -> Iterator[tuple[pa.NativeFile, Callable[[], None]]]:
        """Opens the file that was listed, and no other that took its path since.

        Returns it with a check that it still is that file, for before rows leave this room. A disk reads on
        in the opened file, whatever happens to its path, and S3 refuses to read on once the object was
        replaced. Other stores are asked again.

        :param read_ahead: False for reads of known sizes.
        :raises SliceError: of kind "transient" when it is another file, or becomes one.
        """
        with contextlib.ExitStack() as opened:
            try:
                handle, info = self._open(file.path, read_ahead, opened)
            except FileNotFoundError as e:
                raise changed_error(file.path) from e
            except PermissionError as e:
                raise read_error(file.path, e, "") from e

            def check() -> None:
                if info().identity != file.identity:
                    raise changed_error(file.path)

            check()
            check_again = check if "s3" not in self.fs.protocol else _pass
            try:
                yield handle, check_again
            except Exception as e:
                try:  # damage may be no more than another file's bytes
                    check()
                except OSError:
                    raise e from None
                raise
            check_again()

    def _open(
        self, path: str, read_ahead: bool, opened: contextlib.ExitStack
    ) -> tuple[pa.NativeFile, Callable[[], InputFile]]:
        """Returns the opened file, and what tells which one it is."""
        if isinstance(self.fs, LocalFileSystem):
            # A decompressing stream closes what it reads from, and not every OSFile tells its descriptor.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            handle = opened.enter_context(pa.OSFile(f"/proc/self/fd/{descriptor}", "rb"))
            return handle, lambda: describe_disk_file(path, os.fstat(descriptor))
        raw = self.fs.open(path, "rb", **({} if read_ahead else {"cache_type": "none"}))
        details = [getattr(raw, "details", None)]  # as it was opened

        def info() -> InputFile:
            known = details.pop() if details else None
            return describe_object(path, known) if known else get_input_file(self.fs, path)

        return opened.enter_context(pa.PythonFile(raw, mode="r")), info


def _pass() -> None:
    pass


def read_error(path: str, error: Exception, problem: str) -> SliceError:
    """The error for a file that cannot be read: transient when the storage failed, not the content."""
    if getattr(error, "errno", None) == errno.EBUSY:  # s3fs: the object was replaced since it was opened
        return changed_error(path)
    refused = isinstance(error, (PermissionError, ConnectionError, TimeoutError))
    if refused or getattr(error, "errno", None) is not None:
        return SliceError(f"{path} could not be read: {reason(error)}", kind="transient")
    return SliceError(f"{path}{problem}: {error}", kind="input")


def changed_error(path: str) -> SliceError:
    return SliceError(f"{path} changed while the slice ran; run it again", kind="transient")
