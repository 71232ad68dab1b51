"""What the slices of a table show, from their commits."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.versions import Version, newest_version


def newest_versions(metadata: str, *, before: bool = False) -> Iterator[Version]:
    """Yields the versions of a table's slices, the highest keys first. A slice that cannot be read is left
    out.

    :param metadata: address of one slice's metadata.
    :param before: only slices whose keys are before that one's.
    """
    fs, path = open_fs(metadata)
    table, _, own = path.rstrip("/").rpartition("/")
    try:
        entries = fs.ls(table, detail=True)
    except OSError:  # it does not exist, or may not be listed
        return
    folders = sorted((e["name"].rstrip("/") for e in entries if e["type"] == "directory"), reverse=True)
    for folder in folders:
        if before and folder.rpartition("/")[2] >= own:
            continue
        try:
            version = newest_version(Store(fs.unstrip_protocol(folder)))
        except (OSError, SliceError):
            continue
        if version is not None:
            yield version
