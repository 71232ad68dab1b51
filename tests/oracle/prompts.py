"""Whether a prompt's text says the value of its row: parsed back from the text, by rules of our own."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from tests.oracle.cells import MINUS_ZERO, NAN, UNKNOWN, Cell, Either

_EPOCH = dt.date(1970, 1, 1)
_TIME = r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?"
_INSTANT = re.compile(rf"(\d{{4}}-\d\d-\d\d)T{_TIME}(Z|[+-]\d\d:\d\d(?::\d\d)?)?")
_DELTA = re.compile(r"(?:(-?\d+) days?, )?(-?\d+):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_ISO_DELTA = re.compile(r"P(-?\d+)DT(\d+)H(\d+)M(\d+)(?:\.(\d{1,9}))?S")
#: Days of the first and last date that Python knows, and the longest duration.
_DAYS = (dt.date.min - _EPOCH).days, (dt.date.max - _EPOCH).days
_DAY_NS = 86_400 * 10**9
_LONGEST_NS = 999_999_999 * _DAY_NS


def says(text: str, cell: Cell) -> bool:
    """Whether a prompt's text is that value: nothing for null, JSON for lists, structs and maps, ISO for
    dates and times."""
    if cell is UNKNOWN:
        return True
    if cell is None:
        return text == ""
    if isinstance(cell, str):
        return text == cell
    if isinstance(cell, bytes):
        return text in (_decoded(cell), base64.b64encode(cell).decode())
    if isinstance(cell, tuple) and cell[0] in ("list", "struct", "map"):
        try:
            return _says_json(json.loads(text, parse_float=Decimal), cell)
        except ValueError:
            return False
    return _says_leaf(text, cell)


def _says_leaf(text: str, cell: Cell) -> bool:
    if isinstance(cell, tuple):
        if cell == NAN:
            return text.lower() == "nan"
        if cell == MINUS_ZERO:
            return text == "-0.0"
        kind, value = cell
        match kind:
            case "bool":
                return text.lower() == str(value).lower()
            case "uuid":
                return text.replace("-", "") == value.hex()
            case "date":
                return text == str(_EPOCH + dt.timedelta(days=value))
            case "time":
                found = re.fullmatch(_TIME, text)
                return found is not None and _day_ns(*found.groups()) == value
            case "local" | "instant":
                return _instant(text, kind) == value
            case "duration":
                return _duration(text) == value
        return False
    return _is_number(text, cell)


def _is_number(text: str, cell: Cell) -> bool:
    try:
        if isinstance(cell, Either):
            return Decimal(text) in cell.values or float(text) in cell.values
        is_float = isinstance(cell, float) or "e" in text or text.endswith(".0")
        return float(text) == cell if is_float else Decimal(text) == cell
    except (InvalidOperation, ValueError):
        return False


def _says_json(value: Any, cell: Cell) -> bool:
    if cell is None or value is None:
        return cell is None and value is None
    if isinstance(cell, tuple) and cell[0] == "list":
        return isinstance(value, list) and len(value) == len(cell[1]) and all(map(_says_json, value, cell[1]))
    if isinstance(cell, tuple) and cell[0] == "struct":
        named = dict(cell[1])
        return isinstance(value, dict) and named.keys() <= value.keys() and all(
            _says_json(v, named.get(name)) for name, v in value.items()
        )  # fmt: skip
    if isinstance(cell, tuple) and cell[0] == "map":
        if isinstance(value, dict):
            value = list(value.items())
        return isinstance(value, list) and len(value) == len(cell[1]) and all(
            _says_json(k, key) and _says_json(v, item)
            for (k, v), (key, item) in zip(value, cell[1], strict=True)
        )  # fmt: skip
    if isinstance(value, bool):
        return cell == ("bool", value)
    if isinstance(value, (int, float, Decimal)):
        return _says_leaf(str(value), cell)
    return isinstance(value, str) and says(value, cell)


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _day_ns(hours: str, minutes: str, seconds: str, fraction: str | None) -> int:
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 10**9 + int((fraction or "").ljust(9, "0"))


def _instant(text: str, kind: str) -> int | None:
    found = _INSTANT.fullmatch(text)
    if found is None:
        return None
    date, *time, zone = found.groups()
    ns = (dt.date.fromisoformat(date) - _EPOCH).days * _DAY_NS + _day_ns(*time)
    if (zone is None) != (kind == "local"):
        return None
    if zone in (None, "Z"):
        return ns
    hours, minutes, *seconds = (int(part) for part in zone[1:].split(":"))
    offset = (hours * 60 + minutes) * 60 + (seconds[0] if seconds else 0)
    return ns - (-offset if zone[0] == "-" else offset) * 10**9


def _duration(text: str) -> int | None:
    if (found := _ISO_DELTA.fullmatch(text)) or (found := _DELTA.fullmatch(text)):
        days, *time = found.groups()
    else:
        return None
    return int(days or 0) * _DAY_NS + _day_ns(*time)


def is_beyond_python(cell: Cell) -> bool:
    """Whether no Python value is that cell, or no text: such a row cannot be asked."""
    if not isinstance(cell, tuple):
        return False
    match cell[0]:
        case "invalid text":
            return True
        case "date":
            return not _DAYS[0] <= cell[1] <= _DAYS[1]
        case "local" | "instant":  # a zone may move it beyond what pandas holds, in nanoseconds
            near_limit = cell[0] == "instant" and 2**63 - _DAY_NS < abs(cell[1]) < 2**63
            return near_limit or not _DAYS[0] + 1 <= cell[1] // _DAY_NS <= _DAYS[1] - 1
        case "duration":
            return abs(cell[1]) > _LONGEST_NS
        case "list":
            return any(map(is_beyond_python, cell[1]))
        case "struct":
            return any(is_beyond_python(value) for _, value in cell[1])
        case "map":
            return any(is_beyond_python(k) or is_beyond_python(v) for k, v in cell[1])
    return False
