"""Judges a slice by its gates. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_raydatallm.contract.result.verdict import GateVerdict, Verdict
from airflow_provider_raydatallm.contract.spec.gate import Gate
from airflow_provider_raydatallm.processor.gates.figures import Stored, figure_of

#: Earlier slices without which a change says nothing.
FEWEST_SLICES = 3
_STOPPED_BY: Mapping[str, Verdict] = {"warn": "warned", "fail": "failed", "hold": "held"}


def judge(gates: Sequence[Gate], report: Stored, history: Sequence[Stored]) -> list[GateVerdict]:
    """
    :param report: of the slice that is to be published.
    :param history: reports of the slices before it, the nearest first.
    """
    return [_judge(gate, report, history) for gate in gates]


def _judge(gate: Gate, report: Stored, history: Sequence[Stored]) -> GateVerdict:
    figure, slices = figure_of(gate.of), None
    if gate.against is None:
        value = figure.of(report)
    else:
        compared = history[: gate.against]
        slices = len(compared)
        value = figure.against(report, compared) if slices >= min(FEWEST_SLICES, gate.against) else None
    verdict: Verdict
    has_limit = gate.max is not None or gate.min is not None
    if value is None or not has_limit:
        verdict = "held" if gate.then == "hold" else "unknown"
    elif (gate.max is not None and value > gate.max) or (gate.min is not None and value < gate.min):
        verdict = _STOPPED_BY[gate.then]
    else:
        verdict = "passed"
    return GateVerdict(
        of=gate.of,
        value=value,
        max=gate.max,
        min=gate.min,
        against=gate.against,
        slices=slices,
        verdict=verdict,
    )
