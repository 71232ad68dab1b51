"""Copies the published answers into a new version that adds files or retries quarantined rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.columns import COUNT_FIELDS
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.store.agreed_columns import AgreedColumns
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, load_plan
from airflow_provider_raydatallm.processor.store.fragments import FRAGMENT_ROWS, put_fragment
from airflow_provider_raydatallm.processor.store.published import locate_files
from airflow_provider_raydatallm.processor.store.versions import (
    NumberTakenError,
    SliceFolders,
    Version,
    newest_version,
)
from airflow_provider_raydatallm.processor.value_types import ColumnTypes, merge_columns, type_of_column


def carry_over_rows(
    checkpoint: Checkpoint, folders: SliceFolders, version: Version, plan: Plan, epoch: int
) -> None:
    """Puts fragments of all rows that `version` published, unless an earlier run did. Their tokens and counts
    are kept as its report has them (`Checkpoint.carried_over`).

    :raises SliceError: when input of the version changed or is gone, or the version was replaced meanwhile.
    """
    store = checkpoint.store
    old_plan = load_plan(store, version.plan)
    if old_plan is None:
        raise _unidentified(f"{store.path(version.plan)} is missing or damaged")
    index = {u.id: i for i, u in enumerate(plan.units)}
    gone = [u.file.path for u in old_plan.units if u.id not in index]
    if gone:
        raise SliceError(
            f"rerun.on_input_change is 'extend', which only adds files, but {gone[0]} changed, is gone, or "
            "is read with other types now: set rerun.on_input_change='recompute'",
            kind="input",
        )
    if checkpoint.carried_over() is not None:
        return
    ids = [u.id for u in plan.units]
    agreed = AgreedColumns({}, store.url, checkpoint.folder)
    try:
        for table in _published_rows(folders, version, old_plan, index):
            agreed.agree(partial(_widen_to_hold, table=table))
            put_fragment(store, checkpoint.folder, "rows", table, ids, epoch, version.number)
    except FileNotFoundError as e:
        newest = newest_version(folders.metadata)
        if newest is not None and newest.number != version.number:
            raise NumberTakenError(f"version {version.number} was replaced while its rows were copied") from e
        raise _unidentified(str(e)) from e
    checkpoint.save_carried_over({name: version.body["report"][name] for name in ("counts", "tokens")})


def _unidentified(why: str) -> SliceError:
    return SliceError(
        f"{why}, so the published rows cannot be identified: set rerun.on_input_change='recompute', or "
        "force_rerun=True",
        kind="input",
    )


def _widen_to_hold(types: ColumnTypes, *, table: pa.Table) -> ColumnTypes:
    # Vectors and labels' probabilities are of one type everywhere: nobody has to agree on it.
    fields = [f for f in table.schema if not (pa.types.is_fixed_size_list(f.type) or pa.types.is_map(f.type))]
    names = [f.name for f in fields if not f.name.startswith("__")]
    return merge_columns(types, {name: type_of_column(table.column(name)) for name in names})


def _published_rows(
    folders: SliceFolders, version: Version, old_plan: Plan, index: dict[str, int]
) -> Iterator[pa.Table]:
    """Row ids (by the new plan) and answer columns, in tables of a fragment's size."""
    places = locate_files(folders, version)
    quarantined: dict[str, list[int]] = {}
    for file in version.quarantine:
        store, name = places[file]
        with store.fs.open(store.path(name), "rb") as f:
            failed = pq.read_table(f, columns=["__unit", "__offset"])
        for unit, offset in zip(*(failed.column(c).to_pylist() for c in failed.schema.names), strict=True):
            quarantined.setdefault(unit, []).append(offset)

    row_ids = _RowIds(old_plan, quarantined, index)
    for file in version.files:
        store, name = places[file]
        with store.fs.open(store.path(name), "rb") as f:
            parquet = pq.ParquetFile(f)
            columns = [n for n in parquet.schema_arrow.names if n not in old_plan.columns]
            for batch in parquet.iter_batches(FRAGMENT_ROWS, columns=columns):
                table = pa.Table.from_batches([batch])
                units, offsets = row_ids.next(table.num_rows)
                table = table.append_column("__unit", pa.array(units, pa.int32()))
                table = table.append_column("__offset", pa.array(offsets, pa.int64()))
                for field in COUNT_FIELDS:
                    table = table.append_column(field, pa.array(np.zeros(len(units), np.int64)))
                yield table


class _RowIds:
    """The row ids of published rows, in their order."""

    def __init__(self, plan: Plan, quarantined: dict[str, list[int]], index: dict[str, int]) -> None:
        self._rest = iter(
            (index[u.id], np.setdiff1d(np.arange(u.rows), quarantined.get(u.id, []))) for u in plan.units
        )
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
