"""Sets of rows as spans, which are arrays with a row (start, stop) for each half-open range of numbers.

All of it is one question: which numbers do so many spans cover? One of them makes a union, two of them the
intersection of two unions. Results are sorted, and neither overlap nor touch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Spans = np.ndarray[Any, np.dtype[np.integer[Any]]]


def covered_at_least(spans: Spans, times: int) -> Spans:
    """What at least `times` of the spans cover."""
    # So many of them cover a number x when the starts up to x are that many more than the stops up to x. So
    # each start, from the `times`-th on, opens a range up to the stop that is so many places before its own.
    # A stable sort (timsort) uses that the spans are several sorted ones after another, as they mostly are.
    starts, stops = (np.sort(column, kind="stable") for column in spans.T)
    starts, stops = starts[times - 1 :], stops[: max(0, len(spans) - times + 1)]
    some = starts < stops
    starts, stops = starts[some], stops[some]
    is_new = np.ones(len(starts) + 1, bool)
    np.greater(starts[1:], stops[:-1], out=is_new[1:-1])
    return np.column_stack([starts[is_new[:-1]], stops[is_new[1:]]])


def merge_spans(spans: Spans) -> Spans:
    return covered_at_least(spans, 1)


def intersect(one: Spans, other: Spans) -> Spans:
    """:param one, other: without overlaps each."""
    if not len(other):
        return other
    return covered_at_least(np.concatenate([one, other]), 2)


def subtract(spans: Spans, taken: Spans) -> Spans:
    """:param spans, taken: as this module returns them."""
    if not len(taken):
        return spans
    limits = np.iinfo(spans.dtype)
    edges = np.concatenate([[limits.min], taken.ravel(), [limits.max]]).astype(spans.dtype)
    return intersect(spans, edges.reshape(-1, 2))


def count_rows(spans: Spans) -> int:
    return int((spans[:, 1] - spans[:, 0]).sum(dtype=np.int64))
