"""Files of a disk: they are read without waiting for whoever made them, and what is written, linked and
renamed survives a loss of power."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shutil
import stat
from pathlib import Path

from airflow_provider_raydatallm.contract.result.errors import SliceError

#: Error numbers of a hard link that no retry helps.
_NO_LINK = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
#: Free bytes below which a disk is full: a run writes documents of some kB.
_FULL = 1 << 20
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


class NotRegularFileError(Exception):
    """A path leads to something that is not a file of a known length. The text says what it is."""


def kind_of(mode: int) -> str:
    """What a path is that is not a regular file, for people.

    :param mode: of its status.
    """
    return _KINDS.get(stat.S_IFMT(mode), "no file")


def why_not_writable(path: str) -> str | None:
    """Why this process could not write at a path now; None where nothing speaks against it."""
    whole = Path(path)
    at = next(folder for folder in (whole, *whole.parents) if folder.is_dir())
    if os.statvfs(at).f_flag & os.ST_RDONLY:
        return f"the disk of {at} is mounted read-only"
    if not os.access(at, os.W_OK | os.X_OK):
        return f"user {_user(os.geteuid())} may not write in {at}"
    free = shutil.disk_usage(at).free
    return f"the disk of {at} is full ({free:,} bytes are free)" if free < _FULL else None


def open_regular(path: str, *, follows_link: bool = False) -> int:
    """Opens a regular file for reading, and returns its descriptor. Never waits: opening a FIFO would, until
    somebody writes to it, and a device has no end.

    :raises NotRegularFileError: for anything else.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follows_link else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as e:
        is_link = e.errno == errno.ELOOP and not follows_link and os.path.islink(path)
        if is_link or e.errno == errno.ENXIO:  # of a socket, or a device without a driver
            raise NotRegularFileError(kind_of(os.lstat(path).st_mode)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotRegularFileError(kind_of(mode))
    return descriptor


def write(path: Path, data: bytes) -> None:
    with open(path, "xb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def copy(source: Path, path: Path) -> None:
    with open(source, "rb") as i, open(path, "xb") as o:
        shutil.copyfileobj(i, o, 1 << 20)
        o.flush()
        os.fsync(o.fileno())


def remove(path: str) -> None:
    """Removes a file, or a folder with what is in it, also while others write there.

    :raises FileNotFoundError: when there is none.
    """
    if not os.path.isdir(path):
        os.unlink(path)
        return
    for retries_left in (5, 4, 3, 2, 1, 0):
        try:
            shutil.rmtree(path)
            return
        except OSError as e:
            if e.errno not in (errno.ENOTEMPTY, errno.ENOENT) or not retries_left:
                raise
            if not os.path.isdir(path):
                return


def replace(source: Path, target: Path) -> None:
    """Renames a file, for good."""
    os.replace(source, target)
    sync(target.parent)


def sync(folder: Path) -> None:
    """Makes links and renames in a folder survive a loss of power."""
    with contextlib.suppress(OSError):  # not every filesystem syncs folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def link(source: Path, target: Path) -> None:
    """Gives a file a second name, for good.

    :raises FileExistsError: when the name is in use; that it is, is for good, too.
    :raises FileNotFoundError: when there is no such file.
    :raises SliceError: when this file system, or this user, cannot link the file.
    """
    for retries_left in (4, 3, 2, 1, 0):
        found = os.lstat(source)
        if not stat.S_ISREG(found.st_mode):
            raise SliceError(
                f"{source} is not a regular file", kind="input", advice="Remove it and run the slice again"
            )
        try:
            make_folder(target.parent)
            os.link(source, target)
        except FileExistsError:
            sync(target.parent)  # whoever made it may not have come so far
            raise
        except FileNotFoundError as e:
            os.lstat(source)
            if not retries_left:  # another run removes the empty folder time and again
                raise OSError(errno.EAGAIN, f"{target.parent} is being removed") from e
        except OSError as e:
            if e.errno not in _NO_LINK:
                raise
            why, advice = _why_no_link(source, target, found, e)
            raise SliceError(
                f"cannot link {source} to {target}: {e.strerror}: {why}", kind="input", advice=advice
            ) from e
        else:
            sync(target.parent)
            return


def _why_no_link(source: Path, target: Path, found: os.stat_result, error: OSError) -> tuple[str, str]:
    """Why a file cannot be linked, and what to do."""
    if error.errno == errno.EXDEV:
        return on_other_mounts(source, target)
    if error.errno == errno.EMLINK:
        return f"the file has {found.st_nlink:,} names already", "Remove the ones that are not needed"
    if error.errno == errno.EPERM and found.st_uid != os.geteuid():
        return (
            f"the file belongs to user {_user(found.st_uid)}, and this is user {_user(os.geteuid())}: "
            "with fs.protected_hardlinks, Linux lets users link only files that they may write",
            "Run all slices of the table as one user, or with a common group and umask 002, so that each "
            "may write the other's files",
        )
    return (
        "this file system has no hard links, by which files are published",
        "Use a disk that has them, or an object store",
    )


def on_other_mounts(one: Path, other: Path) -> tuple[str, str]:
    """Says that no file of one folder can be linked into the other, and what to do."""
    return (
        f"they are on different file systems, mounted at {mount_point(one) or '?'} and "
        f"{mount_point(other) or '?'}: one has to hold the table, its .ray_llm folder and its quarantine",
        "Mount it above them all, or move them",
    )


def mount_point(path: Path) -> Path | None:
    """The folder at which the file system is mounted that holds a path, or will hold it; None where that
    cannot be seen. Hard links do not leave it, also where another one shows the same disk."""
    path = Path(os.path.realpath(path))
    try:
        while not path.exists():
            path = path.parent
        while path != path.parent and _mount_number(path) == _mount_number(path.parent):
            path = path.parent
    except OSError:
        return None
    return path


def _mount_number(path: Path) -> tuple[int, str]:
    handle = os.open(path, os.O_PATH)
    try:
        lines = Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines()
        return os.fstat(handle).st_dev, next((line for line in lines if line.startswith("mnt_id")), "")
    finally:
        os.close(handle)


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it, for good."""
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        try:
            path.mkdir(exist_ok=True)
        except FileExistsError as e:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from e
        sync(path.parent)
