"""Summarizes in a line or two why rows failed."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.processor.columns import ERROR_FIELDS, users_function, users_line
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.fragment_reader import FragmentReader
from airflow_provider_raydatallm.processor.store.ledger import Fragments, MissingRows
from airflow_provider_raydatallm.processor.store.spans import Spans

#: Fragments that are read for examples: an error that fails a slice is in each of them.
_SAMPLED_FRAGMENTS = 20


class Summary(NamedTuple):
    """:ivar reasons: how many rows have each type of error, among those that were looked at.
    :ivar examples: the first error of each kind, which may quote its row.
    :ivar frames: lines of the user's own code that raised the examples.
    :ivar place: of the first example.
    """

    reasons: Counter[str]
    examples: tuple[str, ...]
    frames: tuple[str, ...]
    place: Place


def summarize_quarantine(
    store: Store, folder: str, plan: Plan, failed: Fragments, rows: MissingRows
) -> Summary:
    """Counts the kinds of errors, with the first row of each.

    :param rows: those that count: others that failed were answered since, or are to be asked again.
    """
    spans_of = dict(rows)
    index = {u.id: i for i, u in enumerate(plan.units)}
    sample = failed.filter(np.arange(len(failed)) < _SAMPLED_FRAGMENTS)
    [pieces] = sample.divide([range(len(plan.units))], len(plan.units))
    reader = FragmentReader(store, folder, pieces, index, ERROR_FIELDS)
    errors: dict[tuple[int, int], tuple[str, str]] = {}
    ranges = pieces.ranges
    for unit, start, stop in sorted({*zip(*(c.tolist() for c in vars(ranges).values()), strict=True)}):
        if unit not in spans_of:
            continue
        try:
            offsets, table = reader.window(unit, start, stop)
        except CorruptFileError:  # another one will do
            continue
        counts = _lie_in(offsets, spans_of[unit])
        found = zip(*(column.to_pylist() for column in table.filter(pa.array(counts)).columns), strict=True)
        errors |= {(unit, int(at)): error for at, error in zip(offsets[counts], found, strict=True)}
    errors = {row: (_with_function(kind, error), error) for row, (kind, error) in errors.items()}
    kinds = Counter(kind for kind, _ in errors.values())
    examples: dict[str, str] = {}
    lines: dict[str, str | None] = {}
    places: dict[str, Place] = {}
    for (unit, offset), (kind, error) in errors.items():
        type_name = kind.partition(" in ")[0]
        why = error if error.startswith(type_name) else f"{type_name}: {error}"
        examples.setdefault(kind, f"{plan.locate(unit, offset)}: {why}")
        lines.setdefault(kind, users_line(error))
        places.setdefault(kind, plan.place_in(plan.units[unit], offset))
    most = kinds.most_common(3)
    return Summary(
        kinds,
        tuple(examples[kind] for kind, _ in most),
        tuple(dict.fromkeys(f"at {line}" for kind, _ in most if (line := lines[kind]))),
        places[most[0][0]] if most else Place(),
    )


def _with_function(kind: str, error: str) -> str:
    """An error's type, and the user's function that raised it: `KeyError in postprocess`."""
    function = users_function(error)
    return kind if function is None else f"{kind} in {function}"


def _lie_in(offsets: np.ndarray, spans: Spans) -> np.ndarray:
    starts, stops = spans.T
    span = np.searchsorted(starts, offsets, side="right") - 1
    is_inside: np.ndarray = (span >= 0) & (offsets < stops[span])
    return is_inside
