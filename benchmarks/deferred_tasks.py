"""Deferred tasks whose jobs run: what their triggers cost the triggerer, in CPU time and memory.

Goals, for 1,000 tasks: under one core and 1 GB. The triggers are real, in one event loop of a process of
their own, as in a triggerer. They watch one job of a real Ray head, each as its own, and send their
heartbeats. What Airflow's triggerer does beside them (its own heartbeats, log files) is not in the figures.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from benchmarks.fresh import fresh, resident_mb
from benchmarks.table import Figure, show

TASKS = int(os.environ.get("BENCH_DEFERRED_TASKS", 1000))
#: Jobs are looked at more often while they are young; then the seconds that are measured.
WARM_SECONDS, SECONDS = 60, 60


def run() -> bool:
    from airflow_provider_raydatallm.clusters.embedded.head import ensure_head, stop_head
    from airflow_provider_raydatallm.hooks import jobs_api
    from airflow_provider_raydatallm.hooks.ray import RayHook

    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        os.environ["AIRFLOW_RAY_LLM_LOCAL_DIR"] = f"{folder}/head"
        os.environ["AIRFLOW_CONN_RAY_DEFAULT"] = "ray://local"
        head = ensure_head()
        try:
            name = f"bench-{uuid.uuid4().hex[:6]}"
            submit = jobs_api.submit(submission_id=name, entrypoint="sleep 3600", runtime_env={}, metadata={})
            RayHook("ray_default").call(submit)
            measured = fresh(watch, name, head.pid, env={"AIRFLOW_HOME": f"{folder}/airflow"})
        finally:
            stop_head()
    cores, megabytes, dashboard, alive = (measured.result[n] for n in ("cores", "mb", "dashboard", "alive"))
    peak = measured.peak_mb
    return show(
        [
            Figure(f"{TASKS} deferred tasks: triggers that wait", f"{alive}", f"{TASKS}", alive == TASKS),
            Figure("... cores of the triggers' process", f"{cores:.2f}", "< 1", cores < 1),
            Figure("... its memory, at most", f"{peak:,.0f} MB", "< 1,000 MB", peak < 1000),
            Figure("... of it before the triggers start", f"{megabytes:,.0f} MB"),
            Figure("... cores of the head's dashboard", f"{dashboard:.2f}"),
        ]
    )  # fmt: skip


def watch(job: str, head_pid: int) -> dict[str, Any]:
    import psutil

    [dashboard] = [
        process
        for process in psutil.Process(head_pid).children(recursive=True)
        if any(Path(word).name == "dashboard.py" for word in process.cmdline())
    ]
    return asyncio.run(_watch(job, dashboard))


async def _watch(job: str, dashboard: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from airflow_provider_raydatallm.hooks.ray import RayHook
    from airflow_provider_raydatallm.task.job.waiter import JobRef
    from airflow_provider_raydatallm.triggers.ray_job import RayJobTrigger

    ref = JobRef(
        "ray_default", 5.0, 600.0, 1800.0, None, time.time(), submission_id=job, nonce="n",
        cluster=RayHook("ray_default").cluster,
    )  # fmt: skip
    before = resident_mb()
    triggers = [asyncio.create_task(_fire(RayJobTrigger(asdict(ref), True))) for _ in range(TASKS)]
    await asyncio.sleep(WARM_SECONDS)
    start, own, head = time.monotonic(), time.process_time(), sum(dashboard.cpu_times()[:2])
    await asyncio.sleep(SECONDS)
    seconds = time.monotonic() - start
    result = {
        "cores": (time.process_time() - own) / seconds,
        "dashboard": (sum(dashboard.cpu_times()[:2]) - head) / seconds,
        "mb": before,
        "alive": sum(not trigger.done() for trigger in triggers),
    }
    for trigger in triggers:
        trigger.cancel()
    await asyncio.gather(*triggers, return_exceptions=True)
    return result


async def _fire(trigger: Any) -> Any:
    return await anext(trigger.run())
