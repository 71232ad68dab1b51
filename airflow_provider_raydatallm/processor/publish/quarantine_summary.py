"""Summarizes in a line or two why rows failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from airflow_provider_raydatallm.processor.columns import ERROR_FIELDS
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.fragments import FragmentReader
from airflow_provider_raydatallm.processor.store.ledger import Fragment

#: Fragments that are read for examples: an error that fails a slice is in each of them.
_SAMPLED_FRAGMENTS = 20


def summarize_quarantine(store: Store, folder: str, plan: Plan, fragments: Sequence[Fragment]) -> str:
    """The kinds of errors with the first row of each: "12 KeyError, such as row 7 of a.csv: ..."."""
    index = {u.id: i for i, u in enumerate(plan.units)}
    failed = [f for f in fragments if f.kind == "failed"][:_SAMPLED_FRAGMENTS]
    reader = FragmentReader(store, folder, failed, index, ERROR_FIELDS)
    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    places = sorted({(index[r.unit], r.start, r.stop) for f in failed for r in f.ranges if r.unit in index})
    for unit, start, stop in places:
        try:
            offsets, table = reader.window(unit, start, stop)
        except CorruptFileError:  # another one will do
            continue
        for offset, kind, error in zip(offsets, *(c.to_pylist() for c in table.columns), strict=True):
            kinds[kind] += 1
            examples.setdefault(kind, f"{plan.locate(unit, int(offset))}: {kind}: {error}")
    return "; ".join(f"{n:,} {kind}, such as {examples[kind]}" for kind, n in kinds.most_common(3))
