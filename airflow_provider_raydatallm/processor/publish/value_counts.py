"""How many rows have each label, or each reason to be in quarantine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.report import MOST_COUNTED, MOST_LABELS
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import USERS_ERROR, users_function, users_line
from airflow_provider_raydatallm.processor.request.answers import label_confidence

_NAME = re.compile(r"[A-Za-z_][\w.]{0,99}", re.ASCII)
#: Of a file and its line.
_LINE_CHARACTERS = 100


def label_column(job: SliceJob) -> str | None:
    """Returns the column of the job's labels; None when its answers are no labels."""
    return job.output_column if job.task.has_labels else None


def probability_column(job: SliceJob) -> str | None:
    """Returns the column that says how probable each label is."""
    return label_confidence.fields(job)[0].name if job.task.has_confidence else None


def count_labels(table: pa.Table, name: str | None) -> Counter[str]:
    """Counts the rows of each label; a row of several counts for each of them."""
    if name is None or name not in table.column_names:
        return Counter()
    column = table.column(name)
    if pa.types.is_list(column.type):
        lists = column.combine_chunks()
        of_rows = pa.table([pc.list_parent_indices(lists), pc.list_flatten(lists)], ["row", "label"])
        column = of_rows.group_by(["row", "label"]).aggregate([]).column("label")
    return _count_values(column) if _are_labels(column.type) else Counter()


def _are_labels(type_: pa.DataType) -> bool:
    """Whether they are still, and not what `postprocess` made of them."""
    return bool(pa.types.is_string(type_.value_type if pa.types.is_list(type_) else type_))


def count_reasons(failures: pa.Table) -> Counter[str]:
    """Counts the rows of each type of error; of an error of the user's function, with its line, such as
    `KeyError in postprocess (labels.py:12)`. Reports go where rows' texts must not: what is not a name, but
    text of an engine, counts as `Other`.

    :param failures: `ERROR_FIELDS`.
    """
    counts: Counter[str] = Counter()
    is_users = pc.fill_null(pc.match_substring_regex(failures.column("error"), USERS_ERROR), False)
    for name, rows in _count_values(failures.filter(pc.invert(is_users)).column("error_type")).items():
        counts[_named(name)] += rows
    of_users = failures.filter(is_users)
    for name, error in zip(of_users["error_type"].to_pylist(), of_users["error"].to_pylist(), strict=True):
        line = users_line(error)
        at = f" ({line})" if line is not None and len(line) <= _LINE_CHARACTERS else ""
        counts[f"{_named(name)} in {users_function(error)}{at}"] += 1
    return counts


def _named(error_type: str) -> str:
    return error_type if _NAME.fullmatch(error_type) else "Other"


def _count_values(column: pa.Array | pa.ChunkedArray) -> Counter[str]:
    counts = pc.value_counts(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return Counter({c["values"]: c["counts"] for c in counts.to_pylist() if c["values"] is not None})


def committed(job: SliceJob, fields: Iterable[pa.Field], labels: Mapping[str, int]) -> dict[str, int] | None:
    """Returns the rows with each label, of which a report names some; None where no label is published, or
    too many.

    :param fields: published columns.
    """
    column = label_column(job)
    is_told = len(labels) <= MOST_COUNTED and any(
        field.name == column and (_are_labels(field.type) or pa.types.is_null(field.type)) for field in fields
    )
    return dict(labels) if is_told else None


def reported(values: Mapping[str, int]) -> dict[str, int] | None:
    """Returns the most frequent values, those first; None when nothing was counted."""
    most = sorted(values.items(), key=lambda value: (-value[1], value[0]))[:MOST_LABELS]
    return dict(most) or None
