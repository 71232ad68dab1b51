"""What gates know of a slice: what its report counts, and its labels. Others can write commits, too: what one
says is checked before it is believed. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter

from airflow_provider_raydatallm.contract.result.probes import PROBE_FIGURES, ProbeFigures
from airflow_provider_raydatallm.contract.result.report import MOST_LABELS
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict

_Rows = Annotated[int, Field(ge=0, le=2**63 - 1)]
_SomeRows = Annotated[_Rows, Field(ge=1)]
_STRICT = ConfigDict(strict=True, hide_input_in_errors=True)
_COUNTS = TypeAdapter(dict[str, _Rows | None], config=_STRICT)
_CHECKS = TypeAdapter(dict[str, float], config=_STRICT)
_GATES = TypeAdapter(list[GateVerdict])
_SHARE = TypeAdapter(Annotated[float, Field(ge=0, le=1)] | None, config=_STRICT)
_COST = TypeAdapter(
    dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)] | None] | None, config=_STRICT
)
_LABELS = TypeAdapter(dict[str, _SomeRows] | None, config=_STRICT)
_SPREADS = TypeAdapter(dict[str, dict[str, _SomeRows]], config=_STRICT)


@dataclass(frozen=True)
class Facts:
    """
    :ivar counts: of rows, as a report has them; None: not measured.
    :ivar tokens: likewise.
    :ivar cost: of the run, as a report has it; nothing where it is not known.
    :ivar known: rows that count, of which that is known: there may be more where the count is None.
    :ivar confidence: the mean probability of labels; None where there is none.
    :ivar checks: what own checks said, by what they are.
    :ivar probes: what probes said, by their names.
    :ivar labels: the rows with each label.
    :ivar has_all_labels: whether no other label has a row.
    :ivar spreads: of columns, the rows with each number or length.
    :ivar rejections: how often a person rejected these answers; those of a published version were approved.
    """

    counts: Mapping[str, int | None]
    tokens: Mapping[str, int | None]
    cost: Mapping[str, float | None]
    known: Mapping[str, int | None]
    confidence: float | None
    checks: Mapping[str, float]
    probes: Mapping[str, ProbeFigures]
    labels: Mapping[str, int]
    has_all_labels: bool
    spreads: Mapping[str, Mapping[float, int]]
    rejections: int = 0

    @classmethod
    def of_commit(cls, body: Mapping[str, Any]) -> Facts:
        """
        :param body: of a commit, of which `report`, `known`, `labels`, `confidence`, `spreads` and `checks`
            count. What own checks said of a published version, its gates have.
        :raises ValueError: when no run counted that.
        """
        counts = _COUNTS.validate_python(body["report"]["counts"])
        if counts.get("planned") is None or counts.get("succeeded") is None:
            raise ValueError("it does not say how many rows it has")
        all_labels = _LABELS.validate_python(body.get("labels"))
        named = _LABELS.validate_python(body["report"].get("labels")) or {}
        has_all = all_labels is not None or 0 < len(named) < MOST_LABELS
        known = _COUNTS.validate_python(body.get("known") or {})
        tokens = _COUNTS.validate_python(body["report"].get("tokens") or {})
        cost = _COST.validate_python(body["report"].get("cost")) or {}
        confidence = _SHARE.validate_python(body.get("confidence"))
        told = {name: body["report"].get(name) for name in PROBE_FIGURES}
        probes = {
            n: PROBE_FIGURES[n].model_validate(figures) for n, figures in told.items() if figures is not None
        }
        said = _GATES.validate_python(body["report"].get("gates") or [])
        checks = {gate.of: gate.figure for gate in said if gate.figure is not None}
        checks |= _CHECKS.validate_python(body.get("checks") or {})
        spreads = {
            column: {float(value): rows for value, rows in counted.items()}
            for column, counted in _SPREADS.validate_python(body.get("spreads") or {}).items()
        }
        if not all(math.isfinite(value) for counted in spreads.values() for value in counted):
            raise ValueError("it has a value that is no finite number")
        labels = all_labels or named
        return cls(counts, tokens, cost, known, confidence, checks, probes, labels, has_all, spreads)

    @property
    def planned(self) -> int:
        return self.counts["planned"] or 0

    @property
    def output_tokens(self) -> float | None:
        """Of an answer, the mean; None where there is none that took any, or not all are known."""
        shared = sum(self.counts.get(name) or 0 for name in ("deduplicated", "cached"))
        answered, tokens = (self.counts["succeeded"] or 0) - shared, self.tokens.get("output")
        return tokens / answered if tokens and answered > 0 and not self.counts.get("uncounted") else None

    def share_without_text(self, column: str) -> float | None:
        """Of the answers; None where there are none, or their lengths were not counted."""
        answered, lengths = self.counts["succeeded"], self.spreads.get(column)
        if not answered or lengths is None:
            return None
        return 1 - sum(rows for length, rows in lengths.items() if length) / answered

    @property
    def label_shares(self) -> Mapping[str, float] | None:
        """Of the answers; None where there are none, or they have no labels."""
        answered = self.counts["succeeded"]
        if not answered or not (self.labels or self.has_all_labels):
            return None
        return {name: rows / answered for name, rows in self.labels.items()}
