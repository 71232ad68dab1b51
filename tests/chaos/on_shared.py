"""Trials on shared engines: real Ray, real Ray Serve, real vLLM with the tiny model, on an embedded head.

One or several slices are asked for as tasks ask for them, something happens while they are answered, and
they are tried until they are published. Engines outlive a trial, as they outlive a slice. When something
happens is decided by how many rows were answered, never by time; the one exception is an idle engine's end,
which nobody can see coming: slices are started at random moments around it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_raydatallm.submit import packages
from tests.chaos.head import Head, command_of
from tests.chaos.life import Outcome
from tests.chaos.nodes import Node, taken
from tests.chaos.shared_slice import SharedSlice

#: What is killed or paused, by what its process is called; one of those that there are.
_TARGETS: dict[str, Callable[[str], bool]] = {
    "engine core": lambda c: "EngineCore" in c,
    "replica": lambda c: c.startswith("ray::ServeReplica:ray-llm-"),
    "controller": lambda c: c.startswith("ray::ServeController"),
    "feeder": lambda c: c.startswith(("ray::FeederProcess", "ray::SliceProcess")),
    "driver": lambda c: c.split(" ")[0].endswith("python") and "raydatallm.processor.job run" in c,
}
_ROWS = 240
#: Of a slice to which something happens that takes its time.
_MANY_ROWS = 2000
#: Of a slice that waits for its turn, or that only has an engine started.
_FEW_ROWS = 60
#: Logical CPUs of the head, and what a slice with its engine needs of them.
_CPUS, _NEEDED = 8, 4
#: Seconds that only bound what hangs.
_LIMIT = 600.0
#: Serve sees after so many seconds, about, that an engine is idle.
_IDLE_SECONDS = 45.0
#: Of slices for which something is paused for good.
_STALL_SECONDS = 60.0
_PROGRAM = Path(sys.executable).parent / "airflow-ray-llm"

#: In turn: what happens, and to how many slices at once.
_TURN = (
    ("node", 1), ("place lost", 2), ("idle end", 3), ("controller", 2), ("stopped by force", 2), ("head", 1),
    ("driver", 2), ("replica", 2), ("two engines", 3), ("engine core", 2), ("feeder", 1), ("controller", 1),
    ("driver", 1), ("engine core", 1), ("stopped by force", 1), ("replica", 1), ("controller paused", 2),
    ("replica paused", 2), ("controller paused for good", 1), ("replica paused for good", 1),
    ("raylet", 1), ("replica paused for a minute", 1), ("stopped without force", 3), ("two versions", 2),
    ("cancelled", 2),
)  # fmt: skip


@dataclass(frozen=True)
class SharedTrial:
    id: str
    what: str
    slices: int

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.id,)


def shared_trials(count: int) -> Iterator[SharedTrial]:
    for index in range(count):
        yield SharedTrial(f"e{index:03}", *_TURN[index % len(_TURN)])


class OnShared:
    """Runs trials on a head of its own, in `folder`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.head = Head()
        self.notes = folder / "notes"
        self.notes.mkdir(parents=True, exist_ok=True)

    def close(self) -> list[str]:
        """End the head; what of it lives on."""
        left = self.head.close()
        shutil.rmtree(self.notes, ignore_errors=True)
        return left

    def run(self, trial: SharedTrial) -> list[Outcome]:
        slices = f"{trial.slices} slice{'s' if trial.slices > 1 else ''}"
        outcome = Outcome(trial.id, ("ray, shared engine", trial.what, slices), "new")
        began = time.monotonic()
        life = _Life(self, trial, outcome)
        try:
            life.run()
        except Exception as e:
            outcome.faults.append(f"{type(e).__name__}: {e}")
            self.head.end()  # whatever hangs in it
        outcome.seconds = round(time.monotonic() - began, 1)
        if outcome.clean:
            shutil.rmtree(life.folder, ignore_errors=True)
        else:
            outcome.folder = str(life.folder)
        return [outcome]


