"""What a model is told about its invalid answers when a row is asked again: each one, and what is wrong."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from airflow_provider_raydatallm.contract.result.errors import log_text
from airflow_provider_raydatallm.processor.columns import SAID_FIELDS, SPENT_FIELDS
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.fragment_reader import FragmentReader
from airflow_provider_raydatallm.processor.store.ledger import Fragments, Pieces

logger = logging.getLogger(__name__)

_CORRECTION = "Your answer {problem}.\nCorrect it, and write nothing but the corrected answer."


class Attempt(NamedTuple):
    answer: str | None
    problem: str


@dataclass(frozen=True)
class Feedback:
    """The invalid answers of rows, from a checkpoint's fragments. Picklable.

    :param pieces: where the answers to the rows of some units are.
    :param units: the ids of these units, by their index in the plan.
    """

    url: str
    folder: str
    pieces: Pieces
    units: Mapping[int, str]

    @classmethod
    def of(cls, url: str, folder: str, plan: Plan, invalid: Fragments) -> Feedback:
        units = [unit for unit in np.unique(invalid.ranges.units).tolist() if unit >= 0]
        [pieces] = invalid.divide([units], len(plan.units))
        return cls(url, folder, pieces, {unit: plan.units[unit].id for unit in units})

    def window(self, index: int, start: int, stop: int) -> dict[int, list[Attempt]]:
        """The answers to the rows in `[start, stop)` of a unit, by offset, in the order of the attempts."""
        attempts: dict[int, list[Attempt]] = {}
        if index not in self.units:
            return attempts
        try:
            offsets, answers = self._reader.window([*self.units].index(index), start, stop, every=True)
        except CorruptFileError as e:  # publishing sets it aside
            logger.warning("rows with invalid answers are asked from the start: %s", log_text(e))
            return attempts
        order = np.argsort(answers.column("finished_at").fill_null(0).to_numpy(), kind="stable")
        said = zip(*(answers.column(f.name).take(order).to_pylist() for f in SAID_FIELDS), strict=True)
        for offset, attempt in zip(offsets[order].tolist(), said, strict=True):
            attempts.setdefault(offset, []).append(Attempt(*attempt))
        return attempts

    @cached_property
    def _reader(self) -> FragmentReader:
        places = {unit_id: place for place, unit_id in enumerate(self.units.values())}
        fields = [*SAID_FIELDS, *SPENT_FIELDS]
        return FragmentReader(Store(self.url), self.folder, self.pieces, places, fields)


def with_feedback(request: dict[str, Any], attempts: Sequence[Attempt]) -> dict[str, Any]:
    """The request, with the conversation gone on: it said this, and that is wrong with it. With the last
    attempt alone, a model that repeats its answer would be asked the same once more.

    These turns count as the row's text (`RequestBuilder`): a model may repeat what a row told it to.
    """
    turns = [
        turn
        for attempt in attempts
        for turn in (
            {"role": "assistant", "content": attempt.answer or ""},
            {"role": "user", "content": _CORRECTION.format(problem=attempt.problem)},
        )
    ]
    longer = {**request, "messages": [*request["messages"], *turns]}
    if "cells" in request:
        longer["cells"] = [*request["cells"], *([(0, len(turn["content"]))] for turn in turns)]
    return longer
