"""Which trials there are: all of them follow from the seed, one by one, so that any can be run again "
"alone."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tests.chaos.failpoints import WITHOUT_MIDDLE, FailPoint, When
from tests.chaos.slices import SCENARIOS

Storage = Literal["disk", "s3"]
STORAGES: tuple[Storage, ...] = ("disk", "s3")
Kind = Literal[
    "step", "instant", "two at once", "zombie", "two zombies", "gc", "rule", "X, Y, X", "late removal",
    "dialect", "readers", "swapped input", "storage dies", "storage misbehaves", "staged",
]  # fmt: skip

_ANY = [n for n in SCENARIOS if n != "forced"]
_ALL = list(SCENARIOS)
_REPLACING = [n for n, s in SCENARIOS.items() if s.before is not None]
_KEEPING = [n for n in _REPLACING if not n.startswith("not kept")]
_FAILING = ["failing", "failing twice", "failing parts", "recompute failing"]
_JUDGED = ["judged", "judged failing", "judged recompute"]
_TAKING_OVER = ["extend", "extend parts", "retry", "retry parts"]
#: Every step, and the scenarios that come by it.
STEPS: dict[str, list[str]] = {
    "lease": _ANY, "beat": _ANY, "plan": _ANY, "fragment": _ANY, "failed fragment": _FAILING,
    "file of a probe": _JUDGED, "carried-over fragment": _TAKING_OVER, "carried-over mark": _TAKING_OVER,
    "progress": _ANY,
    "staged part": _ALL, "staged quarantine": _FAILING, "plan of the version": _ALL, "staged marker": _ALL,
    "document": _ALL, "commit": _ALL, "removal of the document": _ALL, "look at the commits": _ALL,
    "kept copy": _KEEPING, "removal by the fence": _REPLACING,
    "look at the folders": _ALL, "removal of _SUCCESS": _REPLACING, "removal of an older file": _REPLACING,
    "placing a file": _ALL, "placing _SUCCESS": _ALL, "removal of staged data": _ALL, "report": _ALL,
    "complete mark": _ALL, "removal of what was kept": _REPLACING, "removal of checkpoint": _ALL,
    "removal of old lease": _ANY, "release": _ANY,
}  # fmt: skip
#: Of `reconcile`, in their order.
RECONCILE = [
    "look at the commits", "kept copy", "removal by the fence", "look at the folders", "removal of _SUCCESS",
    "removal of an older file", "placing a file", "placing _SUCCESS", "removal of staged data", "report",
    "complete mark", "removal of what was kept",
]  # fmt: skip
#: Steps that are met several times in every slice.
_OFTEN = {
    "fragment": 6, "beat": 3, "staged part": 2, "removal of an older file": 2, "release": 2,
    "carried-over fragment": 2, "look at the commits": 4, "look at the folders": 3, "placing a file": 2,
    "removal of staged data": 2, "kept copy": 2,
}  # fmt: skip
_WHENS: tuple[When, ...] = ("before", "in", "after")
#: Where a holder is stopped, before another run takes its slice.
ZOMBIE_STEPS: list[tuple[str, When]] = [
    ("plan", "before"), ("fragment", "before"), ("fragment", "in"), ("staged part", "before"),
    ("staged part", "in"), ("staged part", "after"), ("staged quarantine", "before"),
    ("plan of the version", "before"), ("staged marker", "before"), ("commit", "before"), ("commit", "in"),
    ("commit", "after"), *((step, "before") for step in RECONCILE), ("placing a file", "in"),
    ("placing _SUCCESS", "in"), ("placing _SUCCESS", "after"), ("removal of checkpoint", "before"),
    ("release", "before"),
]  # fmt: skip


#: What happens to rows and to the rule by which they are read, between two runs.
RULES = ["timezone", "delimiter", "encoding", "column types"]
#: A store that speaks another dialect, or is slow, or loses answers (`tests.support.s3_dialect`).
DIALECTS: dict[str, tuple[str, ...]] = {
    "bare 412": ("refusal=bare",), "empty 412": ("refusal=empty",), "409": ("conflicts=3",),
    "lost answers": ("lost_answers=4",), "throttled": ("throttled=6",), "slow": ("latency_s=0.02",),
    "late copies": ("copy_delay_s=0.4", "lost_copies=3"), "late copies, bare 412": (
        "copy_delay_s=0.3", "lost_copies=1", "refusal=bare",
    ),
}  # fmt: skip
#: In turn: the kinds that are no plain kills.
_TURN: tuple[Kind, ...] = (
    "zombie", "two zombies", "dialect", "zombie", "gc", "two zombies", "rule", "zombie", "X, Y, X",
    "two zombies", "late removal", "dialect", "zombie", "readers", "two zombies", "two at once",
    "swapped input", "storage dies", "zombie", "storage misbehaves",
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """`points`: where the first, the second process is struck. `other`: whether the one that takes over asks
    another question. `variant`: of kinds that have several."""

    id: str
    kind: Kind
    storage: Storage
    scenario: str
    points: tuple[FailPoint, ...] = ()
    other: bool = False
    variant: str = ""

    @property
    def point(self) -> tuple[str, str, str]:
        """Mode, step, when: a line of the table."""
        step, when = (self.points[0].step, self.points[0].when) if self.points else ("any instant", "")
        if self.kind in ("step", "instant"):
            return f"kill, {self.storage}", step, when
        if self.kind == "zombie":
            return f"stopped and taken over, {self.storage}", step, when
        if self.kind == "two zombies":
            return f"two zombies, {self.storage}", step, ""
        return f"{self.kind}, {self.storage}", self.variant or (step if self.points else ""), ""


def process_trials(seed: int, count: int) -> Iterator[Trial]:
    """Half of them kills, half of them other events; all of the seed."""
    yield from kill_trials(seed, (count + 1) // 2)
    yield from special_trials(seed, count // 2)


def kill_trials(seed: int, count: int) -> Iterator[Trial]:
    """Kills at every point in turn, in the seed's order, and at any instant."""
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


