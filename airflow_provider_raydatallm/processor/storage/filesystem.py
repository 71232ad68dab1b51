"""Opens addresses: fsspec's filesystems, with options that answer nothing from a cache."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem, sync

from airflow_provider_raydatallm.contract.addresses import canonical, check_address
from airflow_provider_raydatallm.contract.result.errors import SliceError, StorageError

T = TypeVar("T")

# s3fs and the like answer `ls` and `exists` from a cache after another client's writes. fsspec keeps an
# instance for each set of options, so these are never shared with code that caches.
_FRESH: dict[str, Any] = {"use_listings_cache": False}
_S3 = _FRESH | {"config_kwargs": {"retries": {"mode": "standard", "max_attempts": 8}}}
#: Three tries of 10 s; s3fs itself would make up to 25 times as many.
_BRIEF_S3: dict[str, Any] = _FRESH | {
    "config_kwargs": {"retries": {"mode": "standard", "max_attempts": 2}, "read_timeout": 10}
}
_OPTIONS = {"s3": _S3, "s3a": _S3} | dict.fromkeys(("gs", "gcs", "abfs", "abfss", "az"), _FRESH)


#: What a request may take altogether, for those who wait: an answer that comes byte by byte ends, too.
_BRIEF_SECONDS = 30.0


@dataclass(frozen=True)
class Patience:
    """For how long requests to storage are waited for.

    :ivar request_s: a request's seconds at most; None: as long as the store's client tries.
    :ivar until: when the last one ends, by the monotonic clock; None: each may take its time.
    """

    request_s: float | None = None
    until: float | None = None

    def call(self, fs: fsspec.AbstractFileSystem, method: str, *args: Any, **options: Any) -> Any:
        """Calls a method of a filesystem. A request to an object store is given up in time; on a disk, only
        one that has not begun is.

        :raises TimeoutError: when the time is over.
        """
        limit_s = self.request_s
        if self.until is not None:
            left_s = self.until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("storage did not answer in time")
            limit_s = left_s if limit_s is None else min(limit_s, left_s)
        if limit_s is not None and isinstance(fs, AsyncFileSystem):
            return sync(fs.loop, getattr(fs, f"_{method}"), *args, timeout=limit_s, **options)
        return getattr(fs, method)(*args, **options)


PATIENT = Patience()
_patience = ContextVar("patience", default=PATIENT)


@contextmanager
def waiting_briefly(total_s: float | None = None) -> Iterator[None]:
    """For people who wait, and for sensors, which look again: a store that is opened until its end gives up a
    request after half a minute, not after many.

    :param total_s: for how long all requests together are waited for.
    """
    until = None if total_s is None else time.monotonic() + total_s
    token = _patience.set(Patience(_BRIEF_SECONDS, until))
    try:
        yield
    finally:
        _patience.reset(token)


def tried_briefly(work: Callable[[], T], seconds: float = 15.0) -> T | None:
    """Returns what work on storage returns; None where it fails, or takes longer: the Airflow side need not
    reach the store."""
    results: list[T] = []

    def try_it() -> None:
        # So that the thread ends soon, too.
        with suppress(Exception), waiting_briefly(seconds):
            results.append(work())

    thread = threading.Thread(target=try_it, name="ray-llm-storage", daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


def current_patience() -> Patience:
    return _patience.get()


def open_fs(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Returns the filesystem of a URL or path, and the path inside it.

    :raises SliceError: when the address is not accepted (`contract.addresses`), or its package is missing.
    """
    try:
        check_address(url)
    except ValueError as e:
        raise SliceError(str(e), kind="input") from None
    protocol = url.split("://", 1)[0] if "://" in url else "file"
    is_brief = _patience.get().request_s is not None and protocol in ("s3", "s3a")
    try:
        fs, path = fsspec.core.url_to_fs(url, **(_BRIEF_S3 if is_brief else _OPTIONS.get(protocol, {})))
    except ImportError as e:
        raise SliceError(
            f"{url} cannot be opened: {e}", kind="cluster", advice="Every node of the cluster needs that"
        ) from e
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
