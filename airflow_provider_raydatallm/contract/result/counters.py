"""Every figure that is counted for each answered row and summed over a slice, once.

Columns of answers and fragments (`processor/columns`), a run's progress and metrics, the totals of what is
published and the report derive from this table: a new counter is a line here, and a value where its `source`
makes one.

A counter adds up over rows: numbers ("int") by their sum, yes or no ("bool") by the number of rows that say
yes. Null means that the engine does not report it. A count of what is published is null then, too. Tokens are
those of the rows that are known, for an endpoint may leave some out: `uncounted` says how many. While a slice
runs, the rows that are known count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_provider_raydatallm.contract.result.row_errors import DEGENERATE_ANSWER, TRUNCATED_ANSWER

#: A section of the report.
Section = Literal["counts", "tokens"]


@dataclass(frozen=True)
class Counter:
    """
    :param name: of its column in answers; fragments have it as `__name`, and fragments of versions that did
        not count it lack it, which reads as null.
    :param section: of the report that shows its total.
    :param source: who knows its value: the worker that runs the model; the engine around it, such as the
        feeder; or the parser, from the answer itself, which then has no column of it.
    :param help: what it counts.
    :param metric: its name in Prometheus. Counters that have one are also in a run's progress.
    :param failed_as: error type of failed rows that count, too.
    """

    name: str
    type: Literal["int", "bool"]
    section: Section
    source: Literal["worker", "engine", "parser"]
    help: str
    metric: str | None = None
    failed_as: str | None = None

    @property
    def report_field(self) -> str:
        return self.name.removesuffix("_tokens") if self.section == "tokens" else self.name

    def add(self, one: int | None, other: int | None) -> int | None:
        if one is None or other is None:
            known = one if other is None else other
            return known if self.section == "tokens" else None
        return one + other


#: Workers return rows by position, so the order of their counters stays. Dashboards and alerts depend on the
#: names of metrics, so they stay, too.
COUNTERS: tuple[Counter, ...] = (
    Counter("input_tokens", "int", "tokens", "worker", "Prompt tokens", "llm_input_tokens"),
    Counter("output_tokens", "int", "tokens", "worker", "Tokens of answers", "llm_output_tokens"),
    Counter(
        "cached_tokens", "int", "tokens", "worker",
        "Prompt tokens found in the engine's prefix cache", "llm_cached_tokens",
    ),
    Counter("reasoning_tokens", "int", "tokens", "worker", "Tokens of answers that were thought only"),
    Counter(
        "truncated", "bool", "counts", "parser",
        "Rows whose answer max_tokens truncated", "llm_rows_truncated", failed_as=TRUNCATED_ANSWER,
    ),
    Counter(
        "degenerate", "bool", "counts", "parser",
        "Rows whose answer was ended because it repeated itself", "llm_rows_degenerate",
        failed_as=DEGENERATE_ANSWER,
    ),
    Counter("shortened", "bool", "counts", "engine", "Rows whose prompt was cut to the engine's limit"),
    Counter("deduplicated", "bool", "counts", "engine", "Rows with the answer to an identical request"),
    Counter("cached", "bool", "counts", "engine", "Rows answered from engine.cache", "llm_rows_cached"),
    Counter("saved_tokens", "int", "tokens", "engine", "Tokens that rows in the answer cache took once"),
    Counter(
        "asked_again", "bool", "counts", "engine",
        "Rows asked of another worker because the first was silent", "llm_rows_asked_again",
    ),
    Counter("uncounted", "bool", "counts", "parser", "Rows whose tokens the engine did not report"),
)  # fmt: skip


def counters_of(section: Section) -> tuple[Counter, ...]:
    return tuple(counter for counter in COUNTERS if counter.section == section)
