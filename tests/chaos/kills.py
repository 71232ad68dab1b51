"""Kills at a step and at any instant, two runs at once, and stores that fail or speak another dialect."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.chaos import work
from tests.chaos.life import LIMIT, MOST_RUNS, Life, NotMetError
from tests.chaos.storage import Program
from tests.chaos.trials import DIALECTS
from tests.chaos.work import BATCH


def kill_at_steps(life: Life) -> None:
    life.prepare()
    for index, point in enumerate(life.trial.points):
        is_slow = point.step == "progress" or (point.step == "beat" and point.occurrence > 1)
        child = life.answer(life.how(point, batch_seconds=0.05 if is_slow else 0.0))
        if not child.killed:
            if index == 0 or point.step == "removal of old lease":
                raise NotMetError(f"{point} in {life.trial.scenario!r}: {child.result}")
            break
        life.look()
    life.until_published()


def kill_at_any_instant(life: Life) -> None:
    life.prepare()
    batch_seconds = life.rng.choice((0.005, 0.02, 0.04))
    seconds = life.to_answer / BATCH * batch_seconds + (0.3 if life.port is None else 0.9)
    for index in range(life.rng.choice((1, 1, 2, 3))):
        child = life.start(life.how(batch_seconds=batch_seconds))
        if child.wait(life.rng.uniform(0.01, seconds) * life.shrink):
            if index == 0:
                raise NotMetError(f"it ended before {seconds:.1f} s: {child.result}")
            break
        child.kill()
        life.outcome.kills += 1
        life.look()
    life.until_published()


def two_at_once(life: Life) -> None:
    """Whoever is first answers nothing before the other waits for it, however late that one begins; and no
    machine is so slow that it is taken for dead meanwhile."""
    life.prepare()
    met = str(life.folder / "met")
    how = life.how(batch_seconds=0.03, begin=time.time() + 0.5, stale=60.0, meet=met)
    both = [life.start(how, name=f"run-{n}") for n in (1, 2)]
    results = [life.finish(child, "one of two") or child.result for child in both]
    if sorted(str(r.get("outcome")) for r in results) != ["attached", "published"]:
        life.outcome.faults.append(f"two at once ended as {results}")
    life.outcome.kills = 0
    life.audit()


def storage_dies(life: Life) -> None:
    life.prepare()
    proxy = life.s3.proxy()
    try:
        _through(life, proxy, dies=True)
    finally:
        proxy.kill()
    life.audit()


def storage_misbehaves(life: Life) -> None:
    life.prepare()
    proxy = life.s3.proxy(str(life.rng.choice((0.03, 0.08))), life.trial.id)
    try:
        _through(life, proxy, dies=False)
    finally:
        proxy.kill()
    life.audit()


def _through(life: Life, proxy: Program, *, dies: bool) -> None:
    place = replace(life.place, port=proxy.port)
    for _ in range(MOST_RUNS):
        child = life.children.start(work.answer, place, life.how(batch_seconds=0.02), {}, name="answer")
        while dies and not child.wait(life.rng.uniform(0.05, 1.5)) and life.outcome.kills < 3:
            proxy.kill()
            life.outcome.kills += 1
            time.sleep(life.rng.uniform(0.0, 1.0))
            proxy.start()
        if not child.wait(LIMIT):
            child.kill()
            life.outcome.faults.append("a run does not end")
        if "value" in child.result:
            return
        life.look()
    life.outcome.faults.append(f"not published in {MOST_RUNS} runs: {child.result}")


def in_a_dialect(life: Life) -> None:
    """A kill, if there is one, in a store that speaks so; copies arrive when their sender is dead."""
    life.prepare()
    dialect = life.s3.dialect(*DIALECTS[life.trial.variant])
    try:
        life.place = replace(life.place, port=dialect.port, copy_timeout=1.0)
        for point in life.trial.points:
            child = life.answer(life.how(point))
            if not child.killed and "value" not in child.result:
                life.outcome.faults.append(f"the run before the kill failed: {child.result}")
            life.look()
        life.until_published()
        time.sleep(1.0)  # until the last copy has arrived
        life.inspect("later: ")
    finally:
        dialect.kill()
