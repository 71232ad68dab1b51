"""Trials on a real Ray: jobs that the operator's own submission sends to an embedded head, of which processes
are killed or paused (SIGSTOP).

A process that is paused goes on after a while, and the slice is published as if nothing had happened; or it
never does: then the run ends in time, by `limits.stall`, and the next one publishes. With the stub engine,
or the provider's own engine with stub workers, a trial is one kill or pause. With vLLM, whose start is most
of the time, one slice is killed several times before it is published, and each kill is a trial of its own in
the table; the audit is at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from airflow.sdk import DAG

from airflow_provider_raydatallm.contract.log.marked_lines import decode_line
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.processor.publish.published import current_report
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from tests.chaos import shipped
from tests.chaos.audit import Promise, audit
from tests.chaos.head import Head, command_of
from tests.chaos.life import Outcome
from tests.support.arguments import written
from tests.support.context import context_of
from tests.support.paths import ROOT
from tests.support.tiny_model import tiny_model

#: A slice of blocks runs in Ray Data's processes, however small it is.
_BLOCKS = 20
#: `workers`: the provider's own engine, whose workers run no model.
Engine = Literal["stub", "workers", "vllm"]
Action = Literal["kill", "pause", "pause for good"]
When = Literal["starting", "answering", "publishing"]

#: What is killed or paused, by what its process is called. Engines, writers and workers that die are replaced
#: by Ray within the job.
TARGETS: dict[str, Callable[[str], bool]] = {
    "engine actor": lambda c: (
        c.startswith("ray::") and any(n in c for n in ("SlowEngineActor", "VllmWorker", "_StubWorker"))
    ),
    "engine core": lambda c: "EngineCore" in c,
    "fragment writer": lambda c: c.startswith("ray::WriterActor"),
    "slice process": lambda c: c.startswith("ray::SliceProcess"),
    "worker": lambda c: (
        c.startswith("ray::") and any(n in c for n in ("MapBatches(", "MapWorker", "Map(", "FeederProcess"))
    ),
    "feeder": lambda c: c.startswith("ray::FeederProcess"),
    "coordinator": lambda c: c.startswith("ray::DedupCoordinator"),
    "reader": lambda c: c.startswith("ray::") and "RequestStage" in c,
    "driver": lambda c: "airflow_provider_raydatallm.processor.job run" in c,
    "raylet": lambda c: "raylet/raylet" in c,
    "head": lambda c: True,
}
#: A head that lost one of these is no head any more.
_ENDS_HEAD = ("raylet", "head")
_MOST_RUNS = 8
#: Not imported here: they import each other as the cluster has them.
_STUB_WORKERS = [str(ROOT / "tests" / "support" / name) for name in ("stub_worker.py", "stub_engine.py")]
#: Of a run in which something is paused for good, and how much longer it may take to end: for what waits for
#: Ray's answers to describe the stall, for the last rows, and for the machine.
_STALL_SECONDS, _END_SECONDS = 15, 120


@dataclass(frozen=True)
class RayTrial:
    """Kills (target, step) in the life of one slice, or pauses; each has an id and a line of the table."""

    ids: tuple[str, ...]
    engine: Engine
    kills: tuple[tuple[str, When], ...]
    action: Action = "kill"


class OnRay:
    """Runs trials on a head of its own, in `folder`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.head = Head()

    def close(self) -> list[str]:
        """End the head; what of it lives on."""
        return self.head.close()

    def run(self, trial: RayTrial) -> list[Outcome]:
        """Make one slice, in which the kills happen one after another, and audit it."""
        life = _Life(self, trial)
        kills = trial.kills
        outcomes = [
            Outcome(id, (f"ray, {trial.engine}" + _named(trial.action), *kill), "new")
            for id, kill in zip(trial.ids, kills, strict=True)
        ]
        began = time.monotonic()
        try:
            for outcome, (target, when) in zip(outcomes, kills, strict=True):
                life.strike(target, when, outcome)
            life.finish(outcomes[-1])
        except Exception as e:
            outcomes[-1].faults.append(f"{type(e).__name__}: {e}")
        for outcome in outcomes:
            outcome.seconds = round((time.monotonic() - began) / len(outcomes), 1)
            outcome.folder = str(life.folder)
        if all(o.clean for o in outcomes):
            shutil.rmtree(life.folder, ignore_errors=True)
        return outcomes


