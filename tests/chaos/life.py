"""The life of a trial's slice: its processes, and what they are asked."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.processor.storage.store import is_scratch
from tests.chaos import work
from tests.chaos.children import Child, Children
from tests.chaos.failpoints import FailPoint
from tests.chaos.slices import Slice
from tests.chaos.storage import BUCKET, S3, remove
from tests.chaos.trials import Trial
from tests.chaos.work import BATCH, How, Place

MOST_RUNS = 12
#: Seconds after which a process counts as one that hangs.
LIMIT = 300.0
#: Before these, rows may be missing.
_ANSWERING = {
    "lease", "beat", "plan", "fragment", "failed fragment", "carried-over fragment", "carried-over mark",
    "progress", "removal of old lease", "", "file of a probe",
}  # fmt: skip


@dataclass
class Outcome:
    """What a trial found; a line of the journal."""

    id: str
    point: tuple[str, str, str]
    scenario: str
    kills: int = 0
    rows: int = 0
    again: int = 0
    lost: int = 0
    duplicated: int = 0
    altered: int = 0
    faults: list[str] = field(default_factory=list)
    litter: list[str] = field(default_factory=list)
    seconds: float = 0.0
    folder: str = ""

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated or self.altered or self.faults)

    def take(self, found: dict[str, Any], when: str = "") -> None:
        self.rows = found["rows"]
        for count in ("lost", "duplicated", "altered"):
            setattr(self, count, max(getattr(self, count), found[count]))
        self.faults += [f"{when}{f}" for f in found["faults"]]
        self.litter = found["litter"]


class NotMetError(Exception):
    """The process ended before it came by the point where it was to be struck."""


class Life:
    """One trial: a slice from its input to the last audit."""

    def __init__(
        self, folder: Path, s3: S3, seed: int, sabotage: str, trial: Trial, outcome: Outcome, number: int
    ) -> None:
        self.trial, self.outcome = trial, outcome
        self.rng = random.Random(f"{seed} {trial.id} {number}")
        self.shrink = 0.5**number
        self.s3, self.sabotage = s3, sabotage
        name = f"{trial.id}-{number}"
        self.folder = folder / name
        remove(self.folder)
        self.folder.mkdir(parents=True)
        self.children = Children(self.folder)
        on_disk = trial.storage == "disk"
        self.root = str(self.folder / "data") if on_disk else f"s3://{BUCKET}/{folder.name}/{name}"
        self.answers = self.folder / "answered.txt"
        self.answers.touch()
        self.seed = f"{seed} {trial.id}"
        self.port = None if on_disk else s3.port
        scenario = trial.scenario if trial.kind != "rule" else "new"
        self.place = Place(Slice(self.root, scenario, self.seed), self.port, str(self.answers))
        self.flush_every = self.rng.choice((1, 1, 2, 3))
        self._stopped: list[Child] = []

    def end(self) -> None:
        for child in self._stopped:
            child.kill()

    def prepare(self) -> None:
        self.to_answer = self.children.ask(work.prepare, self.place)

    def may_stay(self, name: str) -> bool:
        """Whether that litter may stay. Who repairs what a killed run left, or publishes what it staged, and
        is killed at it, leaves a lease that only waiting tells from one that is held, and what it was to
        remove: that goes with the next work on the slice, or by gc. What is half written may be others',
        until it is old."""
        if is_scratch(name):
            return True
        has_killed_another = self.outcome.kills > 1 or self.trial.kind == "staged"
        return has_killed_another and re.fullmatch(r"lease/(beat|epoch)-\d+|checkpoint/.+", name) is not None

    def how(self, *points: FailPoint, **given: Any) -> How:
        return How(**{"points": points, "flush_every": self.flush_every, "sabotage": self.sabotage, **given})

    def start(self, how: How, change: dict[str, Any] | None = None, name: str = "answer") -> Child:
        return self.children.start(work.answer, self.place, how, change or {}, name=name)

    def answer(self, how: How, change: dict[str, Any] | None = None, name: str = "answer") -> Child:
        child = self.children.run(work.answer, self.place, how, change or {}, name=name)
        self.outcome.kills += child.killed
        return child

    def stop(self, how: How, change: dict[str, Any] | None = None, name: str = "zombie") -> Child:
        """A run that is stopped at its point.

        :raises NotMetError: when it ends first.
        """
        child = self.start(how, change, name)
        self.watch(child)
        if not child.wait_until_stopped(LIMIT):
            raise NotMetError(f"{how.points[0]} in {self.trial.scenario!r}: {child.result}")
        return child

    def watch(self, child: Child) -> None:
        """It does not outlive the trial."""
        self._stopped.append(child)

    def finish(self, child: Child, who: str) -> dict[str, Any]:
        """Waits for the end of a process; what it published, if it did."""
        if not child.wait(LIMIT):
            self.outcome.faults.append(f"{who} does not end")
            child.kill()
        value: dict[str, Any] = child.result.get("value") or {}
        return value

    def look(self, *questions: int) -> None:
        faults = self.children.ask(work.look, self.place, questions)
        self.outcome.faults += [f"after the kill: {f}" for f in faults]

    @property
    def answered(self) -> int:
        return len(self.answers.read_text().splitlines())

    def until_published(self) -> None:
        child = self.answer(self.how())
        if "value" not in child.result:
            self.outcome.faults.append(f"the run after the kill failed: {child.result}")
            for _ in range(MOST_RUNS):
                child = self.answer(self.how())
                if "value" in child.result:
                    break
            else:
                self.outcome.faults.append(f"not published in {MOST_RUNS} runs")
        self.audit()

    def audit(self) -> None:
        """The audit, and one run more, which must find nothing to do."""
        self.outcome.again = self.answered - self.to_answer
        if self.trial.scenario == "forced":  # one more run would answer all of it again, as it is told to
            self.inspect()
        else:
            self.conclude({}, None)
        if self.trial.kind in ("step", "instant", "two at once") and self.trial.scenario != "forced":
            self.check_paid(self.outcome.kills)

    def check_paid(self, interrupted: int) -> None:
        """:param interrupted: processes that may have had rows that no fragment held."""
        if self.trial.points and not any(p.step in _ANSWERING for p in self.trial.points):
            interrupted = 0
        most = interrupted * BATCH * self.flush_every
        if not 0 <= self.outcome.again <= most:
            self.outcome.faults.append(f"{self.outcome.again} rows answered again, at most {most} may be")

    def conclude(self, change: dict[str, Any], question: int | None, when: str = "") -> dict[str, Any]:
        found: dict[str, Any] = self.children.ask(
            work.conclude, self.place, change, question, str(self.folder)
        )
        self.outcome.take(found, when)
        return found

    def inspect(self, when: str = "", question: int | None = None) -> dict[str, Any]:
        found: dict[str, Any] = self.children.ask(work.inspect, self.place, question, str(self.folder))
        self.outcome.take(found, when)
        return found
