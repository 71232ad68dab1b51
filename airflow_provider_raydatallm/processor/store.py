"""Files of a slice, on any filesystem fsspec knows.

Invariants: a file appears whole or not at all (`put_file`, `put_bytes`); nothing is committed by rename on an
object store; and listings are never answered from a cache, since other clients write here too.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_raydatallm.processor.errors import SliceError

# s3fs answers `ls` and `exists` from its cache after another client's writes.
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"use_listings_cache": False, "skip_instance_cache": True},
    "s3a": {"use_listings_cache": False, "skip_instance_cache": True},
    "gs": {"use_listings_cache": False, "skip_instance_cache": True},
    "gcs": {"use_listings_cache": False, "skip_instance_cache": True},
}


def open_fs(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The filesystem of a URL or path, and the path inside it.

    :raises SliceError: when no filesystem has such URLs, or its package is not installed here.
    """
    protocol = url.split("://", 1)[0] if "://" in url else "file"
    try:
        fs, path = fsspec.core.url_to_fs(url, **_OPTIONS.get(protocol, {}))
    except ImportError as e:
        raise SliceError(f"{url} cannot be opened: {e}, on every node of the cluster", kind="cluster") from e
    except ValueError as e:
        raise SliceError(f"{url} cannot be opened: {e}") from e
    return fs, path


class Store:
    """One folder of a slice. Names are relative to it; `/` separates."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.fs, self.root = open_fs(self.url)
        self.is_local = isinstance(self.fs, LocalFileSystem)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def read_json(self, name: str) -> Any | None:
        """The parsed file, or None when it does not exist. A file that does not parse is an error, not
        absence."""
        try:
            data = self.fs.cat_file(self.path(name))
        except FileNotFoundError:
            return None
        return json.loads(data)

    def put_json(self, name: str, value: Any) -> None:
        self.put_bytes(name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def put_bytes(self, name: str, data: bytes) -> None:
        if not self.is_local:
            self.fs.pipe_file(self.path(name), data)
            return
        target = Path(self.path(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_name(f"_tmp-{uuid.uuid4().hex}")
        try:
            with open(scratch, "xb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            os.replace(scratch, target)
        finally:
            scratch.unlink(missing_ok=True)

    def put_file(self, name: str, source: Path) -> None:
        """Publish a finished local file under `name` in one step; `source` stays."""
        if not self.is_local:
            # One multipart upload: an object store shows it only when it is complete.
            self.fs.put_file(str(source), self.path(name))
            return
        target = Path(self.path(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_name(f"_tmp-{uuid.uuid4().hex}")
        try:
            with open(source, "rb") as i, open(scratch, "xb") as o:
                shutil.copyfileobj(i, o, 1 << 20)
                o.flush()
                os.fsync(o.fileno())
            os.replace(scratch, target)
        finally:
            scratch.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Names directly in the folder, sorted; [] when it does not exist."""
        try:
            return sorted(p.rstrip("/").rsplit("/", 1)[-1] for p in self.fs.ls(self.root, detail=False))
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        """Remove a file or a folder with all in it; absent is fine."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(self.path(name), recursive=True)
