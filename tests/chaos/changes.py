"""What changes between runs, or under one: the rule by which the input is read, the question, the input."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor import slice_run
from airflow_provider_raydatallm.processor.store import lease
from tests.chaos import audit, failpoints, work
from tests.chaos.failpoints import FailPoint
from tests.chaos.life import Life, NotMetError
from tests.chaos.rules import RuleSlice
from tests.chaos.work import BATCH, Place
from tests.support.in_process import InProcess, changed, job_of

_REFUSED = "refused"


def rule(life: Life) -> None:
    """A run by one rule, finished or killed; one by another rule; one by the first again."""
    one = RuleSlice(life.root, life.trial.variant, life.seed)
    policy = life.trial.scenario
    life.children.ask(write_input, life.place, one)
    first = life.children.run(answer_by, life.place, one, 0, "fail", life.trial.points)
    if life.trial.points and not first.killed:
        raise NotMetError(f"{life.trial.points[0]}: {first.result}")
    life.outcome.kills += first.killed
    published = None if first.killed else 0
    for by, on_change in ((1, policy), (1, "recompute"), (0, policy), (0, "recompute")):
        child = life.children.run(answer_by, life.place, one, by, on_change, ())
        ended = child.result.get("value")
        if ended is None:
            life.outcome.faults.append(f"rule {by} with {on_change}: {child.result}")
        elif ended != _REFUSED:
            published = by
        elif on_change == "recompute":
            life.outcome.faults.append(f"rule {by} is refused, with {on_change}")
        if published is not None:
            found = life.children.ask(audit_by, life.place, one, published)
            life.outcome.take(found, f"after rule {by} with {on_change}, which ended {ended}: ")


def write_input(place: Place, one: RuleSlice) -> None:
    work.use(place)
    one.write_input()


def answer_by(place: Place, one: RuleSlice, by: int, policy: str, points: tuple[FailPoint, ...]) -> str:
    """Run the slice by that rule; how it ended."""
    work.use(place)
    lease.STALE_SECONDS, lease.BEAT_SECONDS = 0.3, 0.075
    failpoints.install(*points)
    try:
        return slice_run.run_slice(one.job(by, policy), lambda news: None, InProcess(batch=BATCH)).outcome
    except SliceError as e:
        if e.kind != "input":
            raise
        return _REFUSED


def audit_by(place: Place, one: RuleSlice, by: int) -> dict[str, Any]:
    work.use(place)
    job = one.job(by)
    promise = audit.Promise(one.expected(by), keep=job.publish.keep_versions, tokens=work.TOKENS, key=one.key)
    return audit.audit(job.slice_path, promise).to_json()


def there_and_back(life: Life) -> None:
    """Configurations X, Y, X: X finished or killed; then each publishes, and pays what is not answered."""
    life.prepare()
    change = {"question": 2}
    rows = life.to_answer
    first = life.answer(life.how(*life.trial.points), name="X")
    if life.trial.points and not first.killed:
        raise NotMetError(f"{life.trial.points[0]}: {first.result}")
    for question, given, name in ((2, change, "Y"), (None, {}, "X again"), (2, change, "Y again")):
        before = life.answered
        child = life.answer(life.how(), given, name=name)
        if (child.result.get("value") or {}).get("outcome") != "published":
            life.outcome.faults.append(f"{name} ended as {child.result}")
        life.inspect(f"after {name}: ", question)
        paid = life.answered - before
        if name == "X again" and first.killed:
            paid += before - rows  # by the one that was killed; between them was Y's
            if not rows <= paid <= rows + BATCH * life.flush_every:
                life.outcome.faults.append(f"X paid {paid} rows of {rows}, killed once")
        elif paid != rows:
            life.outcome.faults.append(f"{name} paid {paid} rows of {rows}")
    life.conclude(change, 2)


@dataclass(frozen=True)
class Swap:
    """An input file of two contents with the same length, and how often it changes under a run."""

    folder: str
    seed: str
    back: bool

    def rows(self, content: str) -> list[dict[str, Any]]:
        rng = random.Random(f"swap {self.seed}")
        return [{"id": i, "name": f"{content} {i:03} {rng.getrandbits(32):08x}"} for i in range(60)]

    def expected(self, content: str) -> list[dict[str, Any]]:
        return [{**row, "answer": row["name"]} for row in self.rows(content)]

    def put(self, content: str) -> None:
        """By rename, with the time that it always has."""
        path = Path(self.folder, "in", "0.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        new = Path(self.folder, "new.parquet")
        table = pa.Table.from_pylist(self.rows(content))
        pq.write_table(table, new, row_group_size=12, compression="none", use_dictionary=False)
        os.utime(new, (1_700_000_000, 1_700_000_000))
        os.replace(new, path)

    @property
    def job(self) -> Any:
        return job_of(input_path=f"{self.folder}/in", output_path=f"{self.folder}/out")


def swapped_input(life: Life) -> None:
    """The input is swapped while it is answered, and swapped back or not: what is published was in it,
    with its own answers; in the end it is what the input holds."""
    swap = Swap(str(life.folder / "data"), life.seed, back=life.trial.variant == "A, B, A")
    swap.put("A")
    at = sorted(life.rng.sample(range(1, 9), 2))
    first = life.children.run(answer_swapped, swap, tuple(at))
    if "value" in first.result:
        contents = [life.children.ask(audit_swapped, swap, c) for c in "AB"]
        if not any(found["altered"] + found["lost"] + len(found["faults"]) == 0 for found in contents):
            life.outcome.take(contents[0], "after the swap: ")
    elif first.result.get("type") == "AttributeError":
        life.outcome.faults.append(str(first.result))
    if swap.back:  # the run may have ended before
        swap.put("A")
    then = life.children.run(answer_swapped, swap, ())
    if "value" not in then.result:
        life.outcome.faults.append(f"the run after the swap failed: {then.result}")
    found = life.children.ask(audit_swapped, swap, "A" if swap.back else "B")
    life.outcome.take(found, "in the end: ")


def answer_swapped(swap: Swap, at: tuple[int, ...]) -> str:
    """:param at: batches before which the input is swapped."""
    batches = 0

    def before_batch(batch: pa.Table) -> None:
        nonlocal batches
        batches += 1
        if at and batches == at[0]:
            swap.put("B")
        if at and batches == at[1] and swap.back:
            swap.put("A")

    lease.STALE_SECONDS, lease.BEAT_SECONDS = 0.3, 0.075
    job = changed(swap.job, rerun__on_input_change="recompute")
    cluster = InProcess(batch=BATCH, before_batch=before_batch)
    return slice_run.run_slice(job, lambda news: None, cluster).outcome


def audit_swapped(swap: Swap, content: str) -> dict[str, Any]:
    return audit.audit(swap.job.slice_path, audit.Promise(swap.expected(content), keep=1)).to_json()
