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


def progress_text(progress: dict[str, Any]) -> str:
    """A line for people: `answering: 1,280 of 4,000 rows (32%), 210 rows/s, 9,700 tokens/s, 13 s left`."""
    if progress.get("step") == "queued":
        return f"queued: {waiting_text(progress)}"
    parts = []
    if progress.get("planned"):
        share = progress["rows"] / progress["planned"]
        parts.append(f"{progress['rows']:,} of {progress['planned']:,} rows ({share:.0%})")
    if progress.get("rows") and progress.get("rows_per_s"):
        parts.append(f"{progress['rows_per_s']:,.0f} rows/s, {progress['tokens_per_s'] or 0:,.0f} tokens/s")
        if progress["eta_s"]:
            parts.append(f"{progress['eta_s']:,.0f} s left")
    if (progress.get("late_s") or 0) > 0:
        needed = progress["workers_needed"]
        would = f" ({needed:,} workers would be in time)" if needed else ""
        parts.append(f"{progress['late_s']:,} s later than finish_by{would}")
    steps = {
        "plan": "planning",
        "check": "checking",
        "start": "starting the engine",
        "answer": "answering",
        "publish": "publishing",
        "failed": f"failed ({progress.get('error')})",
        "attach": f"waiting for {progress.get('holder')}, which is at work on this slice",
    }
    step = steps.get(str(progress.get("step")), str(progress.get("step")))
    return f"{step}: {', '.join(parts)}" if parts else step


def waiting_text(waiting: dict[str, Any]) -> str:
    """`waited 95 s for 4 GPUs and 9 CPUs at once, 2 GPUs and 30 CPUs are free, behind s3://...`."""

    def amounts(of: dict[str, float]) -> str:
        # GPUs first: they are what is scarce.
        return " and ".join(f"{of[name]:,g} {name}s" for name in sorted(of, reverse=True)) or "its turn"

    ahead = list(waiting["ahead"])
    others = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
    free = f" at once, {amounts(waiting['free'])} are free" if waiting["free"] else ""
    return f"waited {waiting['waited_s']:,.0f} s for {amounts(waiting['needs'])}{free}" + (
        f", behind {ahead[0]}{others}" if ahead else ""
    )