class _Life:
    """What happens in a trial, and the audit."""

    def __init__(self, on_shared: OnShared, trial: SharedTrial, outcome: Outcome) -> None:
        self.head, self.notes, self.trial, self.outcome = on_shared.head, on_shared.notes, trial, outcome
        self.rng = random.Random(f"{on_shared.seed} {trial.id}")
        self.folder = on_shared.folder / trial.id
        shutil.rmtree(self.folder, ignore_errors=True)
        self.slices: list[SharedSlice] = []

    def run(self) -> None:
        happens: dict[str, Callable[[], None]] = {
            "node": self._node_goes, "raylet": self._node_goes, "two engines": self._two_engines,
            "place lost": self._place_is_lost, "idle end": self._idle_end,
            "stopped without force": self._stopped_without_force, "two versions": self._two_versions,
        }  # fmt: skip
        happens.get(self.trial.what, self._one_thing)()
        for one in self.slices:
            one.finish()
        for one in self.slices:
            one.audit(self.outcome)
        self._nothing_is_left()

    # What happens

    def _one_thing(self) -> None:
        """To slices that are started at once, when so many of their rows are answered."""
        by_command = self.trial.what == "stopped by force"  # which takes seconds to begin
        given = {"limits__stall": _STALL_SECONDS} if self.trial.what.endswith("for good") else {}
        for number in range(self.trial.slices):
            self._slice(number, rows=_MANY_ROWS if by_command else _ROWS, **given)
        if not self._wait_for_rows(0.05 if by_command else 0.6):
            return
        if by_command:
            said = self._engines("stop", "--all", "--force")
            if not all(s.is_published for s in self.slices):
                self.outcome.kills = said.count("ended ")
        elif self.trial.what == "head":
            self._kill(self.head.processes())
        elif self.trial.what == "cancelled":
            self._cancel_one()
        elif " paused" in self.trial.what:
            self._pause(*self.trial.what.split(" paused"))
        else:
            self._kill_target(self.trial.what)

    def _node_goes(self) -> None:
        """On which the engine is, since nothing else has room, or its raylet; another takes its place."""
        head = self.head.ensure()
        self._engines("stop", "--all", "--force")
        with taken(head, _CPUS):
            nodes = [Node(head, _CPUS)]
            try:
                self._slice(0)
                if self._wait_for_rows():
                    nodes[0].kill(raylet_only=self.trial.what == "raylet")
                    self.outcome.kills = 1
                    nodes.append(Node(head, _CPUS))
                self.slices[0].finish()
            finally:
                for node in nodes:
                    node.kill()

    def _two_engines(self) -> None:
        """Slices that need different engines, started at random moments, where there is room for one."""
        with self._room_for_one() as given:
            for number in range(self.trial.slices):
                self._slice(number, rows=_FEW_ROWS, **given, **_other_engine(number % 2))
                time.sleep(self.rng.uniform(0, 15))
            for one in self.slices:
                one.finish()

    def _place_is_lost(self) -> None:
        """Of an engine that dies: another program has what is free, and an idle engine the rest."""
        head = self.head.ensure()
        self._engines("stop", "--all", "--force")
        with taken(head, _CPUS - _NEEDED - 1):
            self._slice(0, rows=_FEW_ROWS, **_other_engine(1))
            self.slices[0].finish()
            self._slice(1)
            if self._wait_for_rows():
                with taken(head, _NEEDED - 1, at_once=False):
                    self._kill_target("engine core", newest=True)
                    self.slices[1].wait()

    def _idle_end(self) -> None:
        """Of an engine that ends as soon as it is idle, around which slices are started."""
        for number in range(self.trial.slices):
            self._slice(number, rows=_FEW_ROWS, engine__idle_timeout=1)
            self.slices[-1].finish()
            time.sleep(self.rng.uniform(0, _IDLE_SECONDS))

    def _stopped_without_force(self) -> None:
        """Again and again, by somebody who asks for it while slices come: none of them fails."""
        is_over = threading.Event()

        def stop() -> None:
            while not is_over.wait(1):
                done = subprocess.run([_PROGRAM, "engines", "stop", "--all"], capture_output=True, text=True)
                self.outcome.kills += done.stdout.count("ended ")

        thread = threading.Thread(target=stop)
        thread.start()
        try:
            for number in range(self.trial.slices):
                self._slice(number, rows=_FEW_ROWS)
                time.sleep(self.rng.uniform(0, 20))
            for one in self.slices:
                one.finish()
        finally:
            is_over.set()
            thread.join()
        self.outcome.faults += [f"{one.name} failed: {e}" for one in self.slices for e in one.errors]

    def _two_versions(self) -> None:
        """Of the provider: one comes while the other's engine answers."""
        self._slice(0)
        if not self._wait_for_rows():
            return
        processor_package = packages.processor_package
        package = processor_package()
        with zipfile.ZipFile(io.BytesIO(package.content)) as files:
            content = [(name, files.read(name)) for name in files.namelist()]
        other = packages.zip_files([*content, ("airflow_provider_raydatallm/other.py", b"")])
        packages.processor_package = lambda: other
        try:
            self._slice(1)
            for one in self.slices:
                one.wait()
        finally:
            packages.processor_package = processor_package
        self.outcome.faults += [f"{one.name} failed: {e}" for one in self.slices for e in one.errors]
        engines = json.loads(self._engines("list", "--json"))
        if len(engines) < 2:
            self.outcome.faults.append(f"one engine had slices of two versions: {engines}")

    # Steps

    def _slice(self, number: int, rows: int = _ROWS, **given: Any) -> None:
        name = f"{self.trial.id}-{number}"
        notes = self.notes / name
        notes.unlink(missing_ok=True)
        self.slices.append(SharedSlice(self.folder / name, self.notes, name, rows, self.rng, **given))
        self.slices[-1].start()

    def _wait_for_rows(self, share: float = 0.6) -> bool:
        """Until so many rows are answered, up to that share; False when all of them were before anybody
        looked."""
        tried = [s for s in self.slices if s.is_tried]
        wanted = self.rng.randint(1, int(share * sum(len(s.rows) for s in tried)))
        self._until(lambda: sum(s.answered for s in tried) >= wanted or not any(s.is_tried for s in tried))
        return not all(s.is_published for s in self.slices)

    @contextlib.contextmanager
    def _room_for_one(self) -> Iterator[dict[str, Any]]:
        """What slices are given for which there is room for one engine: by their own word, or as another
        program has the CPUs."""
        if self.rng.random() < 0.5:
            yield {"engine__max_shared": 1}
            return
        head = self.head.ensure()
        self._engines("stop", "--all", "--force")
        with taken(head, _CPUS - _NEEDED):
            yield {}

    def _kill_target(self, target: str, *, newest: bool = False) -> None:
        self._kill(self._find(target, newest=newest))

    def _pause(self, target: str, for_how_long: str) -> None:
        """Of what is paused for good, each slice is published or fails in time; then somebody kills it."""
        victims = self._find(target)
        for process in victims:
            process.suspend()
            self.outcome.kills = 1
        if for_how_long == " for good":
            for one in self.slices:
                one.wait()
            self._kill(victims)
        else:
            time.sleep(60.0 if for_how_long else self.rng.uniform(2.0, 8.0))
            for process in victims:
                process.resume()

    def _cancel_one(self) -> None:
        """By Ray's own means, as Airflow does: its rows end, and others go on."""
        from ray.job_submission import JobStatus, JobSubmissionClient

        head = self.head.ensure()
        client = JobSubmissionClient(head.address, headers={"Authorization": f"Bearer {head.token}"})
        running = [job for job in client.list_jobs() if job.status == JobStatus.RUNNING]
        client.stop_job(self.rng.choice(running).submission_id)
        self.outcome.kills = 1

    def _find(self, target: str, *, newest: bool = False) -> list[psutil.Process]:
        found: list[psutil.Process] = []

        def are_there() -> bool:
            found[:] = [p for p in self.head.processes() if _TARGETS[target](command_of(p))]
            return bool(found) or all(s.is_published for s in self.slices)

        self._until(are_there)
        found.sort(key=lambda p: p.create_time())
        return [found[-1] if newest else self.rng.choice(found)] if found else []

    def _kill(self, victims: list[psutil.Process]) -> None:
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                self.outcome.kills = 1

    def _engines(self, *arguments: str) -> str:
        """:raises RuntimeError: with what it said, when it failed."""
        done = subprocess.run(
            [_PROGRAM, "engines", *arguments], env=os.environ, capture_output=True, text=True, timeout=_LIMIT
        )
        if done.returncode:
            raise RuntimeError(f"engines {arguments}: {done.stderr[-1000:]}")
        return done.stdout

    def _nothing_is_left(self) -> None:
        """No engine is held for a slice that is over, and no process of one that died lives on."""

        def is_clean() -> bool:
            self.head.ensure()
            engines = json.loads(self._engines("list", "--json") or "[]")
            cores = [p for p in self.head.processes() if _TARGETS["engine core"](command_of(p))]
            workers = sum(sum(e["workers"].values()) for e in engines)
            return not any(e["users"] for e in engines) and len(cores) <= workers

        self._until(is_clean)

    def _until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _LIMIT
        while not what():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing happened for {_LIMIT:g} s")
            time.sleep(0.1)


def _other_engine(number: int) -> dict[str, Any]:
    return {"engine__kwargs": {"max_model_len": 1024, "max_num_seqs": 16 - 4 * number}}
