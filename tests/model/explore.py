"""Walks all states of a scenario, breadth first, and finds for each broken property the shortest schedule."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from tests.model.others import gc_step, glob_step, only_reconcile, reader_step, stranger_step
from tests.model.properties import ENDLESS, FALSE_ALARM, SUCCESS_AWAY, UNFINISHED, all_ended, broken
from tests.model.run import restore_step, run_step
from tests.model.staged import commit_step_of_command, discard_step
from tests.model.state import MARK, Broken, Move, Process, Scenario, State, is_whole, newest

MOVES: dict[str, Move] = {
    "run": run_step, "restore": restore_step, "reconcile": only_reconcile, "gc": gc_step,
    "glob": glob_step, "reader": reader_step, "stranger": stranger_step, "commit": commit_step_of_command,
    "discard": discard_step,
}  # fmt: skip


class Result(NamedTuple):
    states: int
    broken: dict[str, list[str]]  # of each property that broke: its text, and the shortest schedule

    @property
    def names(self) -> set[str]:
        return {what.split()[0] for what in self.broken}


def steps(m: Scenario, s: State) -> Iterator[tuple[str, State]]:
    """What each process, or the store, could do next."""
    for f, p in s.flying:
        landed = {"success": f[0]} if f[2] == MARK else {"shown": s.shown | {f}}
        yield f"store ends copy {f}", s._replace(flying=s.flying - {(f, p)}, **landed)
    for slot, commit in s.sent:
        commits = (*s.commits, commit) if len(s.commits) + 1 == slot else s.commits
        yield f"store carries commit {slot} out", s._replace(sent=s.sent - {(slot, commit)}, commits=commits)
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
    kept = (
        me._replace(todo=tuple(x for x in me.todo if x not in gone))
        if me.at in ("reconcile", "remove")
        else me
        for me in s.processes
    )
    return s._replace(processes=tuple(kept))


class Walk:
    """The states of a scenario in the order in which they are met; a state is its position there."""

    def __init__(self, m: Scenario) -> None:
        first = State(processes=(Process(),) * len(m.actors))
        self.m = m
        self.states = [first]
        self.position = {first: 0}
        self.reached_by: list[tuple[int, str]] = [(0, "")]
        self.from_where: list[list[int]] = [[]]  # all states one step before, for `endless`
        self.cut: set[int] = set()  # states from which the walk does not go on
        self.broken: dict[str, list[str]] = {}
        self.known: dict[State, list[str]] = {}  # what is broken, by what is stored

    def schedule(self, at: int) -> list[str]:
        labels = []
        while at:
            at, label = self.reached_by[at]
            labels.append(label)
        return labels[::-1]

    def report(self, what: str, at: int, *more: str) -> None:
        if what not in self.broken:
            self.broken[what] = [*self.schedule(at), *more]

    def expand(self, at: int) -> None:
        """Adds the states after this one."""
        s = self.states[at]
        whole = is_whole(self.m, s)
        try:
            for label, after in steps(self.m, s):
                if whole and label.endswith("removes _SUCCESS"):
                    self.report(SUCCESS_AWAY, at, label)
                if label.endswith("reports damage") and not s.harmed:
                    self.report(FALSE_ALARM, at, label)
                    self.cut.add(at)
                    continue  # each rebuilds what the other has built, and so on
                position = self.position.setdefault(after, len(self.states))
                if position == len(self.states):
                    self.states.append(after)
                    self.reached_by.append((at, label))
                    self.from_where.append([])
                    self.judge(position)
                self.from_where[position].append(at)
        except Broken as e:
            self.cut.add(at)
            who, _, text = str(e).partition(": ")
            if not any(what.startswith(who[:2]) for what in self.broken):
                self.report(f"{who.split()[0]} {text}", at, str(e))

    def judge(self, at: int) -> None:
        s = self.states[at]
        stored = s._replace(processes=())
        if stored not in self.known:
            self.known[stored] = broken(self.m, stored)
        for what in self.known[stored]:
            self.report(what, at)
        if all_ended(self.m, s) and newest(s.commits) and not is_whole(self.m, s):
            excused = s.flying or s.harmed or any(a.kind == "stranger" for a in self.m.actors)
            if not excused:
                self.report(UNFINISHED, at)

    def endless(self) -> list[int]:
        """States from which no schedule leads to an end of all."""
        ends = [at for at, s in enumerate(self.states) if at in self.cut or all_ended(self.m, s)]
        good = set(ends)
        while ends:
            for before in self.from_where[ends.pop()]:
                if before not in good:
                    good.add(before)
                    ends.append(before)
        return [at for at in range(len(self.states)) if at not in good]


def explore(m: Scenario, until: Collection[str] = (), limit: int = 3_000_000) -> Result:
    """Walks all states; or fewer, when all properties named in `until` broke before that."""
    walk = Walk(m)
    for at, _ in enumerate(walk.states):  # grows meanwhile
        walk.expand(at)
        if until and {what.split()[0] for what in walk.broken}.issuperset(until):
            break
        if len(walk.states) > limit:
            raise MemoryError(f"{m.title}: more than {limit:,} states")
    else:
        for at in walk.endless()[:1]:
            walk.report(ENDLESS, at)
    return Result(len(walk.states), walk.broken)
