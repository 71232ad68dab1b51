"""Finds the slices of a table, by one listing of its metadata."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import SLICE, slice_paths, slice_template
from airflow_provider_raydatallm.processor.storage import disk
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.slice_listing import fill, find_folders

_EARLY = "A run whose job never started may leave nothing here: see its task's log or page"
_OTHER = "Else give the task's output_path, and its publish.metadata_path where that is set"
_OTHER_METADATA = "Else {} is not the task's publish.metadata_path"


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


def nothing_of(output_path: str, key: str, metadata_path: str | None = None) -> SliceError:
    """What to say of a slice in which no run left anything.

    :raises SliceError: when the table cannot be listed, such as one in a bucket that does not exist.
    """
    keys = [of_slice for of_slice, _ in find_slices(output_path, metadata_path)]
    if not keys:
        return nothing_in(output_path, metadata_path)
    if key in keys:
        return SliceError(
            f"nothing is published of slice {key} in {output_path}, and no run left a reason here",
            kind="input",
            advice=_EARLY,
        )
    return SliceError(
        f"no run of slice {key} left anything in {output_path}, which has {len(keys):,} slice(s), from "
        f"{keys[0]} to {keys[-1]}",
        kind="input",
        advice=_EARLY,
    )


def nothing_in(output_path: str, metadata_path: str | None = None) -> SliceError:
    """What to say of a table in which no run left anything."""
    table, _, _ = slice_template(output_path).rpartition("/")
    store = Store(table)
    is_there = SLICE in table or bool(store.names())
    is_empty = f"{table} is empty, or does not exist"
    sentence = f"no run left anything in {output_path}" if is_there else is_empty
    if store.is_local and (obstacle := disk.why_not_writable(store.root)) is not None:
        sentence += f": {obstacle}"
    return SliceError(
        sentence,
        kind="input",
        advice=(_EARLY, _OTHER if metadata_path is None else _OTHER_METADATA.format(metadata_path)),
    )
