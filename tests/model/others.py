"""gc, readers, a reconciler and a stranger."""

from __future__ import annotations

from tests.model.reconcile import START, paid_later, reconcile_step, takes_lease
from tests.model.state import (
    END,
    MARK,
    Broken,
    Name,
    Process,
    Scenario,
    State,
    Step,
    files,
    live,
    newest,
    of_quarantine,
    of_table,
    staged_files,
)


def gc_step(m: Scenario, s: State, p: int, me: Process) -> Step:
    """Voids the open slot while files are staged above it, then removes what no commit names.

    A gc of mode "dead" also judges the runs dead, wrongly or not, and removes their fragments; one of mode
    "expire" finds that all documents are too old. Where there are documents, it comes when one was reported.
    """
    r, taken, mode = m.rules, len(s.commits), m.actors[p].mode
    match me.at:
        case "decide" if mode == "dead" and m.documents and not s.reported:
            return None
        case "decide" if mode == "expire" and not me.todo and not r.document_first:
            return "finds documents too old", me._replace(todo=tuple(sorted(s.documents)) or ((),)), {}
        case "decide" if mode == "expire" and not me.todo:
            old = tuple(sorted(s.documents)) or ((),)
            return "removes documents that are too old", me._replace(todo=old), {"documents": frozenset()}
        case "decide":
            at = "commits" if r.staged_first else "staged"
            return gc_lists(m, s, me._replace(at=at), "staged" if r.staged_first else "commits")
        case "commits" | "staged":
            return gc_lists(m, s, me._replace(at="ready"), me.at)
        case "ready":
            staged, commits, documents = me.memory
            listed = len(commits)
            expired = tuple(d for d in me.todo if d)
            is_open = any(f[0] > listed for f in staged) or (expired and not me.number)
            if is_open and r.void and me.number < m.voids:
                void = {} if taken > listed else {"commits": (*s.commits, None)}
                label = f"voids slot {listed + 1}, if it is free"
                if not r.look_after_void:
                    return label, Process("remove", 0, gc_unnamed((*commits, None), staged)), void
                known = None if r.documents_after_void else (frozenset(), (), documents)
                number = me.number + (not expired or taken == listed)  # for these, one has to be its own
                return label, Process("decide", number, me.todo, known), void
            upto = commits if r.void else (*commits, None)
            if not m.documents:
                return "concludes", Process("remove", 0, gc_unnamed(upto, staged)), {}
            if expired and not r.document_first and expired[0] in s.documents:
                return "removes documents that are too old", me, {"documents": s.documents - {*expired}}
            if r.documents_after_void:
                documents = s.documents
            found = gc_unnamed(upto, staged)
            names = {d.name for d in documents} if r.spare_documented else set()
            gone = tuple(f for f in found if f[:2] not in names)
            return "lists documents", Process("remove", 0, gone, (documents, expired)), {}
        case "remove" if me.todo:
            f = me.todo[0]
            gone = {"staged": s.staged - {f}, "plans": s.plans - {f}}
            return f"removes staged {f}", me._replace(todo=me.todo[1:]), gone
        case "remove" if m.leases and mode == "dead":
            return "lists fragments", Process("held?", memory=s.fragments), takes_lease(m, s, p)
        case "held?":
            if s.holders[-1:] != (p,) and r.hold_lease:
                return "finds the lease lost", END, {}
            return "looks at the lease", me._replace(at="clean"), {}
        case "clean":
            gone = me.memory if r.remove_listed else s.fragments
            lost = s.lost | (gone & s.fragments & paid_later(s, p))
            return "removes fragments", END, {"fragments": s.fragments - gone, "lost": lost}
        case "remove":
            documents, expired = me.memory or (frozenset(), ())
            counted = frozenset().union(*(d.fragments for d in documents)) if r.spare_counted else frozenset()
            left = {"fragments": s.fragments & counted} if mode == "dead" else {}
            published = {c.document for c in s.commits if c is not None}
            names = {d.name for d in expired} - published
            return "ends", END, {**left, "discarded": s.discarded | names} if expired else left
    raise AssertionError(me)


