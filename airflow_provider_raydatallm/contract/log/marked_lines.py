"""Marked lines in a Ray job's log: the driver's messages to the Airflow side, which cannot read the store.

A line is `@ray-llm KIND NONCE LENGTH SHA256 JSON`. The nonce identifies the attempt, so that lines of another
attempt, a worker or a user's print are ignored; length and hash reveal lines that are cut or mixed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any, Literal

from airflow_provider_raydatallm.contract.log.redaction import Redactor

LineKind = Literal["report", "error", "progress"]

MARK = "@ray-llm"
MAX_BYTES = 64 * 1024


def encode_line(kind: LineKind, nonce: str, value: Any) -> str:
    """Returns a line without its newline.

    :raises ValueError: when the value is over 64 KiB of JSON.
    """
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    if len(text) > MAX_BYTES:
        raise ValueError(f"a {kind} of {len(text):,} bytes does not fit a marked line of {MAX_BYTES:,}")
    return f"{MARK} {kind} {nonce} {len(text)} {hashlib.sha256(text.encode()).hexdigest()} {text}"


def decode_line(line: str, nonce: str) -> tuple[LineKind, Any] | None:
    """Returns None for any other text, another attempt's line or a damaged one."""
    match line.rstrip("\n").split(" ", 5):
        case [mark, ("report" | "error" | "progress") as kind, owner, length, digest, text] if (
            mark,
            owner,
            length,
        ) == (MARK, nonce, str(len(text))) and hashlib.sha256(text.encode()).hexdigest() == digest:
            # A job's other code may print such a line, too.
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(text)
                if value is None or isinstance(value, dict):
                    return kind, value
    return None


def redact_line(line: str, redactor: Redactor) -> str:
    """Redacts any line of a job; of a marked line its value, so that its length and hash still fit."""
    redacted = redactor.text(line)
    words = line.split(" ", 3)
    if redacted == line or words[0] != MARK or len(words) < 4:
        return redacted
    nonce = words[2]
    message = decode_line(line, nonce)
    return redacted if message is None else encode_line(message[0], nonce, redactor.value(message[1]))
