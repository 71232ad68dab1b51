"""A staged version as a document: who commits it, and who discards it, needs nobody who staged it."""

from __future__ import annotations

from typing import Any

from tests.model.reconcile import START, reconcile_step
from tests.model.state import (
    END,
    MARK,
    PLAN,
    Broken,
    Commit,
    Document,
    Process,
    Scenario,
    State,
    Step,
    file_name,
    newest,
    staged_files,
)


def put_staged(
    m: Scenario, s: State, nonce: int, number: int, config: str, now: tuple[int, ...]
) -> dict[str, Any]:
    names = {file_name(m, number, nonce, config, i) for i in now}
    plans = {f for f in names if f[2] == PLAN}
    shown = {} if m.rules.stage_first else {"shown": s.shown | {f for f in names - plans if f[2] != MARK}}
    return {"staged": s.staged | (names - plans), "plans": s.plans | plans, **shown}


def fresh_nonce(m: Scenario, s: State, p: int, number: int) -> int:
    used = {f[1] for f in s.staged | s.shown if f[0] == number} | {commit.builder for _, commit in s.sent}
    return next(p + 10 * i for i in range(9) if p + 10 * i not in used)


def put_document(m: Scenario, s: State, me: Process, document: Document) -> Step:
    told: dict[str, Any] = {"documents": s.documents | {document}}
    label = f"puts document {document.name}"
    if document.held and not m.rules.look_after_document:
        return label, END, {**told, "reported": s.reported | {document}}
    memory = (document, document.builder)
    return label, Process("slot?" if document.held else "try", me.number, (), memory), told


def staged_step(m: Scenario, s: State, p: int, me: Process) -> Step:
    """What follows once there is a document. `me.memory`: it, and who staged the files to commit."""
    actor, r = m.actors[p], m.rules
    document, builder = me.memory
    committed = [n for n, c in enumerate(s.commits, 1) if c is not None and c.document == document.name]
    match me.at:
        case "files?":  # of who found the document
            there = staged_files(m, document) <= s.staged | s.plans
            at = "slot?" if actor.hold else "try"
            after = Process(at, document.number, (), (document, document.builder))
            if there or not r.look_at_files:
                return "looks for its files", after, {}
            return "finds files gone", give_up(m, p, me), {}
        case "slot?":
            if len(s.commits) >= document.number:
                return f"finds number {document.number} taken", me._replace(at="withdraw"), {}
            return "says what is staged", END, {"reported": s.reported | {document}}
        case "withdraw":  # by a run, which builds the version again
            return "removes the document", Process(), {"documents": s.documents - {document}}
        case "try":
            if len(s.commits) >= me.number:
                return f"finds number {me.number} taken", me._replace(at="again"), {}
            if document.base != (top := newest(s.commits)):
                raise Broken(f"I1 {p}: built on version {document.base}, published over version {top}")
            _, _, _, _, *said, _ = document
            commit = Commit(builder, *said, document.name if r.name_document else ())
            return f"commits {me.number}", START, {"commits": (*s.commits, commit)}
        case "again":
            if committed:
                return f"finds it published as {committed[0]}", START, {}
            if document.base != newest(s.commits) and r.check_base:
                return "finds another version", give_up(m, p, me), {}
            if not r.copy_again:
                return "gives it up", END, {}
            number = len(s.commits) + 1
            todo = tuple(sorted(staged_files(m, document)))
            memory = (document, fresh_nonce(m, s, p, number))
            return f"will commit it as {number}", Process("copy", number, todo, memory), {}
        case "copy":
            f = me.todo[0]
            if f not in s.staged | s.plans:
                return f"misses {f}", give_up(m, p, me), {}
            last = len(me.todo) == 1
            copies = put_staged(m, s, builder, me.number, document.config, (f[2], *[MARK] * last))
            at = "copy" if not last else "document?" if r.look_at_document else "try"
            return f"stages a copy of {f}", me._replace(at=at, todo=me.todo[1:]), copies
        case "document?":
            if document in s.documents:
                return "finds the document there", me._replace(at="try"), {}
            return "finds the document gone", Process() if actor.kind == "run" else END, {}
    raise AssertionError(me)


def give_up(m: Scenario, p: int, me: Process) -> Process:
    """A run removes a document that cannot be committed, and decides again; a command refuses it."""
    return me._replace(at="withdraw", todo=()) if m.actors[p].kind == "run" else END


def commit_step_of_command(m: Scenario, s: State, p: int, me: Process) -> Step:
    if me.at == "reconcile":
        return reconcile_step(m, s, p, me)
    if me.at != "decide":
        return staged_step(m, s, p, me) if me.at != "damaged" else None
    if (document := find(m, s, p)) is None:
        return "finds nothing staged", END, {}
    return f"reads document {document.name}", Process("files?", 0, (), (document, ())), {}


def discard_step(m: Scenario, s: State, p: int, me: Process) -> Step:
    """Removes the document, uses the open slot up if it could be committed there, then removes the files."""
    r, document = m.rules, me.memory
    match me.at:
        case "decide":
            if (document := find(m, s, p)) is None:
                return "finds nothing staged", END, {}
            at = "withdraw" if r.document_first else "commits"
            return f"will discard {document.name}", Process(at, 0, (), document), {}
        case "withdraw":
            at = "commits" if r.document_first else "remove"
            return "removes the document", me._replace(at=at), {"documents": s.documents - {document}}
        case "commits":
            if any(c is not None and c.document == document.name for c in s.commits):
                return "finds it published", END, {}
            after = me._replace(at="remove" if r.document_first else "withdraw")
            if newest(s.commits) != document.base or not r.void_discarded:
                return "lists commits", after, {}
            return "lists commits", me._replace(at="void", number=len(s.commits) + 1), {}
        case "void":
            if len(s.commits) >= me.number:
                return f"finds slot {me.number} taken", me._replace(at="commits"), {}
            after = me._replace(at="remove" if r.document_first else "withdraw")
            return f"voids slot {me.number}", after, {"commits": (*s.commits, None)}
        case "remove":
            left = frozenset(f for f in s.staged if f[:2] != document.name)
            plans = frozenset(f for f in s.plans if f[:2] != document.name)
            gone = {"staged": left, "plans": plans, "discarded": s.discarded | {document.name}}
            return "removes its files, and says so", END, gone
    raise AssertionError(me)


def find(m: Scenario, s: State, p: int) -> Document | None:
    """The document that a command names, or the first one."""
    config = m.actors[p].config
    return next((d for d in sorted(s.documents) if config in ("", d.config)), None)
