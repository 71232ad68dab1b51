"""`python -m tests.chaos.own_clusters`: kills what is at work on slices that have Ray clusters of their own,
or share one, on real Airflow and real Ray heads, and audits that nothing is left behind.

A line a trial: what was killed, and what became of it. The exit status is 1 when a slice did not get
published whole, when more was asked twice than was in flight, or when anything is left.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests import conftest  # noqa: F401  Airflow's home, before anything imports Airflow
from tests.chaos.cluster_stage import Stage, stage
from tests.support.airflow_rest import FINISHED, LIMIT, Task, wait_for
from tests.support.paths import ROOT
from tests.support.tables import ROWS, Table

BATCHES = ROWS // 10
#: In the order of a slice's life.
MOMENTS = ("making", "starting", "answering", "ending", "tearing down")


@dataclass
class Slice:
    task: Task
    day: str


@dataclass
class Trial:
    id: str
    kind: str
    table: Table
    slices: list[Slice]
    #: Of a shared cluster: its setup task and its teardown task.
    ends: list[Task]
    kills: list[tuple[str, str]] = field(default_factory=list)
    #: Tasks that were marked, and whether they stay so.
    marked: set[Task] = field(default_factory=set)
    is_given_up: bool = False
    clears: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def tasks(self) -> list[Task]:
        return [one.task for one in self.slices] + self.ends


class Kills:
    """A method for each victim; it returns whether it met anything."""

    def __init__(self, stage: Stage, dice: random.Random) -> None:
        self.stage, self.dice = stage, dice
        #: For which a task that runs is waited for.
        self.patience_s = 8.0
        self.by_name: dict[str, Callable[[Trial], bool]] = {
            "worker": self.worker,
            "runner": self.runner,
            "triggerer": self.triggerer,
            "scheduler": self.scheduler,
            "scheduler alone": self.scheduler_alone,
            "airflow's api": self.airflow_api,
            "operator": self.operator,
            "head OOMKilled": self.head_oom,
            "head Evicted": self.head_evicted,
            "node drained": self.node,
            "api away": self.api_away,
            "api refuses": self.api_refuses,
            "api loses answers": self.api_loses,
            "watch gone": self.watch_gone,
            "mark": self.mark,
            "clear": self.clear,
        }

    def pause(self, most_s: float) -> None:
        time.sleep(self.dice.uniform(0, most_s))

    # --- Airflow

    def _pid(self, trial: Trial) -> int | None:
        """Waits a while for a task that runs."""
        until = time.monotonic() + self.patience_s
        tasks = trial.tasks
        while time.monotonic() < until:
            self.dice.shuffle(tasks)
            for task in tasks:
                with contextlib.suppress(Exception):
                    found = self.stage.airflow.api.get(task)
                    if found["state"] == "running" and found["pid"]:
                        return int(found["pid"])
            time.sleep(0.2)
        return None

    def worker(self, trial: Trial) -> bool:
        if (pid := self._pid(trial)) is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            runner = psutil.Process(pid)
            supervisor = runner.parent()
            assert supervisor is not None
            for process in (supervisor, runner):
                process.kill()
            return True
        return False

    def runner(self, trial: Trial) -> bool:
        if (pid := self._pid(trial)) is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
            return True
        return False

    def _component(self, name: str, *, with_children: bool = True) -> bool:
        self.stage.airflow.kill(name, with_children=with_children)
        self.pause(6)
        self.stage.airflow.start(name)
        return True

    def triggerer(self, trial: Trial) -> bool:
        return self._component("triggerer")

    def scheduler(self, trial: Trial) -> bool:
        return self._component("scheduler")

    def scheduler_alone(self, trial: Trial) -> bool:
        return self._component("scheduler", with_children=False)

    def airflow_api(self, trial: Trial) -> bool:
        return self._component("api_server")

    def mark(self, trial: Trial) -> bool:
        one = self.dice.choice(trial.slices)
        with contextlib.suppress(Exception):
            self.stage.airflow.api.mark(one.task, self.dice.choice(["failed", "success"]))
            trial.marked.add(one.task)
            self.pause(8)
            return True
        return False

    def clear(self, trial: Trial) -> bool:
        one = self.dice.choice(trial.slices)
        found = self.stage.airflow.api._maybe(one.task)
        if found is None or found["state"] not in ("running", "deferred"):
            return False
        self.stage.airflow.api.clear(one.task)
        return True

    # --- Kubernetes

    def operator(self, trial: Trial) -> bool:
        self.stage.operator.stop()
        self.pause(12)
        self.stage.operator.start()
        return True

    def _head(self, kill: Callable[[str], None]) -> bool:
        until = time.monotonic() + 8
        while not (heads := self.stage.heads()):
            if time.monotonic() > until:
                return False
            time.sleep(0.2)
        try:
            kill(self.dice.choice(heads))
        except StopIteration:
            return False  # it was deleted meanwhile
        return True

    def head_oom(self, trial: Trial) -> bool:
        return self._head(lambda pod: self.stage.operator.kill_pod(pod, "OOMKilled"))

    def head_evicted(self, trial: Trial) -> bool:
        return self._head(lambda pod: self.stage.operator.kill_pod(pod, "Evicted"))

    def node(self, trial: Trial) -> bool:
        return self._head(self.stage.operator.drain_node)

    def api_away(self, trial: Trial) -> bool:
        with self.stage.kube.away():
            self.pause(15)
        return True

    def api_refuses(self, trial: Trial) -> bool:
        status = self.dice.choice([429, 500, 503, 504])
        after = 1 if status == 429 else None
        self.stage.kube.fail("*", "*", status, times=10_000, retry_after=after)
        self.pause(12)
        self.stage.kube.forgive()
        return True

    def api_loses(self, trial: Trial) -> bool:
        verb = self.dice.choice(["create", "patch", "delete", "get", "list", "*"])
        calls = len(self.stage.kube.calls)
        self.stage.kube.lose_answers(verb, "rayjobs", times=self.dice.randint(1, 3))
        self.pause(10)
        self.stage.kube.forgive()
        return len(self.stage.kube.calls) > calls

    def watch_gone(self, trial: Trial) -> bool:
        self.stage.kube.fail("watch", "rayjobs", 410, times=self.dice.randint(0, 2) or 1)
        self.stage.kube.cut_watches()
        self.pause(5)
        self.stage.kube.forgive()
        return True


#: After which the task is asked anew, or has another try.
_NEW_TRY = {"worker", "runner", "scheduler", "scheduler alone", "mark", "clear"}
#: By which Airflow itself ends tries, perhaps several.
_BURNS_TRIES = {"airflow's api"}
#: Tries of each task, until it is cleared.
_TRIES = 3
#: By which a job may be lost, with the rows that are in flight.
_LOSES_JOB = {"head OOMKilled", "head Evicted", "node drained", "mark", "clear"}
#: After which a head or a job starts anew, which takes most of a trial; and how many of them it may have.
_COSTLY, _MOST_COSTLY = _LOSES_JOB | {"airflow's api"}, 2
#: After which a cluster may wait for Kubernetes itself to end it.
_LATE = {"mark", "clear", "api away", "api refuses", "api loses answers"}


class Campaign:
    """
    :param log: the folder that keeps what is known of a trial that failed.
    :param kinds: of trials; none for all. `victims`: as `Kills` names them.
    """

    def __init__(
        self, stage: Stage, seed: int, log: Path, kinds: Sequence[str] = (), victims: Sequence[str] = ()
    ) -> None:
        self.stage, self.seed, self.log = stage, seed, log
        self.kills: Counter[str] = Counter()
        self.moments: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.extra: Counter[int] = Counter()
        self.failed: list[str] = []
        self.trials = 0
        self._kinds, self._victims = kinds, victims

    def run(self, most_kills: int, until: float) -> None:
        while sum(self.kills.values()) < most_kills and time.time() < until:
            self.trials += 1
            self._run(self.trials)

    def _run(self, number: int) -> None:
        dice = random.Random(f"{self.seed} {number}")
        began, calls = time.monotonic(), len(self.stage.kube.calls)
        trial = self._begin(number, dice)
        trial.is_given_up = dice.random() < 0.5
        how, extra = "?", -1
        try:
            self._kill(trial, dice)
            self._finish(trial)
            how, extra = self._audit(trial)
        except Exception as e:
            trial.faults.append(f"{type(e).__name__}: {str(e)[:1500]}")
            traceback.print_exc(file=sys.stderr)
        tries = [self._tries(task) for task in trial.tasks]
        for victim, moment in trial.kills:
            self.kills[victim] += 1
            self.moments[moment] += 1
        self.ends[how] += 1
        self.extra[extra] += 1
        killed = ", ".join(f"{victim} ({moment})" for victim, moment in trial.kills)
        made = self.stage.clusters_made(calls)
        line = (
            f"{_now()} {trial.id} {trial.kind}: {killed}; tries {tries}, cleared {trial.clears}, "
            f"clusters {made}, twice {extra} batches, nothing left {how}, "
            f"{time.monotonic() - began:.0f} s: {'FAILED' if trial.faults else 'clean'}"
        )
        print(line, flush=True)
        for fault in trial.faults:
            print(f"  {fault}", flush=True)
        if trial.faults:
            self.failed.append(trial.id)
            self._keep(trial)
            self._clean(trial)

    def _begin(self, number: int, dice: random.Random) -> Trial:
        id = f"{self.seed}-{number}"
        table = Table(self.stage.data, f"t{self.seed}_{number}")
        days = ["2025-01-01", "2025-01-02"]
        table.write(*days)
        api = self.stage.airflow.api
        kinds = ["made"] * 5 + ["two"] + ["shared"] * 4
        kind = dice.choice([k for k in kinds if not self._kinds or k in self._kinds])
        modes = [dice.choice(["waiting", "deferred"]) for _ in days]
        if kind == "made":
            days = days[:1]
        for day in days:
            table.hold(day, dice.randint(1, BATCHES - 1))
        if kind == "shared":
            run = api.trigger(f"shared_{modes[0]}", conf={"table": table.name, "days": days})
            slices = [Slice(run.at(i), day) for i, day in enumerate(days)]
            ends = [Task(run.dag_id, run.run_id, "make"), Task(run.dag_id, run.run_id, "end")]
            return Trial(id, f"shared {modes[0]}", table, slices, ends)
        slices = []
        for day, mode in zip(days, modes, strict=False):
            conf = {"table": table.name, "slice": day}
            slices.append(Slice(api.trigger(f"made_{mode}", conf=conf), day))
        return Trial(id, " + ".join(modes[: len(days)]), table, slices, [])

    def _kill(self, trial: Trial, dice: random.Random) -> None:
        kills = Kills(self.stage, dice)
        weights = (1, 3, 5, 2, 2) if trial.ends else (0, 3, 5, 3, 0)
        moments = sorted(dice.choices(MOMENTS, weights, k=dice.randint(4, 9)), key=MOMENTS.index)
        at = ""
        for moment in moments:
            kills.patience_s = 25.0 if moment == "ending" else 8.0
            if moment == "making" and at != moment:
                self._wait_for(trial.ends[0], "running")
                kills.pause(1)
            elif moment == "starting":
                kills.pause(12)
            elif moment == "answering" and at != moment:
                self._wait_answers(trial)
                kills.pause(3)
            elif moment == "ending" and at != moment:
                self._wait_answers(trial)
                self._release(trial)
                kills.pause(8)
            elif moment == "tearing down" and at != moment:
                self._release(trial)
                self._wait_for(trial.ends[1], "running")
                kills.pause(1)
            else:
                kills.pause(5)
            at = moment
            names = [name for name in kills.by_name if not self._victims or name in self._victims]
            dice.shuffle(names)
            if sum(victim in _COSTLY for victim, _ in trial.kills) >= _MOST_COSTLY:
                names = [name for name in names if name not in _COSTLY]
            for name in names:
                if kills.by_name[name](trial):
                    trial.kills.append((name, moment))
                    print(
                        f"  {time.strftime('%H:%M:%S')} {trial.id}: {name} ({moment})",
                        file=sys.stderr,
                        flush=True,
                    )
                    break
        self._release(trial)

    def _wait_for(self, task: Task, state: str) -> None:
        wait_for(lambda: self._state(task) in (state, *FINISHED) or None, LIMIT, f"{task} to be {state}")

    def _wait_answers(self, trial: Trial) -> None:
        """Of any slice, unless all of them have ended."""

        def look() -> bool | None:
            if any(trial.table.answered(one.day) for one in trial.slices):
                return True
            if all(self._state(one.task) in FINISHED for one in trial.slices):
                return True
            return None

        wait_for(look, LIMIT, "an answer")

    def _state(self, task: Task) -> str | None:
        found = self.stage.airflow.api._maybe(task)
        return found["state"] if found else None

    def _tries(self, task: Task) -> int:
        found = self.stage.airflow.api._maybe(task)
        return int(found["try_number"]) if found else 0

    def _release(self, trial: Trial) -> None:
        for one in trial.slices:
            with contextlib.suppress(FileNotFoundError):
                trial.table.release(one.day)

    def _finish(self, trial: Trial) -> None:
        """Clears what failed until all is published."""
        api = self.stage.airflow.api
        victims = [victim for victim, _ in trial.kills]
        may_fail = sum(victim in _NEW_TRY for victim in victims) >= _TRIES or _BURNS_TRIES & set(victims)
        for one in trial.slices:
            if trial.is_given_up and one.task in trial.marked:
                continue
            for _ in range(4):
                state = api.finish(one.task, 400)
                if state == "success" and trial.table.rows_right(one.day):
                    break
                if one.task not in trial.marked and not may_fail:
                    trial.faults.append(f"{one.task.task_id} is {state}: {self._last_error(one.task)}")
                trial.clears += 1
                api.clear(one.task)
                wait_for(lambda task=one.task: self._state(task) not in FINISHED or None, 60, "the clear")  # type: ignore[misc]
            else:
                trial.faults.append(f"{one.day} was not published")
        for task in trial.ends:
            if (state := api.finish(task, 300)) != "success" and not may_fail:
                trial.faults.append(f"{task.task_id} is {state}: {self._last_error(task)}")

    def _last_error(self, task: Task) -> str:
        lines = [x for x in self.stage.airflow.api.log(task).splitlines() if "rror" in x]
        return (lines or [""])[-1][:400]

    def _audit(self, trial: Trial) -> tuple[str, int]:
        victims = [victim for victim, _ in trial.kills]
        twice = 0
        for one in trial.slices:
            answered = len(trial.table.answered(one.day))
            twice += max(answered - BATCHES, 0)
            is_marked = trial.is_given_up and one.task in trial.marked
            if is_marked and not trial.table.has_output(one.day):
                continue
            if not trial.table.rows_right(one.day):
                trial.faults.append(f"{one.day}: its rows are not right")
            elif answered < BATCHES:
                trial.faults.append(f"{one.day}: {answered} batches were answered")
        lost = sum(victim in _LOSES_JOB for victim in victims) + trial.clears
        if twice > BATCHES * lost * len(trial.slices):
            trial.faults.append(f"{twice} batches were answered twice, and {lost} jobs lost")
        tries = sum(self._tries(task) - 1 for task in trial.tasks)
        again = sum(victim in _NEW_TRY for victim in victims) * len(trial.tasks) + trial.clears
        if tries > again and not _BURNS_TRIES & set(victims):
            errors = [self._last_error(task) for task in trial.tasks]
            trial.faults.append(f"{tries} more tries, {again} kills of tasks: {errors}")
        how, left = self.stage.wait_for_nothing()
        if left:
            trial.faults.append(f"left: {left}")
        elif not how.startswith("at once") and not _LATE & set(victims):
            trial.faults.append(f"nothing was left only by {how}")
        return how, twice

    def _keep(self, trial: Trial) -> None:
        folder = self.log / trial.id
        folder.mkdir(parents=True, exist_ok=True)
        for i, task in enumerate(trial.tasks):
            with contextlib.suppress(Exception):
                (folder / f"{i}-{task.task_id}.log").write_text(self.stage.airflow.api.log(task))
        with contextlib.suppress(Exception):
            (folder / "kube").write_text("\n".join(map(str, self.stage.kube.calls[-400:])))
            (folder / "rayjobs").write_text("\n".join(map(str, self.stage.kube.objects("rayjobs"))))
            (folder / "journal").write_text(str([trial.table.answered(one.day) for one in trial.slices]))
        for name in ("scheduler", "triggerer", "api_server"):
            (folder / name).write_text(self.stage.airflow.output(name)[-200_000:])

    def _clean(self, trial: Trial) -> None:
        self.stage.kube.forgive()
        for task in trial.tasks:
            with contextlib.suppress(Exception):
                if self.stage.airflow.api.run(task)["state"] not in ("success", "failed"):
                    self.stage.airflow.api.mark_run(task, "failed")
        time.sleep(5)
        self.stage.remove_all()


def _now() -> str:
    return time.strftime("%H:%M:%S")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos.own_clusters", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=600, help="after which no trial begins")
    parser.add_argument("--kinds", nargs="*", default=[], choices=["made", "two", "shared"])
    parser.add_argument("--victims", nargs="*", default=[], help="such as 'head OOMKilled' mark")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and leaves nothing behind
    began = time.time()
    with stage() as on:
        print(f"{time.time() - began:.0f} s to start", flush=True)
        campaign = Campaign(on, args.seed, ROOT / ".chaos" / "own_clusters", args.kinds, args.victims)
        campaign.run(args.kills, began + 60 * args.minutes)
    for name, count in campaign.kills.most_common():
        print(f"{name:18} {count:4}")
    print(f"{sum(campaign.kills.values())} kills in {campaign.trials} trials: {dict(campaign.moments)}")
    print(
        f"nothing left: {dict(campaign.ends)}; batches answered twice: {dict(sorted(campaign.extra.items()))}"
    )
    print(f"failed: {campaign.failed or 'none'}")
    return 1 if campaign.failed else 0


if __name__ == "__main__":
    sys.exit(main())
