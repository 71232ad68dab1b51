"""Holders that are stopped at a step (SIGSTOP), and wake up when others have published; gc beside them."""

from __future__ import annotations

import signal
from typing import Any

from tests.chaos import work
from tests.chaos.children import Child
from tests.chaos.failpoints import FailPoint
from tests.chaos.life import Life

#: Of whoever asks another question than the slice's.
_OTHER = {"question": 2, "rerun__on_config_change": "recompute"}


def zombie(life: Life) -> None:
    """Another run publishes; then the one that was stopped wakes up and must harm nothing."""
    life.prepare()
    stopped = life.stop(life.how(*life.trial.points))
    change = _OTHER if life.trial.other else {}
    _publish(life, change, "the one that took over")
    first = _audit(life, "after the one that took over: ")
    stopped.go_on()
    _after(life, [stopped], first)
    life.outcome.again = life.answered - life.to_answer * (2 if life.trial.other else 1)
    if life.outcome.again > 0 and life.trial.points[0].step != "fragment":
        # Who is stopped while it answers goes on with that until its next beat.
        life.outcome.faults.append(f"{life.outcome.again} rows were answered again")
    _force(life, change)


def two_zombies(life: Life) -> None:
    """Two are stopped, a third publishes, or is stopped while it does; they wake up in that order."""
    life.prepare()
    one, two, three = life.trial.points
    change = _OTHER if life.trial.other else {}
    a = life.stop(life.how(one), name="A")
    # Who comes second may find nothing left to do before it comes to its point.
    second = change if life.rng.random() < 0.5 else {}
    b = life.start(life.how(two), second, "B")
    life.watch(b)
    if not b.wait_until_stopped(60):
        life.finish(b, "B")
    orders = life.trial.variant.split(", ")
    if "C" in orders:
        c = life.start(life.how(three), change, "C")
        life.watch(c)
        if not c.wait_until_stopped(60):
            life.finish(c, "C")
        first = None
    else:
        _publish(life, change, "C")
        first = _audit(life, "after C: ")
        c = b
    names = {"A": a, "B": b, "C": c}
    for order in orders:
        awake = [names[name] for name in order.split(" and ")]
        for child in awake:
            child.go_on()
        for child in awake:
            life.finish(child, order)
        if first is not None or "C" in order:
            first = _after(life, awake, first, f"after {order}: ")
    if not b.is_over or not a.is_over:
        life.outcome.faults.append("a zombie lives on")
    _after(life, [], None, "in the end: ")
    _force(life, change)


def late_removal(life: Life) -> None:
    """A process that shows a version that is old meanwhile removes `_SUCCESS` and dies: readers miss it until
    the next run, and read nothing that is wrong."""
    life.prepare()
    [point] = life.trial.points
    dies = FailPoint("removal of _SUCCESS", "after", signal=signal.SIGKILL)
    stopped = life.stop(life.how(point, dies))
    _publish(life, _OTHER, "the one that took over")
    first = _audit(life, "before: ")
    stopped.go_on()
    life.finish(stopped, "the zombie")
    life.outcome.kills = 1
    life.look(2)
    heals = life.answer(life.how(), _OTHER)
    if (heals.result.get("value") or {}).get("outcome") != "unchanged":
        life.outcome.faults.append(f"who heals it publishes anew: {heals.result}")
    then = _audit(life, "healed: ")
    life.outcome.faults += work.changed(first["contents"], then["contents"], "the late removal")


def gc(life: Life) -> None:
    life.prepare()
    if life.trial.variant == "beside a live run":
        live = life.start(life.how(batch_seconds=0.2, stale=60.0), name="live")
        while not live.wait(0.1) and not life.answered:
            pass
        for _ in range(3):
            if life.children.ask(work.collect, life.place, 0.0, 5.0) and not live.wait(0):
                life.outcome.faults.append("gc takes what a live run needs")
        if life.finish(live, "the live run").get("outcome") != "published":
            life.outcome.faults.append(f"the run beside gc ended as {live.result}")
        life.audit()
        life.check_paid(0)
        return
    stopped = life.stop(life.how(*life.trial.points))
    life.children.ask(work.collect, life.place, 0.0, 0.5)
    before = life.children.ask(work.published_question, life.place)
    if before is not None:
        life.look(before)
    if life.rng.random() < 0.5:
        _publish(life, _OTHER if life.rng.random() < 0.5 else {}, "a run after gc")
    stopped.go_on()
    _after(life, [stopped], None, "after gc: ")
    life.children.ask(work.collect, life.place, 0.0, 0.5)
    found = _audit(life, "after gc again: ")
    life.outcome.faults += [f"gc leaves {n}" for n in found["litter"]]


def _publish(life: Life, change: dict[str, Any], who: str) -> None:
    """A run that must publish, or find its answers published."""
    child = life.answer(life.how(), change, name="second")
    if "value" not in child.result:
        life.outcome.faults.append(f"{who} failed: {child.result}")


def _audit(life: Life, when: str) -> dict[str, Any]:
    """What is published is whole, whoever's question it answers."""
    question = life.children.ask(work.published_question, life.place)
    return life.inspect(when, question)


def _after(
    life: Life, zombies: list[Child], first: dict[str, Any] | None, when: str = "after the zombie: "
) -> dict[str, Any]:
    """What is published is right, and one run more of the same question finds nothing to do. Who woke up and
    published nothing has changed nothing."""
    ended = [life.finish(z, "a zombie").get("outcome") or z.result.get("type") for z in zombies]
    if "published" in ended:
        # It committed before it was stopped, or decided again and replaced what it found.
        first = None
    if life.children.ask(work.published_question, life.place) is None:  # gc took its number, and it gave up
        _publish(life, {}, "a run after it")
    question = life.children.ask(work.published_question, life.place)
    change = {"question": question, "rerun__on_config_change": "recompute"}
    if question == life.place.slice.scenario.question:
        change = {}
    when = f"{when[:-2]} ({', '.join(map(str, ended))}): "
    if life.trial.scenario == "forced":
        then = life.inspect(when, question)
    else:
        then = life.conclude(change, question, when)
    if first is not None:
        life.outcome.faults += work.changed(first["contents"], then["contents"], when)
    return then


def _force(life: Life, change: dict[str, Any]) -> None:
    """What zombies left must not harm whoever works on the slice next."""
    again = life.answer(life.how(), {**change, "rerun__on_config_change": "recompute", "rerun__force": True})
    if (again.result.get("value") or {}).get("outcome") != "published":
        life.outcome.faults.append(f"a forced run after that: {again.result}")
    _audit(life, "after a forced run: ")
