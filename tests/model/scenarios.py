"""Scenarios in which nothing may break, and rules that are switched off to see what each is for."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.state import Actor, Rules, Scenario

X, Y = Actor("run", "x"), Actor("run", "y")
RETRY, FORCED = X._replace(mode="retry"), X._replace(mode="forced")
EXTEND = Actor("run", "x and new input", mode="extend", over="x")
RESTORE = Actor("restore", version=1)
RECONCILE = Actor("reconcile")
#: The second one also removes fragments of runs that it judges dead, wrongly or not.
GC, GC_OF_DEAD_RUNS = Actor("gc"), Actor("gc", mode="dead")
#: Finds that all staged versions are too old.
GC_OF_OLD_DOCUMENTS = Actor("gc", mode="expire")
GLOB, READER = Actor("glob"), Actor("reader")
COMMIT, DISCARD = Actor("commit"), Actor("discard")


def keep(actor: Actor, versions: int = 1) -> Actor:
    return actor._replace(keep=versions)


def fail_rows(actor: Actor) -> Actor:
    """With a file in the quarantine folder."""
    return actor._replace(quarantine=1)


def delete(what: str) -> Actor:
    return Actor("stranger", what)


def hold(actor: Actor) -> Actor:
    """Ends when its version is staged."""
    return actor._replace(hold=True)


def staged(title: str, *actors: Actor, rules: Rules = Rules(), **more: Any) -> Scenario:  # noqa: B008
    return Scenario(title, actors, rules, documents=True, **{"voids": 1, **more})


TWO = Scenario("two configurations", (X, Y))
TWICE = Scenario("one configuration twice", (X, X))
KEPT = Scenario("kept versions", (keep(X), keep(Y)))
BESIDE_GC = Scenario("a run beside gc", (X, GC))
SLOW = Scenario("slow copies", (X, Y), slow=True)
RENAME = Scenario("placing by rename", (X, Y), by_rename=True)
RESTORING = Scenario("restore of a kept version", (keep(X), keep(Y), RESTORE))

TIDIED = Scenario("new input, and who tidies late", (X, EXTEND), rows=2, leases=True)
GC_BY_LEASE = Scenario("gc of dead runs by its lease", (X, GC_OF_DEAD_RUNS), rows=2, leases=True)

HELD_BESIDE_GC = staged("a staged version beside gc", hold(X), COMMIT, GC)
DISCARDED = staged("a staged version that is discarded", hold(X), COMMIT, DISCARD)
LOSES_A_FILE = staged("a staged version loses a file", hold(X), delete("staged file"), COMMIT)
LOSES_A_FILE_AND_ROWS = staged(
    "a staged version loses a file, and gc", hold(X), delete("staged file"), GC_OF_DEAD_RUNS, rows=1
)

#: Seconds each, on one core.
DAILY = [
    Scenario("two configurations", (X, Y), files=2),
    Scenario("files in quarantine, then none", (fail_rows(X), Y), files=2),
    Scenario("quarantine, kept versions and plans", (fail_rows(keep(X)), fail_rows(keep(Y))), plans=True),
    Scenario("one configuration twice, two rows", (X, X), rows=2),
    Scenario("two configurations, two rows", (X, Y), rows=2),
    Scenario("one configuration after another", (X, Y, X)),
    Scenario("two gcs beside a run", (X, GC, GC), voids=1),
    Scenario("gc that lists commits first", (X, GC), Rules(staged_first=False)),
    Scenario("a quick look at a finished version", (fail_rows(X), fail_rows(X)), Rules(quick=True)),
    Scenario("no look at the end", (X, Y), Rules(look_again=False)),
    Scenario("gc of dead runs beside a run", (X, GC_OF_DEAD_RUNS), rows=2, plans=True),
    Scenario("quarantined rows again", (X, RETRY), rows=2),
    Scenario("forced", (X, FORCED), rows=2),
    Scenario("new input", (X, EXTEND), rows=2, files=2),
    TIDIED,
    GC_BY_LEASE,
    Scenario("one configuration twice, and who tidies late", (X, X), rows=2, leases=True),
    Scenario("gc beside a run, two rows", (X, GC), rows=2),
    Scenario("a restored version", (X, RESTORE)),
    Scenario("restore beside gc", (X, RESTORE, GC), voids=1),
    Scenario("a glob over both folders", (fail_rows(X), Y, GLOB)),
    Scenario("a glob in two pages", (X, Y, GLOB), files=2),
    Scenario("a reader by the commit", (X, Y, READER), files=2),
    Scenario("a stranger deletes a published file", (X, X, delete("file"))),
    Scenario("a stranger deletes a file while it is replaced", (X, Y, delete("file")), files=2),
    Scenario("a stranger deletes _SUCCESS", (X, X, delete("_SUCCESS"))),
    Scenario("a stranger deletes the marker", (X, X, delete("marker"))),
    Scenario("placing by rename", (fail_rows(X), Y), files=2, by_rename=True),
    Scenario("placing by rename, and a stranger", (X, X, delete("file")), by_rename=True),
    Scenario("placing by rename, the marker deleted", (X, X, delete("marker")), by_rename=True),
    Scenario("slow copies", (X, Y), slow=True),
    Scenario("slow copies, the marker deleted", (X, Y, delete("marker")), slow=True),
    Scenario("answers to commits are lost", (X, Y), late=True),
    staged("documents of two runs", X, Y),
    staged("documents of one configuration, a row", X, X, rows=1),
    staged("documents beside gc", X, GC, plans=True),
    staged("a staged version, two commands", hold(X), COMMIT, COMMIT, files=2),
    staged("a staged version, and a later run", hold(X), X, rows=1),
    staged("a staged version, and a later run that adopts none", hold(X), X, rules=Rules(adopt=False)),
    staged("staged twice, and a command", hold(X), hold(X), COMMIT),
    staged("two staged versions", hold(X), hold(Y), COMMIT),
    staged("a staged version whose base is replaced", hold(X), Y, COMMIT),
    staged("a staged version beside gc", hold(X), COMMIT, GC),
    staged("a staged version that gc finds too old", hold(X), COMMIT, GC_OF_OLD_DOCUMENTS),
    staged("a staged version that is discarded", hold(X), COMMIT, DISCARD),
    staged("a staged version that is discarded twice", hold(X), COMMIT, DISCARD, DISCARD),
    staged("a staged version, gc of dead runs and a run", hold(X), GC_OF_DEAD_RUNS, X, rows=1),
    staged("a staged version loses a file", hold(X), delete("staged file"), COMMIT),
    staged("a staged version loses a file, and a later run", hold(X), delete("staged file"), X, rows=1),
]
#: Minutes, all together.
LONG = [
    Scenario("a quick look, and another configuration", (X, X, Y), Rules(quick=True)),
    Scenario("two runs asleep, a third publishes", (X, X, Y)),
    Scenario("two reconcilers asleep", (X, Y, RECONCILE, RECONCILE)),
    Scenario("one configuration twice, a row, and gc", (X, X, GC), rows=1, plans=True, voids=1),
    Scenario("quarantined rows again, and gc", (X, RETRY, GC), rows=1, voids=1),
    Scenario("new input over a base that is replaced", (X, EXTEND, Y), rows=2),
    Scenario("forced twice", (X, FORCED, FORCED), rows=1),
    RESTORING,
    Scenario("restore, plans and another run", (X, Y, RESTORE), plans=True),
    Scenario("windows of different length", (keep(X), keep(Y, 2), keep(X, 2))),
    Scenario("placing by rename, two runs asleep", (X, X, Y), by_rename=True),
    Scenario("slow copies, two runs asleep", (X, X, Y), slow=True),
    staged("two staged versions, two commands", hold(X), hold(Y), Actor("commit", "x"), Actor("commit", "y")),
    staged("two staged versions and gc", hold(X), hold(Y), GC),
    staged(
        "a staged version loses a file, a run and a command",
        hold(X),
        delete("staged file"),
        COMMIT,
        X,
        rows=1,
    ),
    staged("a staged version and its plan beside gc", hold(X), COMMIT, GC, plans=True),
    staged("a staged version, a command, discarded and gc", hold(X), COMMIT, DISCARD, GC),
    staged("a staged version, a run, discarded and a command", hold(X), Y, COMMIT, DISCARD),
]


class Without(NamedTuple):
    """A rule that is switched off, where that shows, and what breaks then."""

    rule: str
    breaks: set[str]
    scenario: Scenario
    value: object = False
    takes_long: bool = False

    @property
    def title(self) -> str:
        return f"{self.rule}={self.value}: {self.scenario.title}"

    @property
    def rules(self) -> Rules:
        return Rules()._replace(**{self.rule: self.value})  # type: ignore[arg-type]


WITHOUT = [
    Without("stage_first", {"I3", "I4b"}, TWO),
    Without("fence", {"I4", "I4b"}, TWO),
    Without("fence", {"G2"}, Scenario("a glob", (X, Y, GLOB), files=2)),
    Without("marker", {"I4"}, TWO),
    Without("marker", {"G1"}, Scenario("a glob", (X, Y, GLOB))),
    Without("remove_first", {"I4b"}, TWO),
    Without("success_last", {"I4"}, Scenario("quarantine", (fail_rows(X), fail_rows(Y)))),
    Without("hide_first", {"I4"}, TWO),
    Without("older_only", {"I2", "I4", "I5"}, TWO),
    Without("reconcile", {"E1"}, TWO),
    Without("older_only", {"R1"}, Scenario("a reader", (X, Y, READER))),
    Without("by_commit", {"I6"}, TWICE),
    Without("same_number", {"I1"}, TWO),
    Without("versioned", {"I4"}, Scenario("one configuration after another", (X, Y, X))),
    Without("void", {"I2", "I5"}, BESIDE_GC),
    Without("void", {"I9"}, BESIDE_GC._replace(plans=True)),
    Without("look_after_void", {"I2", "I5"}, BESIDE_GC),
    Without("keyed_by_question", {"P1"}, BESIDE_GC._replace(rows=1)),
    Without("base_in_key", {"I8"}, Scenario("quarantined rows again", (X, RETRY), rows=2)),
    Without(
        "base_in_carried",
        {"I8"},
        Scenario("new input, a base that changes", (X, EXTEND, RETRY), rows=2),
        takes_long=True,
    ),
    Without("extend_by_question", {"P1"}, Scenario("new input", (X, EXTEND, RETRY), rows=2)),
    Without("look_before_paying", {"P1"}, TWICE._replace(rows=1)),
    Without("remove_counted", {"P1"}, Scenario("a fragment put late", (X, X, Y), rows=1), takes_long=True),
    Without("hold_lease", {"P1"}, TIDIED),
    Without("remove_listed", {"P1"}, TIDIED),
    Without("remove_listed", {"P1"}, GC_BY_LEASE),
    Without("keep_first", {"I7"}, KEPT),
    Without("keep_first", {"R2"}, RESTORING),
    Without("keep_staged_first", {"I7"}, KEPT),
    Without("drop_below", {"I7"}, Scenario("windows", (keep(X), keep(Y), keep(X))), takes_long=True),
    Without("damage", {"I5"}, Scenario("a stranger", (X, X, delete("file")))),
    Without("damage", {"E3"}, Scenario("a stranger", (X, X, delete("file")))),
    Without("rebuild", {"I10"}, Scenario("a stranger", (X, X, delete("file")))),
    Without("target_after_source", {"E2"}, TWICE),
    Without("restage", {"I5"}, RENAME),
    Without("look_after_restage", {"I4"}, RENAME),
    Without("unknown_commit", {"I2"}, Scenario("lost answers", (X, X), late=True), "clean"),
    Without("settle", {"I4", "I4b"}, SLOW),
    Without("placed_at", {"I4", "I4b"}, SLOW, "fence"),
    Without("placed_at", {"I4", "I4b"}, SLOW, "commit"),
    Without("look_after_document", {"I11"}, HELD_BESIDE_GC),
    Without("documents_after_void", {"I11"}, HELD_BESIDE_GC),
    Without("spare_documented", {"I11"}, HELD_BESIDE_GC),
    Without("spare_counted", {"I14"}, LOSES_A_FILE_AND_ROWS),
    Without("copy_again", {"I13"}, HELD_BESIDE_GC),
    Without("check_base", {"I1"}, staged("a base that is replaced", hold(X), Y, COMMIT)),
    Without("look_at_document", {"I12"}, DISCARDED),
    Without("name_document", {"I2"}, DISCARDED),
    Without("document_first", {"I12"}, DISCARDED),
    Without("void_discarded", {"I12"}, DISCARDED),
    Without("look_at_files", {"I2"}, LOSES_A_FILE),
    Without(
        "settled_by", {"I4b"}, Scenario("slow copies, two runs asleep", (X, X, Y), slow=True), "base", True
    ),
]
