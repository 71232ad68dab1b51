"""Marked lines in a Ray job's log: how the processor's driver reports back where the Airflow side cannot read
the store.

A line is `@ray-llm KIND NONCE LENGTH SHA256 JSON`. The nonce is the attempt's, so that a line of an older
attempt, of a worker or of a user's print is never taken for this attempt's word; length and hash reveal a
line that was cut or mixed with another.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

LineKind = Literal["report", "error", "progress"]

MARK = "@ray-llm"
MAX_BYTES = 64 * 1024


def encode_line(kind: LineKind, nonce: str, value: Any) -> str:
    """One line without its newline.

    :raises ValueError: when the value is over 64 KiB of JSON.
    """
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    if len(text) > MAX_BYTES:
        raise ValueError(f"a {kind} of {len(text):,} bytes does not fit a marked line of {MAX_BYTES:,}")
    return f"{MARK} {kind} {nonce} {len(text)} {hashlib.sha256(text.encode()).hexdigest()} {text}"


def decode_line(line: str, nonce: str) -> tuple[LineKind, Any] | None:
    """What a line says; None for any other text, another attempt's line or a damaged one."""
    parts = line.rstrip("\n").split(" ", 5)
    if (
        len(parts) != 6
        or parts[0] != MARK
        or parts[2] != nonce
        or parts[1] not in ("report", "error", "progress")
    ):
        return None
    _, kind, _, length, digest, text = parts
    if str(len(text)) != length or hashlib.sha256(text.encode()).hexdigest() != digest:
        return None
    return kind, json.loads(text)  # type: ignore[return-value]
