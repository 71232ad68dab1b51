"""Staged versions: a run that only stages is killed, then whoever commits or discards what it staged."""

from __future__ import annotations

from typing import Any, Literal

from tests.chaos import work
from tests.chaos.life import Life
from tests.chaos.slices import GOLDEN


def staged(life: Life) -> None:
    life.prepare()
    life.answer(life.how(life.trial.points[0], act="stage"))
    life.look()
    again = life.answer(life.how(act="stage"))
    staged = again.result.get("value") or {}
    if staged.get("outcome") == "unchanged" and not life.to_answer:
        return  # by chance, no row of the version before failed
    if staged.get("outcome") != "staged":
        life.outcome.faults.append(f"it is not staged by the run after the kill: {again.result}")
        return
    life.look()
    _LIVES[life.trial.variant](life, staged["name"], life.children.ask(work.newest_number, life.place))
    life.look()
    life.until_published()
    life.outcome.again = life.answered - life.to_answer
    life.check_paid(int(life.trial.points[0].step == "file of a probe"))


def _committed(life: Life, name: str, before: int) -> None:
    """A command is killed, and another one finishes its work."""
    life.answer(life.how(life.trial.points[1], act="commit", staged=name))
    life.look()
    _expect(
        life,
        life.answer(life.how(act="commit", staged=name)).result,
        "published",
        or_says="was published already",
    )


def _by_a_run(life: Life, name: str, before: int) -> None:
    life.answer(life.how(life.trial.points[1]))


def _discarded(life: Life, name: str, before: int, act: Literal["discard", "ask again"] = "discard") -> None:
    """A command is killed, and another one finishes its work."""
    life.answer(life.how(life.trial.points[1], act=act, staged=name))
    life.look()
    result = life.answer(life.how(act=act, staged=name)).result
    _expect(life, result, "discarded", or_says="no staged version of")
    _expect_unchanged(life, before)


def _two_commands(life: Life, name: str, before: int) -> None:
    stopped = life.stop(life.how(life.trial.points[1], act="commit", staged=name), name="late")
    _expect(
        life,
        life.answer(life.how(act="commit", staged=name)).result,
        "published",
        or_says="was published already",
    )
    stopped.go_on()
    life.finish(stopped, "the late command")
    _expect(life, stopped.result, "published")


def _beside_gc(life: Life, name: str, before: int) -> None:
    stopped = life.stop(life.how(life.trial.points[1], act="commit", staged=name), name="late")
    life.children.ask(work.collect, life.place, 0.0, 0.5)
    stopped.go_on()
    life.finish(stopped, "the command")
    _expect(life, stopped.result, "published")


def _discarded_first(life: Life, name: str, before: int) -> None:
    stopped = life.stop(life.how(life.trial.points[1], act="commit", staged=name), name="late")
    _expect(life, life.answer(life.how(act="discard", staged=name)).result, "discarded")
    stopped.go_on()
    life.finish(stopped, "the late command")
    if "value" in stopped.result:
        life.outcome.faults.append(f"a discarded version is published: {stopped.result}")
    _expect_unchanged(life, before)


def _asked_again(life: Life, name: str, before: int) -> None:
    """The next run asks just these rows again."""
    _discarded(life, name, before, "ask again")
    rows = sum(row["id"] % 3 == 0 for row in life.place.slice.expected()[0])
    # Where all are asked twice; golden rows, too, of the model that answers now.
    life.to_answer += rows * 2 + GOLDEN if life.place.slice.scenario.judged else rows


def _expect(life: Life, result: dict[str, Any], outcome: str, or_says: str = "\0") -> None:
    if (result.get("value") or {}).get("outcome") != outcome and or_says not in result.get("error", ""):
        life.outcome.faults.append(f"it should be {outcome}: {result}")


def _expect_unchanged(life: Life, before: int) -> None:
    now = life.children.ask(work.newest_number, life.place)
    if now != before:
        life.outcome.faults.append(f"{before} was published, and {now} is, after a version was discarded")


_LIVES = {
    "commit": _committed, "run": _by_a_run, "discard": _discarded, "commit, late": _two_commands,
    "commit beside gc": _beside_gc, "discarded before a late commit": _discarded_first,
    "asked again": _asked_again,
}  # fmt: skip
