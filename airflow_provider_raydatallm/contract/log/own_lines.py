"""The Ray side's messages for people, as lines of a Ray job's log: `DATE TIME LEVEL ray-llm [SLICE] TEXT`.

They are what a task's log shows of a job's log; the other lines are Ray's, vLLM's or the user's own.
"""

from __future__ import annotations

import re
import time
from typing import NamedTuple

from airflow_provider_raydatallm.contract.log.plain_text import plain_lines, plain_text

_LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (DEBUG|INFO|WARNING|ERROR|CRITICAL) ray-llm \[.*?\] (.*)", re.DOTALL
)


class OwnLine(NamedTuple):
    level: str
    text: str


def format_lines(level: str, slice_key: str, text: str, now: float) -> str:
    """Returns a line for each line of the text. `now`: epoch seconds."""
    key = plain_text(slice_key).replace("] ", "]")  # else it would end there
    start = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))} {level} ray-llm [{key}] "
    return "\n".join(start + line for line in plain_lines(text))


def parse_line(line: str) -> OwnLine | None:
    """Returns None for a line that is not the provider's."""
    match = _LINE.match(line)
    return OwnLine(match[1], match[2]) if match else None
