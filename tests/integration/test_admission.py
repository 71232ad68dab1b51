"""Jobs that together want more than the cluster has, on a real head with room for some of them."""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.contract.log.progress_text import progress_text
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.submit import packages
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from airflow_provider_raydatallm.task.job.verdict import (
    EndedWithoutReport,
    Failed,
    Finished,
    JobWatch,
    Verdict,
    Wait,
)
from tests.support.in_process import job_of
from tests.support.paths import ROOT
from tests.support.waiting import wait_for

N = 60
#: 7 of the head's 8 CPUs, so that two do not fit.
BIG = {"workers": 3, "each": 2}


@dataclass
class Sent:
    """A job that was sent to the cluster as the operator sends it."""

    key: str
    folder: Path
    hook: RayHook
    name: str
    nonce: str
    watch: JobWatch
    progress: list[dict[str, Any]] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Wait)

    def look(self) -> Verdict:
        if isinstance(self.verdict, Wait):
            info = self.hook.call(jobs_api.get_status(self.name))
            progress = None
            if info is not None:
                last_lines = self.hook.call(jobs_api.read_log_tail(self.name, info, 500))
                progress = self.watch.read_log_end(last_lines)
            self.verdict = self.watch.decide(info.status if info else None)
            if isinstance(self.verdict, Wait) and progress is not None:
                self.progress.append(progress)
        return self.verdict

    def step(self) -> str:
        self.look()
        return self.progress[-1]["step"] if self.progress else ""

    def is_behind(self, *others: Sent) -> bool:
        """Whether it waits, and those whom it waits for are these."""
        ahead = [f"{other.folder}/ds={other.key}" for other in others]
        return self.step() == "queued" and self.progress[-1]["ahead"] == ahead

    def end(self) -> Verdict:
        wait_for(lambda: not isinstance(self.look(), Wait))
        return self.verdict

    def answers(self) -> list[str]:
        return pq.read_table(self.folder / f"ds={self.key}", partitioning=None).column("answer").to_pylist()

    def driver(self) -> psutil.Process:
        """The process that runs this job, not the shell around it."""
        [found] = [
            p
            for p in psutil.process_iter(["cmdline"])
            if self.nonce in (p.info["cmdline"] or []) and "python" in p.info["cmdline"][0]
        ]
        return found


Send = Callable[..., Sent]


@pytest.fixture
def send(ray_head: LocalHead, tmp_path: Path) -> Iterator[Send]:
    (tmp_path / "journal").mkdir()
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(N)]}), tmp_path / "in.parquet")
    code = [str(ROOT / "tests" / "support" / name) for name in ("stub_engine.py", "pool_engine.py")]
    hook, sent = RayHook("ray_default"), []

    def send(key: str, *, queue_timeout: float = 600, **kwargs: Any) -> Sent:
        job = job_of(
            slice_key=key, input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out",
            engine="pool_engine:PoolEngine", engine__batch_size=10, limits__queue=queue_timeout,
            engine__kwargs={**BIG, **kwargs, "journal": f"{tmp_path}/journal"},
        )  # fmt: skip
        metadata = {"dag_id": "admission", "task_id": "t", "slice_key": key}
        user_packages = packages.user_packages([], code, None)
        name, nonce = f"admission-{key}-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        JobSubmission(job, user_packages, None, dict, metadata).submit(hook, "run", name, nonce)
        sent.append(Sent(key, tmp_path / "out", hook, name, nonce, JobWatch(nonce)))
        return sent[-1]

    yield send
    for job in sent:
        hook.call(jobs_api.stop(job.name))
    for job in sent:
        wait_for(lambda job=job: hook.call(jobs_api.get_status(job.name)).status in jobs_api.TERMINAL)


