"""Columns that say more of each row than its answer: `publish.details`.

Fragments hold what was counted of a row. Rows that were taken over from a published version have counts of 0,
for their counts are in its report: their details are what that version published of them, and null where it
published none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.row_errors import OF_ANSWERS
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import COUNTER_FIELDS, DETAIL_FIELDS

#: Of a column's metadata: which detail it is.
_DETAIL = b"ray_llm.detail"
_TYPES = {
    **{name: field.type for name, field in COUNTER_FIELDS.items()},
    "finish_reason": pa.string(),
    "seconds": pa.float64(),
    "attempts": pa.int64(),
    "repaired": pa.bool_(),
}
_FOUND = {"finish_reason": "__finish_reason", "seconds": "__engine_seconds"}
_CARRIED_OVER = pa.field("__carried_over", pa.bool_())


def detail_columns(job: SliceJob) -> list[pa.Field]:
    """The columns that a job asks for, each once."""
    return [
        pa.field(f"{job.output_column}_{name}", _TYPES[name], metadata={_DETAIL: name})
        for name in dict.fromkeys(job.publish.details)
    ]


def detail_of(column: pa.Field) -> str | None:
    """Which detail a published column is; None for others."""
    name = (column.metadata or {}).get(_DETAIL)
    return name.decode(errors="replace") if name is not None else None


def carried_over(rows: pa.Table) -> pa.Table:
    """A version's rows as fragments hold them: what were its details, and that they are taken over."""
    kept = {field.name: detail for field in rows.schema if (detail := detail_of(field)) is not None}
    rows = rows.rename_columns([_kept(kept[n]) if n in kept else n for n in rows.column_names])
    return rows.append_column(_CARRIED_OVER, pa.repeat(True, rows.num_rows))


@dataclass(frozen=True)
class RowDetails:
    """
    :param columns: `detail_columns`.
    """

    columns: Sequence[pa.Field]

    @property
    def fields(self) -> list[pa.Field]:
        """The columns of fragments that they need, beside the counts."""
        if not self.columns:
            return []
        kept = [pa.field(_kept(detail_of(column) or ""), column.type) for column in self.columns]
        return [*DETAIL_FIELDS, _CARRIED_OVER, *kept]

    def of(
        self, answered: pa.Table, positions: np.ndarray, failed_at: np.ndarray, failed: pa.Table
    ) -> list[pa.Array]:
        """The columns of answered rows.

        :param answered: what fragments hold of them: `COUNT_FIELDS` and `fields`.
        :param positions: theirs, sorted.
        :param failed_at: sorted positions of attempts that failed, of all rows.
        :param failed: those attempts.
        """
        if not self.columns:
            return []
        is_carried = pc.fill_null(answered.column(_CARRIED_OVER.name), False)
        counted = {
            "attempts": _count(failed_at, positions) + 1,
            "repaired": repaired(positions, failed_at, failed),
        }

        def value(column: pa.Field) -> pa.Array:
            detail = detail_of(column) or ""
            if detail in counted:
                found = pa.array(counted[detail])
            else:
                found = answered.column(_FOUND.get(detail, f"__{detail}"))
            return pc.if_else(is_carried, answered.column(_kept(detail)), found.cast(column.type))

        return [value(column) for column in self.columns]


def repaired(positions: np.ndarray, failed_at: np.ndarray, failed: pa.Table) -> np.ndarray:
    """Which of the answered rows had an invalid answer before. See `RowDetails.of`."""
    of_answers = pc.is_in(failed.column("error_type"), pa.array(OF_ANSWERS)).to_numpy(zero_copy_only=False)
    return _count(failed_at[of_answers], positions) > 0


def _count(failed_at: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.searchsorted(failed_at, positions, "right") - np.searchsorted(failed_at, positions, "left")


def _kept(detail: str) -> str:
    return f"__published_{detail}"
