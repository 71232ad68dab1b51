"""Every Arrow schema of the pipeline, once. Names that begin with `__` are the provider's own."""

from __future__ import annotations

import pyarrow as pa

_MAX_MESSAGE_CHARS = 2000

#: The ledger keeps offsets as 32-bit numbers.
MAX_UNIT_ROWS = 2**31 - 1
ROW_ID_FIELDS = [pa.field("__unit", pa.int32()), pa.field("__offset", pa.int64())]

#: A request, as JSON; and its input row, as JSON, where postprocess needs it.
REQUEST_FIELDS = [*ROW_ID_FIELDS, pa.field("__request", pa.string())]
CARRIED_ROW_FIELD = pa.field("__row", pa.string())

#: Why a row failed; null in an answered row.
ERROR_FIELDS = [pa.field("error_type", pa.string()), pa.field("error", pa.string())]

ANSWER_FIELDS = [
    pa.field("text", pa.string()),
    pa.field("input_tokens", pa.int64()),
    pa.field("output_tokens", pa.int64()),
    pa.field("cached_tokens", pa.int64()),  # input tokens that the engine had in its prefix cache
    pa.field("shortened", pa.bool_()),  # whether the prompt was cut to the engine's limit
    pa.field("deduplicated", pa.bool_()),  # whether it is a copy of the answer to an identical request
    pa.field("cached", pa.bool_()),  # whether it is another slice's answer, from `answer_cache`
    pa.field("saved_tokens", pa.int64()),  # prompt and answer tokens of such a copy; else 0
    pa.field("finish_reason", pa.string()),  # "length" for an answer that max_tokens cut
    pa.field("worker", pa.string()),  # the engine's worker that answered
    pa.field("gpus", pa.string()),  # ids of the worker's GPUs, comma-separated, where they are known
    pa.field("engine_seconds", pa.float64()),  # time the request spent in the engine
    pa.field("finished_at", pa.float64()),  # epoch seconds
    *ERROR_FIELDS,
]

#: Columns of answered rows that the report sums up and that are not published; null where an engine does not
#: report them.
COUNT_FIELDS = [
    pa.field(f"__{name}", pa.int64())
    for name in (
        "input_tokens", "output_tokens", "cached_tokens", "saved_tokens",
        "shortened", "deduplicated", "cached", "truncated",
    )
]  # fmt: skip

FAILED_FIELDS = [*ROW_ID_FIELDS, *ERROR_FIELDS]

#: Columns of a quarantine file, before those of the input.
QUARANTINE_FIELDS = [
    pa.field("__file", pa.string()),
    pa.field("__row", pa.int64()),  # from 1; with slice_column it counts the slice's rows of the unit
    pa.field("__unit", pa.string()),
    pa.field("__offset", pa.int64()),
    *[f.with_name(f"__{f.name}") for f in ERROR_FIELDS],
]

#: Finished rows of one batch, as a vLLM worker returns them; `row` is the place in the batch.
GROUP_SCHEMA = pa.schema([
    ("row", pa.int32()), ("text", pa.string()),
    ("input_tokens", pa.int64()), ("output_tokens", pa.int64()), ("cached_tokens", pa.int64()),
    ("finish_reason", pa.string()), ("engine_seconds", pa.float64()), ("finished_at", pa.float64()),
    *ERROR_FIELDS,
])  # fmt: skip

#: An entry of the answer cache.
ENTRY_SCHEMA = pa.schema([
    ("key", pa.binary(16)),  # `request_key` of its request
    ("text", pa.string()), ("finish_reason", pa.string()), ("shortened", pa.bool_()),
    ("input_tokens", pa.int64()), ("output_tokens", pa.int64()),  # as counted when it was inferred
    ("answered_at", pa.int64()),  # epoch seconds
])  # fmt: skip


def failed_table(rows: pa.Table, failures: list[tuple[int, str, str]]) -> pa.Table:
    """The failed rows of a table with row ids: (index, error type, message) each."""
    ids = rows.select([f.name for f in ROW_ID_FIELDS]).take(pa.array([i for i, _, _ in failures], pa.int64()))
    columns = [ids.column(f.name).cast(f.type) for f in ROW_ID_FIELDS]
    columns.append(pa.array([storable(kind) for _, kind, _ in failures], pa.string()))
    columns.append(pa.array([storable(message) for _, _, message in failures], pa.string()))
    return pa.Table.from_arrays(columns, schema=pa.schema(FAILED_FIELDS))


def storable(message: str) -> str:
    """A message that can be stored: of a bounded length, and without lone surrogates."""
    return message[:_MAX_MESSAGE_CHARS].encode(errors="backslashreplace").decode()


def describe_error(error: BaseException) -> str:
    """The error's text, also where making it fails."""
    try:
        return str(error)
    except Exception as e:
        return f"{type(error).__name__}, whose text cannot be read ({type(e).__name__})"
