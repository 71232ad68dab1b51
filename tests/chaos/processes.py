"""Trials in plain processes, without Ray: the store's own code, with the stub engine of the unit tests."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.chaos import work
from tests.chaos.children import Child, Children
from tests.chaos.slices import Slice
from tests.chaos.storage import BUCKET, S3, Program, remove
from tests.chaos.trials import Trial
from tests.chaos.work import BATCH, How, Place

_MOST_RUNS = 12
#: Seconds after which a process counts as one that hangs.
_LIMIT = 300.0
#: Each life waits this long for one that was stopped in the middle of its step and holds its lock.
_LOCK_SECONDS = 3.0
#: From here on nothing is left to answer.
_ANSWERED = (
    "seal part quarantine commit manifest report _SUCCESS release|kept copy|plan copy|removal of _SUCCESS|"
    "removal of old file|removal of checkpoint"
)
_AFTER_ANSWERS = {s for group in _ANSWERED.split("|") for s in ([group] if "of" in group else group.split())}


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


class Processes:
    """Runs trials. `folder`: of all of them; those of clean trials are removed."""

    def __init__(self, folder: Path, s3: S3, seed: int, sabotage: str = "") -> None:
        self.folder = folder
        self.s3 = s3
        self.seed = seed
        self.sabotage = sabotage

    def run(self, trial: Trial) -> Outcome:
        began = time.monotonic()
        tries = [trial]
        if trial.points and any(p.occurrence > 1 for p in trial.points):
            tries.append(replace(trial, points=tuple(replace(p, occurrence=1) for p in trial.points)))
        if trial.kind == "instant":
            tries += [trial] * 3
        outcome = Outcome(trial.id, trial.point, trial.scenario)
        for number, one in enumerate(tries):
            outcome = Outcome(trial.id, trial.point, trial.scenario)
            life = _Life(self, one, outcome, number)
            try:
                life.run()
            except NotMetError as e:
                if number < len(tries) - 1:
                    remove(life.folder)
                    continue
                outcome.faults.append(f"never struck: {e}")
            except Exception as e:
                outcome.faults.append(f"{type(e).__name__}: {e}")
            break
        if trial.kind != "zombie":
            # Who mends what a killed run left, and is killed at it, leaves a lease that only waiting tells
            # from
            # one that is held: it goes with the next work on the slice.
            lease = re.compile(r"_checkpoint/(beat|epoch)-\d+") if outcome.kills > 1 else re.compile("(?!)")
            outcome.faults += [f"left behind: {n}" for n in outcome.litter if not lease.fullmatch(n)]
        outcome.seconds = round(time.monotonic() - began, 2)
        if outcome.clean:
            remove(life.folder)
        else:
            outcome.folder = str(life.folder)
        return outcome


class _Life:
    """One trial: a slice from its input to the last audit."""

    def __init__(self, processes: Processes, trial: Trial, outcome: Outcome, number: int) -> None:
        self.trial, self.outcome = trial, outcome
        self.rng = random.Random(f"{processes.seed} {trial.id} {number}")
        self.shrink = 0.5**number
        self.s3, self.sabotage = processes.s3, processes.sabotage
        name = f"{trial.id}-{number}"
        self.folder = processes.folder / name
        remove(self.folder)
        self.folder.mkdir(parents=True)
        self.children = Children(self.folder)
        on_disk = trial.storage == "disk"
        root = str(self.folder / "data") if on_disk else f"s3://{BUCKET}/{processes.folder.name}/{name}"
        slice_ = Slice(root, trial.scenario, f"{processes.seed} {trial.id}")
        answered = self.folder / "answered.txt"
        answered.touch()
        self.place = Place(slice_, None if on_disk else self.s3.port, str(answered))
        self.flush_every = self.rng.choice((1, 1, 2, 3))

    def run(self) -> None:
        self.to_answer = self.children.ask(work.prepare, self.place)
        {
            "step": self._kill_at_steps, "instant": self._kill_at_any_instant,
            "two at once": self._two_at_once, "zombie": self._zombie, "storage dies": self._storage_dies,
            "storage misbehaves": self._storage_misbehaves,
        }[self.trial.kind]()  # fmt: skip

    # Kills

    def _kill_at_steps(self) -> None:
        for index, point in enumerate(self.trial.points):
            slow = 0.05 if point.step == "beat" and point.occurrence > 1 else 0.0
            child = self._answer(self._how(point=point, batch_seconds=slow))
            if not child.killed:
                if index == 0 or point.step == "removal of old lease":
                    raise NotMetError(f"{point} in {self.trial.scenario!r}: {child.result}")
                break
            self._look()
        self._until_published()

    def _kill_at_any_instant(self) -> None:
        batch_seconds = self.rng.choice((0.005, 0.02, 0.04))
        life = self.to_answer / BATCH * batch_seconds + (0.3 if self.place.port is None else 0.9)
        for index in range(self.rng.choice((1, 1, 2, 3))):
            child = self.children.start(work.answer, self.place, self._how(batch_seconds=batch_seconds), {})
            if child.wait(self.rng.uniform(0.01, life) * self.shrink):
                if index == 0:
                    raise NotMetError(f"it ended before {life:.1f} s: {child.result}")
                break
            child.kill()
            self.outcome.kills += 1
            self._look()
        self._until_published()

    # Special cases

    def _two_at_once(self) -> None:
        # Whoever is first answers nothing before the other waits for it, however late that one begins; and no
        # machine is so slow that it is taken for dead meanwhile.
        met = str(self.folder / "met")
        how = self._how(batch_seconds=0.03, begin=time.time() + 0.5, stale=60.0, meet=met)
        both = [self.children.start(work.answer, self.place, how, {}, name=f"run-{n}") for n in (1, 2)]
        for child in both:
            if not child.wait(_LIMIT):
                child.kill()
        results = [c.result.get("value") or c.result for c in both]
        if sorted(str(r.get("outcome")) for r in results) != ["attached", "published"]:
            self.outcome.faults.append(f"two at once ended as {results}")
        self.outcome.kills = 0
        self._finish()

    def _zombie(self) -> None:
        point = self.trial.points[0]
        zombie = self.children.start(work.answer, self.place, self._how(point=point), {}, name="zombie")
        try:
            if not zombie.wait_until_stopped(_LIMIT):
                raise NotMetError(f"{point} in {self.trial.scenario!r}: {zombie.result}")
            self._take_over(zombie)
        finally:
            zombie.kill()

    def _take_over(self, zombie: Child) -> None:
        """Another run publishes; then the zombie wakes up and must harm nothing."""
        question = 2 if self.trial.other else None
        change = {"question": 2, "on_config_change": "recompute"} if self.trial.other else {}
        second = self.children.start(work.answer, self.place, self._how(), change, name="second")
        # On a disk the one that is stopped within its last step holds the lock: the other waits for it.
        locked = self.trial.storage == "disk" and self.trial.points[0].step == "part"
        locked = locked and self.trial.points[0].when == "in" and not second.wait(_LOCK_SECONDS)
        if locked:
            zombie.go_on()
        if not second.wait(_LIMIT):
            second.kill()
        if "value" not in second.result:
            self.outcome.faults.append(f"the run that took over failed: {second.result}")
        first = self._inspect("after the one that took over: ", question)
        if not locked:
            zombie.go_on()
        if not zombie.wait(_LIMIT):
            self.outcome.faults.append("the zombie does not end")
            zombie.kill()
        ended = zombie.result.get("type") or zombie.result.get("value")
        then = self._conclude(change, question, f"after the zombie ({ended}): ")
        self.outcome.faults += work.changed(first["contents"], then["contents"], f"the zombie ({ended})")
        # What it left must not harm whoever works on the slice next.
        again = self._answer(self._how(), {**change, "force_rerun": True})
        if (again.result.get("value") or {}).get("outcome") != "published":
            self.outcome.faults.append(f"a forced run after that: {again.result}")
        self._inspect("after a forced run: ", question)

    def _storage_dies(self) -> None:
        proxy = self.s3.proxy()
        try:
            self._through(proxy, dies=True)
        finally:
            proxy.kill()
        self._finish()

    def _storage_misbehaves(self) -> None:
        proxy = self.s3.proxy(str(self.rng.choice((0.03, 0.08))), self.trial.id)
        try:
            self._through(proxy, dies=False)
        finally:
            proxy.kill()
        self._finish()

    def _through(self, proxy: Program, *, dies: bool) -> None:
        place = replace(self.place, port=proxy.port)
        for _ in range(_MOST_RUNS):
            child = self.children.start(work.answer, place, self._how(batch_seconds=0.02), {}, name="answer")
            while dies and not child.wait(self.rng.uniform(0.05, 1.5)) and self.outcome.kills < 3:
                proxy.kill()
                self.outcome.kills += 1
                time.sleep(self.rng.uniform(0.0, 1.0))
                proxy.start()
            if not child.wait(_LIMIT):
                child.kill()
                self.outcome.faults.append("a run does not end")
            if "value" in child.result:
                return
            self._look()
        self.outcome.faults.append(f"not published in {_MOST_RUNS} runs: {child.result}")

    # Steps of a life

    def _how(self, **given: Any) -> How:
        return How(**{"flush_every": self.flush_every, "sabotage": self.sabotage, **given})

    def _answer(self, how: How, change: dict[str, Any] | None = None) -> Child:
        child = self.children.run(work.answer, self.place, how, change or {})
        self.outcome.kills += child.killed
        return child

    def _look(self) -> None:
        self.outcome.faults += [f"after the kill: {f}" for f in self.children.ask(work.look, self.place)]

    def _until_published(self) -> None:
        child = self._answer(self._how())
        if "value" not in child.result:
            self.outcome.faults.append(f"the run after the kill failed: {child.result}")
            for _ in range(_MOST_RUNS):
                child = self._answer(self._how())
                if "value" in child.result:
                    break
            else:
                self.outcome.faults.append(f"not published in {_MOST_RUNS} runs")
        self._finish()

    def _finish(self) -> None:
        """The audit, and one run more, which must find nothing to do."""
        answered = len(Path(self.place.answered).read_text().splitlines())
        self.outcome.again = answered - self.to_answer
        if self.trial.scenario == "forced":  # one more run would answer all of it again, as it is told to
            self._inspect()
        else:
            self._conclude({}, None)
        if self.trial.kind in ("step", "instant", "two at once") and self.trial.scenario != "forced":
            most = self.outcome.kills * BATCH * self.flush_every
            if self.trial.points and all(p.step in _AFTER_ANSWERS for p in self.trial.points):
                most = 0
            if not 0 <= self.outcome.again <= most:
                self.outcome.faults.append(f"{self.outcome.again} rows answered again, at most {most} may be")

    def _conclude(self, change: dict[str, Any], question: int | None, when: str = "") -> dict[str, Any]:
        found: dict[str, Any] = self.children.ask(
            work.conclude, self.place, change, question, str(self.folder)
        )
        self.outcome.take(found, when)
        return found

    def _inspect(self, when: str = "", question: int | None = None) -> dict[str, Any]:
        found: dict[str, Any] = self.children.ask(work.inspect, self.place, question, str(self.folder))
        self.outcome.take(found, when)
        return found
