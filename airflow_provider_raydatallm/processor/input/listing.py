"""Lists a slice's input files as they are now.

No file is opened, so that checking whether a finished slice's input changed costs only a listing. Imports
only fsspec: the Airflow side lists too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import fsspec
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import METADATA, QUARANTINE, TRIAL, encode_slice_key
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.disk import disk_version
from airflow_provider_raydatallm.processor.storage.filesystem import file_version, open_fs

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class InputFile:
    """A file as it was when listed. `version` changes with its content: see `describe_object` and
    `disk_version`."""

    path: str
    size: int
    version: str
    partition: tuple[tuple[str, str | None], ...] = ()

    @property
    def identity(self) -> list[object]:
        return [self.path, self.size, self.version]


@dataclass(frozen=True)
class Listing:
    """Input files, sorted by path. How they are read is the fingerprint's matter (`SliceJob.row_rule`)."""

    files: tuple[InputFile, ...]

    @cached_property
    def hash(self) -> str:
        """16 hex digits: equal for an unchanged input."""
        return short_hash([f.identity for f in self.files])


def short_hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def list_input(job: SliceJob) -> Listing:
    """Lists the files of the slice; skips names that begin with `_` or `.`."""
    fs, root = open_fs(job.resolved_input_path)
    return Listing(tuple(_list_files(fs, root.rstrip("/"), job)))


def get_input_file(fs: fsspec.AbstractFileSystem, path: str) -> InputFile:
    """The file as it is now; of size -1 when it is gone."""
    try:
        if isinstance(fs, LocalFileSystem):
            return describe_disk_file(path, os.stat(path))
        return describe_object(path, fs.info(path))
    except FileNotFoundError:
        return InputFile(path, -1, "")


def describe_disk_file(path: str, status: os.stat_result) -> InputFile:
    return InputFile(path, status.st_size, disk_version(path, status))


def describe_object(path: str, info: Mapping[str, Any]) -> InputFile:
    """A file of a store: its version is the object's generation, its etag, or else its modification time."""
    generation = info.get("generation")
    version = str(generation) if generation is not None else file_version(dict(info))
    return InputFile(path, int(info["size"] or 0), version)


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
    own_folders = tuple(open_fs(folder)[1].rstrip("/") + "/" for folder in _own_folders(job))
    files = []
    for path, info in sorted(matches.items()):
        parts = path[len(base) :].strip("/").split("/") if path != base else [path.rpartition("/")[2]]
        hidden = any(p.startswith(("_", ".")) for p in parts)
        # A glob may match what this slice published before.
        if hidden or info.get("type") == "directory" or path.startswith(own_folders):
            continue
        partition = _parse_partition(parts[:-1])
        if job.slice_column not in partition or partition[job.slice_column] == job.slice_key:
            files.append(_listed_file(fs, path, info, tuple(partition.items())))
    return files


def _listed_file(
    fs: fsspec.AbstractFileSystem, path: str, info: Mapping[str, Any], partition: tuple[Any, ...]
) -> InputFile:
    # A disk's listing says of a symbolic link when the link was made.
    file = get_input_file(fs, path) if isinstance(fs, LocalFileSystem) else describe_object(path, info)
    if file.size < 0 and os.path.islink(path):
        raise SliceError(
            f"{path} is a symbolic link to nothing: remove it, or restore its target", kind="input"
        )
    if file.size < 0:
        raise SliceError(f"{path} was removed while the input was listed; run it again", kind="transient")
    return replace(file, partition=partition)


def _own_folders(job: SliceJob) -> list[str]:
    """What the provider writes: a glob may match it."""
    table = job.output_table
    beside = (f"{table}{suffix}" for suffix in (METADATA, QUARANTINE, TRIAL))
    return [job.slice_path, *beside, *(p for p in (job.metadata_path, job.quarantine_path) if p is not None)]


def _parse_partition(folders: Sequence[str]) -> dict[str, str | None]:
    pairs = (f.split("=", 1) for f in folders if "=" in f)
    return {unquote(k): None if v == _HIVE_NULL else unquote(v) for k, v in pairs}
