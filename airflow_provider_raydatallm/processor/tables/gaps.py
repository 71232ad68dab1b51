"""Which slices of a range of days or hours a table lacks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable
from typing import Literal

from airflow_provider_raydatallm.contract.spec.source import SLICE_FORMAT, check_slice_format

Every = Literal["day", "hour"]

_STEPS = {"day": dt.timedelta(days=1), "hour": dt.timedelta(hours=1)}


def expected_keys(
    first: str, last: str, every: Every, key_format: str | None = None, timezone: dt.tzinfo | None = None
) -> list[str]:
    """Returns the keys from the first to the last day or hour, both included; a week's or month's once.

    :param first: in the timezone, unless it has an offset, which is then the last one's, too.
    :param key_format: of `strftime`; by default `2026-01-31`, or `2026-01-31T05` for hours.
    :param timezone: of the keys; by default that of `first`, or UTC.
    :raises ValueError: when they are no dates, the last comes before the first, or all keys would be one.
    """
    at, end = _date(first), _date(last)
    at = at.replace(tzinfo=at.tzinfo or timezone or dt.UTC)  # which `%z` of a key's format writes
    end = end.replace(tzinfo=end.tzinfo or at.tzinfo)
    if every == "hour" and len(last) <= len("2026-01-31"):
        end += dt.timedelta(hours=23)
    if end < at:
        raise ValueError(f"the last slice ({last}) comes before the first one ({first})")
    key_format = check_slice_format(key_format or (SLICE_FORMAT if every == "day" else "%Y-%m-%dT%H"))
    timezone = timezone or at.tzinfo
    if every == "hour":  # hours pass everywhere alike, and days by the clock of a timezone
        at, end = at.astimezone(dt.UTC), end.astimezone(dt.UTC)
    else:
        at, end = at.astimezone(timezone), end.astimezone(timezone)
    instants = (at + n * _STEPS[every] for n in range((end - at) // _STEPS[every] + 1))
    return list(dict.fromkeys(instant.astimezone(timezone).strftime(key_format) for instant in instants))


def _date(text: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError as e:
        raise ValueError(f"{text!r} is no date such as 2026-01-31 or 2026-01-31T05: {e}") from None


def missing_keys(published: Collection[str], expected: Iterable[str]) -> list[str]:
    return [key for key in expected if key not in published]
