"""What is done of a run: a line of JSON for each finished trial, so that a run that was ended goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from tests.chaos.life import Outcome
from tests.support.paths import ROOT


class Journal:
    def __init__(self, seed: int, *, fresh: bool) -> None:
        self.path = ROOT / ".chaos" / f"{seed}.jsonl"
        self.path.parent.mkdir(exist_ok=True)
        if fresh:
            self.path.unlink(missing_ok=True)
        self.outcomes: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    outcome = json.loads(line)
                except ValueError:  # the run was ended while it wrote this
                    continue
                self.outcomes[outcome["id"]] = outcome

    def add(self, outcome: Outcome) -> None:
        self.outcomes[outcome.id] = asdict(outcome)
        with open(self.path, "a") as f:
            f.write(json.dumps(asdict(outcome)) + "\n")
