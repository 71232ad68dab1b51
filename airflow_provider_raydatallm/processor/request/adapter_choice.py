"""Which adapter answers a row: that of the slice, or the one that a column names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_raydatallm.contract.result.errors import SliceError, missing_column
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.request.prompt import Row, as_text


@dataclass(frozen=True)
class AdapterChoice:
    """digests: of the adapters' contents, by name. column: None for the one adapter of all rows.
    null_is_base: whether the model answers a row without a name by itself."""

    digests: Mapping[str, str]
    column: str | None = None
    null_is_base: bool = False

    @classmethod
    def of_job(
        cls, job: SliceJob, digests: Mapping[str, str], columns: Sequence[str]
    ) -> AdapterChoice | None:
        """None where the job has no adapters.

        :raises SliceError: when the input lacks the column.
        """
        if not digests:
            return None
        if job.task.lora.column is not None and job.task.lora.column not in columns:
            raise missing_column(
                f"adapter.column is {job.task.lora.column!r}, which the input does not have",
                job.task.lora.column,
                columns,
            )
        return cls(digests, job.task.lora.column, job.task.lora.on_null == "base")

    def of_row(self, row: Row) -> str | None:
        """Returns the adapter's digest; None for the model itself.

        :raises SliceError: when the row names no adapter.
        """
        if self.column is None:
            [digest] = self.digests.values()
            return digest
        name = as_text(row[self.column])
        if name in self.digests:
            return self.digests[name]
        if name:
            raise SliceError(
                f"column {self.column!r} names an adapter that adapter.paths does not have",
                kind="input",
                place=Place(column=self.column),
                row_texts=(f"{name!r:.200}",),
            )
        if self.null_is_base:
            return None
        raise SliceError(
            f"column {self.column!r} is null, and names no adapter",
            kind="input",
            advice="adapter.on_null='base' would have the model answer it",
            place=Place(column=self.column),
        )
