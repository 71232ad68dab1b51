"""Every Arrow schema of the pipeline, once. Names that begin with `__` are the provider's own."""

from __future__ import annotations

import re
import traceback
from pathlib import PurePath
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.log.secret_shapes import without_secrets
from airflow_provider_raydatallm.contract.result.counters import COUNTERS, counters_of
from airflow_provider_raydatallm.contract.result.failure_patterns import is_users_file

_MAX_MESSAGE_CHARS = 2000
_USERS_LINE = re.compile(r"(?:pre|post)process \(([\w.+~-]+\.py:\d+)\): ")
#: The start of an error that a function of the user raised; Arrow knows the pattern, too.
USERS_ERROR = r"^((?:pre|post)process)(?: \([^)]*\))?: "
_USERS_FUNCTION = re.compile(USERS_ERROR)
_NAME = re.compile(r"[A-Za-z_][\w.]{0,99}", re.ASCII)

#: The ledger keeps offsets as 32-bit numbers.
MAX_UNIT_ROWS = 2**31 - 1
ROW_ID_FIELDS = [pa.field("__unit", pa.int32()), pa.field("__offset", pa.int64())]

#: A request, as JSON; and its input row, as JSON, where postprocess needs it.
#: A field of requests that no earlier answer answers.
AGAIN = "again"
REQUEST_FIELDS = [*ROW_ID_FIELDS, pa.field("__request", pa.string())]
CARRIED_ROW_FIELD = pa.field("__row", pa.string())
#: Its images, or recordings, where rows have any: their content, or where it is.
FILES_FIELD = pa.field(
    "__files",
    pa.list_(pa.struct([pa.field("data", pa.large_binary()), pa.field("address", pa.string())])),
)

#: Why a row failed; null in an answered row.
ERROR_FIELDS = [pa.field("error_type", pa.string()), pa.field("error", pa.string())]

#: `finish_reason` of answers that lack their end, the commonest first: `max_tokens` cut it, or vLLM's
#: `repetition_detection`.
CUT_BY = ("length", "repetition")

#: A text that a model answers. Null is what it was not asked for.
TEXT_FIELDS = [
    pa.field("text", pa.string()),
    pa.field("finish_reason", pa.string()),  # one of `CUT_BY` for an answer that lacks its end
    pa.field("reasoning", pa.string()),  # what it thought before
    pa.field("logprob", pa.float64()),  # logarithm of the probability of all its tokens together
    pa.field("logprob_tokens", pa.int32()),  # their number
]
#: What a model answers: a text, or numbers, such as the probabilities of labels; the other is null. A row
#: that asks for several texts has them in `texts`, and of these fields only `finish_reason`, the worst one.
_SAID_FIELDS = [
    TEXT_FIELDS[0],
    pa.field("numbers", pa.list_(pa.float32())),
    *TEXT_FIELDS[1:],
    pa.field("texts", pa.list_(pa.struct(TEXT_FIELDS))),
]

#: The column of each counter, by its name.
COUNTER_FIELDS = {c.name: pa.field(c.name, {"int": pa.int64(), "bool": pa.bool_()}[c.type]) for c in COUNTERS}
_TIME_FIELDS = [
    pa.field("engine_seconds", pa.float64()),  # time the request spent in the engine
    pa.field("finished_at", pa.float64()),  # epoch seconds
]

ANSWER_FIELDS = [
    *_SAID_FIELDS,
    *(COUNTER_FIELDS[c.name] for c in COUNTERS if c.source != "parser"),
    pa.field("worker", pa.string()),  # the engine's worker that answered
    pa.field("gpus", pa.string()),  # ids of the worker's GPUs, comma-separated, where they are known
    *_TIME_FIELDS,
    *ERROR_FIELDS,
]

#: Counters of answered rows, as fragments hold them; they are not published.
COUNT_FIELDS = [pa.field(f"__{c.name}", pa.int64()) for c in COUNTERS]

#: What fragments hold of answered rows beside their counts, for `publish.details`.
DETAIL_FIELDS = [pa.field("__finish_reason", pa.string()), pa.field("__engine_seconds", pa.float64())]

#: Of an attempt that failed: an invalid answer, with what is wrong with it; and what any answer took. Null
#: for a row that did not reach the engine.
SAID_FIELDS = [pa.field("answer", pa.string()), pa.field("problem", pa.string())]
TOKEN_FIELDS = [pa.field(f"__{c.name}", pa.int64()) for c in counters_of("tokens")]
SPENT_FIELDS = [_TIME_FIELDS[1], *TOKEN_FIELDS]

