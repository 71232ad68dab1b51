"""What a model is told about its invalid answer when a row is asked again: the answer, and what is wrong."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_provider_raydatallm.processor.columns import ERROR_FIELDS, SAID_FIELDS, SPENT_FIELDS
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.fragment_reader import FragmentReader, last_failures
from airflow_provider_raydatallm.processor.store.ledger import Fragments, Pieces

logger = logging.getLogger(__name__)

_CORRECTION = (
    "Your answer {problem}.\n"
    "Answer the same again, corrected. Write nothing but the answer: no apology and no explanation."
)


@dataclass(frozen=True)
class Feedback:
    """The last invalid answers of rows, from a checkpoint's fragments. Picklable.

    :param pieces: where the answers to the rows of a unit are, by the unit's index; `unit_ids`, its id.
    """

    url: str
    folder: str
    pieces: Mapping[int, Pieces]
    unit_ids: Mapping[int, str]

    @classmethod
    def of(cls, url: str, folder: str, plan: Plan, invalid: Fragments) -> Feedback:
        units = sorted({unit for unit in invalid.ranges.units.tolist() if unit >= 0})
        pieces = invalid.divide([[unit] for unit in units], len(plan.units))
        ids = {unit: plan.units[unit].id for unit in units}
        return cls(url, folder, dict(zip(units, pieces, strict=True)), ids)

    def window(self, index: int, start: int, stop: int) -> dict[int, tuple[str, str]]:
        """The answers to the rows in `[start, stop)` of a unit, with what is wrong, by offset."""
        if index not in self.pieces:
            return {}
        reader = FragmentReader(
            self._store, self.folder, self.pieces[index], {self.unit_ids[index]: 0}, _FIELDS
        )
        try:
            offsets, answers = last_failures(*reader.window(0, start, stop, every=True))
        except CorruptFileError as e:  # publishing sets it aside
            logger.warning("rows with invalid answers are asked from the start: %s", e)
            return {}
        said = zip(*(answers.column(f.name).to_pylist() for f in SAID_FIELDS), strict=True)
        return dict(zip(offsets.tolist(), said, strict=True))

    @cached_property
    def _store(self) -> Store:
        return Store(self.url)


_FIELDS = [*ERROR_FIELDS, *SAID_FIELDS, *SPENT_FIELDS]


def with_feedback(request: dict[str, Any], answer: str | None, problem: str | None) -> dict[str, Any]:
    """The request, with the conversation gone on: it said this, and that is wrong with it.

    Both turns count as the row's text (`RequestBuilder`): a model may repeat what a row told it to.
    """
    turns = [
        {"role": "assistant", "content": answer or ""},
        {"role": "user", "content": _CORRECTION.format(problem=problem)},
    ]
    longer = {**request, "messages": [*request["messages"], *turns]}
    if "cells" in request:
        longer["cells"] = [*request["cells"], *([(0, len(turn["content"]))] for turn in turns)]
    return longer
