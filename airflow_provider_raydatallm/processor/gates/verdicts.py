"""Judges a slice by a gate. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from airflow_provider_raydatallm.contract.result.verdict import GateVerdict, Verdict
from airflow_provider_raydatallm.contract.spec.gate import Gate
from airflow_provider_raydatallm.processor.gates.facts import Facts
from airflow_provider_raydatallm.processor.gates.figures import figure_of

#: Earlier slices without which a change says nothing.
FEWEST_SLICES = 3
_STOPPED_BY: Mapping[str, Verdict] = {"warn": "warned", "fail": "failed", "hold": "held"}


def judge(gate: Gate, slice_: Facts, before: Sequence[Facts]) -> GateVerdict:
    """
    :param slice_: the one that is to be published.
    :param before: those before it, the nearest first.
    """
    figure, slices, value = figure_of(gate), None, None
    if gate.against is None:
        value = figure.of(slice_)
        # A row of which it is not known hides none of those that are too many already.
        if value is None and gate.max is not None and (least := figure.least(slice_)) > gate.max:
            value = least
    else:
        compared = [one for one in before[: gate.against] if figure.is_comparable(slice_, one)]
        slices = len(compared)
        if slices >= min(FEWEST_SLICES, gate.against) and figure.is_told_by(slice_):
            value = figure.against(slice_, compared)
    verdict: Verdict
    has_limit = gate.max is not None or gate.min is not None
    if gate.is_own_check and figure.of(slice_) is None and gate.then == "fail":
        verdict = "failed"  # its author meant it to say something
    elif value is None or not has_limit:
        verdict = "held" if gate.then == "hold" else "unknown"
    elif _is_beyond(gate, value):
        verdict = _STOPPED_BY[gate.then]
    else:
        verdict = "passed"
    return GateVerdict(
        of=gate.of,
        value=value if value is not None and math.isfinite(value) else None,
        figure=figure.of(slice_),
        max=gate.max,
        min=gate.min,
        against=gate.against,
        slices=slices,
        verdict=verdict,
    )


def _is_beyond(gate: Gate, value: float) -> bool:
    has_other_sign = gate.against is not None and value < 0  # than the slices before: no ratio says how far
    if gate.max is not None and (value > gate.max or has_other_sign):
        return True
    return gate.min is not None and value < gate.min
