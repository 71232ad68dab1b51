"""Makes lines of a Ray job's log into entries of a task's log. Pure.

The lines come from the cluster, so they are escaped: none can end a fold of Airflow's, overwrite another line
or colour what follows.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

from airflow_provider_raydatallm.contract.log.own_lines import parse_line
from airflow_provider_raydatallm.contract.log.plain_text import plain_text, short_paths
from airflow_provider_raydatallm.contract.log.secret_shapes import without_secrets

_MAX_CHARACTERS = 2000
#: What is read of a line: escape codes take room, too.
_MAX_READ = 4 * _MAX_CHARACTERS
#: Airflow folds what lies between `::group::NAME` and `::endgroup::`, wherever in a line they stand.
_FOLD = re.compile(r"::(?=(?:end)?group::)")
#: What Ray and vLLM put before the lines of a job's other processes.
_PROCESS = re.compile(r"^(?:\([^()\n]{0,200}\bpid=\d{1,10}[^()\n]{0,200}\)\s)+")
#: The level as Python's, Ray's, vLLM's and torch's loggers write it.
_LEVEL = re.compile(
    r"(?:\d{4}-\d\d-\d\d [\d:,.]+\s+)?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b"
    r"|\[(?:\d{4}-[^\]]*? )?([IWEF])[\d ]"
)
_LETTERS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
#: Progress bars, and the command line that Ray prints first.
_CHATTER = re.compile(
    r".*(?:\d%\||\bit/s\b|s/it\b|\d% Completed \|)|Running entrypoint for job |Job has not started yet\.|\s*$"
)


class LogEntry(NamedTuple):
    """`level`: a number of `logging`."""

    level: int
    text: str


def clean(text: str) -> str:
    """Escapes a text from the cluster, but for tabs and newlines, masks what looks like a secret, and cuts
    its lines to 2,000 characters."""
    lines = []
    for line in text.split("\n"):
        plain = _FOLD.sub(
            ": :", without_secrets(short_paths(plain_text(line[:_MAX_READ].removesuffix("\r"))))
        )
        lines.append(plain if len(plain) <= _MAX_CHARACTERS else f"{plain[:_MAX_CHARACTERS]} ...")
    return "\n".join(lines)


def own_entry(line: str) -> LogEntry | None:
    """Returns None for a line that is not the provider's."""
    own = parse_line(_PROCESS.sub("", plain_text(line[:_MAX_READ].removesuffix("\r"))))
    return LogEntry(logging.getLevelNamesMapping()[own.level], clean(own.text)) if own else None


def entry_of(line: str) -> LogEntry:
    """Any line, with the level that it has in the job's log; without one it is information."""
    if own := own_entry(line):
        return own
    text = clean(line)
    return LogEntry(_level_of(text) or logging.INFO, text)


def may_explain_failure(text: str) -> bool:
    """Whether a clean line may tell why a job failed: an error, part of a traceback, a print."""
    if own_entry(text) is not None or _CHATTER.match(plain := _PROCESS.sub("", text)):
        return False
    level = _level_of(plain)
    return level is None or level >= logging.ERROR


def _level_of(text: str) -> int | None:
    match = _LEVEL.match(_PROCESS.sub("", text))
    return logging.getLevelNamesMapping()[match[1] or _LETTERS[match[2]]] if match else None
