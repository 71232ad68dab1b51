"""Finds the slices of a table, by one listing of its metadata."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from urllib.parse import unquote

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import slice_folder, slice_paths
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs
from airflow_provider_raydatallm.processor.store.versions import SliceFolders

_ANY_KEY = "any-slice-key"


def find_slices(output_path: str, metadata_path: str | None = None) -> Iterator[tuple[str, SliceFolders]]:
    """Yields each slice that ever had a run, in the order of their keys.

    :param output_path: the operator's, with its `{slice}`; or the table's folder.
    :param metadata_path: the operator's, where it was set.
    :raises SliceError: when the storage cannot be listed.
    """
    any_path = slice_folder(output_path, _ANY_KEY)
    fs, any_metadata = open_fs(slice_paths(any_path, metadata_path).metadata)
    pattern = re.compile(re.escape(any_metadata).replace(re.escape(_ANY_KEY), "([^/]+)", 1))
    try:
        found = fs.glob(glob.escape(any_metadata).replace(_ANY_KEY, "*"), detail=True)
    except Exception as e:  # stores fail with errors of many types
        raise SliceError(f"cannot list the slices of {output_path}: {e}", kind="transient") from e
    for path in sorted(path for path, info in found.items() if info["type"] == "directory"):
        match = pattern.fullmatch(path.rstrip("/"))
        if match is None or match[1].startswith("_"):  # what is beside the slices
            continue
        slice_path = any_path.replace(_ANY_KEY, match[1])
        yield unquote(match[1]), SliceFolders.open(slice_paths(slice_path, metadata_path))
