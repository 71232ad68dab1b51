"""Reads published versions by their commits, whatever kind of sink shows them: one version, never a mix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import slice_paths
from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import Commits, Version

if TYPE_CHECKING:
    import pyarrow.dataset


def published_files(
    slice_path: str, *, version: int | None = None, metadata_path: str | None = None
) -> list[str]:
    """Returns paths (or URLs) of the Parquet files of a published slice, in the order of its rows.

    :param slice_path: the slice's folder, `output_path` of the report.
    :param version: the number of an older version that is kept; the newest by default.
    :param metadata_path: the operator's, where it was set.
    :raises FileNotFoundError: when nothing is published, or that version was not kept.
    """
    return [
        store.path(name) if store.is_local else store.fs.unstrip_protocol(store.path(name))
        for store, name in _published(slice_path, version, metadata_path)
    ]


def published_dataset(
    slice_path: str, *, version: int | None = None, metadata_path: str | None = None
) -> pyarrow.dataset.Dataset:
    """Returns the rows of a published slice as a pyarrow dataset. See `published_files`."""
    import pyarrow.dataset

    files = _published(slice_path, version, metadata_path)
    fs = files[0][0].fs if files else None
    paths = [store.path(name) for store, name in files]
    return pyarrow.dataset.dataset(paths, filesystem=fs, format="parquet")


def kept_versions(folders: SliceFolders) -> list[Version]:
    """The versions whose files exist, the newest first."""
    commits = Commits.list(folders.metadata)
    newest = commits.newest()
    if newest is None:
        return []
    result, sink = [newest], open_sink(folders)
    for number in dict.fromkeys(number for number, _ in reversed(sink.kept())):
        try:
            version = versions.read_version(folders.metadata, number)
        except SliceError as e:
            if e.kind != "input":
                raise
            continue  # its commit is damaged: the others can be read and restored all the same
        if version is not None and version.number < newest.number and sink.has_kept(version):
            result.append(version)
    return result


def _published(slice_path: str, number: int | None, metadata_path: str | None) -> list[tuple[Store, str]]:
    folders = SliceFolders.open(slice_paths(slice_path, metadata_path))
    while True:
        newest = versions.newest_version(folders.metadata)
        if newest is None:
            raise FileNotFoundError(f"no slice is published in {folders.table.url}")
        version = newest
        if number not in (None, newest.number):
            kept = next((v for v in kept_versions(folders) if v.number == number), None)
            if kept is None:
                raise FileNotFoundError(
                    f"version {number} of {folders.table.url} is not kept; the newest is {newest.number}"
                )
            version = kept
        try:
            files = open_sink(folders).locate(version, quarantine=False)
            for store, name in files.values():
                if store.is_local:  # what is no regular file would be followed, or waited for
                    store.open(name).close()
        except FileNotFoundError:
            if versions.newest_version(folders.metadata) != newest:
                continue  # it was replaced meanwhile
            raise
        return [files[f] for f in version.files]
