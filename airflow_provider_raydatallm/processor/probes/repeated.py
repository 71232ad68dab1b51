"""Repeated rows: random ones of the slice, asked once more. Those that have another answer then were left to
chance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.contract.result.probes import RepeatFigures
from airflow_provider_raydatallm.processor.inference.ray_cluster import InferencePlan
from airflow_provider_raydatallm.processor.input.listing import short_hash
from airflow_provider_raydatallm.processor.probes.base import Answered, Probe, Tokens, beside_answers
from airflow_provider_raydatallm.processor.probes.sample import all_but, by_unit, sample_rows
from airflow_provider_raydatallm.processor.probes.statistics import wilson_interval

#: By which numbers may differ that a model computes, rather than writes.
_TOLERANCE = 1e-3
#: Rows between the first and the last that are read at once.
_WINDOW = 8192


@dataclass(frozen=True, kw_only=True)
class RepeatedRows(Probe):
    """
    :ivar positions: of the rows, counted over the plan's units.
    """

    name = "repeat"
    positions: np.ndarray

    @classmethod
    def find(cls, inference: InferencePlan) -> RepeatedRows | None:
        asked, plan = inference.job.quality.repeat, inference.plan
        if asked is None:
            return None
        # Of a share as it is written: 0.07 * 100 is above 7.
        rows = math.ceil(Decimal(str(asked)) * plan.rows) if asked < 1 else int(asked)
        positions = sample_rows(plan, rows)
        return cls(
            inference=replace(inference, builder=inference.builder.asking_again()),
            hash=short_hash(asked),
            unasked=all_but(plan, positions),
            positions=positions,
        )

    def figures(self, answered: Answered, of_slice: Answered) -> RepeatFigures:
        tokens = Tokens()
        tokens.add_all(answered)
        once, again = (self._answers(*compared) for compared in self._compared(of_slice, answered))
        # Numbers that are computed differ with the rows that are computed beside them.
        tolerance = 0.0 if self.inference.job.task.draws else _TOLERANCE
        pairs = zip(once, again, strict=True)
        rows, differing = len(self.positions), sum(not _is_same(*pair, tolerance) for pair in pairs)
        low, high = wilson_interval(differing, rows)
        return RepeatFigures(
            hash=self.hash,
            rows=rows,
            differing=differing,
            share=differing / rows,
            low=low,
            high=high,
            tokens=tokens.total(),
        )

    def _compared(self, *both: Answered) -> Iterator[tuple[Answered, list[pa.Field]]]:
        """Yields each with the columns that are compared, of its own types."""
        beside, fields = beside_answers(self.inference.job), self.inference.shape.fields
        of_each = [{f.name: f for f in fields} if fields is not None else one.fields() for one in both]
        of_all = {name: field for fields in reversed(of_each) for name, field in fields.items()}
        names = sorted(of_all.keys() - beside)
        for one, own in zip(both, of_each, strict=True):
            yield one, [own.get(name, of_all[name]) for name in names]

    def _answers(self, answered: Answered, fields: Sequence[pa.Field]) -> Iterator[dict[str, Any] | None]:
        """Yields the answer to each row; None for one that failed."""
        reader = answered.reader(answered.ledger.rows, fields)
        for unit, offsets in by_unit(self.plan, self.positions).items():
            for some in np.split(offsets, np.flatnonzero(np.diff(offsets // _WINDOW)) + 1):
                found, table = reader.window(unit, int(some[0]), int(some[-1]) + 1)
                is_wanted = np.isin(found, some)
                rows = table.filter(pa.array(is_wanted)).to_pylist()
                answers = dict(zip(found[is_wanted].tolist(), rows, strict=True))
                yield from map(answers.get, some.tolist())


def _is_same(one: Any, other: Any, tolerance: float) -> bool:
    """:param tolerance: by which fractions may differ."""
    if isinstance(one, float) and isinstance(other, float):
        return (
            one == other
            or math.isclose(one, other, rel_tol=0, abs_tol=tolerance)
            or (one != one and other != other)
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other, repeat(tolerance)))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key], tolerance) for key in one)
    return bool(one == other)
