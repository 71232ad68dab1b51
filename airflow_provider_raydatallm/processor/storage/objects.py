"""What an object store holds below a folder, without the objects that only stand for folders.

Such markers are empty objects: consoles write `in/`, Hadoop writes `in_$folder$`, other tools write `in`
beside `in/a.csv`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import fsspec

from airflow_provider_raydatallm.processor.storage.filesystem import PATIENT, Patience

_HADOOP_MARKER = "_$folder$"


class Entry(NamedTuple):
    """`parts`: its name below the listed folder, by `/`. `info`: of an object, as fsspec names its facts."""

    parts: tuple[str, ...]
    is_folder: bool
    info: Mapping[str, Any]


def list_objects(
    fs: fsspec.AbstractFileSystem,
    folder: str,
    below: Sequence[str] = (),
    *,
    deep: bool = False,
    patience: Patience = PATIENT,
) -> list[Entry]:
    """Lists the objects and folders directly in a folder; with `deep`, the objects at any depth.

    :param folder: the path of a folder; `below`: names of folders in it, the innermost one is listed.
    :raises FileNotFoundError: when some stores have no such folder; others return nothing.
    """
    # `ls` and `find` of s3fs show markers as files, and list the parent where a folder is empty.
    is_s3 = "s3" in fs.protocol
    entries = list((_list_s3 if is_s3 else _list_others)(fs, folder, below, deep, patience))
    folders = {e.parts for e in entries if e.is_folder}
    folders |= {e.parts[:depth] for e in entries for depth in range(1, len(e.parts))}
    return [e for e in entries if e.is_folder or not _is_marker(e, folders)]


def _is_marker(entry: Entry, folders: set[tuple[str, ...]]) -> bool:
    name = entry.parts[-1]
    stands_for_folder = not name or name.endswith(_HADOOP_MARKER) or entry.parts in folders
    return stands_for_folder and not entry.info["size"]


def _list_s3(
    fs: fsspec.AbstractFileSystem, folder: str, below: Sequence[str], deep: bool, patience: Patience
) -> Iterator[Entry]:
    bucket, key, _ = fs.split_path(folder)
    prefix = "".join(f"{name}/" for name in ((key, *below) if key else below))
    request = {"Bucket": bucket, "Prefix": prefix, **({} if deep else {"Delimiter": "/"})}
    while True:
        page = patience.call(fs, "call_s3", "list_objects_v2", **request)
        for found in page.get("Contents", ()):
            name, size = found["Key"][len(prefix) :], found["Size"]
            yield Entry(tuple(name.split("/")), False, {**found, "size": size})
        for found in page.get("CommonPrefixes", ()):
            yield Entry((found["Prefix"][len(prefix) : -1],), True, {})
        if not page.get("IsTruncated"):
            return
        request["ContinuationToken"] = page["NextContinuationToken"]


def _list_others(
    fs: fsspec.AbstractFileSystem, folder: str, below: Sequence[str], deep: bool, patience: Patience
) -> Iterator[Entry]:
    path = "/".join([folder.rstrip("/"), *below])
    found = patience.call(fs, "find" if deep else "ls", path, detail=True)
    for info in found.values() if deep else found:
        is_folder, name = info["type"] == "directory", info["name"]
        if name.startswith(f"{path}/") and not (deep and is_folder):
            name = name[len(path) + 1 :]
            yield Entry(tuple((name.rstrip("/") if is_folder else name).split("/")), is_folder, info)
