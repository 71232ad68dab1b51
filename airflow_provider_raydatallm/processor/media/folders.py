"""Reads a file from a folder of a disk: a regular file that lies there when all links are followed.

Whoever writes rows, or files beside the media, must not choose what a node opens: a link may lead out of the
folder, and a pipe or a device would hold its reader for ever. The file is found first (`O_PATH` opens
nothing), then checked, then read through the same handle: nobody can put another one in its place.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

from airflow_provider_raydatallm.contract.spec.media_sources import is_below
from airflow_provider_raydatallm.processor.media.medium import InvalidMedia, MediaUnavailable

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
#: Errors of paths that lead nowhere, at any time.
_WRONG_PATH = (errno.ELOOP, errno.ENAMETOOLONG)


def read_file(path: str, folders: Sequence[str], argument: str, max_bytes: int) -> bytes:
    """Returns up to `max_bytes` from the file's beginning.

    :param folders: one of them must hold the file.
    :param argument: of which `sources` are these folders.
    :raises InvalidMedia: when there is no such file, or it must not be read.
    :raises MediaUnavailable: when the disk fails.
    """
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            _check(path, found, folders, argument)
            with open(f"/proc/self/fd/{found}", "rb", opener=_open_at_once) as file:
                return file.read(min(max_bytes, os.fstat(found).st_size))
        finally:
            os.close(found)
    except InvalidMedia:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidMedia(f"{path!r:.200} does not exist") from None
    except ValueError as e:
        raise InvalidMedia(f"{path!r:.200} is not a path: {e}") from None
    except OSError as e:
        kind = InvalidMedia if e.errno in _WRONG_PATH else MediaUnavailable
        raise kind(f"{path!r:.200} could not be read: {e.strerror}") from e


def _check(path: str, found: int, folders: Sequence[str], argument: str) -> None:
    """:raises InvalidMedia: when an open file is not a regular one, or in none of the folders."""
    real_path = os.readlink(f"/proc/self/fd/{found}")
    if not any(is_below(real_path, os.path.realpath(folder)) for folder in folders):
        raise InvalidMedia(
            f"{path!r:.200} leads to {real_path!r:.200}, which is below none of {argument}.sources"
        )
    kind = stat.S_IFMT(os.fstat(found).st_mode)
    if kind != stat.S_IFREG:
        raise InvalidMedia(f"{path!r:.200} is {_KINDS.get(kind, 'not a file')}: give a regular file")


def _open_at_once(path: str, flags: int) -> int:
    """Opens a file, or fails where another process holds a lease on it, rather than wait for that one."""
    return os.open(path, flags | os.O_NONBLOCK)
