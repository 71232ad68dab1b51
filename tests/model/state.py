"""What is stored, who acts on it, and the rules of the protocol.

A step is one storage request. A pause is a process that does not step for a while, a kill one that never
steps again, a re-run another process: every state is also "all were killed here". The lease guards nothing
that is published: it can be judged stale wrongly, and a check can be followed by a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

#: A file's number, its builder (a nonce) and its index. No two puts share a name.
Name = tuple[Any, Any, int]
#: A fragment's key, row and writer. The key is the question: configuration (with its plan) and base version.
Fragment = tuple[tuple[Any, ...], int, int]

#: Indexes from here on are files of the quarantine folder, below are files of the table folder.
QUARANTINE = 10
#: The staged source of `_SUCCESS`.
MARK = 99
#: Derived files, as the plan.
PLAN = 50
#: Builders from here on are reconcilers that staged a marker again.
RESTAGED = 100


class Document(NamedTuple):
    """A staged version: all that its commit will hold, so that nobody needs to be alive for it."""

    number: int
    builder: Any
    base: int
    question: tuple[Any, ...]
    config: str
    indexes: tuple[int, ...]
    keep: int = 0
    fragments: frozenset[Fragment] = frozenset()
    held: bool = False  # waits for somebody who commits or discards it

    @property
    def name(self) -> tuple[Any, ...]:
        return (self.number, self.builder)


class Commit(NamedTuple):
    """What a commit names. A void commit is None: its number is used up."""

    builder: int
    config: str
    indexes: tuple[int, ...]
    keep: int = 0  # how many versions before this one are kept
    fragments: frozenset[Fragment] = frozenset()
    document: tuple[Any, ...] = ()  # the name of its document, where there are documents


class Process(NamedTuple):
    """Where a process stands: all it remembers between two steps."""

    at: str = "decide"
    number: int = 0
    todo: tuple[Any, ...] = ()
    memory: Any = None


END = Process("end")


class State(NamedTuple):
    commits: tuple[Commit | None, ...] = ()  # slot - 1 -> commit; never removed
    staged: frozenset[Name] = frozenset()  # out of readers' sight
    shown: frozenset[Name] = frozenset()  # the same names, in the table folder and in the quarantine folder
    success: int = 0  # 0: no `_SUCCESS`; else the version it was placed for
    kept: frozenset[Name] = frozenset()
    plans: frozenset[Name] = frozenset()  # derived files, staged with the data, never placed
    fragments: frozenset[Fragment] = frozenset()
    lost: frozenset[Fragment] = frozenset()  # removed by a finisher, although no commit counts them
    flying: frozenset[tuple[Name, int]] = frozenset()  # copies that the store still carries out, and for whom
    sent: frozenset[tuple[int, Commit]] = frozenset()  # commits that the store may still carry out
    placed: frozenset[int] = frozenset()  # `placed-N` records
    documents: frozenset[Document] = frozenset()
    reported: frozenset[Document] = frozenset()  # staged versions of which somebody was told
    discarded: frozenset[tuple[Any, ...]] = frozenset()  # names of those that are discarded, or expired
    harmed: bool = False  # somebody else deleted a published file
    holders: tuple[int, ...] = ()  # who took the lease, the last one last (`Scenario.leases`)
    paid: frozenset[Fragment] = frozenset()  # put by whoever held it, since they took it
    processes: tuple[Process, ...] = ()


class Rules(NamedTuple):
    """Each rule that the protocol needs; a test switches each one off and sees a property break."""

    stage_first: bool = True  # files come into sight after the commit, not while they are built
    fence: bool = True  # staged files of older versions go before the folders are listed
    marker: bool = True  # `_SUCCESS` is placed from a staged file, as data is, not put
    remove_first: bool = True  # older files go before newer ones come
    success_last: bool = True  # `_SUCCESS` comes after the files of both folders
    hide_first: bool = True  # `_SUCCESS` goes before the first file goes, of whichever folder
    older_only: bool = True  # only files of lower numbers are removed from the folders
    reconcile: bool = True  # whoever commits reconciles
    look_again: bool = True  # a reconcile ends by listing commits: newer, and it begins again (only sooner)
    quick: bool = (
        False  # who finds its version finished only lists commits and folders, unless these are wrong
    )
    by_commit: bool = True  # "finished" is the commit's word; the folders are then brought to it
    same_number: bool = True  # a version keeps the number and the base it was decided with
    versioned: bool = True  # names hold the version, not the content's hash alone
    void: bool = True  # gc uses a number up before it removes what was staged for it
    look_after_void: bool = True  # gc lists commits again after its void: the slot may be a version's
    staged_first: bool = True  # gc lists staged files before commits (the other order is right, too)
    keyed_by_question: bool = True  # fragments are keyed by the question, not by the version's number
    base_in_key: bool = True  # retried and forced rows have the base version in their key
    base_in_carried: bool = True  # rows that are carried over have it, too
    extend_by_question: bool = True  # rows that an extending run pays have no base in their key
    look_before_paying: bool = True  # commits are listed between the ledger and the first row that is paid
    remove_counted: bool = True  # after the commit go the fragments that it names, not the key's folder
    hold_lease: bool = True  # who tidies a folder lists it, sees that the lease is its own still ...
    remove_listed: bool = True  # ... and removes what it listed, not what is there by then
    keep_first: bool = True  # kept copies are made before the fence
    keep_staged_first: bool = True  # a kept copy is looked for in staged, then in the table
    drop_below: bool = True  # of kept versions only those below the reconciled one are dropped
    damage: bool = True  # no source, no target, same newest commit: damage, not "superseded"
    rebuild: bool = True  # a run that finds its version damaged builds the next one
    target_after_source: bool = True  # the target is looked at after the source was missed
    restage: bool = True  # a marker that is gone is staged again, with a nonce of its own ...
    look_after_restage: bool = True  # ... and placed only if commits, listed after that, show nothing newer
    look_after_document: bool = True  # who holds a version looks whether its number is free still
    documents_after_void: bool = True  # gc lists documents after its void
    spare_documented: bool = True  # gc leaves the files that a document names ...
    spare_counted: bool = True  # ... and the fragments that it counts
    copy_again: bool = True  # a document whose number is void is committed with copies, as the next one ...
    check_base: bool = True  # ... if the version that it was built on is the newest still ...
    look_at_document: bool = True  # ... and the document is there after that number was chosen
    name_document: bool = True  # a commit names its document
    document_first: bool = True  # who discards removes the document, then uses the open slot up ...
    void_discarded: bool = True  # ... and only then removes the files
    look_at_files: bool = True  # who finds a document looks for its files before it commits
    adopt: bool = True  # a run commits the document that it finds of its own question (only saves work)
    unknown_commit: str = (
        "again"  # sends the same one "again"; or stages and sends another: "decide", "clean"
    )
    settle: bool = True  # with slow copies: nobody lists the folders before older copies have ended
    settled_by: str = "own"  # a settle is skipped when there is a `placed` record of: "own", "base", "" never
    placed_at: str = "done"  # `placed-N` is written at "done", "fence" (before the settle) or "commit"


class Actor(NamedTuple):
    """Somebody who may step at any time."""

    kind: str  # "run", "restore", "reconcile", "gc", "glob", "reader", "stranger", "commit", "discard"
    config: str = ""  # of a run, or of the document to commit or discard; what a stranger deletes
    mode: str = "new"  # "retry", "forced", "extend"; of gc "dead", "expire"
    hold: bool = False  # a run that ends when its version is staged
    over: str = ""  # the configuration that an extending run extends
    version: int = 0  # to restore
    quarantine: int = 0  # files in quarantine
    keep: int = 0


class Scenario(NamedTuple):
    title: str
    actors: tuple[Actor, ...]
    rules: Rules = Rules()
    files: int = 1
    rows: int = 0  # 0: answering is left out
    plans: bool = False
    voids: int = 2  # how often a gc begins again after a void
    by_rename: bool = False  # placing consumes its source
    late: bool = False  # the answer to a commit is lost: the store carries it out at any time, or never
    slow: bool = False  # a copy's end is a step of its own, of the store
    documents: bool = False  # runs put documents of what they staged
    leases: bool = (
        False  # who tidies removes a question's folder, by its lease, whatever input its rows are of
    )

    @property
    def quarantine(self) -> bool:
        return any(a.quarantine for a in self.actors)

    @property
    def keeps(self) -> bool:
        return any(a.keep for a in self.actors)

    def has(self, kind: str) -> bool:
        return any(a.kind == kind for a in self.actors)


#: A step: its label, the process after it, and what changed in the store. None: it has to wait.
Step = tuple[str, Process, dict[str, Any]] | None
Move = Callable[[Scenario, State, int, Process], Step]


class Broken(Exception):
    """A step that no process may ever take."""


def newest(commits: tuple[Commit | None, ...]) -> int:
    number = len(commits)
    while number and commits[number - 1] is None:
        number -= 1
    return number


def file_name(m: Scenario, number: int, builder: int, config: str, index: int) -> Name:
    return (number, builder, index) if m.rules.versioned else (0, config, index)


def files(m: Scenario, commits: tuple[Commit | None, ...], number: int) -> frozenset[Name]:
    """The files of a version, quarantine included."""
    commit = commits[number - 1] if number else None
    return frozenset() if commit is None else _files(m.rules.versioned, number, commit)


@cache
def _files(versioned: bool, number: int, commit: Commit) -> frozenset[Name]:
    if versioned:
        return frozenset((number, commit.builder, i) for i in commit.indexes)
    return frozenset((0, commit.config, i) for i in commit.indexes)


def window(commits: tuple[Commit | None, ...], number: int) -> tuple[int, ...]:
    """The versions that are kept beside this one, by its own commit."""
    commit = commits[number - 1]
    assert commit is not None
    below = [n for n in range(number - 1, 0, -1) if commits[n - 1] is not None]
    return tuple(below[: commit.keep])


def of_table(names: Iterable[Name]) -> frozenset[Name]:
    return frozenset(f for f in names if f[2] < QUARANTINE)


def of_quarantine(names: Iterable[Name]) -> frozenset[Name]:
    return frozenset(f for f in names if f[2] >= QUARANTINE)


def is_whole(m: Scenario, s: State) -> bool:
    """Whether the folders show the newest commit, and say so."""
    return s.success > 0 and s.shown == files(m, s.commits, newest(s.commits))


def live(s: State) -> list[Document]:
    """The staged versions that can be committed: somebody was told of them, nobody discarded them, and what
    they were built on is the newest version still."""
    top = newest(s.commits)
    return [d for d in s.reported & s.documents if d.base == top]


def staged_files(m: Scenario, document: Document) -> frozenset[Name]:
    """What its version needs: its data, and its plan."""
    plan = [PLAN] * m.plans
    return frozenset((document.number, document.builder, i) for i in (*document.indexes, *plan))
