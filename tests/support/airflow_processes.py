"""Airflow as `airflow standalone` runs it, but on PostgreSQL: an API server, a scheduler with
LocalExecutor, a DAG processor and any number of triggerers, each a process that tests stop, kill and start
again.

    airflow.api.trigger(...)            the public REST API, see `rest`
    airflow.kill("triggerer")           SIGKILL; `stop` is SIGTERM
    airflow.start("triggerer")          again; "triggerer-2" is a second one
    airflow.worker(task).supervisor     the processes of a running task

Every interval is short: what is killed is noticed within twice `SILENCE`. Each component leads a session
(`setsid`) of its own, by which all that descends from it is known, also after it died: a process title
proves nothing, and LocalExecutor's workers outlive a scheduler that is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from cryptography.fernet import Fernet

from airflow_provider_raydatallm.clusters.embedded.head import free_ports
from tests.support.airflow_rest import LIMIT, RestApi, Task, wait_for
from tests.support.paths import ROOT
from tests.support.postgres import Postgres

#: Seconds without a heartbeat after which a task, a triggerer or a scheduler counts as dead. Less, and a
#: machine that starts Ray jobs on its two cores is found dead while it is only busy.
SILENCE = 18

_SETTINGS = {
    "core__executor": "LocalExecutor",
    "core__parallelism": "8",
    "core__load_examples": "false",
    "core__dags_are_paused_at_creation": "false",
    "core__simple_auth_manager_users": "admin:admin",
    "api__host": "127.0.0.1",
    "api__workers": "1",
    "scheduler__scheduler_idle_sleep_time": "0.3",
    "scheduler__scheduler_heartbeat_sec": "1",
    "scheduler__job_heartbeat_sec": "1",
    "scheduler__scheduler_health_check_threshold": str(SILENCE),
    "scheduler__orphaned_tasks_check_interval": "3",
    "scheduler__task_instance_heartbeat_timeout": str(SILENCE),
    "scheduler__task_instance_heartbeat_timeout_detection_interval": "2",
    "scheduler__trigger_timeout_check_interval": "2",
    "workers__min_heartbeat_interval": "2",
    "triggerer__job_heartbeat_sec": "1",
    "triggerer__triggerer_health_check_threshold": str(SILENCE),
    "triggerer__runner_health_check_threshold": str(SILENCE),
    # The DAG files do not change; parsing them again would take CPU from the tests.
    "dag_processor__min_file_process_interval": "600",
    "dag_processor__parsing_processes": "1",
    "logging__logging_level": "INFO",
    "usage_data_collection__enabled": "false",
}
#: How each is started, and the kind of its job in Airflow's database.
_COMPONENTS = {
    "api_server": (["api-server"], None),
    "scheduler": (["scheduler", "--skip-serve-logs"], "SchedulerJob"),
    "dag_processor": (["dag-processor"], "DagProcessorJob"),
    "triggerer": (["triggerer", "--skip-serve-logs"], "TriggererJob"),
}


@dataclass(frozen=True)
class Worker:
    """A running task on this machine. LocalExecutor's worker process supervises the task (heartbeats, all
    calls to Airflow) and forks the runner, in which the operator's code runs."""

    supervisor: psutil.Process
    runner: psutil.Process

    def kill(self) -> None:
        """SIGKILL to both, as when their machine is lost; each of them can be killed by itself too."""
        for process in (self.supervisor, self.runner):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


