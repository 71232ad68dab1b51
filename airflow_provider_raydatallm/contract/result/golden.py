"""How well the golden rows were answered."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from airflow_provider_raydatallm.contract.base import Contract

#: How many kinds of mistakes are named: the most frequent ones.
MOST_CONFUSIONS = 20
_Share = Annotated[float, Field(ge=0, le=1)]
_Rows = Annotated[int, Field(ge=0)]


class GoldenTokens(Contract):
    """What the golden rows took, failed attempts included. None: not known."""

    input: int | None = None
    output: int | None = None


class Confusion(Contract):
    """Rows with one label where another is right. `answered` is None for a row that failed."""

    expected: str
    rows: int
    answered: str | None = None


class GoldenFigures(Contract):
    """A golden row is right when all of its known answers are; one that fails is wrong. The report's other
    sections count none of them.

    hash: of the golden files.
    columns: the answers' columns that were compared.
    low: where the accuracy of all such rows begins, with a confidence of 95% (Wilson's interval).
    high: where it ends.
    confusion: the most frequent mistakes, where answers are one label each.
    calibration_error: by how much the labels' probabilities differ from how often they are right (the
        expected calibration error, over ten equal bins); None where none are published.
    before: the accuracy of the newest slice before this one, by date, with the same golden files.
    """

    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    columns: tuple[str, ...]
    rows: _Rows
    correct: _Rows
    accuracy: _Share
    low: _Share
    high: _Share
    tokens: GoldenTokens = GoldenTokens()
    confusion: Annotated[tuple[Confusion, ...], Field(max_length=MOST_CONFUSIONS)] | None = None
    calibration_error: _Share | None = None
    before: _Share | None = None

    def __str__(self) -> str:
        since = f", {self.before:.1%} before" if self.before is not None else ""
        return (
            f"{self.correct:,} of {self.rows:,} golden rows are right: {self.accuracy:.1%} "
            f"({self.low:.1%} to {self.high:.1%}{since})"
        )
