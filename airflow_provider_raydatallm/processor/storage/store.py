"""Files of a slice, on a disk or an object store, through fsspec.

Invariants: a file appears whole or not at all; `create` and `place` never replace, and exactly one of many
creators succeeds; an object store never commits by rename; listings never come from a cache, since other
clients write here, too. What a request did is settled by looking, not by the error it ended with. A name is
taken as it is written, never for a pattern.

Others may put anything into the folder: no link in it is followed, only regular files are read, and what is
read at once is bounded.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem

from airflow_provider_raydatallm.contract.result.errors import SliceError, StorageError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.processor.storage import disk, documents
from airflow_provider_raydatallm.processor.storage.filesystem import (
    current_patience,
    open_fs,
    reason,
    resolve,
)
from airflow_provider_raydatallm.processor.storage.objects import list_objects

logger = logging.getLogger(__name__)

#: Prefix of a file on a disk until it is whole.
_SCRATCH = "_tmp-"
#: What a file that others are still writing may be old.
_WRITING_SECONDS = 60.0
#: How a disk says that there is no such file or folder.
_MISSING = (FileNotFoundError, NotADirectoryError)
#: Waits between tries of a request that neither acted nor was refused.
_RETRY_WAITS_SECONDS = (0.1, 0.3, 1.0, 2.0)
#: What one server-side copy can copy, on S3.
_MAX_COPY_BYTES = 5 << 30
#: Of a file that is read whole, unless its reader expects a larger one.
DOCUMENT_BYTES = 16 << 20


def is_scratch(name: str) -> bool:
    """Whether a file is half written; its writer was killed if it is old."""
    return name.rpartition("/")[2].startswith(_SCRATCH)


def modified_at(info: dict[str, Any]) -> float:
    """Epoch seconds of a file's last change; now, where the storage does not record it."""
    for name in ("mtime", "LastModified", "updated", "last_modified", "created"):
        value = info.get(name)
        if isinstance(value, dt.datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, str):
            return dt.datetime.fromisoformat(value).timestamp()
    return time.time()


class CorruptFileError(SliceError):
    """A file of the slice does not hold what was written: it is cut short, has other bytes, or is no file."""

    def __init__(self, store: Store, name: str, why: str) -> None:
        path = store.path(name)
        super().__init__(f"{path} is damaged", kind="transient", place=Place(file=path), row_texts=(why,))
        self.name = name


class File(NamedTuple):
    name: str
    size: int


