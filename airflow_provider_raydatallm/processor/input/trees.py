"""What lies below the root of an input: on a disk, or in an object store.

On a disk only regular files below the root are files of the input, and everything else is refused by name:
through a link to elsewhere its maker could have files published that only the cluster may read, and a FIFO
blocks whoever opens it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import fsspec
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_raydatallm.contract.addresses import canonical, holds
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.pattern import split_pattern
from airflow_provider_raydatallm.processor.storage.disk import kind_of
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs
from airflow_provider_raydatallm.processor.storage.objects import Entry, list_objects

#: What identifies a file: its status on a disk, or what a store tells of it.
Facts = os.stat_result | Mapping[str, Any]

_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class Tree(Protocol):
    """`root` is a path of the filesystem; `address` names it as addresses are compared."""

    root: str
    address: str
    #: Whether all files below a folder take one listing.
    is_flat: bool

    def entries(self, folder: tuple[str, ...], *, deep: bool) -> list[Entry]:
        """Returns what is directly in a folder below the root, or all files below it where `is_flat`;
        nothing when there is no root.

        :raises SliceError: for a folder that is a link.
        """

    def facts(self, files: Sequence[Entry]) -> Sequence[Facts]:
        """Returns the facts of files by their names below the root.

        :raises SliceError: naming one that is not to be read.
        """

    def root_file(self) -> Facts | None:
        """Returns the facts of a root that is a file; None for a folder, and for nothing."""


def open_tree(address: str) -> tuple[Tree, tuple[str, ...]]:
    """Returns the tree of an input path, and the pattern for the names below its root. What has the very name
    of a pattern wins over it.

    :raises SliceError: for a pattern in place of a bucket.
    """
    fs, path = open_fs(address)
    path = path.rstrip("/")
    is_disk = isinstance(fs, LocalFileSystem)
    root, pattern = split_pattern(path)
    if not root and not is_disk:
        raise SliceError(
            f"{address} has a pattern in place of the bucket", kind="input", advice="Name the bucket"
        )
    if pattern and (os.path.lexists(path) if is_disk else fs.exists(path)):
        root, pattern = path, ()
    if is_disk:
        return _DiskTree(root), tuple(filter(None, pattern))
    fixed = split_pattern(address)[0] if pattern else address
    return _StoreTree(fs, root, canonical(fixed)), pattern


class _StoreTree:
    is_flat = True

    def __init__(self, fs: fsspec.AbstractFileSystem, root: str, address: str) -> None:
        self._fs, self.root, self.address = fs, root, address

    def entries(self, folder: tuple[str, ...], *, deep: bool) -> list[Entry]:
        try:
            return list_objects(self._fs, self.root, folder, deep=deep)
        except FileNotFoundError as e:
            if "s3" in self._fs.protocol:  # where only a bucket can be missing
                raise SliceError(f"{self.address} cannot be listed: {e}", kind="input") from e
            return []

    def facts(self, files: Sequence[Entry]) -> Sequence[Facts]:
        for file in files:
            if not file.parts[-1]:
                raise SliceError(
                    f"{self.address}/{'/'.join(file.parts)} holds {file.info['size']:,} bytes, and its name "
                    "ends with a slash, as a folder's",
                    kind="input",
                    advice="Rename it",
                )
        return [file.info for file in files]

    def root_file(self) -> Facts | None:
        try:
            info: dict[str, Any] = self._fs.info(self.root)
        except FileNotFoundError:
            return None
        return info if info["type"] == "file" and info["size"] else None


class _DiskTree:
    is_flat = False

    def __init__(self, root: str) -> None:
        self.root = root
        self.address = os.path.realpath(root or "/")

    def entries(self, folder: tuple[str, ...], *, deep: bool) -> list[Entry]:
        path = self._path(folder)
        if folder and os.path.islink(path):
            raise _refused(_link(path, os.path.realpath(path)), "is a folder")
        try:
            with os.scandir(path or "/") as entries:
                return [Entry((e.name,), _is_folder(e), {}) for e in entries]
        except OSError as e:
            if e.errno not in _NO_FOLDER:
                raise
            if folder:
                raise _removed(path) from None
            return []

    def facts(self, files: Sequence[Entry]) -> Sequence[Facts]:
        paths = [self._path(file.parts) for file in files]
        links = {path for path in paths if os.path.islink(path)}
        real = self.address.rstrip("/")
        listed = {
            f"{real}/{'/'.join(file.parts)}"
            for file, path in zip(files, paths, strict=True)
            if path not in links
        }
        return [self._follow(path, listed) if path in links else _regular(path) for path in paths]

    def root_file(self) -> Facts | None:
        if not os.path.lexists(self.root or "/") or os.path.isdir(self.address):
            return None
        is_link = os.path.islink(self.root)
        return _regular(self.address, _link(self.root, self.address) if is_link else self.root)

    def _path(self, names: tuple[str, ...]) -> str:
        return "/".join((self.root, *names))

    def _follow(self, path: str, listed: set[str]) -> os.stat_result:
        """:param listed: files of the input by their real paths, to which the link's is added."""
        target = os.path.realpath(path)
        if not holds(self.address, target):
            raise _refused(_link(path, target), f"is outside of {self.address}")
        if target in listed:
            raise _refused(_link(path, target), "is a file of the input, too: its rows would come twice")
        listed.add(target)
        return _regular(target, _link(path, target))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere: refused if it is a file of the input
        return False


def _link(path: str, target: str) -> str:
    return f"{path} is a link to {target}, which"


def _regular(path: str, subject: str | None = None) -> os.stat_result:
    """Returns the status of a regular file.

    :param subject: of the sentence that refuses another, by default the path.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        if subject is None:
            raise _removed(path) from None
        raise _refused(subject, "does not exist") from None
    if not stat.S_ISREG(status.st_mode):
        raise _refused(subject or path, f"is {kind_of(status.st_mode)}")
    return status


def _removed(path: str) -> SliceError:
    return SliceError(
        f"{path} was removed while the input was listed", kind="transient", advice="Run it again"
    )


def _refused(subject: str, why: str) -> SliceError:
    return SliceError(
        f"{subject} {why}",
        kind="input",
        advice=(
            "An input holds regular files, and links to other regular files below its folder",
            "Remove it, put a file in its place, or give it a name that begins with _, which is not read",
        ),
    )
