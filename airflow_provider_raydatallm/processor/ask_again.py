"""Rejects a staged version and has some of its rows asked again: all others keep their answers.

The document that says which rows (`store.rejections`) decides. Whoever finds the staged version after that
discards it, so that a process that is killed at any step has rejected it, or not.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import SliceAddress
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import ROW_ID_FIELDS
from airflow_provider_raydatallm.processor.gates.own_checks import open_rows
from airflow_provider_raydatallm.processor.gates.sql import rows_where
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.publish.carry_over import RowIds, quarantined_rows
from airflow_provider_raydatallm.processor.publish.commit import check_files, find_published
from airflow_provider_raydatallm.processor.publish.staged_commands import (
    PublishedBeforeError,
    discard_as_rejected,
    get_staged,
    is_known,
)
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, load_plan
from airflow_provider_raydatallm.processor.store.ledger import position, unit_and_offset
from airflow_provider_raydatallm.processor.store.ownership import check_folders
from airflow_provider_raydatallm.processor.store.rejections import find_rejection
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.spans import Spans, count_rows, merge_spans, subtract
from airflow_provider_raydatallm.processor.store.staged_versions import (
    StagedVersion,
    StagedVersionError,
)
from airflow_provider_raydatallm.processor.store.versions import read_version

#: Answered rows whose places in the input are looked up at once.
_ROWS = 1 << 20


def ask_again_for_people(of: SliceAddress, name: str | None, condition: str) -> tuple[str, int]:
    """Discards a staged version of a slice. The next run asks the rows again that a condition selects.
    Returns its name, and how many rows these are.

    :param name: of the staged version; None for the only one.
    :raises SliceError: when the condition is none, or selects no row, or the version is not there, or was
        published. Nothing is discarded then.
    """
    check_folders(of)
    folders = SliceFolders.open(of.paths)
    staged = get_staged(folders, name)
    try:
        rows = _rows_where(folders, staged, condition)
    except (OSError, pa.ArrowException, SliceError) as e:
        # Its files are in the table then, also where its publication was killed.
        if (version := find_published(folders, staged.name)) is not None:
            raise PublishedBeforeError(folders, staged.name, version) from e
        if not isinstance(e, SliceError):
            check_files(folders, staged)
        raise
    offsets = {unit: spans.ravel().tolist() for unit, spans in rows.items()}
    discard_as_rejected(folders, staged, condition, offsets)
    return staged.name, sum(map(count_rows, rows.values()))


def ask_again_rejected(job: SliceJob, name: str, condition: str) -> None:
    """As a person decided, unless that was done before."""
    done = None if is_known(job, name) else find_rejection(SliceFolders.open(job.paths).metadata, name)
    if done is None or done.condition != condition:
        ask_again_for_people(job.address, name, condition)


def _rows_where(folders: SliceFolders, staged: StagedVersion, condition: str) -> dict[str, Spans]:
    """Returns spans of the rows' offsets, by the ids of their units."""
    plan = load_plan(folders.metadata, staged.version.plan)
    if plan is None:
        raise StagedVersionError(f"the plan of {staged.name} is gone or damaged, so its rows are not known")
    version = staged.version
    files = [f"{folders.staging.url}/{version.staged_name(file)}" for file in version.files]
    numbers = np.sort(rows_where(open_rows(files), condition))
    if not len(numbers):
        raise SliceError(f"{condition!r} selects none of the answered rows of {staged.name}", kind="input")
    selected = _positions(folders, staged, plan, numbers)
    asked = subtract(merge_spans(selected), _published(folders, staged, plan))
    if not len(asked):
        raise SliceError(
            f"the {len(numbers):,} rows that {condition!r} selects are published already, in version "
            f"{staged.follows}, and a published answer stays",
            kind="input",
            advice="Set rerun.force=True to answer the whole slice again",
        )
    units, starts = unit_and_offset(asked[:, 0])
    spans = np.column_stack([starts, starts + (asked[:, 1] - asked[:, 0])])
    return {plan.units[unit].id: spans[units == unit] for unit in np.unique(units).tolist()}


def _positions(folders: SliceFolders, staged: StagedVersion, plan: Plan, numbers: np.ndarray) -> Spans:
    """Returns the rows of a plan that are answered rows of such numbers, each as a span."""
    version, index = staged.version, {unit.id: i for i, unit in enumerate(plan.units)}
    ids = pa.schema(ROW_ID_FIELDS)
    failed = [failed.select(ids.names) for failed in quarantined_rows(version, staged.locate(folders), index)]
    rows = RowIds(plan, pa.concat_tables([ids.empty_table(), *failed]), index)
    found = []
    for first in range(0, int(numbers[-1]) + 1, _ROWS):
        stop = min(first + _ROWS, int(numbers[-1]) + 1)
        units, offsets = rows.next(stop - first)
        here = numbers[slice(*np.searchsorted(numbers, [first, stop]))] - first
        found.append(position(units[here], offsets[here]))
    starts = np.concatenate(found)
    return np.column_stack([starts, starts + 1])


def _published(folders: SliceFolders, staged: StagedVersion, plan: Plan) -> Spans:
    """Returns the rows whose answers were taken over from the published version."""
    number = staged.version.body.get("takes_over", staged.follows)  # documents of earlier builds have none
    base = read_version(folders.metadata, number) if number else None
    ledger, _ = Checkpoint(folders.metadata, staged.version.question, base).read_ledger(plan)
    answered = ledger.rows
    return answered.filter(answered.carried).spans()
