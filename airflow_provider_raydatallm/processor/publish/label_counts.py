"""How many published rows have each label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.report import MOST_LABELS
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob


def label_column(job: SliceJob) -> str | None:
    """Returns the column of the job's labels; None when its answers are no labels."""
    return job.output_column if job.choices is not None or job.task == "classify" else None


def count_labels(table: pa.Table, name: str | None) -> Counter[str]:
    """Counts the rows of each label; a row of several counts for each of them."""
    if name is None or name not in table.column_names:
        return Counter()
    column = table.column(name)
    if pa.types.is_list(column.type):
        column = pc.list_flatten(column)
    if not pa.types.is_string(column.type):
        return Counter()
    counts = pc.value_counts(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return Counter({c["values"]: c["counts"] for c in counts.to_pylist() if c["values"] is not None})


def reported(labels: Mapping[str, int]) -> dict[str, int] | None:
    """Returns the most frequent labels, those first; None when nothing was counted."""
    most = sorted(labels.items(), key=lambda label: (-label[1], label[0]))[:MOST_LABELS]
    return dict(most) or None
