"""Brings the folders to the newest commit: anybody, at any time, after every commit, no-op and attach."""

from __future__ import annotations

from typing import Any

from tests.model.state import (
    END,
    MARK,
    RESTAGED,
    Name,
    Process,
    Scenario,
    State,
    Step,
    file_name,
    files,
    newest,
    of_quarantine,
    of_table,
    window,
)

START = Process("reconcile", 0, ("commits",))
QUICK = Process("reconcile", 0, ("quick",))


def reconcile_step(m: Scenario, s: State, p: int, me: Process) -> Step:
    """`me.todo` holds the requests that are still to be made; listing answers add to it."""
    r, number, request = m.rules, me.number, me.todo[0]
    top = newest(s.commits)
    after = me._replace(todo=me.todo[1:]) if me.todo[1:] else END
    if request == "commits":
        if not top:
            return "no commit", END, {}
        keep = ["kept?"] if window(s.commits, top) else []
        fence = ["staged?"] if r.fence else []
        first = [*keep, *fence] if r.keep_first else [*fence, *keep]
        record = ["record placed"] if m.slow and r.placed_at == "fence" else []
        settle = ["settle"] if m.slow and r.settle else []
        todo = (*first, *record, *settle, "table?", *["quarantine?"] * m.quarantine)
        return f"newest commit is {top}", Process("reconcile", top, todo), {}
    if request == "quick":
        looks = ("quick table?", *["quick quarantine?"] * m.quarantine)
        return f"newest commit is {top}", Process("reconcile", top, looks), {}
    commit = s.commits[number - 1]
    assert commit is not None
    current = files(m, s.commits, number)
    again = START
    match request:
        case "quick table?":
            right = s.success and of_table(s.shown) == of_table(current)
            return "lists the table", after if right else again, {}
        case "quick quarantine?":
            right = of_quarantine(s.shown) == of_quarantine(current)
            return "lists the quarantine", after if right else again, {}
        case "kept?":
            lacks = sorted(f for n in window(s.commits, number) for f in files(m, s.commits, n) - s.kept)
            places = ("staged", "table") if r.keep_staged_first else ("table", "staged")
            copies = [(f"keep from {place}", f) for f in lacks for place in places]
            return "lists kept", me._replace(todo=(*copies, *me.todo[1:])), {}
        case ("keep from staged" | "keep from table" as how, f):
            there = f in (s.staged if how == "keep from staged" else s.shown)
            return f"tries to {how} {f}", after, {"kept": s.kept | {f}} if there else {}
        case "staged?":  # what can be committed no more: lower numbers, and others of this number
            old = [f for f in sorted(s.staged) if f[0] < number or is_rival(f, number, commit.builder)]
            return "lists staged", me._replace(todo=(*(("fence", f) for f in old), *me.todo[1:])), {}
        case ("fence", f):
            return f"removes staged {f}", after, {"staged": s.staged - {f}}
        case "settle":
            base = newest(s.commits[: number - 1])
            known = {"own": number in s.placed, "base": base in s.placed}.get(r.settled_by, False)
            if base and not known and any(f[0] < number for f, _ in s.flying):
                return None
            return "has waited as long as a copy can take", after, {}
        case "table?":
            seen = plan_of(m, of_table(s.shown), of_table(current), number), bool(s.success)
            if after == END:
                return "lists the table", me._replace(todo=work_of(m, *seen)), {}
            return "lists the table", after._replace(memory=seen), {}
        case "quarantine?":
            plan, shows = me.memory
            plan += plan_of(m, of_quarantine(s.shown), of_quarantine(current), number)
            return "lists the quarantine", me._replace(todo=work_of(m, plan, shows), memory=None), {}
        case "hide":
            return "removes _SUCCESS", after, {"success": 0}
        case ("remove", f):
            return f"removes {f}", after, {"shown": s.shown - {f}}
        case ("place", f):
            return place(m, s, p, me, after, f)
        case ("target?", f):
            if f in s.shown:
                return f"finds {f} there", after, {}
            return f"finds {f} nowhere", me._replace(todo=("newer?",)) if r.damage else again, {}
        case "newer?":
            if top > number:
                return f"sees version {top}", again, {}
            return "reports damage", END._replace(at="damaged", number=number), {}
        case "show":
            marker = me.memory or file_name(m, number, commit.builder, commit.config, MARK)
            if r.marker and marker not in s.staged and (marker, p) not in s.flying:
                if s.success == number and me.memory is None:
                    return "finds _SUCCESS there", after, {}
                return "finds no marker", me._replace(todo=("restage", *me.todo)) if r.restage else again, {}
            if m.slow:
                if (marker, p) in s.flying:
                    return None
                flying = s.flying | {(marker, p)}
                waits = me._replace(todo=("shown?", *me.todo[1:]))
                return "asks for a copy of the marker", waits, {"flying": flying}
            gone = {"staged": s.staged - {marker}} if m.by_rename else {}
            return "places _SUCCESS", after._replace(memory=None), {"success": number, **gone}
        case "shown?":  # the store answers when the copy has ended
            waiting = any(f[2] == MARK and q == p for f, q in s.flying)
            return None if waiting else ("has its _SUCCESS", after._replace(memory=None), {})
        case "restage":
            own = (number, RESTAGED + p, MARK)
            look = me._replace(todo=("restaged", *me.todo[1:]), memory=own)
            if not r.look_after_restage:
                look = me._replace(todo=me.todo[1:], memory=own)
            return f"stages the marker {own}", look, {"staged": s.staged | {own}}
        case "restaged":
            return ("lists commits", after, {}) if top == number else (f"sees version {top}", again, {})
        case "record placed":
            return f"records placed-{number}", after, {"placed": s.placed | {number}}
        case "tidy":  # placed data needs no source; the marker stays while its version is the newest
            done = tuple(("fence", f) for f in sorted(current & s.staged))
            return "lists staged again", me._replace(todo=(*done, *me.todo[1:])), {}
        case "drop?":
            stay = {*window(s.commits, number), number}
            low = [f for f in sorted(s.kept) if f[0] not in stay and (f[0] < number or not r.drop_below)]
            plans = [f for f in sorted(s.plans) if f[0] not in stay and f[0] < number]
            drop = (*(("drop", f) for f in low), *(("drop plan", f) for f in plans))
            return "lists kept and plans", me._replace(todo=(*drop, *me.todo[1:])), {}
        case ("drop", f):
            return f"drops kept {f}", after, {"kept": s.kept - {f}}
        case ("drop plan", f):
            return f"drops plan {f}", after, {"plans": s.plans - {f}}
        case "drop documents":
            own = commit.document
            left = {d for d in s.documents if d.name != own and (d.held or d.number > number)}
            return "removes documents of what is decided", after, {"documents": frozenset(left)}
        case "look":
            if top > number and r.look_again:
                return f"sees version {top}", again, {}
            return "looks again: nothing newer", after, {}
        case "clean" if m.leases:
            folder = of_question(s, commit.config)
            if commit.builder % 10 != p and any(f[0][0] != commit.config for f in folder):
                return "lists rows of another input", END, {}
            return "lists the folder", me._replace(todo=("held?", "cleaned"), memory=folder), {}
        case "held?":
            if s.holders[-1:] != (p,) and r.hold_lease:
                return "finds the lease lost", END, {}
            return "looks at the lease", after, {}
        case "clean":
            counted = commit.fragments
            if not r.remove_counted:
                keys = {f[0] for f in counted}
                counted = frozenset(f for f in s.fragments if f[0] in keys)
            return "lists fragments", after._replace(memory=counted & s.fragments), {}
        case "cleaned":
            gone = me.memory if r.remove_listed else of_question(s, commit.config)
            left = s.fragments - gone
            lost = s.lost | (gone & s.fragments - counted_fragments(s))
            if m.leases:  # those of a holder before this one were left by the dead
                lost = s.lost | (gone & s.fragments & paid_later(s, p))
            return "removes fragments", END, {"fragments": left, "lost": lost}
    raise AssertionError(request)


