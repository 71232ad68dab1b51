"""The statistics of probes. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from airflow_provider_raydatallm.contract.result.probes import MOST_CONFUSIONS, Confusion

#: Of the normal distribution: 95% lie so many standard deviations around the mean.
_Z = 1.959963984540054
_BINS = 10


def wilson_interval(correct: int, rows: int) -> tuple[float, float]:
    """Returns Wilson's interval of a share, with a confidence of 95%, to four digits."""
    if not rows:
        return 0.0, 1.0
    share, z2 = correct / rows, _Z * _Z
    middle = (share + z2 / (2 * rows)) / (1 + z2 / rows)
    half = _Z / (1 + z2 / rows) * math.sqrt(share * (1 - share) / rows + z2 / (4 * rows * rows))
    return round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4)


def calibration_error(confidences: Sequence[float], are_right: Sequence[bool]) -> float | None:
    """Returns the expected calibration error: in each bin, how far the mean probability is from the share
    that is right, weighted by its rows. None where there are no rows."""
    if not len(confidences):
        return None
    probabilities, right = np.asarray(confidences, float), np.asarray(are_right, float)
    bins = np.minimum((probabilities * _BINS).astype(int), _BINS - 1)
    sums, hits = (np.bincount(bins, weights, _BINS) for weights in (probabilities, right))
    return min(1.0, round(float(np.abs(sums - hits).sum() / len(probabilities)), 4))


def confusions(pairs: Iterable[tuple[str, str | None]]) -> tuple[Confusion, ...]:
    """Returns the most frequent mistakes, those first.

    :param pairs: of each row, the right label and the answered one.
    """
    counts = Counter(pair for pair in pairs if pair[0] != pair[1])
    most = sorted(counts.items(), key=lambda one: (-one[1], one[0][0], one[0][1] or ""))[:MOST_CONFUSIONS]
    return tuple(Confusion(expected=e, answered=a, rows=rows) for (e, a), rows in most)
