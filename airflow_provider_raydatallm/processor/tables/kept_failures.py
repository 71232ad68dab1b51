"""Rows that failed in runs of a slice that published nothing yet: their checkpoints hold them, with why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store, modified_at
from airflow_provider_raydatallm.processor.store.file_names import CHECKPOINT, PLAN_BYTES, input_of_plan
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.input.plan import Plan


def kept_failures(folders: SliceFolders, rows: int) -> list[dict[str, Any]]:
    """Returns the first rows that failed and have no answer, of the question that was asked last: where each
    is in the input, and why it failed last. The input is not read. Nothing is changed.

    :raises CorruptFileError: naming a fragment.
    """
    metadata = folders.metadata
    details = metadata.details(CHECKPOINT)
    newest_first = sorted(details, key=lambda name: modified_at(details[name]), reverse=True)
    plans: dict[str, str] = {}
    for name in newest_first:
        question, _, file = name.rpartition("/")
        if input_of_plan(file) is not None:
            plans.setdefault(question, name)
    for question in dict.fromkeys(name.rpartition("/")[0] for name in newest_first):
        if question in plans and (found := _failures_of(metadata, question, plans[question], rows)):
            return found
    return []


def _failures_of(metadata: Store, question: str, plan_name: str, rows: int) -> list[dict[str, Any]]:
    from airflow_provider_raydatallm.processor.columns import ERROR_FIELDS, SAID_FIELDS, SPENT_FIELDS
    from airflow_provider_raydatallm.processor.input.plan import Plan
    from airflow_provider_raydatallm.processor.store.fragment_reader import FragmentReader, last_failures
    from airflow_provider_raydatallm.processor.store.fragments import fragment_ranges
    from airflow_provider_raydatallm.processor.store.ledger import RowRanges, read_ledger, row_states

    folder = f"{CHECKPOINT}/{question}"
    try:
        plan = Plan.from_json(metadata.read_document(f"{CHECKPOINT}/{plan_name}", PLAN_BYTES) or {})
    except (CorruptFileError, ValueError):
        return []  # the next run plans anew, by which the rows may be others
    units = {unit.id: index for index, unit in enumerate(plan.units)}

    def read_ranges(name: str) -> RowRanges | None:
        try:
            return fragment_ranges(metadata, f"{folder}/{name}", units)
        except CorruptFileError:
            return None

    ledger = read_ledger(metadata.names(folder), units, read_ranges)
    failed = row_states([unit.rows for unit in plan.units], ledger, max_attempts=1).quarantined
    [pieces] = ledger.failures.divide([range(len(units))], len(units))
    fields = [*ERROR_FIELDS, *SAID_FIELDS, *SPENT_FIELDS]
    reader = FragmentReader(metadata, folder, pieces, units, fields)
    found: list[dict[str, Any]] = []
    for unit, spans in failed:
        for start, stop in spans.tolist():
            end = min(stop, start + rows - len(found))
            offsets, failures = last_failures(*reader.window(unit, start, end, every=True))
            found += _as_rows(plan, unit, offsets.tolist(), failures.to_pylist())
            if len(found) >= rows:
                return found
    return found


def _as_rows(
    plan: Plan, unit: int, offsets: list[int], failures: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """With the names that a published quarantine has."""
    first = 1 if plan.slice_filter is not None else plan.units[unit].range.first_row + 1
    names = ("error_type", "error", "answer")
    return [
        {
            "__file": plan.units[unit].file.path,
            "__row": first + offset,
            **{f"__{name}": failure[name] for name in names if failure[name] is not None},
        }
        for offset, failure in zip(offsets, failures, strict=True)
    ]
