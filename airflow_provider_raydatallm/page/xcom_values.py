"""Values of XComs and kept states as texts, each read by itself: people may edit them."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import ColumnElement, String, case, cast, func, null


def text_if_short(value: Any, characters: int) -> ColumnElement[Any]:
    """A column's text; null where it is longer than anything that a task writes.

    The text is parsed row by row here (`parsed`): SQLAlchemy would fail all rows for one that is no JSON.

    :param characters: of the JSON. Databases may write each of them as six.
    """
    text = cast(value, String)
    return case((func.length(text) <= 6 * characters, text), else_=null())


def parsed(value: str | None) -> Any:
    """Both tables keep JSON, some versions of Airflow a text of it. What is neither stays a text."""
    found: Any = value
    for _ in range(2):
        try:
            found = json.loads(found) if isinstance(found, str) else found
        except (ValueError, RecursionError):
            break
    return found
