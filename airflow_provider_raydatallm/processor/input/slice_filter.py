"""Which rows of a file belong to the slice, when a column says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.input.listing import InputFile


@dataclass(frozen=True)
class SliceFilter:
    """Rows whose `column` equals the slice key. Dates and times are formatted first, in the slice's
    timezone."""

    column: str
    key: str
    format: str
    timezone: str

    def mask(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        kind = values.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            # Whole seconds: %S would print the fraction of finer units.
            text = pc.strftime(
                self._in_timezone(pc.floor_temporal(values, unit="second")), format=self.format
            )
        else:
            text = values.cast(pa.string())
        return pc.fill_null(pc.equal(text, self.key), False)

    def _in_timezone(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if getattr(values.type, "tz", None) is not None:
            return values.cast(pa.timestamp("s", tz=self.timezone), safe=False)
        values = values.cast(pa.timestamp("s"), safe=False)
        # A time without a zone is taken to be in the slice's; it matters to a format with a zone only.
        return pc.assume_timezone(values, self.timezone, ambiguous="earliest", nonexistent="earliest")


def slice_filter(job: SliceJob, files: Sequence[InputFile], schema: pa.Schema) -> SliceFilter | None:
    column = job.slice_column
    if column is None or not files or all(column in dict(f.partition) for f in files):
        return None
    if column not in schema.names:
        raise SliceError(
            f"slice_column {column!r} is neither a column of the input nor a Hive folder in its path. "
            f"Columns: {schema.names}",
            kind="input",
        )
    return SliceFilter(column, job.slice_key, job.slice_format, job.slice_timezone)
