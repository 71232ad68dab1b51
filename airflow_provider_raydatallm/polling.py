"""What to make of a running job: pure decisions, shared by whatever waits for it.

Success is decided by the published report, never by the Ray job's status: the Jobs API can report FAILED for
a job that finished, and the end of a log is not the end of a job. A job that is over without a word means
asking the store, never success.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_provider_raydatallm.hooks.jobs_api import TERMINAL
from airflow_provider_raydatallm.lines import decode_line

#: Lines of the job's own output that are kept to explain a failure.
_TAIL_LINES = 60
#: Looks at the log of a job that is over before its silence is believed: lines arrive a little later than the
#: status.
_LOOKS_AFTER_END = 3


@dataclass(frozen=True)
class Wait:
    """Look again later; `progress` is news to show, if there is any."""

    progress: dict[str, Any] | None = None


@dataclass(frozen=True)
class Finished:
    """The job reported what it published (or that the slice is empty, or was there already)."""

    report: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """The job said why it failed."""

    kind: str
    message: str


@dataclass(frozen=True)
class Silent:
    """The job is over and said nothing, or is not known any more: only the store knows what happened."""

    why: Literal["ended", "unknown"]
    last_lines: tuple[str, ...] = ()


Verdict = Wait | Finished | Failed | Silent


@dataclass
class JobWatch:
    """Looks at a job's status and its whole log, time after time. The nonce tells this attempt's lines from
    others'."""

    nonce: str
    _tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    _seen: int = 0
    _looks_after_end: int = 0

    def look(self, status: str | None, log: str) -> Verdict:
        """:param status: the job's status; None when the cluster does not know the job."""
        progress: dict[str, Any] | None = None
        end = log.rfind("\n") + 1 if status not in TERMINAL else len(log)
        for line in log[self._seen : end].splitlines():
            said = decode_line(line, self.nonce)
            if said is None:
                self._tail.append(line[:2000])
            elif said[0] == "report" and said[1] is not None:
                return Finished(said[1])
            elif said[0] == "error":
                return Failed(str(said[1]["kind"]), str(said[1]["message"]))
            elif said[0] == "progress":
                progress = said[1]
        self._seen = max(self._seen, end)
        if status is None:
            return Silent("unknown", tuple(self._tail))
        if status in TERMINAL:
            self._looks_after_end += 1
            if self._looks_after_end >= _LOOKS_AFTER_END:
                return Silent("ended", tuple(self._tail))
        return Wait(progress)
