"""Lists a slice's input files as they are now.

No file is opened, so that checking whether a finished slice's input changed costs only a listing. Imports
only fsspec: the Airflow side lists too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import fsspec

from airflow_provider_raydatallm.contract.slice_paths import encode_slice_key
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.storage import file_version, open_fs

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class InputFile:
    """A file as it was when listed. `version` is its etag, or its modification time where it has none."""

    path: str
    size: int
    version: str
    partition: tuple[tuple[str, str | None], ...] = ()

    @property
    def identity(self) -> list[object]:
        return [self.path, self.size, self.version]


@dataclass(frozen=True)
class Listing:
    """Input files, sorted by path. `rule` is the settings that decide which of their rows are the slice's."""

    files: tuple[InputFile, ...]
    rule: tuple[str | None, ...]

    @cached_property
    def hash(self) -> str:
        """16 hex digits: equal for an unchanged input."""
        return short_hash([self.rule, *(f.identity for f in self.files)])


def short_hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def list_input(job: SliceJob) -> Listing:
    """Lists the files of the slice; skips names that begin with `_` or `.`."""
    fs, root = open_fs(job.resolved_input_path)
    by_column = job.slice_column is not None
    csv = job.csv_options.model_dump_json(exclude_defaults=True)
    rule = (
        job.input_format,
        None if csv == "{}" else csv,
        job.slice_column,
        job.slice_format if by_column else None,
        job.slice_timezone if by_column else None,
    )
    return Listing(tuple(_list_files(fs, root.rstrip("/"), job)), rule)


def get_input_file(fs: fsspec.AbstractFileSystem, path: str) -> InputFile:
    """The file as it is now; of size -1 when it is gone."""
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return InputFile(path, -1, "")
    return InputFile(path, int(info["size"] or 0), file_version(info))


def folder_column(slice_path: str) -> str | None:
    """The column that a Hive reader derives from the slice folder's name, such as `ds` of `ds=2026-01-31`."""
    folder = slice_path.rpartition("/")[2]
    return unquote(folder.split("=", 1)[0]) if "=" in folder else None


def _list_files(fs: fsspec.AbstractFileSystem, root: str, job: SliceJob) -> list[InputFile]:
    matches: dict[str, dict[str, Any]] = {}
    base = root
    if any(c in root for c in "*?["):
        base = root[: min(root.index(c) for c in "*?[" if c in root)].rpartition("/")[0]
        for path, info in fs.glob(root, detail=True).items():
            matches.update(fs.find(path, detail=True) if info["type"] == "directory" else {path: info})
    else:
        slice_folder = f"{root}/{job.slice_column}={encode_slice_key(job.slice_key)}"
        folder = slice_folder if job.slice_column and fs.isdir(slice_folder) else root
        matches = fs.find(folder, detail=True)
        if not matches and fs.isfile(root):
            matches = {root: fs.info(root)}
    own_output = open_fs(job.slice_path)[1].rstrip("/") + "/"
    files = []
    for path, info in sorted(matches.items()):
        parts = path[len(base) :].strip("/").split("/") if path != base else [path.rpartition("/")[2]]
        hidden = any(p.startswith(("_", ".")) for p in parts)
        # A glob may match what this slice published before.
        if hidden or info.get("type") == "directory" or path.startswith(own_output):
            continue
        partition = _parse_partition(parts[:-1])
        if job.slice_column not in partition or partition[job.slice_column] == job.slice_key:
            files.append(
                InputFile(path, int(info["size"] or 0), file_version(info), tuple(partition.items()))
            )
    return files


def _parse_partition(folders: Sequence[str]) -> dict[str, str | None]:
    pairs = (f.split("=", 1) for f in folders if "=" in f)
    return {unquote(k): None if v == _HIVE_NULL else unquote(v) for k, v in pairs}
