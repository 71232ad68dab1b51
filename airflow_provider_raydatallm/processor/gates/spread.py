"""Statistics of numbers that are counted by their values. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from math import inf, log, nextafter

_PARTS = 10
#: Counts in each part beside its rows: one without a row would be infinitely far away.
_PRIOR_ROWS = 0.5


def median(counted: Mapping[float, int]) -> float | None:
    """
    :param counted: rows by their values.
    """
    return _quantiles(counted, 2)[0] if counted else None


def stability_index(now: Mapping[float, int], then: Mapping[float, int]) -> float:
    """Returns the population stability index: the sum of `(p - q) * log(p / q)` over the shares `p` now and
    `q` then of the rows in each tenth of `then`. A value of a tenth of the rows has a part of its own.

    :param now, then: rows by their values, of which there are some.
    """
    frequent = sum(then.values()) / _PARTS
    below = {nextafter(value, -inf) for value, rows in then.items() if rows >= frequent}
    edges = sorted({*_quantiles(then, _PARTS), *below})
    shares, shares_then = _shares(now, edges), _shares(then, edges)
    return sum((p - q) * log(p / q) for p, q in zip(shares, shares_then, strict=True))


def _quantiles(counted: Mapping[float, int], parts: int) -> list[float]:
    """The largest value in each of so many parts of the rows but the last."""
    values = sorted(counted)
    up_to = list(accumulate(counted[value] for value in values))
    return [values[bisect_left(up_to, up_to[-1] * n / parts)] for n in range(1, parts)]


def _shares(counted: Mapping[float, int], edges: list[float]) -> list[float]:
    rows: Counter[int] = Counter()
    for value, count in counted.items():
        rows[bisect_left(edges, value)] += count
    parts = len(edges) + 1
    whole = rows.total() + parts * _PRIOR_ROWS
    return [(rows[part] + _PRIOR_ROWS) / whole for part in range(parts)]
