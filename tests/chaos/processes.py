"""Trials in plain processes, without Ray: the store's own code, with the stub engine of the unit tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.chaos import changes, holds, kills, pauses, polling
from tests.chaos.life import Life, NotMetError, Outcome
from tests.chaos.storage import S3, remove
from tests.chaos.trials import Kind, Trial

_LIVES: dict[Kind, Callable[[Life], None]] = {
    "step": kills.kill_at_steps, "instant": kills.kill_at_any_instant, "two at once": kills.two_at_once,
    "storage dies": kills.storage_dies, "storage misbehaves": kills.storage_misbehaves,
    "dialect": kills.in_a_dialect, "zombie": pauses.zombie, "two zombies": pauses.two_zombies,
    "late removal": pauses.late_removal, "gc": pauses.gc, "rule": changes.rule,
    "X, Y, X": changes.there_and_back, "swapped input": changes.swapped_input,
    "readers": polling.beside_readers, "staged": holds.staged,
}  # fmt: skip
#: Kinds in which nobody who was stopped wakes up: what is left behind then stays for good.
_TIDY = {
    "step",
    "instant",
    "two at once",
    "storage dies",
    "storage misbehaves",
    "X, Y, X",
    "readers",
    "staged",
}


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
            life = Life(self.folder, self.s3, self.seed, self.sabotage, one, outcome, number)
            try:
                _LIVES[trial.kind](life)
            except NotMetError as e:
                if number < len(tries) - 1:
                    remove(life.folder)
                    continue
                outcome.faults.append(f"never struck: {e}")
            except Exception as e:
                outcome.faults.append(f"{type(e).__name__}: {e}")
            finally:
                life.end()
            break
        if trial.kind in _TIDY:
            outcome.faults += [f"left behind: {n}" for n in outcome.litter if not life.may_stay(n)]
        outcome.seconds = round(time.monotonic() - began, 2)
        if outcome.clean:
            remove(life.folder)
        else:
            outcome.folder = str(life.folder)
        return outcome
