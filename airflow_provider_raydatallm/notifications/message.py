"""What a message says of slices: figures, links and what to do. Pure.

No row's text is in it, nor an error in the words of others, who may quote one: of such an error it has the
class, and a link to the log.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.contract.log.progress_text import progress_text, rate_text
from airflow_provider_raydatallm.contract.log.secret_shapes import without_secrets
from airflow_provider_raydatallm.contract.result.failure import KEPT, Failure, joined
from airflow_provider_raydatallm.task.slice_entry import SliceEntry

#: How many slices, and how many reasons of quarantine, a message names.
_SLICES, _REASONS = 20, 3
_SENTENCE_CHARACTERS = 500
_STATES = {
    "published": "is published",
    "unchanged": "was published already",
    "attached": "is published, by another run",
    "empty": "has no rows",
    "kept": "has no rows now: those published before stay",
    "held": "waits for a person, who decides whether it is published",
    "failed": "failed",
    "up_for_retry": "failed, and is tried again",
    "upstream_failed": "was not begun: a task before it failed",
    "removed": "was removed",
    "skipped": "was skipped",
    "success": "was marked as a success",
    "running": "is running",
    "deferred": "is running",
    "restarting": "is stopped, to begin anew",
}
_WAITING = "waits for a worker"
#: States after which nothing more is to come in this run.
_DONE = frozenset({"published", "unchanged", "attached", "empty", "kept", "skipped", "success", "removed"})
#: What continues a slice, by its task's state: one with finished rows, and any other.
_GOES_ON = {
    "failed": (
        "Finished rows are kept: clear the task, and it goes on with the rest",
        "Clear the task to run it again",
    ),
    "up_for_retry": (
        "Finished rows are kept: the next try goes on with the rest, and nobody needs to do anything",
        "The next try follows, and nobody needs to do anything",
    ),
}


@dataclass(frozen=True)
class SliceStatus:
    """One slice of a run.

    :param task: `DAG.TASK`, and of a mapped task its index.
    :param state: the outcome of a task that has one; else Airflow's state of the task, None while it waits.
    :param figures: what the task noted; None when it has noted nothing yet.
    :param failure: of a failed task, without rows' texts; None of one that left no record.
    :param links: addresses, by what they lead to.
    :param progress: of a running slice, where it can be read.
    :param cost: such as `1.25 EUR`.
    """

    task: str
    state: str | None
    figures: SliceEntry | None = None
    failure: Failure | None = None
    links: Mapping[str, str] = field(default_factory=dict)
    progress: Mapping[str, Any] | None = None
    cost: str | None = None

    def __post_init__(self) -> None:
        if self.failure is not None:  # which templates may name, too
            object.__setattr__(self, "failure", self.failure.without_row_texts())

    @property
    def slice_key(self) -> str | None:
        return self.figures.slice_key if self.figures is not None else None

    @property
    def is_in_time(self) -> bool:
        """Whether the slice is done, or known to finish before `limits.finish_by`."""
        late_s = (self.progress or {}).get("late_s")
        return self.state in _DONE or (late_s is not None and late_s <= 0)

    @property
    def headline(self) -> str:
        figures = self.figures
        name = "the slice" if figures is None else f"slice {_plain(figures.slice_key)}"
        if figures is not None and figures.trial is not None:
            name = f"trial {_plain(figures.trial)} of {name}"
        headline = f"{self.task}: {name} {_STATES.get(self.state or '', _WAITING)}"
        if (quarantined := self._count("quarantined")) and self.state == "published":
            headline += f", {quarantined:,} rows in quarantine"
        return headline

    @property
    def details(self) -> list[str]:
        return [line for line in self._lines() if line]

    def _lines(self) -> Iterator[str]:
        if self.state in _GOES_ON:
            yield self._error_line()
        elif self.progress is not None and self.state not in _DONE:
            yield _plain(progress_text(dict(self.progress)))
        elif self.figures is not None and self.figures.counts:
            yield self._counts_line(self.figures)
            yield self._rates_line(self.figures)
            for gate in self.figures.gates or ():
                if not gate.has_passed:
                    yield _plain(f"Gate: {gate} ({gate.verdict})")

    def _error_line(self) -> str:
        with_rows, without = _GOES_ON[self.state or ""]
        if self.failure is None:
            return f"The task left no error of its own: it was marked, or its worker died. {without}"
        goes_on = with_rows if self.failure.counts.get("finished") else without
        texts = (self.failure.sentence, *(text for text in self.failure.advice if text != KEPT))
        sentences = [_plain(text, _SENTENCE_CHARACTERS) for text in texts]
        return joined([*sentences, *([goes_on] if self.failure.can_retry else [])])

    def _counts_line(self, figures: SliceEntry) -> str:
        planned, succeeded, quarantined = (
            self._count(name) for name in ("planned", "succeeded", "quarantined")
        )
        line = f"{planned:,} rows planned = {succeeded:,} answered + {quarantined:,} in quarantine"
        if not quarantined or not planned:
            return line
        # PostgreSQL keeps an XCom's names in an order of its own.
        by_rows = sorted((figures.quarantine_reasons or {}).items(), key=lambda reason: -reason[1])
        most = by_rows[:_REASONS]
        reasons = "".join(f", {rows:,} {_plain(name)}" for name, rows in most)
        return f"{line} ({quarantined / planned:.1%}{reasons})"

    def _rates_line(self, figures: SliceEntry) -> str:
        tokens, details = figures.tokens, []
        if tokens.get("input") or tokens.get("output"):
            details.append(f"{tokens.get('input', 0):,} tokens in, {tokens.get('output', 0):,} out")
        if figures.rows_per_s:
            details.append(rate_text(figures.rows_per_s, "rows/s"))
        if self.cost is not None:
            details.append(self.cost)
        return "; ".join(details)

    def _count(self, name: str) -> int:
        return self.figures.counts.get(name, 0) if self.figures is not None else 0


@dataclass(frozen=True)
class SliceMessage(Sequence[SliceStatus]):
    """What a notifier's templates know as `slices`: a `title`, a `text`, the same as `html`, and each slice.

    :param source: the DAG, or its task, that the message is about.
    :param note: why slices are missing.
    """

    source: str
    statuses: tuple[SliceStatus, ...] = ()
    note: str = ""

    def __getitem__(self, index: Any) -> Any:
        return self.statuses[index]

    def __len__(self) -> int:
        return len(self.statuses)

    @property
    def title(self) -> str:
        if len(self) == 1:
            return self.statuses[0].headline
        if not self:
            return f"{self.source}: {self.note or 'no task has begun a slice'}"
        states = Counter((s.state or "waiting").replace("_", " ") for s in self)
        return f"{self.source}: {len(self)} slices: " + ", ".join(f"{n} {s}" for s, n in states.items())

    @property
    def text(self) -> str:
        """Plain text: each slice's headline, its figures and its links."""
        blocks = [
            "\n".join([s.headline, *s.details, *(f"{name}: {url}" for name, url in s.links.items())])
            for s in self[:_SLICES]
        ]
        return "\n\n".join([*([] if len(self) == 1 else [self.title]), *blocks, *self._left_out])

    @property
    def html(self) -> str:
        def links(status: SliceStatus) -> str:
            return " · ".join(
                f'<a href="{html.escape(url)}">{html.escape(name)}</a>' for name, url in status.links.items()
            )

        blocks = [
            "<br>\n".join(
                [f"<b>{html.escape(s.headline)}</b>", *map(html.escape, s.details), *filter(None, [links(s)])]
            )
            for s in self[:_SLICES]
        ]
        title = [] if len(self) == 1 else [html.escape(self.title)]
        return "\n".join(f"<p>{block}</p>" for block in [*title, *blocks, *map(html.escape, self._left_out)])

    @property
    def _left_out(self) -> list[str]:
        lines = [f"... and {len(self) - _SLICES} more"] if len(self) > _SLICES else []
        return lines + ([self.note] if self.note and self else [])


def _plain(text: str, characters: int = 200) -> str:
    """Without the characters by which a chat or a mail takes text for a mention or a tag."""
    return re.sub(r"[<>&@*`|\s]+", " ", plain_text(without_secrets(text)))[:characters]
