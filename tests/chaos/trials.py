"""Which trials there are: all of them follow from the seed, one by one, so that any can be run again "
"alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tests.chaos.failpoints import WITHOUT_MIDDLE, FailPoint, When
from tests.chaos.slices import SCENARIOS

Storage = Literal["disk", "s3"]
STORAGES: tuple[Storage, ...] = ("disk", "s3")
Kind = Literal["step", "instant", "two at once", "zombie", "storage dies", "storage misbehaves"]

_ANY = [n for n in SCENARIOS if n != "forced"]
_REPLACING = ["recompute", "recompute failing", "recompute parts", "one to parts", "parts to one", "forced"]
#: Every step, and the scenarios that come by it.
STEPS: dict[str, list[str]] = {
    "lease": _ANY, "beat": _ANY, "plan": _ANY, "fragment": _ANY,
    "failed fragment": ["failing", "failing twice", "failing parts", "recompute failing"],
    "seed": ["extend", "extend parts", "retry", "retry parts"],
    "seeded mark": ["extend", "extend parts", "retry", "retry parts"], "seal": [*_ANY, "forced"],
    "part": [*_ANY, "forced"],
    "quarantine": ["failing", "failing twice", "failing parts", "recompute failing"],
    "kept copy": ["kept", "kept parts"], "plan copy": [*_ANY, "forced"], "commit": [*_ANY, "forced"],
    "manifest": [*_ANY, "forced"], "report": [*_ANY, "forced"], "_SUCCESS": [*_ANY, "forced"],
    "removal of _SUCCESS": ["new", "parts", "recompute parts", "one to parts", "parts to one"],
    "removal of old file": _REPLACING, "removal of checkpoint": [*_ANY, "forced"],
    "removal of old lease": _ANY, "release": _ANY,
}  # fmt: skip
#: Steps that are met several times in every slice.
_OFTEN = {"fragment": 6, "beat": 3, "part": 2, "removal of old file": 2, "release": 2, "seed": 2}
_WHENS: tuple[When, ...] = ("before", "in", "after")
#: Where a holder is stopped, before another run takes its slice.
ZOMBIE_STEPS: list[tuple[str, When]] = [
    ("plan", "before"), ("fragment", "before"), ("fragment", "in"), ("seal", "before"), ("seal", "after"),
    ("quarantine", "before"), ("removal of _SUCCESS", "before"), ("part", "before"), ("part", "in"),
    ("part", "after"), ("plan copy", "before"), ("commit", "before"), ("commit", "after"),
    ("manifest", "before"), ("report", "before"), ("removal of old file", "before"), ("_SUCCESS", "before"),
    ("removal of checkpoint", "before"), ("release", "before"),
]  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """`points`: where the first, the second process is struck. `other`: whether the one that takes over asks
    another question."""

    id: str
    kind: Kind
    storage: Storage
    scenario: str
    points: tuple[FailPoint, ...] = ()
    other: bool = False

    @property
    def point(self) -> tuple[str, str, str]:
        """Mode, step, when: a line of the table."""
        step, when = (self.points[0].step, self.points[0].when) if self.points else ("any instant", "")
        if self.kind in ("step", "instant"):
            return f"kill, {self.storage}", step, when
        if self.kind == "zombie":
            return f"stopped and taken over, {self.storage}", step, when
        return f"{self.kind}, {self.storage}", step if self.points else "", when


def process_trials(seed: int, count: int) -> Iterator[Trial]:
    """Kills at every point in turn, in the seed's order, and at any instant; then the special cases."""
    points = [
        (storage, step, when)
        for storage in STORAGES
        for step in STEPS
        for when in _WHENS
        if not (when == "in" and step in WITHOUT_MIDDLE)
    ]
    random.Random(f"{seed} points").shuffle(points)
    met = 0
    for index in range(count):
        rng = random.Random(f"{seed} kill {index}")
        id = f"p{index:04}"
        if index % 6 == 5:
            yield Trial(id, "instant", rng.choice(STORAGES), rng.choice(_ANY))
            continue
        storage, step, when = points[met % len(points)]
        met += 1
        first = _point(rng, step, when)
        if step == "removal of old lease":  # met by who takes over
            begun = FailPoint("fragment", "after", rng.randint(1, 4))
            yield Trial(id, "step", storage, rng.choice(STEPS[step]), (begun, first))
            continue
        scenario = rng.choice(STEPS[step])
        again = ()
        if rng.random() < 0.3:
            later = [s for s in STEPS if scenario in STEPS[s]]
            again = (_point(rng, rng.choice(later), rng.choice(("before", "after"))),)
        yield Trial(id, "step", storage, scenario, (first, *again))
    yield from special_trials(seed, count / 300)


def special_trials(seed: int, share: float = 1.0) -> Iterator[Trial]:
    """Two at once, zombies, and storage that fails; `share` of them."""
    rng = random.Random(f"{seed} special")
    found: list[tuple[Kind, Storage, str, tuple[FailPoint, ...], bool]] = []
    for storage in STORAGES:
        for scenario in ("new", "parts", "recompute", "failing"):
            found.append(("two at once", storage, scenario, (), False))
        for step, when in ZOMBIE_STEPS:
            for other in (False, True):
                usual = [s for s in ("new", "parts", "recompute", "recompute parts") if s in STEPS[step]]
                scenario = rng.choice(usual or STEPS[step])
                found.append(("zombie", storage, scenario, (stop_at(step, when),), other))
        for step in ("removal of _SUCCESS", "part", "commit"):  # what one file and several do differently
            for scenario in ("new", "parts", "recompute parts"):
                found.append(("zombie", storage, scenario, (stop_at(step, "before"),), True))
    for _ in range(12):
        found.append(("storage dies", "s3", rng.choice(_ANY), (), False))
        found.append(("storage misbehaves", "s3", rng.choice(_ANY), (), False))
    order = list(range(len(found)))
    rng.shuffle(order)
    for index in order[: round(len(found) * min(share, 1.0))]:
        kind, storage, scenario, points, other = found[index]
        yield Trial(f"s{index:03}", kind, storage, scenario, points, other)


def _point(rng: random.Random, step: str, when: When) -> FailPoint:
    occurrence = rng.randint(1, _OFTEN[step]) if step in _OFTEN and rng.random() < 0.7 else 1
    return FailPoint(step, when, occurrence, torn=rng.random() < 0.5)


def stop_at(step: str, when: When) -> FailPoint:
    import signal

    return FailPoint(step, when, 2 if step == "fragment" else 1, signal=signal.SIGSTOP)
