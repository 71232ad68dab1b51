"""Chooses random rows of a plan: the same ones in each run."""

from __future__ import annotations

import numpy as np

from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.store.ledger import Fragments, RowRanges


def sample_rows(plan: Plan, rows: int) -> np.ndarray:
    """Returns the sorted positions of so many rows, or of all, counted over the units."""
    count = min(rows, plan.rows)
    # Of the input alone: a retry asks no other rows.
    chosen = np.random.default_rng(int(plan.input_hash, 16)).choice(plan.rows, count, replace=False)
    return np.sort(chosen)


def all_but(plan: Plan, positions: np.ndarray) -> Fragments:
    """Returns the other rows, as if a fragment held them.

    :param positions: of `sample_rows`.
    """
    starts = np.cumsum([0, *(unit.rows for unit in plan.units)])
    # Gaps lie between chosen rows and the ends of units.
    cuts = np.unique(np.concatenate([positions, positions + 1, starts]))
    begins, ends = cuts[:-1], cuts[1:]
    is_gap = ~np.isin(begins, positions)
    begins, ends = begins[is_gap], ends[is_gap]
    units = np.searchsorted(starts, begins, "right") - 1
    ranges = RowRanges(
        *(column.astype(np.int32) for column in (units, begins - starts[units], ends - starts[units]))
    )
    return Fragments([""], np.zeros(1, np.int64), np.zeros(1, bool), ranges, np.array([len(units)]))


def by_unit(plan: Plan, positions: np.ndarray) -> dict[int, np.ndarray]:
    """Returns their offsets in each unit that has any."""
    starts = np.cumsum([0, *(unit.rows for unit in plan.units)])
    units = np.searchsorted(starts, positions, "right") - 1
    return {int(unit): positions[units == unit] - starts[unit] for unit in np.unique(units)}