def gc_lists(m: Scenario, s: State, me: Process, what: str) -> Step:
    staged, commits, documents = me.memory or (frozenset(), (), s.documents)
    if what == "staged":
        staged = s.staged | s.plans
    else:
        commits = s.commits
    return f"lists {what}", me._replace(memory=(staged, commits, documents)), {}


def gc_unnamed(commits: tuple[object, ...], staged: frozenset[Name]) -> tuple[Name, ...]:
    """Files of decided numbers that the number's commit does not name."""
    builders = [getattr(c, "builder", None) for c in commits]
    return tuple(f for f in sorted(staged) if f[0] <= len(builders) and f[1] != builders[f[0] - 1])


def glob_step(m: Scenario, s: State, p: int, me: Process) -> Step:
    """Looks at `_SUCCESS`, lists both folders in pages, opens each file, looks at `_SUCCESS` again."""
    if me.at == "decide":
        return "looks at _SUCCESS", Process("page", 0, (), s.success), {}
    if me.at == "page":
        last = m.files + m.quarantine - 1
        page = of_quarantine(s.shown) if me.number == m.files else of_table(s.shown)
        found = (*me.todo, *sorted(f for f in page if me.number in (f[2], m.files)))
        if me.number < last:
            return f"lists page {me.number}", me._replace(number=me.number + 1, todo=found), {}
        return f"lists page {me.number}", Process("open", 0, found, me.memory), {}
    if me.number < len(me.todo):
        f = me.todo[me.number]
        if f not in s.shown:
            return f"misses {f}: an error", END, {}
        return f"reads {f}", me._replace(number=me.number + 1), {}
    for folder in (of_table, of_quarantine):
        if len({f[:2] for f in folder(me.todo)}) > 1:
            raise Broken(f"G2 glob{p}: reads two versions, {me.todo}")
    if me.memory and me.memory == s.success and set(me.todo) != files(m, s.commits, me.memory):
        raise Broken(f"G1 glob{p}: same _SUCCESS before and after, but {me.todo} is no whole version")
    return "is content", END, {}


def reader_step(m: Scenario, s: State, p: int, me: Process) -> Step:
    """Reads by the commit: table, staged, newer commit?, table again."""
    top = newest(s.commits)
    if me.at == "decide":
        return f"newest commit is {top}", Process("table", top, tuple(sorted(files(m, s.commits, top)))), {}
    if not me.todo:
        return "has read one version", END, {}
    if me.todo[0] in (s.shown if me.at == "table" else s.staged):
        return f"reads {me.todo[0]}", Process("table", me.number, me.todo[1:]), {}
    if me.at == "table" and not me.memory:
        return "misses it in the table", me._replace(at="staged"), {}
    if top > me.number:
        return f"sees version {top}", Process(), {}
    if me.memory and not s.harmed:
        raise Broken(f"R1 reader{p}: a file of the newest commit is nowhere")
    if me.memory:
        return "finds a file nowhere", END, {}
    return "misses it twice", me._replace(at="table", memory=1), {}


def only_reconcile(m: Scenario, s: State, p: int, me: Process) -> Step:
    if me.at == "decide":
        return "wakes up", START, {}
    return reconcile_step(m, s, p, me) if me.at == "reconcile" else None


def stranger_step(m: Scenario, s: State, p: int, me: Process) -> Step:
    """Deletes one file of the newest version that is in sight, `_SUCCESS` or its marker; or one of a staged
    version, while nobody is at work on it."""
    top = newest(s.commits)
    what = m.actors[p].config
    if what == "staged file" and all(q.at in ("decide", "end") for q in s.processes):
        held = sorted(s.staged & frozenset().union(*(staged_files(m, d) for d in live(s))))
        return (f"deletes {held[0]}", END, {"staged": s.staged - {held[0]}}) if held else None
    if what == "file" and (there := sorted(s.shown & files(m, s.commits, top))):
        return f"deletes {there[0]}", END, {"shown": s.shown - {there[0]}, "harmed": True}
    if what == "_SUCCESS" and s.success:
        return "deletes _SUCCESS", END, {"success": 0}
    if what == "marker" and (markers := frozenset(f for f in s.staged if f[0] == top and f[2] == MARK)):
        return "deletes the marker", END, {"staged": s.staged - markers}
    return None
