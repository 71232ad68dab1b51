"""What to make of a running job: pure decisions, shared by whatever waits for it.

Success is decided by the published report, never by the Ray job's status: the Jobs API can report FAILED for
a job that finished, and the end of a log is not the end of a job. A job that is over without a word means
asking the store, never success.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_provider_raydatallm.contract.failure_patterns import Failure
from airflow_provider_raydatallm.contract.log_lines import decode_line
from airflow_provider_raydatallm.hooks.jobs_api import TERMINAL

#: Lines of the job's own output that are kept to explain a failure.
_TAIL_LINES = 60
#: Looks at a job that is over, or unknown, before its silence is believed: lines arrive a little later than
#: the status, and a head that has just started may not know all its jobs yet.
_LOOKS_AFTER_END = 3
_WHY: dict[str | None, Literal["ended", "stopped", "unknown"]] = {None: "unknown", "STOPPED": "stopped"}


@dataclass(frozen=True)
class Wait:
    """Look again later; `progress` is news to show, if there is any."""

    progress: dict[str, Any] | None = None


@dataclass(frozen=True)
class Finished:
    """The job reported what it published (or that the slice is empty, or was there already).

    started_at: the job's start in epoch seconds, by the cluster's clock.
    """

    report: dict[str, Any]
    started_at: float | None = None


class Failed(Failure):
    """The job reported why it failed."""


@dataclass(frozen=True)
class EndedWithoutReport:
    """The job is over and said nothing, or is not known any more: only the store knows what happened.

    `message` is what Ray says of its end.
    """

    why: Literal["ended", "stopped", "unknown"]
    message: str = ""
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimedOut:
    """The attempt's time is over."""


@dataclass(frozen=True)
class ClusterUnreachable:
    """The cluster did not answer, or refused us, for longer than was allowed. `refused`: it answered."""

    message: str
    refused: bool = False


Verdict = Finished | Failed | EndedWithoutReport | TimedOut | ClusterUnreachable


@dataclass
class JobWatch:
    """Hears a job's log and looks at its status, time after time. The nonce tells this job's own lines from
    others'."""

    nonce: str
    _tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    _word: Finished | Failed | None = None
    _progress: dict[str, Any] | None = None
    _looks_after_end: int = 0

    @property
    def has_word(self) -> bool:
        """Whether the job has said how it ended."""
        return self._word is not None

    def read_log(self, lines: Iterable[str]) -> list[str]:
        """Take in lines as they come; returns those that are for people."""
        plain = []
        for line in lines:
            said = decode_line(line, self.nonce)
            if said is None:
                plain.append(line)
            elif said[0] == "report" and said[1] is not None:
                self._word = Finished(said[1])
            elif said[0] == "error":
                self._word = self._word or Failed(**_with_tuples(said[1]))
            elif said[0] == "progress":
                self._progress = said[1]
        self._tail.extend(line[:1000] for line in plain)
        return plain

    def check_status(self, end_of_log: str) -> None:
        """Take in the log's last lines, which may have been heard before."""
        self._tail.clear()
        self.read_log(end_of_log.splitlines())

    def check(self, status: str | None, message: str = "") -> Verdict | Wait:
        """:param status: the job's status; None when the cluster does not know the job."""
        if self._word is not None:
            return self._word
        if status is None or status in TERMINAL:
            self._looks_after_end += 1
            if self._looks_after_end >= _LOOKS_AFTER_END:
                return EndedWithoutReport(_WHY.get(status, "ended"), message, tuple(self._tail))
        else:
            self._looks_after_end = 0
        progress, self._progress = self._progress, None
        return Wait(progress)


def to_event(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON, for Airflow to carry from a trigger to its task."""
    return {"verdict": type(verdict).__name__, **vars(verdict)}


def from_event(event: dict[str, Any]) -> Verdict:
    fields = _with_tuples(event)
    kind = {c.__name__: c for c in (Finished, Failed, EndedWithoutReport, TimedOut, ClusterUnreachable)}[
        fields.pop("verdict")
    ]
    return kind(**fields)


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where the verdicts have tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
