"""A thousand tasks that wait in one triggerer, for jobs that run on.

Goal: under one core and 1 GB, and no look at a job later than twice its interval. A real `airflow triggerer`
runs the triggers of 1,000 deferred task instances, which are written into its database as if their tasks had
run. The cluster is `jobs_server.py`, on the same machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.fresh import fresh
from benchmarks.table import Figure, say, show

TASKS = 1_000
POLL_SECONDS = 5.0
MEASURED_SECONDS = float(os.environ.get("BENCH_SECONDS", 60))

_PORT = 5598
_DAG = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("deferred", schedule=None):
    EmptyOperator(task_id="wait")
"""


def run() -> bool:
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        env = {
            **os.environ,
            "AIRFLOW_HOME": folder,
            "AIRFLOW__CORE__DAGS_FOLDER": f"{folder}/dags",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__TRIGGERER__DEFAULT_CAPACITY": str(2 * TASKS),
            "AIRFLOW_CONN_RAY_DEFAULT": f"http://127.0.0.1:{_PORT}",
            "NO_PROXY": "127.0.0.1",
        }
        Path(folder, "dags").mkdir()
        Path(folder, "dags", "deferred.py").write_text(_DAG)
        airflow = str(Path(sys.executable).with_name("airflow"))
        say(f"a database with {TASKS:,} deferred tasks")
        for command in (["db", "migrate"], ["dags", "reserialize"]):
            subprocess.run([airflow, *command], env=env, check=True, capture_output=True)
        fresh(defer_tasks, env=env)
        with open(f"{folder}/triggerer.log", "wb") as log:
            server = subprocess.Popen([sys.executable, "-m", "benchmarks.jobs_server", str(_PORT)], env=env)
            triggerer = subprocess.Popen([airflow, "triggerer"], env=env, stdout=log, stderr=log)
        try:
            return show(_measured(psutil.Process(triggerer.pid)))
        except AssertionError:
            print(Path(folder, "triggerer.log").read_text()[-5000:])
            raise
        finally:
            for process in (triggerer, server):
                process.terminate()
                process.wait(60)


def defer_tasks() -> int:
    from airflow.models import DagRun, TaskInstance, Trigger
    from airflow.models.dag_version import DagVersion
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    with create_session() as session:
        task = SerializedDagModel.get("deferred", session=session).dag.get_task("wait")
        version = DagVersion.get_latest_version("deferred", session=session)
        run = DagRun(
            dag_id="deferred", run_id="r", run_type=DagRunType.MANUAL, state=DagRunState.RUNNING,
            triggered_by=DagRunTriggeredByType.TEST, run_after=_now(), start_date=_now(),
        )  # fmt: skip
        session.add(run)
        session.flush()
        for i in range(TASKS):
            job = {
                "ray_conn_id": "ray_default", "poll_interval": POLL_SECONDS, "reconnect_timeout": 600.0,
                "orphan_timeout": 3600.0, "deadline": None, "since": time.time(),
                "submission_id": f"job-{i}", "nonce": f"job-{i}",
            }  # fmt: skip
            trigger = Trigger(
                "airflow_provider_raydatallm.triggers.ray_job.RayJobTrigger",
                {"job": job, "cancel_on_kill": True},
            )
            session.add(trigger)
            session.flush()
            ti = TaskInstance(task, version.id, "r", TaskInstanceState.DEFERRED, map_index=i)
            ti.trigger_id, ti.try_number, ti.start_date = trigger.id, 1, _now()
            session.add(ti)
    return TASKS


def _measured(triggerer: psutil.Process) -> list[Figure]:
    with httpx.Client(base_url=f"http://127.0.0.1:{_PORT}", timeout=30, trust_env=False) as server:

        def stats() -> dict[str, Any]:
            try:
                return server.get("/stats").json()  # type: ignore[no-any-return]
            except httpx.TransportError:
                return {"jobs": 0}

        until = time.monotonic() + 300
        while (waiting := stats()["jobs"]) < TASKS:
            assert time.monotonic() < until, f"only {waiting} of {TASKS} triggers run"
            time.sleep(1)
        time.sleep(15)  # the first looks at a job are closer together
        say(f"{TASKS:,} triggers run; measuring for {MEASURED_SECONDS:g} s")
        server.post("/reset")
        began, before = time.monotonic(), _cpu(triggerer)
        time.sleep(MEASURED_SECONDS)
        seconds, after = time.monotonic() - began, _cpu(triggerer)
        found = stats()
    cores = (after - before) / seconds
    memory = sum(p.memory_full_info().pss for p in _tree(triggerer)) / 1e6
    gap, asked = found["longest_gap"], found["requests"]
    return [
        Figure("CPU of the triggerer", f"{cores:.2f} cores", "< 1 core", cores < 1),
        Figure("... memory", f"{memory:,.0f} MB", "< 1,000 MB", memory < 1000),
        Figure(
            "longest time between two looks at a job", f"{gap:.1f} s",
            f"<= {2 * POLL_SECONDS:g} s", gap <= 2 * POLL_SECONDS,
        ),
        Figure("looks a second", f"{asked['status'] / seconds:.0f}"),
        Figure("logs that are followed", "20", "[ray_llm] max_log_streams"),
        Figure("ends of logs read a second", f"{asked.get('file', 0) / seconds:.0f}"),
    ]  # fmt: skip


def _tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _cpu(process: psutil.Process) -> float:
    return sum(sum(p.cpu_times()[:2]) for p in _tree(process))


def _now() -> Any:
    from airflow.sdk import timezone

    return timezone.utcnow()
