"""Slices that are all to be submitted at once: how many drivers wait on the Ray head, and its memory.

Goals: all publish, never more than max_waiting_jobs wait, and the head grows by less than 2 GB. The engine is
a stub inside real Ray, and the cluster has room for one slice at a time. What tasks do in a triggerer and on
workers runs here in one process, without Airflow's own. The head here is the cluster's only node: the workers
of the slice that runs, which are elsewhere on a larger cluster, are a figure of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fresh import ROOT
from benchmarks.table import Figure, say, show

SLICES = int(os.environ.get("BENCH_WAITING_SLICES", 365))
ROWS = 20
GOAL_BYTES = 2e9


def run() -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_provider_raydatallm.clusters.embedded.head import ensure_head, stop_head
    from airflow_provider_raydatallm.task.queue.places import max_waiting_jobs

    limit = max_waiting_jobs()
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        os.environ["AIRFLOW_RAY_LLM_LOCAL_DIR"] = f"{folder}/head"
        os.environ["AIRFLOW_CONN_RAY_DEFAULT"] = "ray://local"
        pq.write_table(pa.table({"name": [f"n{n}" for n in range(ROWS)]}), f"{folder}/in.parquet")
        head = ensure_head()
        head_watch = _HeadWatch(head.folder)
        began = time.monotonic()
        try:
            outcomes = asyncio.run(_run_all(folder, head.num_cpus))
            seconds = time.monotonic() - began
            head_watch.close()
        finally:
            stop_head()
    first, peak, waiting = head_watch.first, head_watch.peak, head_watch.waiting
    grown, published = peak.head - first.head, outcomes.count("published")
    return show(
        [
            Figure(f"{SLICES} slices at once: published", f"{published}", f"{SLICES}", published == SLICES),
            Figure("... seconds", f"{seconds:.0f}"),
            Figure("... jobs that waited, at most", f"{waiting}", f"<= {limit}", waiting <= limit),
            Figure("... drivers on the head, at most", f"{peak.drivers}"),
            Figure("... drivers with their supervisors", f"{peak.of_drivers / 1e9:.2f} GB"),
            Figure("... growth of the head", f"{grown / 1e9:.2f} GB", "< 2 GB", grown < GOAL_BYTES),
            Figure("... workers of the slice that runs", f"{(peak.workers - first.workers) / 1e9:.2f} GB"),
        ]
    )  # fmt: skip


async def _run_all(folder: str, cpus: int) -> list[str]:
    from airflow_provider_raydatallm.hooks.http_clients import close_clients

    try:
        return await asyncio.gather(*(_run_slice(folder, cpus, f"{n:04}") for n in range(SLICES)))
    finally:
        await close_clients()


async def _run_slice(folder: str, cpus: int, key: str) -> str:
    """As a deferrable task."""
    from airflow_provider_raydatallm.hooks.ray import RayHook
    from airflow_provider_raydatallm.processor.publish.published import finished_report
    from airflow_provider_raydatallm.submit import packages
    from airflow_provider_raydatallm.submit.ray_job import JobSubmission
    from airflow_provider_raydatallm.task.job.verdict import EndedWithoutReport, Finished
    from airflow_provider_raydatallm.task.job.waiter import JobRef, wait_for_job
    from airflow_provider_raydatallm.task.queue.gate import SubmissionGate
    from airflow_provider_raydatallm.task.queue.line import wait_in_line
    from airflow_provider_raydatallm.task.queue.places import QueuePlace, task_key
    from tests.support.in_process import job_of

    log = logging.getLogger("benchmarks.waiting_slices")
    metadata = {"dag_id": "bench", "run_id": key, "task_id": "ask", "map_index": "-1", "slice_key": key}
    job = job_of(
        slice_key=key, input_path=f"{folder}/in.parquet", output_path=f"{folder}/out",
        engine="stub_engine:StubEngine", engine__kwargs={"ask_cpus": cpus // 2},
    )  # fmt: skip
    engine = packages.user_packages([], [str(ROOT / "tests" / "support" / "stub_engine.py")], None)
    submission = JobSubmission(job, engine, None, dict, metadata)
    cluster = RayHook("ray_default").cluster
    place = QueuePlace("ray_default", task_key(metadata), time.time(), 86400, None, 600, cluster)
    name, nonce, entered = f"bench-{key}-{uuid.uuid4().hex[:6]}", uuid.uuid4().hex, False
    while not entered:
        await wait_in_line(place, log)
        with contextlib.closing(SubmissionGate(place, log)) as gate:
            if entered := await gate.enter(has_turn=True, holds=False):
                await asyncio.to_thread(submission.submit, RayHook("ray_default"), "run", name, nonce)
    ref = JobRef("ray_default", 5, 600, None, None, time.time(), name, nonce, cluster=cluster)

    async def still_waits() -> bool:
        return True

    verdict = await wait_for_job(ref, log, still_waits)
    outcome = verdict.report["outcome"] if isinstance(verdict, Finished) else "failed"
    if isinstance(verdict, EndedWithoutReport) and await asyncio.to_thread(finished_report, job):
        outcome = "published"  # a task asks the store, too
    say(f"{key} {outcome}{f': {verdict}' if outcome == 'failed' else ''}")
    return str(outcome)


@dataclass(frozen=True)
class _Memory:
    """Proportional: what processes share counts once. `head`: the drivers, their supervisors and Ray's own
    processes; `workers`: those of slices, and idle ones."""

    drivers: int = 0
    of_drivers: float = 0.0
    head: float = 0.0
    workers: float = 0.0

    @classmethod
    def of(cls, folder: Path) -> _Memory:
        import psutil

        from airflow_provider_raydatallm.clusters.embedded.processes import find_processes

        drivers, of_drivers, ray, workers = 0, 0.0, 0.0, 0.0
        for process in find_processes(folder, {}).values():
            with contextlib.suppress(psutil.Error):
                memory, command = process.memory_full_info().pss, process.cmdline()
                is_driver = "airflow_provider_raydatallm.processor.job" in command
                drivers += is_driver
                if is_driver or "ray::JobSupervisor" in " ".join(command):
                    of_drivers += memory
                elif command and command[0].startswith("ray::"):
                    workers += memory
                else:
                    ray += memory
        return cls(drivers, of_drivers, of_drivers + ray, workers)


class _HeadWatch:
    """Samples the head's processes and jobs, on a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.waiting = 0
        self.first = self.peak = _Memory.of(folder)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        from airflow_provider_raydatallm.exceptions import RayUnreachableError
        from airflow_provider_raydatallm.hooks import jobs_api
        from airflow_provider_raydatallm.hooks.ray import RayHook
        from airflow_provider_raydatallm.task.queue.places import count_waiting

        hook = RayHook("ray_default")
        while not self._ended.wait(1):
            with contextlib.suppress(RayUnreachableError):  # the head is started again
                self.waiting = max(self.waiting, count_waiting(hook.call(jobs_api.list_live_jobs())))
            memory = _Memory.of(self._folder)
            if memory.head > self.peak.head:
                self.peak = memory


if __name__ == "__main__":
    run()
