"""What is wrong with an input's files, as it is told."""

from __future__ import annotations

import re
from typing import NamedTuple

_COLUMN = re.compile(
    r"""(?:Row #\d+: )?(?:(?:column|field) (?:'(?P<one>[^']*)'|"(?P<other>[^"]*)"): )?(?:Row #\d+: )?"""
)


class Refusal(NamedTuple):
    """Why a file, or a column, is not read as it is, and what to do."""

    why: str
    advice: str


def split_column(problem: str) -> tuple[str | None, str]:
    """Divides a parser's error into the column that it names first and the rest, which may quote a row."""
    match = _COLUMN.match(problem)
    assert match is not None
    return match["one"] or match["other"], problem[match.end() :]
