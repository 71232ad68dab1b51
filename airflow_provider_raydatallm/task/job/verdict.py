"""Decides what a job's log lines and status mean. Pure; shared by the trigger and the operator.

The published report decides success, never the Ray job's status: the Jobs API can report FAILED for a job
that finished, and the end of a log is not the end of a job. For a job that ended without a report the store
decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from airflow_provider_raydatallm.contract.log.marked_lines import decode_line
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.hooks.jobs_api import TERMINAL
from airflow_provider_raydatallm.task.job.log_entries import clean, may_explain_failure

#: Lines that may explain a failure, of which the last are kept.
_TAIL_LINES = 40
#: Checks of an ended or unknown job before `EndedWithoutReport`: lines arrive a little later than the status,
#: and a head that has just started may not know all its jobs yet.
_CHECKS_AFTER_END = 3
_REASONS: dict[str | None, Literal["ended", "stopped", "unknown"]] = {None: "unknown", "STOPPED": "stopped"}


@dataclass(frozen=True)
class Wait:
    """The job runs."""


@dataclass(frozen=True)
class Finished:
    """The job reported a published, empty or unchanged slice.

    started_at: the job's start in epoch seconds, by the cluster's clock.
    """

    report: dict[str, Any]
    started_at: float | None = None


@dataclass(frozen=True)
class Failed:
    """The job reported an error."""

    failure: Failure


@dataclass(frozen=True)
class EndedWithoutReport:
    """The job ended, or is unknown to the cluster, and reported nothing. `message` is Ray's (`JobInfo`)."""

    why: Literal["ended", "stopped", "unknown"]
    message: str = ""
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimedOut:
    """The attempt's execution_timeout has passed."""


@dataclass(frozen=True)
class ClusterUnreachable:
    """The cluster was away, or refused us, for longer than allowed."""

    failure: Failure

    @property
    def refused(self) -> bool:
        return self.failure.kind == "connection"


@dataclass(frozen=True)
class Unconfirmed:
    """The job is ready to publish, and must not: Airflow did not say, for too long, that its task waits."""

    reason: str


Verdict = Finished | Failed | EndedWithoutReport | TimedOut | ClusterUnreachable | Unconfirmed


@dataclass
class JobWatch:
    """Combines log lines and status into a verdict. The nonce identifies this job's own marked lines."""

    nonce: str
    _tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    _outcome: Finished | Failed | None = None
    _checks_after_end: int = 0
    _is_after_error: bool = False

    @property
    def has_outcome(self) -> bool:
        return self._outcome is not None

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines that may explain a failure, escaped."""
        return tuple(self._tail)

    def read_log(self, lines: Iterable[str]) -> list[str | dict[str, Any]]:
        """Reads new lines. Returns those without a mark and the progress of marked ones, in their order."""
        shown: list[str | dict[str, Any]] = []
        for line in lines:
            marked = decode_line(line, self.nonce)
            if marked is None:
                if self._is_after_error:
                    continue  # the error once more, for people, in full: that is for the job's own log
                shown.append(line)
                if may_explain_failure(text := clean(line)[:1000]):
                    self._tail.append(text)
                continue
            kind, value = marked
            if kind == "report" and value is not None:
                self._outcome = Finished(value)
            elif kind == "error":
                self._is_after_error = True
                self._outcome = self._outcome or Failed(Failure.parse(value, clean))
            elif kind == "progress" and value is not None:
                shown.append(value)
        return shown

    def read_log_end(self, text: str) -> dict[str, Any] | None:
        """Reads the log's last lines, some of which may have been read before. Returns the last progress."""
        self._tail.clear()
        self._is_after_error = False
        progress = [item for item in self.read_log(text.splitlines()) if isinstance(item, dict)]
        return progress[-1] if progress else None

    def decide(self, status: str | None, message: str = "") -> Verdict | Wait:
        """:param status: the job's status; None when the cluster does not know the job."""
        if isinstance(self._outcome, Failed) and not self._outcome.failure.log:
            return Failed(replace(self._outcome.failure, log=self.tail))
        if self._outcome is not None:
            return self._outcome
        if status is None or status in TERMINAL:
            self._checks_after_end += 1
            if self._checks_after_end >= _CHECKS_AFTER_END:
                return EndedWithoutReport(_REASONS.get(status, "ended"), clean(message), self.tail)
        else:
            self._checks_after_end = 0
        return Wait()


def to_event(verdict: Verdict) -> dict[str, Any]:
    """Returns a verdict as JSON, which a trigger hands to its task."""
    values = {n: v.to_json() if isinstance(v, Failure) else v for n, v in vars(verdict).items()}
    return {"verdict": type(verdict).__name__, **values}


def from_event(event: dict[str, Any]) -> Verdict | None:
    """Returns None for what a triggerer of another version says, and this one cannot read."""
    kinds: dict[str, type[Verdict]] = {kind.__name__: kind for kind in get_args(Verdict)}
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in event.items()}
    if "failure" in values:
        values["failure"] = Failure.parse(values["failure"])
    try:
        return kinds[values.pop("verdict")](**values)
    except (KeyError, TypeError):
        return None