FAILED_FIELDS = [*ROW_ID_FIELDS, *ERROR_FIELDS]

#: Columns of a quarantine file, before those of the input.
QUARANTINE_FIELDS = [
    pa.field("__file", pa.string()),
    pa.field("__row", pa.int64()),  # from 1; with source.column it counts the slice's rows of the unit
    pa.field("__unit", pa.string()),
    pa.field("__offset", pa.int64()),
    *[f.with_name(f"__{f.name}") for f in ERROR_FIELDS],
]

#: Finished rows, as a vLLM worker returns them; `row` is the id that their feeder gave them.
GROUP_SCHEMA = pa.schema([
    pa.field("row", pa.int32()),
    *_SAID_FIELDS,
    *(COUNTER_FIELDS[c.name] for c in COUNTERS if c.source == "worker"),
    *_TIME_FIELDS,
    *ERROR_FIELDS,
])  # fmt: skip

#: Columns that are equal for all rows with the same request.
SHARED_FIELDS = [*_SAID_FIELDS, COUNTER_FIELDS["shortened"], *ERROR_FIELDS]

#: An entry of the answer cache.
ENTRY_SCHEMA = pa.schema([
    pa.field("key", pa.binary(16)),  # `request_key` of its request
    *_SAID_FIELDS,
    *(COUNTER_FIELDS[name] for name in ("shortened", "input_tokens", "output_tokens")),  # once inferred
    pa.field("answered_at", pa.int64()),  # epoch seconds
])  # fmt: skip


def one_or_several(texts: list[dict[str, Any]]) -> dict[str, Any]:
    """An answer's columns.

    :param texts: `TEXT_FIELDS` of each of its texts.
    """
    if len(texts) == 1:
        return texts[0]
    reasons = {text["finish_reason"] for text in texts}
    return {"texts": texts, "finish_reason": next((cut for cut in CUT_BY if cut in reasons), "stop")}


def failed_table(rows: pa.Table, failures: list[tuple[int, str, str]]) -> pa.Table:
    """The failed rows of a table with row ids: (index, error type, message) each. Sentences name the types:
    what is no name, but text of an engine or of a row, is `Other`."""
    ids = rows.select([f.name for f in ROW_ID_FIELDS]).take(pa.array([i for i, _, _ in failures], pa.int64()))
    columns = [ids.column(f.name).cast(f.type) for f in ROW_ID_FIELDS]
    columns.append(pa.array([kind if _NAME.fullmatch(kind) else "Other" for _, kind, _ in failures]))
    columns.append(pa.array([storable(message) for _, _, message in failures], pa.string()))
    return pa.Table.from_arrays(columns, schema=pa.schema(FAILED_FIELDS))


def storable(message: str) -> str:
    """A message that can be stored: of a bounded length, without lone surrogates and what looks secret."""
    message = without_secrets(message[: 2 * _MAX_MESSAGE_CHARS])
    return message[:_MAX_MESSAGE_CHARS].encode(errors="backslashreplace").decode()


def is_unicode(text: str) -> bool:
    """Whether a text can be stored: it holds no half of a character (lone surrogate)."""
    try:
        text.encode()
        return True
    except UnicodeEncodeError:
        return False


def describe_error(error: BaseException) -> str:
    """The error's text, also where making it fails."""
    try:
        return str(error)
    except Exception as e:
        return f"{type(error).__name__}, whose text cannot be read ({type(e).__name__})"


def describe_users_error(function: str, error: BaseException) -> str:
    """Such as `postprocess (labels.py:12): division by zero`: with the line of the user's own code."""
    lines = traceback.walk_tb(error.__traceback__)
    own = [(frame.f_code.co_filename, line) for frame, line in lines]
    own = [(file, line) for file, line in own if is_users_file(file)]
    at = f" ({PurePath(own[-1][0]).name}:{own[-1][1]})" if own else ""
    return f"{function}{at}: {describe_error(error)}"


def users_function(description: str) -> str | None:
    """Which of the user's functions a row's error is of."""
    match = _USERS_FUNCTION.match(description)
    return match[1] if match else None


def users_line(description: str) -> str | None:
    """Which line of the user's code a row's error names."""
    match = _USERS_LINE.match(description)
    return match[1] if match else None