class Airflow:
    """Nothing runs before `start_all`; `close` ends every process and the database, and removes the home.

    :param dags: the folder of DAG files
    :param environment: for every component, such as connections
    """

    def __init__(self, dags: Path, environment: Mapping[str, str]) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="airflow-", dir="/tmp"))
        self.database = Postgres()
        [port] = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.user, self.password = "admin", secrets.token_urlsafe(16)
        self.api = RestApi(self.url, self.user, self.password)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        #: Ids of their latest jobs in Airflow's database.
        self._jobs: dict[str, int] = {}
        #: Leaders of the sessions that were ever started.
        self._sessions: set[int] = set()
        passwords = self.home / "passwords.json"
        passwords.write_text(json.dumps({self.user: self.password}))
        settings = _SETTINGS | {
            "core__dags_folder": str(dags), "core__fernet_key": Fernet.generate_key().decode(),
            "core__execution_api_server_url": f"{self.url}/execution/",
            "core__simple_auth_manager_passwords_file": str(passwords),
            "database__sql_alchemy_conn": self.database.url, "api__port": str(port),
            "api__base_url": self.url, "api__secret_key": secrets.token_hex(),
            "api_auth__jwt_secret": secrets.token_hex(),
        }  # fmt: skip
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW", "RAY_")) and name != "PYTHONDONTWRITEBYTECODE"
        }
        self.environment = {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "AIRFLOW_HOME": str(self.home),
            **{f"AIRFLOW__{name.upper()}": value for name, value in settings.items()}, **environment,
        }  # fmt: skip

    def start_all(self) -> None:
        """Make the tables, then start one of each component and wait for all of them."""
        self.cli("db", "migrate")
        began = datetime.now(UTC)
        for name in _COMPONENTS:
            self._launch(name)
        for name in _COMPONENTS:
            self._wait_alive(name, began)

    # --- Components ---

    def start(self, name: str, **environment: str) -> None:
        """Start a component and wait until Airflow hears of it. "triggerer-2" and so on are further
        triggerers.

        :param environment: of this component alone, as on a machine of its own.
        :raises RuntimeError: when it ends by itself, with the end of its output.
        """
        began = datetime.now(UTC)
        self._launch(name, environment)
        self._wait_alive(name, began)

    def stop(self, name: str, timeout: float = 60) -> None:
        """SIGTERM, and wait for its end. A triggerer leaves its triggers to others; a scheduler waits for its
        running tasks, and what is left after `timeout` seconds is killed."""
        process = self._forget(name)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        self._end(process)

    def kill(self, name: str, *, with_children: bool = True) -> None:
        """SIGKILL, as when its machine or container is lost; with `with_children=False` only the process
        itself, as the out-of-memory killer does: a scheduler's workers then live on."""
        process = self._forget(name)
        if with_children:
            self._end(process)
        else:
            process.kill()
            process.wait()

    def restart(self, name: str) -> None:
        """Kill a component and start it anew."""
        self.kill(name)
        self.start(name)

    def runs(self, name: str) -> bool:
        return name in self._processes

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def output(self, name: str) -> str:
        """What a component wrote, over all its starts."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def worker(self, task: Task, timeout: float = LIMIT) -> Worker:
        """The processes of a running task, for which this waits."""
        runner = psutil.Process(self.api.wait(task, "running", timeout=timeout)["pid"])
        supervisor = runner.parent()
        assert supervisor is not None
        assert os.getsid(supervisor.pid) in self._sessions, f"{supervisor} is no LocalExecutor's worker"
        return Worker(supervisor, runner)

    def triggerer_of(self, task: Task, timeout: float = LIMIT) -> str:
        """The name of the triggerer that runs a deferred task's trigger, for which this waits."""
        self.api.wait(task, "deferred", timeout=timeout)

        def look() -> str | None:
            job = (self.api.get(task)["triggerer_job"] or {}).get("id")
            return next((name for name, id in self._jobs.items() if id == job), None)

        return wait_for(look, timeout, f"a triggerer for {task}")

    def cli(self, *arguments: str) -> str:
        """Run `airflow ...`; return what it says.

        :raises RuntimeError: when it fails, with what it said.
        """
        command = [sys.executable, "-m", "airflow", *arguments]
        done = subprocess.run(command, env=self.environment, cwd=self.home, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"airflow {' '.join(arguments)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def backfill(
        self, dag_id: str, first: str, last: str, *, reprocess: str = "none", max_active_runs: int = 4,
        conf: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`airflow backfill create`; its arguments are those of `RestApi.backfill`."""
        days = ("--from-date", first, "--to-date", last, "--dag-run-conf", json.dumps(conf or {}))
        more = ("--reprocess-behavior", reprocess, "--max-active-runs", str(max_active_runs))
        self.cli("backfill", "create", "--dag-id", dag_id, *days, *more)

    def close(self) -> None:
        self._kill(self._sessions)
        for process in self._processes.values():
            process.wait()
        self.api.close()
        self.database.close()
        shutil.rmtree(self.home, ignore_errors=True)

    # --- Processes ---

    def _launch(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        if name in self._processes:
            raise RuntimeError(f"{name} runs already")
        command, _ = _COMPONENTS[name.partition("-")[0]]
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", *command],
                env={**self.environment, **(environment or {})}, cwd=self.home,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._processes[name] = process
        self._sessions.add(process.pid)

    def _wait_alive(self, name: str, began: datetime) -> None:
        process, kind = self._processes[name], _COMPONENTS[name.partition("-")[0]][1]

        def look() -> bool | None:
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with {process.returncode}: {self.output(name)[-3000:]}")
            if kind is None:
                return self.api.call("GET", "/version") and True
            for job in self.api.alive(kind):
                if datetime.fromisoformat(job["start_date"]) >= began:
                    self._jobs[name] = job["id"]
                    return True
            return None

        wait_for(look, LIMIT, f"{name} to be alive", lambda: self.output(name)[-3000:])

    def _forget(self, name: str) -> subprocess.Popen[bytes]:
        self._jobs.pop(name, None)
        return self._processes.pop(name)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._kill({process.pid})
        process.wait()

    def _kill(self, sessions: set[int]) -> None:
        while members := self._members(sessions):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._processes.values():
                process.poll()
            time.sleep(0.05)

    @staticmethod
    def _members(sessions: set[int]) -> list[int]:
        """The live processes of sessions. A session's number is not given out again while one of them
        lives."""
        members = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                    members.append(process.pid)
        return members
