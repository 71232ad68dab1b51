"""columns."""

from __future__ import annotations

import pyarrow as pa

ROW_ID_FIELDS = [pa.field("__unit", pa.int32()), pa.field("__offset", pa.int64())]


ANSWER_FIELDS = [
    pa.field("text", pa.string()),
    pa.field("input_tokens", pa.int64()),
    pa.field("output_tokens", pa.int64()),
    pa.field("cached_tokens", pa.int64()),  # of the input's, those that the engine had computed before
    pa.field("shortened", pa.bool_()),  # whether the prompt was cut to what the engine can take
    pa.field("deduplicated", pa.bool_()),  # whether it is the answer to another row that asks the same
    pa.field("cached", pa.bool_()),  # whether it is an answer of another slice's, from `answer_cache`
    pa.field("saved_tokens", pa.int64()),  # of its prompt and itself, if so; 0 if not
    pa.field("finish_reason", pa.string()),  # "length" for an answer that max_tokens cut
    pa.field("worker", pa.string()),  # which of the engine's workers answered
    pa.field("gpus", pa.string()),  # ids of the GPUs that it holds, with commas, where they are known
    pa.field("engine_seconds", pa.float64()),  # time the request spent in the engine
    pa.field("finished_at", pa.float64()),  # epoch seconds
    pa.field("error_type", pa.string()),
    pa.field("error", pa.string()),  # null for an answered row
]


#: Columns of answered rows that are summed up for the report, and not published; null where an engine does
#: not tell.
COUNT_FIELDS = [
    pa.field(f"__{name}", pa.int64())
    for name in (
        "input_tokens", "output_tokens", "cached_tokens", "saved_tokens",
        "shortened", "deduplicated", "cached", "truncated",
    )
]  # fmt: skip


#: Rows that failed.
FAILED_FIELDS = [*ROW_ID_FIELDS, pa.field("error_type", pa.string()), pa.field("error", pa.string())]


_MESSAGE_CHARACTERS = 2000


def failed_table(rows: pa.Table, failures: list[tuple[int, str, str]]) -> pa.Table:
    """The failed rows of a table that has row ids: (its index, error type, message) each."""
    ids = rows.select([f.name for f in ROW_ID_FIELDS]).take(pa.array([i for i, _, _ in failures], pa.int64()))
    columns = [ids.column(f.name).cast(f.type) for f in ROW_ID_FIELDS]
    columns.append(pa.array([kind for _, kind, _ in failures], pa.string()))
    columns.append(pa.array([message[:_MESSAGE_CHARACTERS] for _, _, message in failures], pa.string()))
    return pa.Table.from_arrays(columns, schema=pa.schema(FAILED_FIELDS))
