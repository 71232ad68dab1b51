"""Walks all states of a scenario, breadth first, and finds for each broken property the shortest schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from tests.model.others import gc_step, glob_step, only_reconcile, reader_step, stranger_step
from tests.model.reconcile import START, reconcile_step
from tests.model.run import PLAN, promised, restore_step, run_step
from tests.model.state import (
    MARK,
    Broken,
    Move,
    Process,
    Scenario,
    State,
    file_name,
    files,
    is_whole,
    newest,
    of_quarantine,
    of_table,
)

MOVES: dict[str, Move] = {
    "run": run_step, "restore": restore_step, "reconcile": only_reconcile, "gc": gc_step,
    "glob": glob_step, "reader": reader_step, "stranger": stranger_step,
}  # fmt: skip
#: Kinds that end by themselves, with the folders brought to the newest commit.
WORKERS = ("run", "restore", "reconcile")


class Result(NamedTuple):
    states: int
    broken: dict[str, list[str]]  # of each property that broke: its text, and the shortest schedule

    @property
    def names(self) -> set[str]:
        return {what.split()[0] for what in self.broken}


def steps(m: Scenario, s: State) -> Iterator[tuple[str, State]]:
    for f, p in s.flying:
        landed = {"success": f[0]} if f[2] == MARK else {"shown": s.shown | {f}}
        yield f"store ends copy {f}", s._replace(flying=s.flying - {(f, p)}, **landed)
    for p, me in enumerate(s.processes):
        if me.at == "end":
            continue
        kind = m.actors[p].kind
        if step := MOVES[kind](m, s, p, me):
            label, after, changes = step
            processes = (*s.processes[:p], after, *s.processes[p + 1 :])
            new = s._replace(processes=processes, **changes)
            yield f"{kind}{p}: {label}", without_empty_removals(new) if label.startswith("removes ") else new


def without_empty_removals(s: State) -> State:
    """Drops removals of files that are gone for good (no name is ever used again): they change nothing."""
    flying = {f for f, _ in s.flying}
    gone: set[Any] = set()
    for me in s.processes:
        for request in me.todo if me.at in ("reconcile", "remove") else ():
            match request:
                case (int(), _, int()) if request not in s.staged and request not in s.plans:
                    gone.add(request)
                case ("fence", f) if f not in s.staged:
                    gone.add(request)
                case ("remove", f) if f not in s.shown and f not in s.staged and f not in flying:
                    gone.add(request)
    if not gone:
        return s
    kept = (me._replace(todo=tuple(x for x in me.todo if x not in gone)) for me in s.processes)
    return s._replace(processes=tuple(kept))


def broken(m: Scenario, s: State) -> list[str]:
    """The properties that do not hold of what is stored."""
    top = newest(s.commits)
    want = files(m, s.commits, top)
    committed = [files(m, s.commits, n) for n in range(1, len(s.commits) + 1) if s.commits[n - 1] is not None]
    landed = s._replace(flying=frozenset(), shown=s.shown | {f for f, _ in s.flying if f[2] != MARK})
    kept = [files(m, s.commits, n) for n in range(1, top) if promised(s, n)] if m.keeps else []
    commit = s.commits[top - 1] if top else None
    plan = {file_name(m, top, commit.builder, commit.config, PLAN)} if m.plans and commit else set()
    if any(f[2] == MARK for f, _ in s.flying):
        landed = landed._replace(success=min(f[0] for f, _ in s.flying if f[2] == MARK))
    wrong = {
        "I2 a file of the newest commit is gone": want - s.shown - s.staged and not s.harmed,
        "I3 a file of no committed version is in sight": s.shown - frozenset().union(*committed),
        "I4 _SUCCESS, and the folders are not one whole committed version": s.success
        and s.shown not in committed
        and not s.harmed,
        "I4b two versions in one folder at once": any(
            len({f[:2] for f in folder(s.shown)}) > 1 for folder in (of_table, of_quarantine)
        ),
        "I5 one more reconcile does not heal the folders": top and not heals(m, landed, want),
        "I7 a kept version is lost": not s.harmed and any(v - s.shown - s.staged - s.kept for v in kept),
        "I9 the newest version's plan is gone": plan - s.plans,
    }
    return [what for what, holds in wrong.items() if holds]


def heals(m: Scenario, s: State, want: frozenset[object]) -> bool:
    """Whether one reconcile, alone, ends with the folders right, or rightly says that a file is lost."""
    m, me = m._replace(slow=False), START
    for _ in range(80):
        if me.at == "end":
            return is_whole(m, s)
        if me.at == "damaged":
            return bool(want - s.shown - s.staged) and s.harmed and not s.success
        step = reconcile_step(m, s, 50, me)
        assert step is not None
        _, me, changes = step
        s = s._replace(**changes)
    return False


SUCCESS_AWAY = "W1 the _SUCCESS of a finished version is removed, and stays away until the next reconcile"
UNFINISHED = "E1 all have ended, and the folders do not show the newest commit"
FALSE_ALARM = "E2 damage is reported although nobody deleted anything"
STUCK = "E3 somebody waits for ever"


def ended(m: Scenario, s: State) -> bool:
    return all(
        me.at in ("end", "damaged") for me, a in zip(s.processes, m.actors, strict=True) if a.kind in WORKERS
    )


def explore(m: Scenario, until: Collection[str] = (), limit: int = 3_000_000) -> Result:
    """Walks all states; or fewer, when all properties named in `until` broke before that."""
    first = State(processes=(Process(),) * len(m.actors))
    came: dict[State, tuple[State | None, str]] = {first: (None, "")}
    found: dict[str, list[str]] = {}
    known: dict[State, list[str]] = {}  # what is broken, by what is stored
    queue = deque([first])

    def path(s: State | None) -> list[str]:
        labels = []
        while s is not None:
            s, label = came[s]
            labels.append(label)
        return labels[-2::-1]

    while queue and not (until and {what.split()[0] for what in found}.issuperset(until)):
        s = queue.popleft()
        whole = is_whole(m, s)
        try:
            alive = False
            for label, after in steps(m, s):
                alive = True
                if whole and label.endswith("removes _SUCCESS") and SUCCESS_AWAY not in found:
                    found[SUCCESS_AWAY] = [*path(s), label]
                if label.endswith("reports damage") and not s.harmed:
                    found.setdefault(FALSE_ALARM, [*path(s), label])
                    continue  # each rebuilds what the other has built, and so on
                if after in came:
                    continue
                came[after] = (s, label)
                stored = after._replace(processes=())
                if stored not in known:
                    known[stored] = broken(m, stored)
                for what in known[stored]:
                    if what not in found:
                        found[what] = path(after)
                queue.append(after)
                if len(came) > limit:
                    raise MemoryError(f"{m.title}: more than {limit:,} states")
            over = ended(m, s)
            if over and newest(s.commits) and not whole and not s.harmed and not s.flying and not (
                any(a.kind == "stranger" for a in m.actors)
            ):
                found.setdefault(UNFINISHED, path(s))
            if not alive and not over:
                found.setdefault(STUCK, path(s))
        except Broken as e:
            key, _, text = str(e).partition(": ")
            what = f"{key.split()[0]} {text}"
            if not any(known_text.startswith(what[:2]) for known_text in found):
                found[what] = [*path(s), str(e)]
    return Result(len(came), found)
