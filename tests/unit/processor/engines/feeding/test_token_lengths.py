from __future__ import annotations

import numpy as np

from airflow_provider_raydatallm.processor.engines.feeding.token_lengths import sample_rows
from airflow_provider_raydatallm.processor.store.ledger import MissingRows
from airflow_provider_raydatallm.processor.store.spans import count_rows


def missing(*units: list[tuple[int, int]]) -> MissingRows:
    """:param units: the spans of each."""
    ends = np.cumsum([len(spans) for spans in units])
    return MissingRows(np.arange(len(units)), ends, np.concatenate(units))


def test_sample_is_of_the_whole_slice() -> None:
    chosen = sample_rows(missing(*[[(0, 1000)]] * 31))
    assert [index for index, _ in chosen] == [i * 31 // 16 for i in range(16)]
    # Large units give more of the rows.
    large, small = sample_rows(missing([(0, 9000)], [(0, 1000)]))
    assert [round(count_rows(spans), -2) for _, spans in (large, small)] == [900, 100]
    # Runs go on in the next span.
    [(_, spans)] = sample_rows(missing([(i, i + 1) for i in range(0, 8000, 2)]))
    assert count_rows(spans) == 1000
    assert spans[[0, 124, 125, -1], 0].tolist() == [0, 248, 1000, 7248]
