"""Prompts with `{column}` fields.

Braces around exactly a column's name are replaced. Braces around what looks like another name are an error.
All other braces (JSON examples) stay as they are: this is not `str.format`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import missing_column

#: Braces, with what is between them.
FIELD = re.compile(r"\{([^{}]*)\}")
_LOOKS_LIKE_A_NAME = re.compile(r"[\w .\-]*\w[\w .\-]*")

Row = Mapping[str, Any]


class Template:
    """A text with `{column}` fields, checked against the columns."""

    def __init__(
        self,
        text: str,
        columns: Sequence[str],
        *,
        argument: str = "prompt",
        lack: str = "the input does not have",
    ) -> None:
        """
        :param lack: who has the columns, for the error.
        :raises SliceError: when a field names no column; lists the columns.
        """
        self._parts: list[tuple[str, str | None]] = []  # (literal text, then the column that follows it)
        end = 0
        for match in FIELD.finditer(text):
            name = match.group(1)
            if name in columns:
                self._parts.append((text[end : match.start()], name))
                end = match.end()
            elif _LOOKS_LIKE_A_NAME.fullmatch(name):
                raise missing_column(
                    f"{argument} names the column {name!r}, which {lack}",
                    name,
                    columns,
                )
        self._parts.append((text[end:], None))

    @property
    def columns(self) -> list[str]:
        """Columns of the fields, in order of first use."""
        return list(dict.fromkeys(name for _, name in self._parts if name is not None))

    def render(self, row: Row) -> str:
        return self.render_with_cells(row)[0]

    def render_with_cells(self, row: Row) -> tuple[str, list[tuple[int, int]]]:
        """The text, and its parts that come from the row, as (start, stop)."""
        texts: list[str] = []
        cells: list[tuple[int, int]] = []
        length = 0
        for literal, name in self._parts:
            value = as_text(row[name]) if name is not None else ""
            texts += (literal, value)
            length += len(literal) + len(value)
            if value:
                cells.append((length - len(value), length))
        return "".join(texts), cells


def as_text(value: Any) -> str:
    """Formats a value for a prompt: nothing for null, JSON for lists, structs and maps, ISO for dates and
    times."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, ensure_ascii=False, default=as_text)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if isoformat is not None else str(value)
