"""A run decides, pays, stages and commits a version; a restore stages copies of an older one.

Where runs put documents (`Scenario.documents`), `tests.model.staged` has what follows the staging.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.reconcile import QUICK, START, reconcile_step, takes_lease
from tests.model.staged import fresh_nonce, put_document, put_staged, staged_step
from tests.model.state import (
    END,
    MARK,
    PLAN,
    QUARANTINE,
    Actor,
    Broken,
    Commit,
    Document,
    Fragment,
    Name,
    Process,
    Scenario,
    State,
    Step,
    files,
    is_whole,
    newest,
    window,
)

#: Where a file is looked for, in the order of its life; it can be placed between two looks.
BASE_PLACES = ("shown", "staged", "shown", "newer?")
KEPT_PLACES = ("shown", "staged", "shown", "kept", "newer?")


class Build(NamedTuple):
    """What a run decided."""

    base: int
    key: tuple[Any, ...]  # of the rows that it pays
    carried: tuple[
        Any, ...
    ] = ()  # key of the rows that it carries over, all but the last; () when it does not
    nonce: int = 0  # of this attempt: the process, and ten more with each
    fresh: bool = False  # rows that the base answered are answered again
    chosen: frozenset[Fragment] = frozenset()
    paid_twice: str = ""


def run_step(m: Scenario, s: State, p: int, me: Process) -> Step:
    actor, r = m.actors[p], m.rules
    top = newest(s.commits)
    build: Any = me.memory
    number = me.number
    match me.at:
        case "reconcile":
            return reconcile_step(m, s, p, me)
        case "damaged":
            return "will build it again", Process(memory=me.number) if r.rebuild else END, {}
        case "decide":
            return decide(m, s, p, me)
        case "rows":  # lists the ledger
            mine = sorted((f for f in s.fragments if f[0][:4] == key_of(m, build, f[1])[:4]), reverse=True)
            lacks = tuple(row for row in range(m.rows) if row not in {f[1] for f in mine})
            if not lacks:  # of overlapping fragments the first by name counts
                chosen = frozenset({f[1]: f for f in mine}.values())
                return "lists fragments: all there", stage(m, p, number, build._replace(chosen=chosen)), {}
            if build.carried and lacks[0] < m.rows - 1:
                base = tuple((f, BASE_PLACES) for f in sorted(files(m, s.commits, build.base)))
                return "lists fragments: none carried over", Process("carry", number, base, build), {}
            why = paid_already(m, s, p, build, lacks)
            at = "look" if r.look_before_paying else "pay"
            return "lists fragments", Process(at, number, lacks, build._replace(paid_twice=why)), {}
        case "carry":
            return carry(m, s, p, me, build)
        case "look":
            if top != build.base:
                return f"sees version {top}", Process(), {}
            return "sees nothing newer", me._replace(at="pay"), {}
        case "pay":
            if build.paid_twice:
                raise Broken(f"P1 run{p}: {build.paid_twice}")
            put = s.fragments | {(build.key, me.todo[0], p)}
            rest = me.todo[1:]
            after = Process("pay" if rest else "rows", number, rest, build)
            changes: dict[str, Any] = {"fragments": put}
            if m.leases and s.holders[-1:] == (p,):
                changes["paid"] = s.paid | {(build.key, me.todo[0], p)}
            return f"puts fragment of row {me.todo[0]}", after, changes
        case "stage":
            if build.chosen - s.fragments:
                return "misses a fragment", Process(), {}
            # Only gc looks at files of unique names before their commit: without one, they are one step.
            now, later = (me.todo[:1], me.todo[1:]) if m.has("gc") else (me.todo, ())
            then = "document" if m.documents else "commit"
            after = Process("stage" if later else then, number, later, build)
            return (
                f"stages {now} of {number}",
                after,
                put_staged(m, s, build.nonce, number, actor.config, now),
            )
        case "document":
            check_rows(m, s, p, build)
            document = Document(
                number, build.nonce, build.base, build.key, actor.config, indexes(m, actor), actor.keep,
                build.chosen, actor.hold,
            )  # fmt: skip
            return put_document(m, s, me, document)
        case "slot?" | "withdraw" | "files?" | "try" | "again" | "copy" | "document?":
            return staged_step(m, s, p, me)
        case "commit":
            check_rows(m, s, p, build)
            commit = Commit(build.nonce, actor.config, indexes(m, actor), actor.keep, build.chosen)
            if m.late:
                return f"sends commit {number}", me._replace(at="sent"), {"sent": s.sent | {(number, commit)}}
            return commit_step(m, s, p, number, build.base, commit)
        case "sent":
            return unknown_commit_step(m, s, p, number, build)
    raise AssertionError(me)


def decide(m: Scenario, s: State, p: int, me: Process) -> Step:
    actor, r, top = m.actors[p], m.rules, newest(s.commits)
    commit = s.commits[top - 1] if top else None
    same = commit is not None and commit.config == actor.config
    mode = m.actors[commit.builder % 10].mode if commit is not None else ""
    damaged = top > 0 and me.memory == top
    asked = same and actor.mode in ("retry", "forced") and mode != actor.mode
    if same and not asked and not damaged:
        if r.by_commit or is_whole(m, s):
            return f"sees version {top} finished", QUICK if r.quick else START, takes_lease(m, s, p)
        raise Broken(f"I6 run{p}: answers a finished version again")
    extends = actor.mode == "extend" and commit is not None and commit.config == actor.over
    fresh = asked and not damaged
    carries = not damaged and (extends or (fresh and actor.mode == "retry"))
    number = len(s.commits) + 1
    slot = 0 if r.keyed_by_question else number
    based = (fresh and r.base_in_key) or (carries and not r.extend_by_question)
    key = (actor.config, top if based else 0, slot)
    carried = (actor.config, top if r.base_in_carried else 0, slot, "carried", top) if carries else ()
    mine = [d for d in sorted(s.documents) if (d.base, d.question, d.config) == (top, key, actor.config)]
    if mine and r.adopt:
        return f"finds document {mine[0].name}", Process("files?", mine[0].number, (), (mine[0], ())), {}
    build = Build(top, key, carried, fresh_nonce(m, s, p, number), fresh)
    label = f"will build version {number} over {top}"
    after = Process("rows", number, (), build) if m.rows else stage(m, p, number, build)
    return label, after, takes_lease(m, s, p)


def stage(m: Scenario, p: int, number: int, build: Build) -> Process:
    parts = (*indexes(m, m.actors[p]), *[MARK] * m.rules.marker, *[PLAN] * m.plans)
    return Process("stage", number, parts, build)


def indexes(m: Scenario, actor: Actor) -> tuple[int, ...]:
    return (*range(m.files), *(QUARANTINE + i for i in range(actor.quarantine)))


def key_of(m: Scenario, build: Build, row: int) -> tuple[Any, ...]:
    return build.carried if build.carried and row < m.rows - 1 else build.key


def paid_already(m: Scenario, s: State, p: int, build: Build, lacks: tuple[int, ...]) -> str:
    """Why these rows may not be paid; "" when they may."""
    actor, top = m.actors[p], newest(s.commits)
    commit = s.commits[top - 1] if top else None
    if top != build.base and commit is not None and commit.config == actor.config and not build.fresh:
        return "pays for rows of a version that was finished before it listed"
    question = build.key[:2]
    for row in lacks:
        stored = [f for f in s.fragments if f[1] == row and f[0][0] == actor.config and len(f[0]) == 3]
        if any(f[0][:2] == question or actor.mode == m.actors[f[2]].mode == "extend" for f in stored):
            return f"pays row {row} again, which is stored under another key"
        if any(f[0][:2] == question and f[1] == row for f in s.lost):
            return f"pays row {row} again, whose fragment a finisher removed"
    return ""


def check_rows(m: Scenario, s: State, p: int, build: Build) -> None:
    if not m.rows:
        return
    if sorted(f[1] for f in build.chosen) != list(range(m.rows)):
        raise Broken(f"I1 run{p}: a row is missing or twice in the commit")
    asked_again = range(m.rows) if build.fresh and not build.carried else [m.rows - 1] * build.fresh
    for key, row, writer in build.chosen:
        if key[4:] not in ((), (build.base,)):
            raise Broken(f"I8 run{p}: publishes rows that it carried over from another base")
        if row in asked_again and m.actors[writer].mode != m.actors[p].mode:
            raise Broken(f"I8 run{p}: publishes an old answer of a row that was to be answered again")


def commit_step(m: Scenario, s: State, p: int, number: int, base: int, commit: Commit) -> Step:
    slot = number if m.rules.same_number else len(s.commits) + 1
    if len(s.commits) >= slot:
        return f"finds number {slot} taken", Process(), {}
    if base != newest(s.commits):
        raise Broken(f"I1 {p}: built on version {base}, published over version {newest(s.commits)}")
    placed = {"placed": s.placed | {slot}} if m.slow and m.rules.placed_at == "commit" else {}
    after = START if m.rules.reconcile else END
    return f"commits {slot}", after, {"commits": (*s.commits, commit), **placed}


def unknown_commit_step(m: Scenario, s: State, p: int, number: int, build: Build) -> Step:
    """Reads the slot after a commit whose answer was lost."""
    actor, policy = m.actors[p], m.rules.unknown_commit
    if len(s.commits) >= number:
        commit = s.commits[number - 1]
        own = commit is not None and commit.builder == build.nonce
        return (f"finds its commit {number}", START, {}) if own else (f"finds {number} taken", Process(), {})
    if policy == "again" or build.nonce >= 10:  # two attempts show it
        commit = Commit(build.nonce, actor.config, indexes(m, actor), actor.keep, build.chosen)
        return commit_step(m, s, p, number, build.base, commit)
    own_files = frozenset(f for f in s.staged if f[:2] == (number, build.nonce))
    gone = {"staged": s.staged - own_files} if policy == "clean" else {}
    return f"gives commit {number} up", Process(), gone


def carry(m: Scenario, s: State, p: int, me: Process, build: Build) -> Step:
    """Reads the base's files by its commit, while somebody may be replacing them."""
    if not me.todo:
        put = {(build.carried, row, p) for row in range(m.rows - 1)}
        return "carries rows over", Process("rows", me.number, (), build), {"fragments": s.fragments | put}
    f, places = me.todo[0]
    if places[0] == "newer?":
        if newest(s.commits) != build.base:
            return f"sees version {newest(s.commits)}", Process(), {}
        if not s.harmed:
            raise Broken(f"R1 run{p}: a file of its base is nowhere")
        return "reports a damaged base", END, {}
    return look_for(s, me, f, places)