def workers(journal: Path) -> dict[str, list[tuple[float, float]]]:
    """When the workers of each slice were there: from the start to the last answer, in epoch seconds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for file in journal.iterdir():
        if times := [float(t) for t in file.read_text().split()]:  # it may have been opened just now
            found.setdefault(file.name.rpartition("-")[0], []).append((times[0], times[-1]))
    return found


def at_once(spans: list[tuple[float, float]]) -> int:
    return max(sum(a <= start <= b for a, b in spans) for start, _ in spans)


@pytest.mark.parametrize(("count", "engine", "fit"), [
    pytest.param(2, BIG, 1, id="two-and-room-for-one", marks=pytest.mark.long),
    pytest.param(5, {"workers": 3, "each": 1}, 2, id="five-and-room-for-two", marks=pytest.mark.long),
])  # fmt: skip
def test_jobs_that_want_more_than_there_is_take_turns_and_all_finish(
    send: Send, tmp_path: Path, count: int, engine: dict[str, int], fit: int
) -> None:
    gate = tmp_path / "gate"
    jobs = [send(f"k{i}", pause=0.5, gate=str(gate), **engine) for i in range(count)]
    wait_for(lambda: len(workers(tmp_path / "journal")) == fit)
    wait_for(lambda: any(job.step() == "queued" for job in jobs))
    gate.touch()
    for job in jobs:
        assert isinstance(job.end(), Finished), job.verdict
        assert job.answers() == [f"n{i}" for i in range(N)]
    there = workers(tmp_path / "journal")
    assert [len(spans) for spans in there.values()] == [3] * count
    # From a slice's first worker to its last answer: never more slices than fit.
    spans = [(min(a for a, _ in s), max(b for _, b in s)) for s in there.values()]
    assert at_once(spans) == fit
    waited = [p for job in jobs for p in job.progress if p["step"] == "queued"]
    assert waited
    assert all(p["needs"] == {"CPU": engine["workers"] * engine["each"] + 1} for p in waited)


@pytest.mark.long
def test_job_that_finds_no_room_in_time_says_what_it_waited_for(send: Send, tmp_path: Path) -> None:
    running = send("a", gate=f"{tmp_path}/never")
    wait_for(lambda: workers(tmp_path / "journal"))
    late = send("b", queue_timeout=4)
    verdict = late.end()
    assert isinstance(verdict, Failed)
    assert verdict.failure.kind == "queue"
    said = r"no room on the cluster within limits\.queue: waited (\d+) s for 7 CPUs at once"
    waited = re.search(said, verdict.failure.sentence)
    assert waited, verdict.failure.sentence
    assert int(waited[1]) >= 4
    assert not late.folder.exists() or not list(late.folder.rglob("ds=b/*.parquet"))
    assert isinstance(running.look(), Wait)


def test_small_job_does_not_pass_a_big_one_that_waits(send: Send, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    running = send("a", workers=1, each=4, gate=str(gate))
    wait_for(lambda: workers(tmp_path / "journal"))
    big = send("big")
    wait_for(lambda: big.is_behind())
    small = send("small", workers=1, each=1)  # it would fit beside the running one
    wait_for(lambda: small.is_behind(big))
    assert "behind" in progress_text(small.progress[-1])
    gate.touch()
    for job in (running, big, small):
        assert isinstance(job.end(), Finished), job.verdict
    there = workers(tmp_path / "journal")
    assert min(there["big"]) < min(there["small"])


@pytest.mark.long
def test_job_that_is_killed_or_stopped_while_it_waits_lets_the_next_in(send: Send, tmp_path: Path) -> None:
    running = send("a", gate=f"{tmp_path}/never")
    wait_for(lambda: len(workers(tmp_path / "journal").get("a", [])) == 3)
    waiting: list[Sent] = []
    for key in ("first", "second", "third"):
        job = send(key)
        wait_for(lambda job=job: job.is_behind(*waiting))
        waiting.append(job)
    first, second, third = waiting

    os.kill(first.driver().pid, signal.SIGKILL)  # it has the turn
    RayHook("ray_default").call(jobs_api.stop(second.name))
    stopped = second.end()
    assert isinstance(stopped, Failed)
    assert (stopped.kind, "was told to stop" in stopped.message) == ("stopped", True)
    assert isinstance(first.end(), EndedWithoutReport)
    RayHook("ray_default").call(jobs_api.stop(running.name))
    assert isinstance(third.end(), Finished), third.verdict
    assert set(workers(tmp_path / "journal")) == {"a", "third"}
