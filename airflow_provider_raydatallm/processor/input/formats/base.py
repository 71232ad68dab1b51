"""The interface of an input format: scan a file into ranges, and read them.

A range is a part of a file that can be read alone: a Parquet row group, or bytes of a text file from the
start of a record. The same range always yields the same rows in the same order, because publishing reads the
input again and joins the answers by position.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.spec.input_formats import FormatName
from airflow_provider_raydatallm.processor.input.formats.options import ReadOptions
from airflow_provider_raydatallm.processor.input.listing import (
    InputFile,
    describe_disk_file,
    describe_object,
    get_input_file,
)
from airflow_provider_raydatallm.processor.input.problems import Refusal
from airflow_provider_raydatallm.processor.input.types.lossless import ValueRange
from airflow_provider_raydatallm.processor.input.types.plain import ColumnPath
from airflow_provider_raydatallm.processor.storage.disk import NotRegularFileError, open_regular
from airflow_provider_raydatallm.processor.storage.filesystem import reason

#: Columns, with the fields in them, that are read of a file.
MAX_FIELDS = 10_000


@dataclass(frozen=True)
class RowRange:
    """Rows of one file that are read together.

    :ivar position: where they are, in the numbers of the format, such as a row group of Parquet; those of
        text are the first byte and the one behind the last, or none for the whole file.
    """

    first_row: int
    rows: int
    position: tuple[int, ...] = ()


@dataclass(frozen=True)
class FileScan:
    """A file's columns with their plain types, in its order, and its ranges.

    :ivar digest: of the part of the content that the scan knows whole (a Parquet footer); else "".
    :ivar refused: columns that cannot be read as what they are: why, and what to do.
    :ivar notes: names that the format's reader needs again, such as `RowGroups`'s columns in nanoseconds.
    :ivar absent: declared columns that it does not have, and that count as null there.
    :ivar value_ranges: of columns whose values were all seen; others are asked for
        (`FileFormat.value_range`).
    """

    schema: pa.Schema
    ranges: tuple[RowRange, ...]
    digest: str = ""
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    value_ranges: Mapping[ColumnPath, ValueRange] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedFile(InputFile):
    """An input file with what its scan found.

    :ivar header: all of its columns, in its order.
    :ivar key: hash of all that decides which rows its units have and how they read.
    """

    header: tuple[str, ...] = ()
    digest: str = ""
    notes: tuple[str, ...] = ()
    key: str = ""


#: Reads a range of an opened file: tables with those of some fields that the file has.
RangeReader = Callable[[RowRange, pa.Schema], Iterator[pa.Table]]


class FileFormat(ABC):
    """What a format says of itself is all that others know of it."""

    #: What specs and plans call it.
    name: ClassVar[FormatName]
    #: What people call it.
    title: ClassVar[str]
    #: How many numbers the position of a range of its files may have.
    position_sizes: ClassVar[tuple[int, ...]]
    #: Of its files, in lower case; that of a compression may follow.
    extensions: ClassVar[tuple[str, ...]]
    #: Other extensions, and the options of `source.csv` that they stand for.
    csv_by_extension: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    #: Whether a file of no bytes has no rows. Else it is damaged.
    may_be_empty: ClassVar[bool] = False
    #: Whether a scan parses the whole file, so that several at once gain nothing. Else it mostly waits.
    scans_all: ClassVar[bool] = False
    #: Whether a file may lack a column of a declared type, which is null there.
    may_lack_declared: ClassVar[bool] = False
    #: Whether its values are texts where no type is declared.
    is_untyped: ClassVar[bool] = False
    #: Whether its integers may be read as floats that are equal: its numbers have no types.
    floats_count: ClassVar[bool] = False

    def __init__(self, fs: fsspec.AbstractFileSystem, options: ReadOptions) -> None:
        self.fs = fs
        self.options = options

    @abstractmethod
    def scan(self, file: InputFile) -> FileScan:
        """Cuts a file into ranges.

        :raises SliceError: for a broken file, with the file and the position.
        """

    def check_headers(self, headers: Sequence[tuple[str, Sequence[str]]]) -> None:  # noqa: B027
        """:param headers: each file's path and columns.
        :raises SliceError: for a file that is no part of the same table.
        """

    @abstractmethod
    def reader(self, file: PlannedFile) -> contextlib.AbstractContextManager[RangeReader]:
        """Opens a file, to read its ranges one after the other.

        :raises SliceError: when it is not the planned one any more.
        """

    @abstractmethod
    def value_range(self, file: InputFile, scan: FileScan, path: ColumnPath) -> ValueRange | None:
        """Returns the range of a column's integers, decimals or counts of time; None without any."""

    @contextlib.contextmanager
    def open(
        self, file: InputFile, *, read_ahead: bool = True
    ) -> Iterator[tuple[pa.NativeFile, Callable[[], None]]]:
        """Opens the file that was listed, and no other that took its path since.

        Returns it with a check that it still is that file, for before rows leave this room. A disk reads on
        in the opened file, whatever happens to its path, and S3 refuses to read on once the object was
        replaced. Other stores are asked again. Where the store failed, its own error is raised, whatever a
        parser made of it.

        :param read_ahead: False for reads of known sizes.
        :raises SliceError: of kind "transient" when it is another file, or becomes one.
        """
        failures: list[Exception] = []
        with contextlib.ExitStack() as opened:
            try:
                handle, info = self._open(file, read_ahead, opened, failures)
            except FileNotFoundError as e:
                raise changed_error(file.path) from e
            except PermissionError as e:
                raise read_error(file.path, e) from e

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
                if failures and (failed := read_error(file.path, failures[0])).kind == "transient":
                    raise failed from e
                raise
            check_again()

    def _open(
        self, file: InputFile, read_ahead: bool, opened: contextlib.ExitStack, failures: list[Exception]
    ) -> tuple[pa.NativeFile, Callable[[], InputFile]]:
        """Returns the opened file, and what tells which one it is.

        :param failures: gets the errors of the store.
        """
        path = file.path
        if isinstance(self.fs, LocalFileSystem):
            try:
                descriptor = open_regular(path, follows_link=True)
            except NotRegularFileError:  # which took the planned file's place
                raise changed_error(path) from None
            # A decompressing stream closes what it reads from, and not every OSFile tells its descriptor.
            opened.callback(os.close, descriptor)
            handle = opened.enter_context(pa.OSFile(f"/proc/self/fd/{descriptor}", "rb"))
            return handle, lambda: describe_disk_file(path, os.fstat(descriptor))
        raw = self.fs.open(path, "rb", **({} if read_ahead else {"cache_type": "none"}))
        details = [getattr(raw, "details", None)]  # as it was opened

        def info() -> InputFile:
            known = details.pop() if details else None
            return describe_object(path, known) if known else get_input_file(self.fs, path)

        return opened.enter_context(pa.PythonFile(_WholeReads(raw, file, failures), mode="r")), info


