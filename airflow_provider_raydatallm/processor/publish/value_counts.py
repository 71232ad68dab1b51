"""How many rows have each label, or each reason to be in quarantine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.report import MOST_LABELS
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob

_NAME = re.compile(r"[A-Za-z_][\w.]{0,99}", re.ASCII)


def label_column(job: SliceJob) -> str | None:
    """Returns the column of the job's labels; None when its answers are no labels."""
    has_labels = job.task.labels_of_answers is not None or job.task.answers_labels
    return job.output_column if has_labels else None


def count_labels(table: pa.Table, name: str | None) -> Counter[str]:
    """Counts the rows of each label; a row of several counts for each of them."""
    if name is None or name not in table.column_names:
        return Counter()
    column = table.column(name)
    if pa.types.is_list(column.type):
        column = pc.list_flatten(column)
    return _count_values(column) if pa.types.is_string(column.type) else Counter()


def count_reasons(error_types: pa.Array | pa.ChunkedArray) -> Counter[str]:
    """Counts the rows of each type of error. Reports go where rows' texts must not: what is not a name, but
    text of an engine, counts as `Other`."""
    counts: Counter[str] = Counter()
    for name, rows in _count_values(error_types).items():
        counts[name if _NAME.fullmatch(name) else "Other"] += rows
    return counts


def _count_values(column: pa.Array | pa.ChunkedArray) -> Counter[str]:
    counts = pc.value_counts(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return Counter({c["values"]: c["counts"] for c in counts.to_pylist() if c["values"] is not None})


def reported(values: Mapping[str, int]) -> dict[str, int] | None:
    """Returns the most frequent values, those first; None when nothing was counted."""
    most = sorted(values.items(), key=lambda value: (-value[1], value[0]))[:MOST_LABELS]
    return dict(most) or None
