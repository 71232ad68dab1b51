"""What golden rows were answered beside a slice's answers: kept with these, for who adds answers of another
model to them, and judges all anew by the right answers of that time."""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.input.listing import short_hash
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint

#: Of a part, beside the answers' columns.
KEY, HAS_ANSWER = "__key", "__has_answer"


@dataclass(frozen=True)
class GoldenNote:
    """Of one run.

    :ivar parts: the answers, by `KEY`; none where `HAS_ANSWER` is false. What several parts have was right
        only if it is in all.
    """

    parts: tuple[pa.Table, ...]

    def save(self, checkpoint: Checkpoint, epoch: int) -> None:
        checkpoint.save_golden_note(epoch, list(map(_to_text, self.parts)))


def read_notes(checkpoint: Checkpoint) -> dict[int, GoldenNote]:
    """Returns those that can be read, by the epochs of the runs."""
    notes = {}
    for epoch, parts in checkpoint.golden_notes().items():
        with contextlib.suppress(ValueError):
            notes[epoch] = GoldenNote(tuple(map(_from_text, parts)))
    return notes


def keys_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns what stands for rows, by the columns that a request reads: the same in files of any format."""
    return [short_hash(_untyped(row)) for row in rows]


def _untyped(value: Any) -> Any:
    """Returns a value as it is in files with types and without, such as 1 for "1.0"."""
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    if isinstance(value, str):
        return _of_text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, dict):  # a struct has a value for each name of any row
        return {name: _untyped(value[name]) for name in sorted(value) if value[name] is not None}
    if isinstance(value, list | tuple):
        return [_untyped(one) for one in value]
    if isinstance(value, float | Decimal):
        number = float(value)
        return int(number) if math.isfinite(number) and number.is_integer() else number
    if isinstance(value, date):
        at = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        return at.isoformat()
    return str(value)


def _of_text(text: str) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        if not isinstance(read := json.loads(text), str):
            return _untyped(read)
    try:
        return datetime.fromisoformat(text).isoformat()
    except ValueError:
        return text


def _to_text(part: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, part.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(part)
    return base64.b64encode(sink.getvalue()).decode()


def _from_text(text: str) -> pa.Table:
    try:
        with pa.ipc.open_stream(base64.b64decode(text)) as reader:
            part = reader.read_all()
    except (pa.ArrowException, OSError) as e:
        raise ValueError(f"it is no Arrow table: {e}") from None
    if not {KEY, HAS_ANSWER} <= set(part.column_names):
        raise ValueError("it has no keys")
    return part