def special_trials(seed: int, count: int) -> Iterator[Trial]:
    """Holders that are stopped and wake up late, stores, rules, inputs and readers."""
    stops = [
        (storage, *stop, other) for storage in STORAGES for stop in ZOMBIE_STEPS for other in (False, True)
    ]
    random.Random(f"{seed} stops").shuffle(stops)
    met: Counter[str] = Counter()
    for index in range(count):
        rng = random.Random(f"{seed} special {index}")
        kind = _TURN[index % len(_TURN)]
        turn = met[kind]
        met[kind] += 1
        id, storage = f"s{index:04}", STORAGES[turn % 2]
        if kind == "zombie":
            storage, step, when, other = stops[turn % len(stops)]
            yield Trial(id, kind, storage, rng.choice(_usual(step)), (stop_at(step, when),), other)
        elif kind == "two zombies":
            scenario = rng.choice(["new", "parts", "recompute", "recompute parts", "failing to none"])
            steps = [s for s in ZOMBIE_STEPS if scenario in STEPS[s[0]]]
            points = (*(stop_at(*rng.choice(steps)) for _ in range(2)), stop_at(*_reconciled(rng, scenario)))
            variant = rng.choice(WAKINGS)
            yield Trial(id, kind, storage, scenario, points, rng.random() < 0.7, variant)
        elif kind == "dialect":
            name = list(DIALECTS)[turn % len(DIALECTS)]
            scenario = rng.choice(["new", "recompute", "recompute parts", "extend", "recompute failing"])
            step = rng.choice([s for s in STEPS if scenario in STEPS[s] and s not in _UNSURE])
            points = () if rng.random() < 0.2 else (_point(rng, step, rng.choice(("before", "after"))),)
            yield Trial(id, kind, "s3", scenario, points, variant=name)
        elif kind == "gc":
            stop = rng.choice([s for s in ZOMBIE_STEPS if s[0] != "staged quarantine"])
            variant = ("beside a stopped run", "beside a live run")[turn // 2 % 2]
            points = (stop_at(*stop),) if variant == "beside a stopped run" else ()
            scenario = rng.choice(_usual(stop[0])) if points else "recompute"
            yield Trial(id, kind, storage, scenario, points, variant=variant)
        elif kind == "rule":
            policy = ("extend", "recompute", "fail")[turn // (2 * len(RULES)) % 3]
            rule = RULES[turn // 2 % len(RULES)]
            points = () if rng.random() < 0.5 else (FailPoint("fragment", "after", rng.randint(1, 3)),)
            yield Trial(id, kind, storage, policy, points, variant=rule)
        elif kind == "X, Y, X":
            scenario = rng.choice(["recompute", "recompute parts", "one to parts"])
            points = () if rng.random() < 0.5 else (_point(rng, "fragment", "after"),)
            yield Trial(id, kind, storage, scenario, points)
        elif kind == "late removal":
            points = (stop_at("removal of _SUCCESS", "before"),)
            yield Trial(id, kind, storage, rng.choice(["recompute", "recompute parts"]), points)
        elif kind == "readers":
            points = (_point(rng, rng.choice(RECONCILE), rng.choice(("before", "after"))),)
            yield Trial(id, kind, storage, rng.choice(["recompute", "recompute parts"]), points)
        elif kind == "swapped input":
            yield Trial(id, kind, "disk", "new", variant=rng.choice(("A, B, A", "same size and time")))
        elif kind == "two at once":
            yield Trial(id, kind, storage, rng.choice(["new", "parts", "recompute", "failing"]))
        else:
            yield Trial(id, kind, "s3", rng.choice(_ANY))


#: What becomes of a staged version, and the steps at which who does it is struck.
STAGED: dict[str, list[str]] = {
    "commit": ["commit", *RECONCILE, "removal of the document", "removal of checkpoint"],
    "run": ["commit", *RECONCILE, "removal of the document"],
    "discard": ["removal of the document", "commit", "removal of staged data"],
    "commit, late": ["commit", "look at the commits", "placing a file", "removal of the document"],
    "commit beside gc": ["commit", "look at the commits", "placing a file"],
    "discarded before a late commit": ["commit"],
    "asked again": ["rejection", "commit", "removal of the document", "removal of staged data"],
}
#: Scenarios of staged versions, and those whose published rows nobody asks again.
_STAGED = ["new", "parts", "failing", "recompute", "recompute parts", *_JUDGED]
_STAGED_TAKING_OVER = ["extend", "retry"]
_STAGING = ["staged part", "plan of the version", "staged marker", "document"]
_STAGING_JUDGED = [*_STAGING, "file of a probe"]


def staged_trials(seed: int, count: int) -> Iterator[Trial]:
    """A run is killed while it stages a version, then whoever commits or discards it is struck."""
    for index in range(count):
        rng = random.Random(f"{seed} staged {index}")
        variant = list(STAGED)[index % len(STAGED)]
        scenario = rng.choice([*_STAGED, *([] if variant == "asked again" else _STAGED_TAKING_OVER)])
        staging = _point(
            rng, rng.choice(_STAGING_JUDGED if scenario in _JUDGED else _STAGING), rng.choice(_WHENS)
        )
        steps = [s for s in STAGED[variant] if scenario in STEPS.get(s, _ALL)]
        step, when = rng.choice(steps), rng.choice(("before", "after"))
        stops = variant not in ("commit", "run", "discard", "asked again")
        late = "before" if variant.startswith("discarded") else when
        point = stop_at(step, late) if stops else FailPoint(step, when)
        yield Trial(
            f"h{index:04}", "staged", STORAGES[index % 5 == 4], scenario, (staging, point), variant=variant
        )


#: Not met for sure by a slice of few rows on a store that is slow.
_UNSURE = {"beat", "progress", "removal of old lease"}
#: The order in which two holders that were stopped go on; "C" is who published meanwhile.
WAKINGS = ("A, B", "B, A", "A and B", "A, B, C", "B, C, A", "A and B, C")


def _usual(step: str) -> list[str]:
    usual = ("new", "parts", "recompute", "recompute parts", "not kept", "failing to none")
    return [s for s in usual if s in STEPS[step]] or STEPS[step]


def _reconciled(rng: random.Random, scenario: str) -> tuple[str, When]:
    return rng.choice([s for s in RECONCILE if scenario in STEPS[s]]), "before"


def _point(rng: random.Random, step: str, when: When) -> FailPoint:
    occurrence = rng.randint(1, _OFTEN[step]) if step in _OFTEN and rng.random() < 0.7 else 1
    return FailPoint(step, when, occurrence, torn=rng.random() < 0.5)


def stop_at(step: str, when: When) -> FailPoint:
    return FailPoint(step, when, 2 if step == "fragment" else 1, signal=signal.SIGSTOP)