class _Life:
    """One slice, from its input to its audit."""

    def __init__(self, on_ray: OnRay, trial: RayTrial) -> None:
        self.ray, self.engine, self.action = on_ray, trial.engine, trial.action
        self.is_in_one_process = any(target == "slice process" for target, _ in trial.kills)
        self.reads_slowly = any(target == "reader" for target, _ in trial.kills)
        self.rng = random.Random(f"{on_ray.seed} {trial.ids[0]}")
        self.folder = on_ray.folder / trial.ids[0]
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "in").mkdir(parents=True)
        self.notes = self.folder / "notes.txt"
        self.notes.touch()
        self.rows = self._write_input(4000 if self.engine == "vllm" else 600)
        self.job_id: str | None = None
        self.nonce = ""
        self.submitted = 0.0
        self.operator = self._operator()
        self.spec: SliceJob | None = None

    def _write_input(self, count: int) -> list[dict[str, Any]]:
        rows = [
            {"id": i, "name": f"Company {i} Legal", "note": None if i % 7 else "é" * (i % 5)}
            for i in range(count)
        ]
        third = count // 3
        for number in range(3):
            part = rows[number * third : (number + 1) * third if number < 2 else count]
            path = self.folder / "in" / f"{number}.parquet"
            pq.write_table(pa.Table.from_pylist(part), path, row_group_size=self.rng.randint(40, 150))
        return rows

    def _operator(self) -> RayLLMBatchOperator:
        stub = self.engine == "stub"
        variables = {shipped.NOTES: str(self.notes), shipped.SECONDS: "0.2"}
        arguments: dict[str, Any] = {
            "input_path": f"{self.folder}/in/", "output_path": f"{self.folder}/out",
            "slice_key": "2026-01-31", "prompt": "{name}", "code_paths": [shipped.__file__],
            "runtime_env": {"env_vars": variables},
        }  # fmt: skip
        if self.reads_slowly:
            arguments |= {"prompt": None, "preprocess": "shipped:slow_request"}
        if not self.is_in_one_process:
            arguments |= {"engine__blocks": _BLOCKS}
        if self.action == "pause for good":
            arguments |= {"limits__stall": _STALL_SECONDS}
        if stub:
            arguments |= {"engine": "shipped:SlowEngine", "model_source": "stub/stub"}
        elif self.engine == "workers":
            arguments |= {
                "engine": "stub_worker:StubWorkers", "model_source": str(tiny_model()),
                "code_paths": [shipped.__file__, *_STUB_WORKERS],
                "postprocess": "shipped:note_answer",
                "sampling_params": {"temperature": 0, "max_tokens": 10},
            }  # fmt: skip
            if self.action != "kill":
                arguments |= {"engine__batch_size": 20}
        else:
            arguments |= {
                "model_source": str(tiny_model()), "choices": list(CHOICES),
                "postprocess": "shipped:note_answer", "sampling_params": {"temperature": 0, "max_tokens": 16},
                "engine__kwargs": {"max_model_len": 256}, "engine__scope": "slice",
            }  # fmt: skip
        with DAG(f"c{uuid.uuid4().hex[:8]}", schedule=None):
            return RayLLMBatchOperator(task_id="t", **written(**arguments))

    def _submission(self) -> JobSubmission:
        return self.operator._build_submission(context_of(self.operator))

    def _submit(self) -> None:
        self.ray.head.ensure()
        submission = self._submission()
        self.spec = submission.job
        self.job_id = f"chaos-{uuid.uuid4().hex[:12]}"
        self.nonce = uuid.uuid4().hex
        submission.submit(RayHook("ray_default"), "run", self.job_id, self.nonce)
        self.submitted = time.monotonic()

    def _noted(self) -> int:
        return self.notes.read_bytes().count(b"\n")

    def _distinct(self) -> int:
        return len(set(self.notes.read_bytes().splitlines()))

    def _ended(self) -> bool:
        """Whether the job that was submitted last is over; one that the cluster forgot is."""
        assert self.job_id is not None
        try:
            info = RayHook("ray_default").call(jobs_api.get_status(self.job_id))
        except Exception:
            return False
        return info is None or info.status in jobs_api.TERMINAL

    def _published(self) -> bool:
        assert self.spec is not None
        return current_report(self.spec) is not None

    def strike(self, target: str, when: When, outcome: Outcome) -> None:
        """Have the slice at work, and kill or pause the target in that step."""
        wanted = self._wanted() if when == "answering" else 0
        hold = Path(f"{self.notes}.hold")
        if wanted:  # the last rows would come faster than a kill, at times
            hold.write_text(str(wanted))
        if self.job_id is None or self._ended():
            self._submit()
        # Publishing is over before anybody could look for a process.
        victims = self._victims(target) if when == "publishing" else []
        self._wait_for(when, wanted)
        outcome.rows = len(self.rows)
        if when == "answering" and self._published():
            return  # the last rows came faster than a kill: it does not count as one
        victims = victims or self._victims(target)
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill() if self.action == "kill" else process.suspend()
                outcome.kills = 1
        hold.unlink(missing_ok=True)
        if not victims:
            outcome.faults.append(f"no {target} was there to be killed or paused")
        if self.action == "pause":
            self._resume(victims, outcome)
        elif self.action == "pause for good":
            self._ends_in_time(victims, outcome)
        if target in _ENDS_HEAD:
            self.job_id = None
        elif target == "driver":
            self._wait(self._ended, 240)

    def _resume(self, victims: list[psutil.Process], outcome: Outcome) -> None:
        """After a while; then the same run publishes."""
        time.sleep(self.rng.uniform(2.0, 8.0))
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self._wait(self._ended, 240)
        if not self._published():
            outcome.faults.append(f"a run of which a process was paused failed: {self._error()}")

    def _ends_in_time(self, victims: list[psutil.Process], outcome: Outcome) -> None:
        """The run ends by itself, with an error that is retried, and leaves no process behind."""
        self._wait(self._ended, _STALL_SECONDS + _END_SECONDS)
        if not self._published():  # a process may be paused that has nothing more to do
            error = self._error()
            if error.get("kind") != "engine" or "limits.stall" not in str(error.get("root")):
                outcome.faults.append(f"a run of which a process was paused for good ended with {error}")
        with contextlib.suppress(TimeoutError):
            self._wait(lambda: not any(p.is_running() for p in victims), 60)
        outcome.faults += [f"{command_of(p)} is paused and lives on" for p in victims if p.is_running()]

    def _error(self) -> dict[str, Any]:
        """What the job that ended last says of its end."""
        assert self.job_id is not None
        hook = RayHook("ray_default")
        info = hook.call(jobs_api.get_status(self.job_id))
        assert info is not None
        lines = hook.call(jobs_api.read_log_tail(self.job_id, info, 200)).splitlines()
        marked = [m for m in (decode_line(line, self.nonce) for line in lines) if m is not None]
        return next((error for kind, error in reversed(marked) if kind == "error"), {})

    def _wanted(self) -> int:
        """Rows after which somebody is killed."""
        done = self._distinct()
        share = 0.3 if self.engine == "vllm" else 0.8  # of what is left: more kills are to come
        if self.reads_slowly:
            share = 0.3  # later all may be read
        return done + self.rng.randint(1, max(2, int((len(self.rows) - done) * share)))

    def _wait_for(self, when: When, wanted: int) -> None:
        if when == "starting":
            time.sleep(self.rng.uniform(2.0, 6.0))
        elif when == "answering":
            self._wait(lambda: self._is_answered(wanted), 400)
        else:
            # It is over in a moment: nothing but the first staged file is looked for.
            is_staged = lambda: any(self.folder.glob("out.ray_llm/ds=*/staged/*/part-*"))  # noqa: E731
            self._wait(is_staged, 240, every=0.002)

    def _is_answered(self, wanted: int) -> bool:
        """Whether so many rows are, or the slice is published."""
        if self._distinct() >= wanted:
            return True
        if not self._ended():
            return False
        if not self._published():
            self._submit()  # the last kill ended that job
            return False
        return True

    def _victims(self, target: str) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        deadline = time.monotonic() + 120
        while not found and time.monotonic() < deadline:
            found = [p for p in self.ray.head.processes() if TARGETS[target](command_of(p))]
            if not found:
                time.sleep(0.1)
        if target in ("worker", "reader") and found:
            return [self.rng.choice(found)]
        return found

    def finish(self, outcome: Outcome) -> None:
        """Run the slice until it is published; then audit it."""
        for _ in range(_MOST_RUNS):
            if self.job_id is None:
                self._submit()
            self._wait(self._ended, 400)
            if self._published():
                break
            self.job_id = None
        else:
            outcome.faults.append(f"it was not published in {_MOST_RUNS} runs")
        assert self.spec is not None
        stub = self.engine == "stub"
        wanted = [{**row, "answer": row["name"]} for row in self.rows] if stub else self.rows
        answers = CHOICES if self.engine == "vllm" else ("a",)
        promise = Promise(
            wanted, tokens=(7, 3) if stub else None, answer=None if stub else "answer",
            is_answer=lambda value: value in answers,
        )  # fmt: skip
        outcome.take(audit(self.spec.slice_path, promise).to_json())
        outcome.again = self._noted() - len(self.rows)
        if outcome.again < 0:
            outcome.faults.append(f"{-outcome.again} published rows never came from an engine")

    def _wait(self, what: Callable[[], bool], seconds: float, every: float = 0.2) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing happened for {seconds:g} s, job {self.job_id}")
            time.sleep(every)


