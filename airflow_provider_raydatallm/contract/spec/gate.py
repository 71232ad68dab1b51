"""Gates: what must hold of a slice before it is published."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from airflow_provider_raydatallm.contract.base import Contract

#: Shares of a slice's rows.
Share = Literal[
    "quarantined", "invalid_output", "repaired", "truncated", "degenerate", "shortened", "deduplicated",
    "cached",
]  # fmt: skip
#: Before the label whose share of the rows is meant.
OF_LABEL = "label:"
#: Before a column of the answers.
OF_EMPTY, OF_MEDIAN, OF_SPREAD = "empty:", "median:", "spread:"
#: Before a query in SQL.
OF_SQL = "sql:"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
#: Arguments of `quality` that ask rows to learn how good the answers are, and what a gate looks at of them.
PROBES = ("golden", "repeat", "judge")
#: What a gate may look at beside a share, or the share of a label.
OTHERS = (
    "rows", "output_tokens", "cost", "cost_per_1000_rows", *PROBES, "confidence", "top_label", "labels",
)  # fmt: skip
_OF_LABELS = OTHERS[-3:]
#: Those that are no shares.
_NUMBERS = OTHERS[:4]
#: How many slices a history has at most: each is a read of its commit.
MOST_SLICES = 60
#: How many gates a slice has at most.
MOST_GATES = 100

_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Gate(Contract):
    """A limit of one figure of a slice.

    of: a share of its rows ("truncated"), "rows" (their number), "output_tokens" (the mean of an answer,
        failed attempts included), "cost" and "cost_per_1000_rows" (as in the run's report; they need the
        price of a GPU hour), "golden" (the share of the rows of `quality.golden` that is right), "repeat"
        (of the rows of `quality.repeat`, the share with another answer the second time), "judge" (of the
        answers that the model of `quality.judge` judged, the share that it agrees with),
        "confidence" (the labels' mean probability), "label:<label>" (that label's share), "top_label" (the
        share of the commonest), or "labels": how far the shares of all labels moved (total variation: half
        the sum of the differences, from 0 to 1). "empty:<column>": the share of the answers without a text
        there. "median:<column>": of its numbers, or of the lengths of its texts in characters, to two
        digits; "spread:<column>": how far all of these moved (population stability index over tenths of the
        earlier ones: 0.1 is little, 0.25 much; counted from the first slice on that has the gate). Or an own
        check of the answered rows: `"sql:SELECT avg(length(summary)) FROM answers"`, which DuckDB runs, or
        `"package.module:function"`, which is given them as a `pyarrow.dataset.Dataset`, and returns a
        number.
    max, min: what it may be. Shares are from 0 to 1.
    against: judges what changed since so many slices before it in the table, by their dates, or where keys
        are none by the keys: of what is no share the ratio to the median of theirs, of a share the
        difference from it, of "labels" and "spread" the distance from all of their rows together. Only
        slices with the same golden files count for "golden", and likewise for "repeat" and "judge".
    same: "weekday" compares only with slices of the same day of the week.
    then: `fail` publishes nothing, and keeps the answered rows: another limit judges them again, and asks
        the model nothing. `hold` leaves it to a person, who approves or rejects the slice; it does so also
        where the figure is not known, and always where the gate has no limit. `warn` publishes, and says so.
    """

    of: str
    max: _Number | None = None
    min: _Number | None = None
    against: Annotated[int, Field(ge=1, le=MOST_SLICES)] | None = None
    same: Literal["weekday"] | None = None
    then: Literal["warn", "fail", "hold"] = "fail"

    @field_validator("of")
    @classmethod
    def _check_figure(cls, value: str) -> str:
        known = (*Share.__args__, *OTHERS)  # type: ignore[attr-defined]
        is_of_some = any(
            value.startswith(kind) and value.removeprefix(kind).strip()
            for kind in (OF_LABEL, OF_EMPTY, OF_MEDIAN, OF_SPREAD, OF_SQL)
        )
        if value not in known and not is_of_some and not _FUNCTION.fullmatch(value):
            raise ValueError(
                f"{value!r} is no figure of a slice: give one of {', '.join(known)}, {OF_LABEL}<label>, "
                f"{OF_EMPTY}<column>, {OF_MEDIAN}<column>, {OF_SPREAD}<column>, "
                f'"{OF_SQL}SELECT ... FROM answers", or "package.module:function"'
            )
        return value

    @model_validator(mode="after")
    def _check_limits(self) -> Gate:
        if self.max is None and self.min is None and self.then != "hold":
            raise ValueError(
                f'the gate of {self.of!r} has no limit: give max, min, or both; or "then": "hold", for a '
                "person to look at each slice"
            )
        if self.is_share and (above := [limit for limit in (self.min, self.max) if (limit or 0) > 1]):
            raise ValueError(f"the gate of {self.of!r} has the limit {above[0]:g}: shares are from 0 to 1")
        if self.max is not None and self.min is not None and self.min > self.max:
            raise ValueError(
                f"the gate of {self.of!r} lets nothing pass: min {self.min:g} is above max {self.max:g}"
            )
        if self.same is not None and self.against is None:
            raise ValueError(
                f"the gate of {self.of!r} says same={self.same!r}, and compares with no slices: give against="
            )
        if (self.of == "labels" or self.of.startswith(OF_SPREAD)) and self.against is None:
            raise ValueError(
                f"the gate of {self.of!r} has nothing to compare with: give against=, such as 7 slices"
            )
        return self

    @property
    def is_own_check(self) -> bool:
        """Whether the answered rows are read for it."""
        return ":" in self.of and self.label is None and self.column is None

    @property
    def function(self) -> str | None:
        """The function that is meant, if any."""
        return self.of if self.is_own_check and not self.of.startswith(OF_SQL) else None

    @property
    def is_share(self) -> bool:
        is_number = self.of in _NUMBERS or self.is_own_check
        return not is_number and not self.of.startswith((OF_MEDIAN, OF_SPREAD))

    @property
    def column(self) -> str | None:
        """The column of the answers whose numbers or texts are meant, if any."""
        kind, colon, name = self.of.partition(":")
        return name if kind + colon in (OF_EMPTY, OF_MEDIAN, OF_SPREAD) else None

    @property
    def is_of_labels(self) -> bool:
        return self.of in _OF_LABELS or self.label is not None

    @property
    def is_of_costs(self) -> bool:
        return self.of in ("cost", "cost_per_1000_rows")

    @property
    def label(self) -> str | None:
        """The label whose share is meant, if any."""
        return self.of.removeprefix(OF_LABEL) if self.of.startswith(OF_LABEL) else None
