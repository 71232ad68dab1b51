"""Copies what a version published into the next one's checkpoint: its answers, and its failures.

A row that is taken over is not asked again, whether it was answered or is in quarantine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.result.counters import counters_of
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.columns import COUNT_FIELDS, ERROR_FIELDS, ROW_ID_FIELDS
from airflow_provider_raydatallm.processor.input.plan import Plan, Unit
from airflow_provider_raydatallm.processor.publish.row_details import carried_over
from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.agreed_columns import AgreedColumns
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, load_plan
from airflow_provider_raydatallm.processor.store.fragments import (
    FRAGMENT_ROWS,
    by_kind_of_failure,
    put_fragment,
)
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import (
    NumberTakenError,
    PublishedFile,
    Version,
    newest_version,
)
from airflow_provider_raydatallm.processor.value_types import ColumnTypes, merge_columns, type_of_column


def carry_over_rows(
    checkpoint: Checkpoint, folders: SliceFolders, version: Version, plan: Plan, epoch: int
) -> None:
    """Puts fragments of all rows that `version` published or has in quarantine, unless an earlier run did.
    Their tokens and counts are kept as its commit has them (`Checkpoint.carried_over`).

    Nothing is taken over of the same input when requests read other columns of it now.

    :raises SliceError: when input of the version changed or is gone, or the version was replaced meanwhile.
    """
    store = checkpoint.store
    old_plan = load_plan(store, version.plan)
    if old_plan is None:
        raise _unidentified(f"{store.path(version.plan)} is missing or damaged")
    if old_plan.rows != sum(file.rows for file in version.all_files):
        raise _unidentified(f"{store.path(version.plan)} is of other rows")
    index = {u.id: i for i, u in enumerate(plan.units)}
    gone = [u.file.path for u in old_plan.units if u.id not in index]
    if gone and version.input_hash == plan.input_hash:
        return
    if gone:
        raise SliceError(
            f"rerun.on_input_change is 'extend', which only adds files, but {gone[0]} changed, is gone, or "
            "is read with other types now",
            kind="input",
            advice="Set rerun.on_input_change='recompute'",
        )
    if checkpoint.carried_over(plan) is not None:
        return
    ids = [u.id for u in plan.units]
    agreed = AgreedColumns({}, store.url, checkpoint.folder)
    failed_as: Counter[str] = Counter()
    failed_ids = [pa.table([[], []], pa.schema(ROW_ID_FIELDS))]
    try:
        places = open_sink(folders).locate(version)
        for failed in quarantined_rows(version, places, index):
            failed_ids.append(failed.select([f.name for f in ROW_ID_FIELDS]))
            failed_as.update(failed.column("error_type").to_pylist())
            for kind, table in by_kind_of_failure(failed):
                put_fragment(store, checkpoint.folder, kind, table, ids, epoch, version.number)
        row_ids = RowIds(old_plan, pa.concat_tables(failed_ids), index)
        for table in _published_rows(version, places, old_plan, row_ids):
            agreed.agree(partial(_widen_to_hold, table=table))
            put_fragment(store, checkpoint.folder, "rows", table, ids, epoch, version.number)
    except FileNotFoundError as e:
        newest = newest_version(folders.metadata)
        if newest is not None and newest.number != version.number:
            raise NumberTakenError(f"version {version.number} was replaced while its rows were copied") from e
        raise _unidentified(str(e)) from e
    report = version.body["report"]
    counts, known = dict(report["counts"]), _known(version)
    for counter in counters_of("counts"):  # rows in quarantine are counted by their error
        for told in (counts, known):
            if counter.failed_as is not None and told.get(counter.report_field) is not None:
                told[counter.report_field] -= failed_as[counter.failed_as]
    checkpoint.save_carried_over({"counts": counts, "tokens": report["tokens"], "known": known})


def _known(version: Version) -> dict[str, int]:
    """The rows of which it is known that they count, also where that is not known of all."""
    known = version.body.get("known")
    return {n: rows for n, rows in known.items() if isinstance(rows, int)} if isinstance(known, dict) else {}


def _unidentified(why: str) -> SliceError:
    return SliceError(
        f"{why}, so the published rows cannot be identified",
        kind="input",
        advice="Set rerun.on_input_change='recompute', or rerun.force=True",
    )


def _widen_to_hold(types: ColumnTypes, *, table: pa.Table) -> ColumnTypes:
    # Labels' probabilities are of one type everywhere: nobody has to agree on it.
    fields = [f for f in table.schema if not pa.types.is_map(f.type)]
    names = [f.name for f in fields if not f.name.startswith("__")]
    return merge_columns(types, {name: type_of_column(table.column(name)) for name in names})


def quarantined_rows(
    version: Version, places: Mapping[PublishedFile, tuple[Store, str]], index: Mapping[str, int]
) -> Iterator[pa.Table]:
    """Row ids (by the new plan) and errors, in tables of a fragment's size."""
    for file in version.quarantine:
        store, name = places[file]
        with store.open(name) as f:
            columns = ["__unit", "__offset", *(f"__{field.name}" for field in ERROR_FIELDS)]
            for batch in pq.ParquetFile(f).iter_batches(FRAGMENT_ROWS, columns=columns):
                units, *others = (batch.column(name) for name in columns)
                indices = [index.get(unit) for unit in units.to_pylist()]
                if None in indices:
                    raise _unidentified(
                        f"{store.path(name)} holds rows that version {version.number} has not"
                    )
                schema = pa.schema([*ROW_ID_FIELDS, *ERROR_FIELDS])
                yield pa.Table.from_arrays([pa.array(indices, pa.int32()), *others], schema=schema)