def look_for(s: State, me: Process, f: Name, places: tuple[str, ...]) -> Step:
    if f in getattr(s, places[0]):
        return f"reads {f} ({places[0]})", me._replace(todo=me.todo[1:]), {}
    return f"misses {f} ({places[0]})", me._replace(todo=((f, places[1:]), *me.todo[1:])), {}


def restore_step(m: Scenario, s: State, p: int, me: Process) -> Step:
    """A new version whose files are newly staged copies of an older one's."""
    actor, top = m.actors[p], newest(s.commits)
    match me.at:
        case "reconcile":
            return reconcile_step(m, s, p, me)
        case "decide":
            source = files(m, s.commits, actor.version) if actor.version <= len(s.commits) else frozenset()
            if not source:
                return "finds no such version", END, {}
            todo = tuple((f, KEPT_PLACES) for f in sorted(source))
            number = len(s.commits) + 1
            return f"will restore as version {number}", Process("copy", number, todo, top), {}
        case "copy":
            chosen = s.commits[actor.version - 1]
            assert chosen is not None
            if not me.todo:
                staged = put_staged(m, s, p, me.number, chosen.config, (MARK, *[PLAN] * m.plans))
                return "stages the marker", me._replace(at="commit"), staged
            f, places = me.todo[0]
            if places[0] == "newer?":
                if top != me.memory:
                    return f"sees version {top}", Process(), {}
                if promised(s, actor.version) and not s.harmed:
                    raise Broken(f"R2 restore{p}: a file of version {actor.version} is nowhere")
                return "reports that the version is not kept", END, {}
            label, after, _ = look_for(s, me, f, places) or ("", me, {})
            if len(after.todo) == len(me.todo):
                return label, after, {}
            return label, after, put_staged(m, s, p, me.number, chosen.config, (f[2],))
        case "commit":
            chosen = s.commits[actor.version - 1]
            assert chosen is not None
            commit = Commit(p, chosen.config, chosen.indexes, chosen.keep)
            return commit_step(m, s, p, me.number, me.memory, commit)
    return None  # damaged: the restore has said so


def promised(s: State, number: int) -> bool:
    """Whether every commit after this version keeps it."""
    later = [n for n in range(number + 1, len(s.commits) + 1) if s.commits[n - 1] is not None]
    return s.commits[number - 1] is not None and all(number in window(s.commits, n) for n in later)