class _WholeReads(io.RawIOBase):
    """An object, whose reads give all bytes that were asked for: what lies between may end an answer
    early."""

    def __init__(self, raw: io.IOBase, file: InputFile, failures: list[Exception]) -> None:
        self._raw = raw
        self._file = file
        self._failures = failures

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._read_whole(size)
        except Exception as e:
            self._failures.append(e)
            raise

    def _read_whole(self, size: int) -> bytes:
        start = self._raw.tell()
        left = self._file.size - start
        wanted = left if size < 0 else min(size, left)
        data = self._read(wanted) if wanted > 0 else b""
        if len(data) != max(wanted, 0):
            raise SliceError(
                f"{self._file.path} could not be read: of the {wanted:,} bytes from byte {start:,} on, "
                f"{len(data):,} came",
                kind="transient",
                advice="A proxy may cut answers; run the slice again",
                place=Place(file=self._file.path),
            )
        return data

    def _read(self, size: int) -> bytes:
        try:
            return bytes(self._raw.read(size))
        except (OSError, SliceError):
            raise
        except Exception as e:  # clients of stores have errors of their own
            raise OSError(errno.EIO, reason(e)) from e

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        return self._raw.tell()

    def close(self) -> None:
        self._raw.close()
        super().close()


def _pass() -> None:
    pass


def read_error(
    path: str,
    error: Exception,
    problem: str = "cannot be read",
    *,
    advice: str | Sequence[str] = (),
    column: str | None = None,
) -> SliceError:
    """The error for a file that cannot be read: transient when the storage failed, not the content.

    :param problem: of the content; the error itself may quote a row.
    """
    if isinstance(error, SliceError):
        return error
    if getattr(error, "errno", None) == errno.EBUSY:  # s3fs: the object was replaced since it was opened
        return changed_error(path)
    refused = isinstance(error, (PermissionError, ConnectionError, TimeoutError))
    if refused or getattr(error, "errno", None) is not None:
        return SliceError(
            f"{path} could not be read: {reason(error)}", kind="transient", place=Place(file=path)
        )
    return SliceError(
        f"{path} {problem}",
        kind="input",
        advice=advice,
        place=Place(file=path, column=column),
        row_texts=(str(error),),
    )


def changed_error(path: str) -> SliceError:
    return SliceError(
        f"{path} changed while the slice ran", kind="transient", advice="Run it again", place=Place(file=path)
    )
