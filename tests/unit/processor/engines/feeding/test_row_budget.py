"""How feeders share workers: every worker is full, and none overfull, whatever the numbers are."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_raydatallm.processor.engines.feeding.row_budget import RowBudget, workers_of_feeder


@pytest.mark.parametrize("feeders", [1, 2, 3, 8, 128])
@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64])
def test_each_ready_worker_is_used_and_the_budget_of_none_is_exceeded_or_half_empty(
    feeders: int, workers: int
) -> None:
    budget = RowBudget(2048, 8_000_000)
    rows: Counter[int] = Counter()
    for feeder in range(feeders):
        mine = workers_of_feeder(range(workers), feeder, feeders)
        share = budget.share(max(1, feeders * len(mine) / workers))
        rows.update(dict.fromkeys(mine, share.rows))
        assert len(set(mine)) == len(mine)
    assert set(rows) == set(range(workers))
    assert 2048 / 2 <= min(rows.values()) <= max(rows.values()) <= 2 * 2048


def test_feeder_uses_few_of_many_workers() -> None:
    assert all(len(workers_of_feeder(range(64), feeder, 128)) == 4 for feeder in range(128))


def test_no_worker_is_ready_yet() -> None:
    assert workers_of_feeder([], 3, 4) == []


def test_share_of_fixed_batches_is_at_least_one() -> None:
    assert RowBudget(100, 1000, 3).share(2) == RowBudget(50, 500, 2)
    assert RowBudget(100, 1000, 1).share(4).batches == 1


def test_share_of_one_row_is_one_row() -> None:
    assert RowBudget(1, 1).share(4) == RowBudget(1, 1)