def counted_fragments(s: State) -> frozenset[Any]:
    return frozenset().union(*(c.fragments for c in s.commits if c is not None))


def paid_later(s: State, p: int) -> frozenset[Any]:
    """Fragments of those who took the lease after this process, and held it."""
    later = s.holders[s.holders.index(p) :] if p in s.holders else ()
    return frozenset(f for f in s.paid if f[2] in later and f[2] != p)


def takes_lease(m: Scenario, s: State, p: int) -> dict[str, Any]:
    """From whoever holds it: it may be judged dead at any instant, rightly or wrongly."""
    if not m.leases or s.holders[-1:] == (p,):
        return {}
    others = tuple(holder for holder in s.holders if holder != p)
    return {"holders": (*others, p), "paid": frozenset(f for f in s.paid if f[2] != p)}


def of_question(s: State, config: str) -> frozenset[Any]:
    """Its folder of fragments: whatever input they are of."""
    question = config.partition(" and ")[0]
    return frozenset(f for f in s.fragments if f[0][0].partition(" and ")[0] == question)


def is_rival(f: Name, number: int, builder: int) -> bool:
    """Whether it was staged for this number by somebody who lost it."""
    return f[0] == number and f[1] != builder and f[1] < RESTAGED if isinstance(f[1], int) else False


def plan_of(m: Scenario, there: frozenset[Name], want: frozenset[Name], number: int) -> tuple[Any, ...]:
    old = [f for f in sorted(there - want) if f[0] < number or not m.rules.older_only]
    return (*(("remove", f) for f in old), *(("place", f) for f in sorted(want - there)))


def work_of(m: Scenario, plan: tuple[Any, ...], shows: bool) -> tuple[Any, ...]:
    """The requests after the listing, in order."""
    r = m.rules
    work = sorted(plan, key=lambda request: (request[0] == "place") == r.remove_first)
    if work or not shows:
        if not r.success_last:
            work = sorted(work, key=lambda request: request[1][2] >= 10)
            at = sum(request[1][2] < 10 for request in work)
            work = [*work[:at], "show", *work[at:]]
        else:
            work = [*work, "show"]
        hide = ["hide"] * shows
        work = [*hide, *work] if r.hide_first else [*work[:-1], *hide, *work[-1:]]
    record = ["record placed"] if m.slow and r.placed_at == "done" else []
    drop = ["drop?"] if m.keeps or m.plans else []
    clean = ["clean", "cleaned"] if m.rows else []
    documents = ["drop documents"] * m.documents
    return (*work, *record, "tidy", *drop, *documents, "look", *clean)


def place(m: Scenario, s: State, p: int, me: Process, after: Process, f: Name) -> Step:
    """One request that fails without its source, and when its target exists."""
    if (f, p) in s.flying:
        return (f"finds {f} there", after, {}) if f in s.shown else None
    if f not in s.staged:
        if not m.rules.target_after_source:
            return f"finds no source {f}", me._replace(todo=("newer?",)), {}
        return f"finds no source {f}", me._replace(todo=(("target?", f), *me.todo[1:])), {}
    if f in s.shown:
        return f"finds {f} there", after, {}
    if m.slow:  # asks; goes on when the file is there
        return f"asks for a copy of {f}", me, {"flying": s.flying | {(f, p)}}
    gone = {"staged": s.staged - {f}} if m.by_rename else {}
    return f"places {f}", after, {"shown": s.shown | {f}, **gone}
