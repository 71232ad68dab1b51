"""What must hold of what is stored, in every state. README.md explains each property."""

from __future__ import annotations

from tests.model.reconcile import START, reconcile_step
from tests.model.run import promised, run_step
from tests.model.staged import commit_step_of_command
from tests.model.state import (
    MARK,
    PLAN,
    Actor,
    Document,
    Name,
    Process,
    Scenario,
    State,
    file_name,
    files,
    is_whole,
    live,
    newest,
    of_quarantine,
    of_table,
    staged_files,
)

#: Beside these, processes raise I1, I6, I8, P1, R1, R2, G1 and G2 where they see them (`Broken`).
SUCCESS_AWAY = "W1 the _SUCCESS of a finished version is removed, and stays away until the next reconcile"
UNFINISHED = "E1 all have ended, and the folders do not show the newest commit"
FALSE_ALARM = "E2 damage is reported although nobody deleted anything"
ENDLESS = "E3 from here not all can come to an end"

#: More steps than a process takes alone.
ENOUGH_STEPS = 120


def broken(m: Scenario, s: State) -> list[str]:
    """The properties that do not hold."""
    top = newest(s.commits)
    want = files(m, s.commits, top)
    committed = [files(m, s.commits, n) for n in range(1, len(s.commits) + 1) if s.commits[n - 1] is not None]
    kept = [files(m, s.commits, n) for n in range(1, top) if promised(s, n)] if m.keeps else []
    commit = s.commits[top - 1] if top else None
    plan = {file_name(m, top, commit.builder, commit.config, PLAN)} if m.plans and commit else set()
    mixed = [len({f[:2] for f in folder(s.shown)}) > 1 for folder in (of_table, of_quarantine)]
    wrong = {
        "I2 a file of the newest commit is gone": want - s.shown - s.staged and not s.harmed,
        "I3 a file of no committed version is in sight": s.shown - frozenset().union(*committed),
        "I4 _SUCCESS, and the folders are not one whole committed version": (
            s.success and s.shown not in committed and not s.harmed
        ),
        "I4b two versions in one folder at once": any(mixed),
        "I5 one more reconcile does not heal the folders": top and not heals(m, all_landed(s), want),
        "I7 a kept version is lost": not s.harmed and any(v - s.shown - s.staged - s.kept for v in kept),
        "I9 the newest version's plan is gone": plan - s.plans,
        "I10 a run alone does not build again what a stranger deleted": (
            commit is not None and s.harmed and not rebuilds(m, s, commit.builder)
        ),
    }
    if m.documents:
        wrong |= broken_of_documents(m, s)
    return [what for what, holds in wrong.items() if holds]


def broken_of_documents(m: Scenario, s: State) -> dict[str, object]:
    names = [c.document for c in s.commits if c is not None and c.document]
    waiting = live(s)
    lost = any(a.config == "staged file" for a in m.actors)
    there = s.staged | s.plans
    return {
        "I11 a file of a staged version is gone": not lost and any(
            staged_files(m, d) - there for d in waiting
        ),
        "I12 a discarded version is published": s.discarded & {*names},
        "I13 a command alone does not commit a staged version": any(
            not commits_alone(m, s, d) for d in waiting if staged_files(m, d) <= there
        ),
        "I14 a run alone pays for a staged version's rows again": m.rows and any(
            not is_published_free(m, s, d) for d in waiting
        ),
    }  # fmt: skip


def commits_alone(m: Scenario, s: State, document: Document) -> bool:
    """Whether a command, alone, publishes it."""
    s = after_alone(m, s, Actor("commit"), Process("files?", memory=(document, ())))
    return is_whole(m, s) and any(c is not None and c.document == document.name for c in s.commits)


def is_published_free(m: Scenario, s: State, document: Document) -> bool:
    """Whether a run of its question, alone, publishes it and pays for no row."""
    return is_whole(m, after_alone(m, s, m.actors[document.builder % 10]._replace(hold=False), Process()))


def after_alone(m: Scenario, s: State, actor: Actor, me: Process) -> State:
    """What is stored when this actor has ended, alone; nothing, when it would pay for a row."""
    m = m._replace(actors=(*m.actors, actor))
    move = run_step if actor.kind == "run" else commit_step_of_command
    for _ in range(ENOUGH_STEPS):
        step = None if me.at in ("end", "damaged", "pay") else move(m, s, len(m.actors) - 1, me)
        if step is None:
            break
        _, me, changes = step
        s = s._replace(**changes)
    return s if me.at == "end" else State()


def all_landed(s: State) -> State:
    """What is stored when the store has ended all copies that it was asked for."""
    names = {f for f, _ in s.flying}
    success = min((f[0] for f in names if f[2] == MARK), default=s.success)
    return s._replace(flying=frozenset(), success=success, shown=s.shown | {f for f in names if f[2] != MARK})


def heals(m: Scenario, s: State, want: frozenset[Name]) -> bool:
    """Whether one reconcile, alone, ends with the folders right, or rightly says that a file is lost."""
    m, me = m._replace(slow=False), START
    for _ in range(ENOUGH_STEPS):
        if me.at == "end":
            return is_whole(m, s)
        if me.at == "damaged":
            return bool(want - s.shown - s.staged) and s.harmed and not s.success
        step = reconcile_step(m, s, len(m.actors), me)
        assert step is not None
        _, me, changes = step
        s = s._replace(**changes)
    return False


def rebuilds(m: Scenario, s: State, builder: int) -> bool:
    """Whether a new run of the newest configuration, alone, ends with the folders whole."""
    if m.actors[builder % 10].kind != "run":
        return True
    m = m._replace(slow=False, actors=(*m.actors, m.actors[builder % 10]))
    me, s = Process(), all_landed(s)
    for _ in range(ENOUGH_STEPS):
        if me.at == "end":
            return is_whole(m, s)
        step = run_step(m, s, len(m.actors) - 1, me)
        assert step is not None
        _, me, changes = step
        s = s._replace(**changes)
    return False


def all_ended(m: Scenario, s: State) -> bool:
    """Whether all have ended who leave the folders with the newest commit in them."""
    workers = ("run", "restore", "reconcile", "commit", "discard")
    ends = zip(s.processes, m.actors, strict=True)
    return all(me.at in ("end", "damaged") for me, actor in ends if actor.kind in workers)
