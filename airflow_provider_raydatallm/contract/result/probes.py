"""What probes say of a slice: rows that were asked to learn how good its answers are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from airflow_provider_raydatallm.contract.base import Contract
from airflow_provider_raydatallm.contract.spec.gate import PROBES

#: How many kinds of mistakes are named: the most frequent ones.
MOST_CONFUSIONS = 20
_Share = Annotated[float, Field(ge=0, le=1)]
_Rows = Annotated[int, Field(ge=0)]


class ProbeTokens(Contract):
    """What the rows of a probe took, failed attempts included. None: not known."""

    input: int | None = None
    output: int | None = None


class Confusion(Contract):
    """Rows with one label where another is right. `answered` is None for a row that failed."""

    expected: str
    rows: int
    answered: str | None = None


class ProbeFigures(Contract):
    """
    hash: of what was asked.
    low: where the share of all such rows begins, with a confidence of 95% (Wilson's interval).
    high: where it ends.
    """

    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    rows: _Rows
    low: _Share
    high: _Share
    tokens: ProbeTokens = ProbeTokens()

    @property
    def gated(self) -> float | None:
        """The share that gates look at; None where it is not known."""
        raise NotImplementedError


class GoldenFigures(ProbeFigures):
    """A golden row is right when all of its known answers are; one that fails is wrong. The report's other
    sections count none of them.

    hash: of the golden files' content.
    columns: the answers' columns that were compared.
    low: where the accuracy of all such rows begins, with a confidence of 95% (Wilson's interval).
    high: where it ends.
    confusion: the most frequent mistakes, where answers are one label each.
    calibration_error: by how much the labels' probabilities differ from how often they are right (the
        expected calibration error, over ten equal bins); None where none are published.
    before: the accuracy of the newest slice before this one, by date, with the same golden files.
    lowest: the accuracy beside those answers of the slice that an earlier run gave, where it was lower; gates
        look at it.
    """

    columns: tuple[str, ...]
    correct: _Rows
    accuracy: _Share
    confusion: Annotated[tuple[Confusion, ...], Field(max_length=MOST_CONFUSIONS)] | None = None
    calibration_error: _Share | None = None
    before: _Share | None = None
    lowest: _Share | None = None

    @property
    def gated(self) -> float:
        return self.accuracy if self.lowest is None else self.lowest

    def __str__(self) -> str:
        since = f", {self.before:.1%} before" if self.before is not None else ""
        earlier = f"; {self.lowest:.1%} beside answers of an earlier run" if self.lowest is not None else ""
        return (
            f"{self.correct:,} of {self.rows:,} golden rows are right: {self.accuracy:.1%} "
            f"({self.low:.1%} to {self.high:.1%}{since}){earlier}"
        )


class RepeatFigures(ProbeFigures):
    """Random rows of the slice that were asked once more. The report's other sections count only their first
    answers.

    hash: of how many are asked.
    differing: those whose second answer is another one, or that failed once.
    share: of the rows.
    low: where the share of all rows begins, with a confidence of 95% (Wilson's interval).
    high: where it ends.
    """

    differing: _Rows
    share: _Share

    @property
    def gated(self) -> float:
        return self.share

    def __str__(self) -> str:
        return (
            f"{self.differing:,} of {self.rows:,} rows that were asked twice have another answer: "
            f"{self.share:.1%} ({self.low:.1%} to {self.high:.1%})"
        )


class JudgeFigures(ProbeFigures):
    """Random answers of the slice that a second model judged.

    hash: of the model and what it was asked.
    model: the one that judged.
    approved: answers that it agrees with.
    failed: those that it did not judge.
    share: of those that it agrees with among those that it judged; None where it judged none.
    low: where the share of all answers begins, with a confidence of 95% (Wilson's interval).
    high: where it ends.
    before: the share of the newest slice before this one, by date, with the same judge, if it judged half of
        the answers there.
    """

    model: str
    approved: _Rows
    failed: _Rows
    share: _Share | None = None
    before: _Share | None = None

    @property
    def gated(self) -> float | None:
        return self.share if 2 * self.failed <= self.rows else None

    def __str__(self) -> str:
        if self.share is None:
            return f"{self.model} judged none of {self.rows:,} answers"
        since = f", {self.before:.1%} before" if self.before is not None else ""
        return (
            f"{self.model} agrees with {self.approved:,} of {self.rows - self.failed:,} answers: "
            f"{self.share:.1%} ({self.low:.1%} to {self.high:.1%}{since})"
        )


#: By the arguments in `quality`, which are sections of the report.
PROBE_FIGURES: Mapping[str, type[ProbeFigures]] = dict(
    zip(PROBES, (GoldenFigures, RepeatFigures, JudgeFigures), strict=True)
)