def _published_rows(
    version: Version,
    places: Mapping[PublishedFile, tuple[Store, str]],
    old_plan: Plan,
    row_ids: RowIds,
) -> Iterator[pa.Table]:
    """Row ids (by the new plan) and answer columns, in tables of a fragment's size."""
    for file in version.files:
        store, name = places[file]
        with store.open(name) as f:
            parquet = pq.ParquetFile(f)
            columns = [n for n in parquet.schema_arrow.names if n not in old_plan.columns]
            for batch in parquet.iter_batches(FRAGMENT_ROWS, columns=columns):
                table = carried_over(pa.Table.from_batches([batch]))
                units, offsets = row_ids.next(table.num_rows)
                table = table.append_column("__unit", pa.array(units, pa.int32()))
                table = table.append_column("__offset", pa.array(offsets, pa.int64()))
                for field in COUNT_FIELDS:
                    table = table.append_column(field, pa.array(np.zeros(len(units), np.int64)))
                yield table


class RowIds:
    """The row ids of published rows, in their order: those of the plan's rows that have not failed."""

    def __init__(self, plan: Plan, failed: pa.Table, index: Mapping[str, int]) -> None:
        failed = failed.sort_by("__unit")
        units, offsets = (failed.column(f.name).to_numpy() for f in ROW_ID_FIELDS)

        def answered(unit: Unit) -> tuple[int, np.ndarray]:
            here = slice(*np.searchsorted(units, [index[unit.id], index[unit.id] + 1]))
            return index[unit.id], np.setdiff1d(np.arange(unit.rows), offsets[here])

        self._rest = map(answered, plan.units)
        self._units, self._offsets = np.empty(0, np.int32), np.empty(0, np.int64)

    def next(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        units, offsets = [self._units], [self._offsets]
        available = len(self._offsets)
        while available < rows:
            unit, more = next(self._rest)
            units.append(np.full(len(more), unit, np.int32))
            offsets.append(more)
            available += len(more)
        all_units, all_offsets = np.concatenate(units), np.concatenate(offsets)
        self._units, self._offsets = all_units[rows:], all_offsets[rows:]
        return all_units[:rows], all_offsets[:rows]
