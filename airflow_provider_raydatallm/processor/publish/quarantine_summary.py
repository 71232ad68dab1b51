"""Summarizes in a line or two why rows failed."""

from __future__ import annotations

from collections import Counter

import numpy as np

from airflow_provider_raydatallm.processor.columns import ERROR_FIELDS
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.fragment_reader import FragmentReader
from airflow_provider_raydatallm.processor.store.ledger import Fragments

#: Fragments that are read for examples: an error that fails a slice is in each of them.
_SAMPLED_FRAGMENTS = 20


def summarize_quarantine(store: Store, folder: str, plan: Plan, failed: Fragments) -> str:
    """The kinds of errors with the first row of each: "12 KeyError, such as row 7 of a.csv: ..."."""
    index = {u.id: i for i, u in enumerate(plan.units)}
    sample = failed.filter(np.arange(len(failed)) < _SAMPLED_FRAGMENTS)
    [pieces] = sample.divide([range(len(plan.units))], len(plan.units))
    reader = FragmentReader(store, folder, pieces, index, ERROR_FIELDS)
    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    ranges = pieces.ranges
    for unit, start, stop in sorted({*zip(*(c.tolist() for c in vars(ranges).values()), strict=True)}):
        try:
            offsets, table = reader.window(unit, start, stop)
        except CorruptFileError:  # another one will do
            continue
        for offset, kind, error in zip(offsets, *(c.to_pylist() for c in table.columns), strict=True):
            kinds[kind] += 1
            examples.setdefault(kind, f"{plan.locate(unit, int(offset))}: {kind}: {error}")
    return "; ".join(f"{n:,} {kind}, such as {examples[kind]}" for kind, n in kinds.most_common(3))