def _named(action: Action) -> str:
    return "" if action == "kill" else f", {action}"


CHOICES = ("Law Firm", "Healthcare", "Technology", "Retail", "Finance", "Other")


def ray_trials(count: int) -> Iterator[RayTrial]:
    """One kill a slice, every target in turn; few of the raylet and the head, which cost most."""
    turn = ["engine actor", "fragment writer", "worker", "driver", "feeder"] * 5 + [
        "raylet",
        "head",
        "raylet",
    ]
    # Before and after answering there is only the driver to be killed, or all of it.
    steps: Iterator[When] = itertools.cycle(("answering", "publishing", "starting"))
    for index in range(count):
        target = turn[index % len(turn)]
        when = next(steps) if target in ("driver", *_ENDS_HEAD) else "answering"
        engine: Engine = "workers" if target == "feeder" else "stub"
        yield RayTrial((f"r{index:03}",), engine, ((target, when),))


#: Every process of a run that can be paused without its node, with the engine that has it.
_PAUSED: tuple[tuple[str, Engine], ...] = (
    ("fragment writer", "stub"), ("feeder", "workers"), ("coordinator", "workers"),
    ("engine actor", "workers"), ("reader", "stub"), ("engine actor", "stub"), ("reader", "workers"),
    ("fragment writer", "workers"), ("slice process", "workers"),
)  # fmt: skip


def pause_trials(count: int) -> Iterator[RayTrial]:
    """One pause a slice: every process that goes on, then every one that never does."""
    for index in range(count):
        target, engine = _PAUSED[index % len(_PAUSED)]
        action: Action = "pause for good" if index // len(_PAUSED) % 2 else "pause"
        yield RayTrial((f"w{index:03}",), engine, ((target, "answering"),), action)


def vllm_trials(count: int) -> Iterator[RayTrial]:
    """Five kills a slice."""
    turn = ["engine core", "driver", "engine actor", "worker", "head", "fragment writer", "driver", "raylet"]
    for start in range(0, count, 5):
        numbers = range(start, min(start + 5, count))
        kills: list[tuple[str, When]] = [(turn[n % len(turn)], "answering") for n in numbers]
        yield RayTrial(tuple(f"v{n:03}" for n in numbers), "vllm", tuple(kills))
