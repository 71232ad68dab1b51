"""The weakest effect that is right for what two observations differ in. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_raydatallm.contract.spec.field import Affects
from tests.support.effects.observation import Observation


def needed(first: Observation, second: Observation) -> tuple[Affects, str]:
    """Returns the effect, and what shows it. Rows that have failed in one of them tell nothing: they have no
    answer that could be taken for another."""
    # The answer cache knows a request by its text.
    for request, one, other in _both(first.asked, second.asked):
        if one != other:
            return Affects.ANSWERS, f"the model gets for {request:.200}:\n  {one!r:.600}\n  {other!r:.600}"
    # A run takes over rows of another, which it knows by the ids of units.
    for row, one, other in _both(first.rows, second.rows):
        if repr(one) != repr(other):
            return Affects.ROWS, f"row {row} reads {one!r:.300} and {other!r:.300}"
    for name in ("requests", "stored"):
        for row, one, other in _both(getattr(first, name), getattr(second, name)):
            if repr(one) != repr(other):
                return Affects.REQUEST, f"{name} of row {row}: {one!r:.300} and {other!r:.300}"
    of_same = first.requests == second.requests and first.shared and second.shared
    if of_same and first.shared != second.shared:
        return Affects.REQUEST, f"rows share answers: {first.shared} and {second.shared}"
    # A slice is known by its place, and the files by their listing.
    is_same = (first.place, first.input) == (second.place, second.input)
    is_published = None not in (first.schema, second.schema)
    if is_same and is_published:
        if first.schema != second.schema:
            return Affects.PUBLISHED, f"the columns {first.schema} and {second.schema}"
        if first.rows.keys() != second.rows.keys():
            return Affects.PUBLISHED, f"{len(first.rows)} rows and {len(second.rows)} others"
        for row, one, other in _both(first.published, second.published):
            if repr(one) != repr(other):
                return Affects.PUBLISHED, f"published of row {row}: {one!r:.300} and {other!r:.300}"
    if first.input != second.input or (is_published and first.rows.keys() != second.rows.keys()):
        return Affects.INPUT, "other files, or other rows of them"
    return Affects.NOTHING, "nothing differs"


def _both(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    return ((key, first[key], second[key]) for key in first.keys() & second.keys())