class Store:
    """One folder of a slice. Names are relative to it; `/` separates.

    :param may_be_link: whether the folder itself may be a link, as people make them to whole tables.
    """

    def __init__(self, url: str, *, may_be_link: bool = True) -> None:
        self.url = url.rstrip("/")
        self.fs, self.root = open_fs(self.url)
        self.is_local = isinstance(self.fs, LocalFileSystem)
        self.is_s3 = "s3" in self.fs.protocol
        self._may_be_link = may_be_link
        self._patience = current_patience()

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def is_folder(self, url: str) -> bool:
        """Whether an address is this folder's, however they are written."""
        return url == self.url or resolve(url) == resolve(self.url)

    # Reading

    def read(self, name: str, max_bytes: int = DOCUMENT_BYTES) -> bytes | None:
        """The file's content, or None when it does not exist.

        :raises CorruptFileError: when it is longer, or no regular file.
        """
        try:
            return self._read(name, max_bytes, is_whole=True)
        except _MISSING:
            return None

    def read_start(self, name: str, size: int) -> bytes:
        """Up to `size` bytes from the file's beginning.

        :raises FileNotFoundError: when it does not exist.
        :raises CorruptFileError: when it is no regular file.
        """
        return self._read(name, size, is_whole=False)

    def _read(self, name: str, size: int, *, is_whole: bool) -> bytes:
        with self._errors("read", name, but=_MISSING):
            if self.is_local:
                with self.open(name) as f:
                    length = os.fstat(f.fileno()).st_size
                    data = b"" if is_whole and length > size else f.read(min(size, length))
            else:
                data = self._read_range(name, size + is_whole)
                length = len(data)
        if is_whole and length > size:
            raise CorruptFileError(self, name, f"it has more than {size:,} bytes")
        return data

    def _read_range(self, name: str, size: int) -> bytes:
        try:
            return bytes(self._patience.call(self.fs, "cat_file", self.path(name), start=0, end=size))
        except _MISSING:
            raise
        except Exception:
            if self._size_if_known(name) == 0:  # a range of no bytes is an error
                return b""
            raise

    def open(self, name: str, **options: Any) -> IO[bytes]:
        """Opens a file for reading.

        :param options: of an object store's filesystem.
        :raises FileNotFoundError: when it does not exist.
        :raises CorruptFileError: when it is no regular file.
        """
        if not self.is_local:
            file: IO[bytes] = self.fs.open(self.path(name), "rb", **options)
            return file
        self._refuse_links(name.rpartition("/")[0])
        try:
            return open(disk.open_regular(self.path(name)), "rb")
        except disk.NotRegularFileError as e:
            raise CorruptFileError(self, name, f"it is {e}, and no regular file") from None

    def sha256(self, name: str) -> str | None:
        """The checksum of a file's content; None when it does not exist."""
        try:
            with self.open(name, block_size=16 << 20, cache_type="readahead") as f:
                return hashlib.file_digest(f, "sha256").hexdigest()  # type: ignore[arg-type]
        except FileNotFoundError:
            return None

    def read_json(self, name: str, max_bytes: int = DOCUMENT_BYTES) -> Any | None:
        """The parsed file, or None when it does not exist; a file that does not parse raises."""
        data = self.read(name, max_bytes)
        return None if data is None else json.loads(data)

    def read_document(self, name: str, max_bytes: int = DOCUMENT_BYTES) -> Any | None:
        """The body of a document, or None when it does not exist.

        :raises CorruptFileError: when its checksum does not match, or see `read`.
        """
        data = self.read(name, max_bytes)
        if data is None:
            return None
        try:
            return documents.decode(data)
        except ValueError as e:
            raise CorruptFileError(self, name, str(e)) from e

    def files(self, folder: str = "") -> list[File]:
        """Files and folders directly in `folder`, sorted; [] when it does not exist."""
        try:
            with self._errors("list", folder, but=_MISSING):
                if self.is_local:
                    self._refuse_links(folder)
                    entries = self._patience.call(self.fs, "ls", self.path(folder), detail=True)
                    files = [File(e["name"].rsplit("/", 1)[-1], int(e.get("size") or 0)) for e in entries]
                else:
                    found = list_objects(self.fs, self.path(folder), patience=self._patience)
                    files = [File(e.parts[0], int(e.info.get("size") or 0)) for e in found]
        except _MISSING:
            return []
        return sorted(f for f in files if f.name and not f.name.startswith(_SCRATCH))

    def names(self, folder: str = "") -> list[str]:
        if not self.is_local:
            return [f.name for f in self.files(folder)]
        try:  # reading each file's size is what makes listing a disk slow
            with self._errors("list", folder, but=_MISSING):
                self._refuse_links(folder)
                return sorted(n for n in os.listdir(self.path(folder)) if not n.startswith(_SCRATCH))
        except _MISSING:
            return []

    def tree(self, folder: str) -> list[str]:
        """Paths of all files below `folder`, relative to it, sorted; with half-written ones."""
        if not self.is_local:
            return sorted(self.details(folder))
        self._refuse_links(folder)
        root = self.path(folder)  # whose files others may remove meanwhile: none is looked at
        found = (os.path.join(top, name) for top, _, names in os.walk(root) for name in names)
        return sorted(path.removeprefix(f"{root}/") for path in found)

    def details(self, folder: str = "") -> dict[str, dict[str, Any]]:
        """The filesystem's `info` of all files below `folder`, by the path relative to it."""
        root = self.path(folder)
        with self._errors("list", folder):
            self._refuse_links(folder)
            found = self._patience.call(self.fs, "find", root, detail=True)
        return {path.removeprefix(f"{root}/"): info for path, info in found.items()}

    # Writing

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file unless it exists. Returns True for the one writer whose data it holds.

        `data` must be unique to the caller (hold a nonce): whatever error the write ends with, the file is
        read back, and a writer whose answer was lost finds its own data.
        """
        with self._errors("write", name):
            for wait in (*_RETRY_WAITS_SECONDS, None):
                try:
                    if self.is_local:
                        self._write_on_disk(name, partial(disk.write, data=data), disk.link)
                    else:
                        self.fs.pipe_file(self.path(name), data, mode="create")
                    return True
                except Exception as e:  # stores refuse, and lose answers, with errors of many types
                    content = self._read_back(name, len(data) + 1)
                    if content is not None:
                        return content == data
                    is_settled = self.is_local and not isinstance(e, FileExistsError)
                    if wait is None or is_settled or isinstance(e, PermissionError):
                        raise
                    time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _read_back(self, name: str, size: int) -> bytes | None:
        """The file's content, as far as it is compared; None when it does not exist, or cannot be read
        now."""
        try:
            return self.read_start(name, size)
        except CorruptFileError:
            return b""  # what others put there has the name
        except (SliceError, *_MISSING):
            return None

    def place(self, source: Store, source_name: str, name: str) -> bool:
        """Makes a file of `source`, on the same disk or object store, appear here too: by one request, which
        fails without its source and never changes what another file holds.

        Returns False when `name` exists already. Only a disk tells; an object store copies again, which is
        harmless when each name stands for one content.

        :raises FileNotFoundError: when the source is gone.
        :raises SliceError: when the store cannot place this file, or fails.
        """
        with self._errors("write", name, but=(FileNotFoundError,)):
            if not self.is_local:
                self._copy_on_server(source, source_name, name)
                return True
            source._refuse_links(source_name.rpartition("/")[0])
            self._refuse_links(name.rpartition("/")[0])
            try:
                disk.link(Path(source.path(source_name)), Path(self.path(name)))
            except FileExistsError:
                return False
            return True

    def _copy_on_server(self, source: Store, source_name: str, name: str) -> None:
        size = source._size(source_name)
        if size is None:
            raise FileNotFoundError(source.path(source_name))
        if size > _MAX_COPY_BYTES:
            raise SliceError(
                f"{source.path(source_name)} has {size:,} bytes, and object stores copy files of at most "
                f"{_MAX_COPY_BYTES:,} bytes in one step",
                kind="input",
                advice="Set a smaller publish.max_file_bytes",
            )
        for wait in (*_RETRY_WAITS_SECONDS, None):
            try:
                self._request_copy(source.path(source_name), self.path(name))
                if self.is_s3 or self._size(name) == size:  # Azure may answer before it has copied
                    return
                error: Exception = SliceError(
                    f"the copy of {source.path(source_name)} to {self.path(name)} did not become whole in "
                    "time",
                    kind="transient",
                    advice="Run the slice again",
                )
            except Exception as e:
                if self._size_if_known(name) == size:  # it was copied, and the answer was lost
                    return
                if isinstance(e, FileNotFoundError | PermissionError):
                    raise
                error = e
            if wait is None:
                raise error
            time.sleep(wait)

    def _request_copy(self, source: str, target: str) -> None:
        if not self.is_s3:
            self.fs.cp_file(source, target)
            return
        # `cp_file` would ask for the size again, and copy a large file part by part.
        (bucket, key, _), (to_bucket, to_key, _) = self.fs.split_path(source), self.fs.split_path(target)
        self.fs.call_s3(
            "copy_object", Bucket=to_bucket, Key=to_key, CopySource={"Bucket": bucket, "Key": key}
        )

    def _size(self, name: str) -> int | None:
        """None when there is no such file."""
        try:
            info = self._patience.call(self.fs, "info", self.path(name))
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def _size_if_known(self, name: str) -> int | None:
        with contextlib.suppress(Exception):
            return self._size(name)
        return None

    def create_document(self, name: str, body: Any) -> bool:
        """Like `create`, for a JSON value, with a checksum that reveals damage."""
        return self.create(name, documents.encode(body))

    def put_document(self, name: str, body: Any) -> None:
        """Like `put`, for a JSON value, with a checksum that reveals damage."""
        self.put(name, documents.encode(body))

    def put(self, name: str, data: bytes) -> None:
        with self._errors("write", name):
            if not self.is_local:
                self.fs.pipe_file(self.path(name), data)
                return
            self._write_on_disk(name, partial(disk.write, data=data), disk.replace)

    def put_json(self, name: str, value: Any) -> None:
        self.put(name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def put_file(self, name: str, source: Path) -> None:
        """Copies a local file to `name`, which no other file had, in one step."""
        with self._errors("write", name):
            if not self.is_local:
                try:  # a multipart upload becomes visible only when it is complete
                    self.fs.put_file(str(source), self.path(name))
                except Exception:
                    if self._size_if_known(name) != source.stat().st_size:
                        raise  # else it was completed, and the answer was lost
                return
            self._write_on_disk(name, partial(disk.copy, source), disk.replace)

    def keep_damaged_file(self, name: str, why: Exception | str, then: str) -> None:
        """Renames a damaged file, so that no run reads it and people can inspect it, and warns.

        :param then: what happens next, for the warning.
        """
        folder, _, base = name.rpartition("/")
        kept_name = f"{folder}/_damaged-{uuid.uuid4().hex[:8]}-{base}".lstrip("/")
        with self._errors("write", kept_name), contextlib.suppress(FileNotFoundError):
            self._refuse_links(folder)
            if self.is_local:
                os.rename(self.path(name), self.path(kept_name))
            else:  # `mv` would take the name for a pattern
                self._copy_on_server(self, name, kept_name)
                self.fs.rm_file(self.path(name))
        logger.warning("%s; it is kept as %s, and %s", why, self.path(kept_name), then)

    def remove(self, name: str) -> None:
        """Removes a file, or a folder with its content; a missing one is fine."""
        with self._errors("remove", name), contextlib.suppress(FileNotFoundError):
            self._refuse_links(name.rpartition("/")[0])
            path = self.path(name)
            if self.is_local and os.path.islink(path):
                os.unlink(path)
            elif self.is_local:
                disk.remove(path)
            elif not has_magic(path):
                self.fs.rm(path, recursive=True)
            else:  # `rm` would take the name for a pattern
                for found in sorted({path, *self.fs.find(path, withdirs=True)}, reverse=True):
                    with contextlib.suppress(FileNotFoundError):
                        self.fs.rm_file(found)

    def remove_file(self, name: str) -> None:
        """Removes a file, by one request; a missing one is fine."""
        with self._errors("remove", name), contextlib.suppress(FileNotFoundError):
            self._refuse_links(name.rpartition("/")[0])
            self.fs.rm_file(self.path(name))

    def remove_all(self, names: Sequence[str]) -> None:
        """Removes files, on an object store by one request for each 1,000, and folders that are empty then;
        missing ones are fine."""
        paths = [self.path(name) for name in names]
        if paths and not self.is_local and not any(map(has_magic, paths)):
            with self._errors("remove", names[0]), contextlib.suppress(FileNotFoundError):
                self.fs.rm(paths)
                return
        for name in names:
            self.remove_file(name)
        folders = {folder for name in names for folder in PurePosixPath(name).parents if folder.name}
        for folder in sorted(folders, reverse=True):
            self.remove_empty(str(folder))

    def remove_empty(self, folder: str) -> None:
        """Removes an empty folder, on a disk: object stores have none."""
        if self.is_local:
            self._refuse_links(folder.rpartition("/")[0])
            with contextlib.suppress(OSError):
                os.rmdir(self.path(folder))

    def remove_scratch(self, folder: str = "", older_than: float = _WRITING_SECONDS) -> None:
        """Removes half-written files of killed writers.

        :param older_than: seconds: others may be writing in the folder.
        """
        if self.is_local:
            self._refuse_links(folder)
            names = [name for name in self._names_with_scratch(folder) if name.startswith(_SCRATCH)]
            for path in (Path(self.path(folder), name) for name in names):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > older_than:
                        path.unlink()

    def _names_with_scratch(self, folder: str) -> list[str]:
        with contextlib.suppress(*_MISSING):
            return os.listdir(self.path(folder))
        return []

    def _refuse_links(self, folder: str) -> None:
        """:raises SliceError: when a folder is a link, or one above it in this store: who made the link would
        choose what is read, replaced and removed."""
        if not self.is_local:
            return
        names = folder.split("/") if folder else []
        for depth in range(self._may_be_link, len(names) + 1):
            path = self.path("/".join(names[:depth]))
            if os.path.islink(path):
                raise SliceError(
                    f"{path} is a link to {os.path.realpath(path)}, and no link in a table's folders is "
                    "followed",
                    kind="input",
                    advice="Put the folder itself in its place",
                )

    def _write_on_disk(
        self, name: str, write: Callable[[Path], None], finish: Callable[[Path, Path], None]
    ) -> None:
        """Has a file appear whole.

        :param write: writes it under another name.
        :param finish: gives it its own name.
        """
        self._refuse_links(name.rpartition("/")[0])
        target = Path(self.path(name))
        for retries_left in (2, 1, 0):
            scratch = target.with_name(f"{_SCRATCH}{uuid.uuid4().hex}")
            try:
                disk.make_folder(target.parent)
                write(scratch)
                finish(scratch, target)
                return
            except FileNotFoundError:  # another run just removed the empty folder
                if not retries_left:
                    raise
            finally:
                scratch.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _errors(self, what: str, name: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Explains errors of the store, which have many types where it is remote."""
        explained = OSError if self.is_local else Exception
        try:
            yield
        except explained as e:
            if isinstance(e, (SliceError, *but)):
                raise
            raise StorageError(what, self.path(name), reason(e)) from e
