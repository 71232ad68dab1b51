"""Finds the slices of a table, by one listing of its metadata."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import slice_paths, slice_template
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.slice_listing import fill, find_folders


def find_slices(output_path: str, metadata_path: str | None = None) -> Iterator[tuple[str, SliceFolders]]:
    """Yields each slice that ever had a run, in the order of their keys.

    :param output_path: the operator's, with its `{slice}`; or the table's folder.
    :param metadata_path: the operator's, where it was set.
    :raises SliceError: when the storage cannot be listed.
    """
    template = slice_template(output_path)
    try:
        found = list(find_folders(slice_paths(template, metadata_path).metadata))
    except Exception as e:  # stores fail with errors of many types
        raise SliceError(f"cannot list the slices of {output_path}: {e}", kind="transient") from e
    for fields in found:
        key = fields["slice"]
        if not key.startswith("_"):  # what is beside the slices
            yield unquote(key), SliceFolders.open(slice_paths(fill(template, fields), metadata_path))
