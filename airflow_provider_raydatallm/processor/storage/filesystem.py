"""Opens addresses: fsspec's filesystems, with options that answer nothing from a cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import fsspec

from airflow_provider_raydatallm.contract.addresses import canonical, check_address
from airflow_provider_raydatallm.contract.result.errors import SliceError, StorageError

# s3fs and the like answer `ls` and `exists` from a cache after another client's writes. fsspec keeps an
# instance for each set of options, so these are never shared with code that caches.
_FRESH: dict[str, Any] = {"use_listings_cache": False}
_S3 = _FRESH | {"config_kwargs": {"retries": {"mode": "standard", "max_attempts": 8}}}
#: Three tries of 10 s; s3fs itself would make up to 25 times as many.
_BRIEF_S3: dict[str, Any] = _FRESH | {
    "config_kwargs": {"retries": {"mode": "standard", "max_attempts": 2}, "read_timeout": 10}
}
_OPTIONS = {"s3": _S3, "s3a": _S3} | dict.fromkeys(("gs", "gcs", "abfs", "abfss", "az"), _FRESH)


_waits_briefly = ContextVar("waits_briefly", default=False)


@contextmanager
def waiting_briefly() -> Iterator[None]:
    """For people who wait, and for sensors, which look again: filesystems that are opened until its end give
    up an S3 that does not answer after half a minute, not after many."""
    token = _waits_briefly.set(True)
    try:
        yield
    finally:
        _waits_briefly.reset(token)


def open_fs(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Returns the filesystem of a URL or path, and the path inside it.

    :raises SliceError: when the address is not accepted (`contract.addresses`), or its package is missing.
    """
    try:
        check_address(url)
    except ValueError as e:
        raise SliceError(str(e), kind="input") from None
    protocol = url.split("://", 1)[0] if "://" in url else "file"
    is_brief = _waits_briefly.get() and protocol in ("s3", "s3a")
    try:
        fs, path = fsspec.core.url_to_fs(url, **(_BRIEF_S3 if is_brief else _OPTIONS.get(protocol, {})))
    except ImportError as e:
        raise SliceError(f"{url} cannot be opened: {e}, on every node of the cluster", kind="cluster") from e
    except ValueError as e:
        raise SliceError(f"{url} cannot be opened: {e}", kind="input") from e
    if is_brief:
        fs.retries = 1
    return fs, path


@contextmanager
def explaining(what: str, address: str) -> Iterator[None]:
    """Names the address in errors of a filesystem, which have many types where it is remote.

    :param what: "list", say.
    :raises StorageError: in place of them.
    """
    try:
        yield
    except SliceError:
        raise
    except Exception as e:
        raise StorageError(what, address, reason(e)) from e


def reason(error: Exception) -> str:
    """Why a filesystem failed."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    is_unclear = isinstance(error, PermissionError) and "denied" not in text.lower()
    return f"access was denied ({text})" if is_unclear else text


def resolve(address: str) -> str:
    """Returns an address as it is compared with others (`contract.addresses`): in its canonical form, on a
    disk with all links followed. It need not exist."""
    address = canonical(address)
    return os.path.realpath(address) if address.startswith("/") else address


def file_version(info: dict[str, Any]) -> str:
    """Changes with a file's content: its etag, else its modification time."""
    for name in ("ETag", "etag", "mtime", "LastModified", "updated", "last_modified", "created"):
        if info.get(name) is not None:
            return str(info[name]).strip('"')
    return ""
