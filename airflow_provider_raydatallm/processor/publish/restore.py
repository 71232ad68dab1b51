"""Publishes a kept version again: as a new version, whose files are copies of the kept ones."""

from __future__ import annotations

import uuid
from dataclasses import asdict, replace

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import SliceAddress
from airflow_provider_raydatallm.processor.publish.commit import put_commit
from airflow_provider_raydatallm.processor.publish.reconcile import reconcile
from airflow_provider_raydatallm.processor.publish.version_numbers import next_number
from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.sinks.reading import kept_versions
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.column_agreement import table_metadata
from airflow_provider_raydatallm.processor.store.file_names import PLANS, STAGED, renumbered_file
from airflow_provider_raydatallm.processor.store.ownership import check_folders
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.table_columns import TableColumns
from airflow_provider_raydatallm.processor.store.versions import (
    Commits,
    NumberTakenError,
    PublishedFile,
    Version,
)


def restore_version(of: SliceAddress, number: int, *, accepts_change: bool = False) -> Version:
    """Publishes the files of an older version as a new one, and returns it. A run that is at work on the
    slice decides again when it comes to publish.

    :param accepts_change: whether it may have other columns than the table's other slices.
    :raises SliceError: when that version is not kept or has other columns than the table's other slices, the
        folders are another table's, or another run publishes at the same time.
    """
    check_folders(of)
    folders = SliceFolders.open(of.paths)
    kept = kept_versions(folders)
    old = next((v for v in kept if v.number == number), None)
    if old is None:
        numbers = ", ".join(str(v.number) for v in kept) or "none"
        raise SliceError(
            f"version {number} of {folders.table.url} is not kept (kept: {numbers})",
            kind="input",
            advice="Set publish.keep_versions: that of the run that replaces a version decides how many stay",
        )
    new = next_number(folders, kept[0].number)
    staged = f"{new:06}-{uuid.uuid4().hex[:8]}"
    plan = f"{PLANS}/plan-{new:06}-{uuid.uuid4().hex[:8]}.json"
    try:
        places = open_sink(folders).locate(old)

        def stage(files: tuple[PublishedFile, ...]) -> list[dict[str, object]]:
            copies = []
            for file in files:
                store, name = places[file]
                if store.sha256(name) != file.sha256:
                    raise SliceError(
                        f"{store.path(name)} of version {number} is not what was published: it cannot be "
                        "restored",
                        kind="input",
                    )
                copy = replace(file, name=renumbered_file(file.name, new, uuid.uuid4().hex[:8]))
                folders.staging.place(store, name, f"{STAGED}/{staged}/{copy.plain_name}")
                copies.append(asdict(copy))
            return copies

        body = {
            **{name: value for name, value in old.body.items() if name != "staged_version"},
            "files": stage(old.files),
            "quarantine": stage(old.quarantine),
            "plan": plan,
        }
        if old.files:
            columns = _columns_of(places[old.files[0]])
            _agree_on_columns(folders, of.slice_key, columns, accepts_change=accepts_change)
        body["epoch"] = max(v.epoch for v in kept)  # the next lease's is higher
        body["report"] = {**old.body["report"], "published_version": new}
        folders.metadata.place(folders.metadata, old.plan, plan)
        put_commit(folders, new, kept[0], staged, body, keep=kept[0].keep)
    except (FileNotFoundError, NumberTakenError) as e:
        if isinstance(e, FileNotFoundError) and Commits.list(folders.metadata).highest < new:
            raise SliceError(f"version {number} cannot be restored: {e}", kind="input") from e
        raise SliceError(
            f"another run publishes {folders.table.url} now", kind="transient", advice="Try again"
        ) from e
    version = reconcile(folders)
    assert version is not None
    return version


def _agree_on_columns(
    folders: SliceFolders, slice_key: str, columns: list[pa.Field], *, accepts_change: bool
) -> None:
    table = TableColumns.read(table_metadata(folders))
    answers = [field for field in columns if field.name in table.answers]
    inputs = pa.schema([field for field in columns if field.name not in table.answers])
    table.agree(slice_key, inputs, answers, accepts_change=accepts_change, is_published=True)


def _columns_of(file: tuple[Store, str]) -> list[pa.Field]:
    store, name = file
    with store.open(name) as source:
        return list(pq.read_schema(source))
