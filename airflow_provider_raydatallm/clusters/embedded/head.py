"""The embedded Ray head: one per user and folder, started or joined by `ensure_head`, ended by `stop_head`.

- Callers of one folder take turns (flock), so concurrent callers get the same head.
- The head outlives the process that started it; it listens on loopback only and requires a token.
- Only a healthy head is joined; otherwise all its remaining processes are ended before a new one starts.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import random
import secrets
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from airflow_provider_raydatallm.clusters.embedded import folder as head_folder
from airflow_provider_raydatallm.clusters.embedded.folder import FOLDER_VARIABLE, HeadRecord, LocalHead
from airflow_provider_raydatallm.clusters.embedded.processes import (
    LocalHeadError,
    check_outside,
    end_processes,
    head_environment,
    process_identity,
)

__all__ = [
    "FOLDER_VARIABLE",
    "MIN_CPUS",
    "LocalHead",
    "LocalHeadError",
    "check_head",
    "ensure_head",
    "head_identity",
    "head_status",
    "installed_ray",
    "stop_head",
    "was_stopped",
]

STOP_COMMAND = "airflow-ray-llm local stop"
#: Logical. With 4, Ray Data LLM hangs.
MIN_CPUS = 8
#: In which a head answers whose processes all live. On a machine that is busy it has taken half a minute, and
#: one that is given up ends with its jobs.
_ANSWER_SECONDS = 60.0
_REQUEST_SECONDS = 12.0
#: How a fault ends that no waiting mends.
_REFUSED = ("HTTP 401", "HTTP 403")


def ensure_head(folder: Path | None = None, *, min_cpus: int = MIN_CPUS, timeout: float = 120) -> LocalHead:
    """Joins the healthy head of `folder`, or starts one; jobs can be submitted when this returns.

    :param folder: home of the head; default `$AIRFLOW_RAY_LLM_LOCAL_DIR`, else `airflow-ray-llm-<uid>` in the
        temporary folder of this machine
    :param min_cpus: logical CPUs that the head must have
    :param timeout: seconds to wait for other callers and for the start together
    :raises LocalHeadError: ray is not installed, the folder cannot be used, the running head does not fit
        (another Python or Ray, too few CPUs), or the start failed, after which nothing runs
    """
    deadline = time.monotonic() + timeout
    ray_version = installed_ray()
    folder = head_folder.prepare(folder)
    with head_folder.locked(folder, deadline):
        if head_folder.identity(folder) is None:
            head_folder.write_private(folder / "id", secrets.token_hex(16))
        record = head_folder.read_record(folder)
        if record and _is_healthy(record, timeout=min(_ANSWER_SECONDS, timeout / 2)):
            _check_fits(record, ray_version, min_cpus)
            return record.head
        end_processes(folder, record.processes if record else {})
        num_cpus = max(min_cpus, os.cpu_count() or 1)
        try:
            return _start(folder, num_cpus, ray_version, deadline)
        except LocalHeadError:
            if time.monotonic() > deadline:
                raise
            # Retry once: `ray start` gives up after 30 s on a busy machine, and a free port can be lost.
            return _start(folder, num_cpus, ray_version, deadline)


def check_head(folder: Path | None = None) -> None:
    """Finds at once what would keep `ensure_head` from joining the running head; starts nothing.

    :raises LocalHeadError: ray is not installed, the folder cannot be used, or the head there is of others.
    """
    ray_version = installed_ray()
    record = head_folder.read_record(head_folder.prepare(folder))
    if record and _is_healthy(record, timeout=5.0):
        _check_fits(record, ray_version, MIN_CPUS)


def head_identity() -> str | None:
    """Returns the identity of the default folder, which all heads there share; None before the first."""
    return head_folder.identity(head_folder.resolve(None))


def stop_head(folder: Path | None = None) -> int:
    """Ends every process of the head of `folder`, including jobs and engines. Returns how many were ended."""
    folder = head_folder.prepare(folder)
    with head_folder.locked(folder, time.monotonic() + 150):
        record = head_folder.read_record(folder)
        check_outside(folder)
        (folder / "token").unlink(missing_ok=True)  # first, so that whoever finds it dying knows why
        ended = end_processes(folder, record.processes if record else {})
        (folder / "head.json").unlink(missing_ok=True)
        head_folder.remove_sessions(folder)
        return ended


def head_status(folder: Path | None = None) -> LocalHead | None:
    """Returns the healthy head of `folder`, or None; changes nothing."""
    record = head_folder.read_record(head_folder.resolve(folder))
    return record.head if record and _is_healthy(record, timeout=_ANSWER_SECONDS) else None


def was_stopped() -> bool:
    """Whether `stop_head` ended the head of the default folder, or none was ever started there. The processes
    of any other head have died, or are being started."""
    return not (head_folder.resolve(None) / "token").exists()


def installed_ray() -> str:
    """Returns the version of ray in this environment, without importing it, which takes seconds."""
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    # The extra `default` brings the dashboard and so the Jobs API.
    if not version or importlib.util.find_spec("aiohttp_cors") is None:
        raise LocalHeadError(
            f"the embedded Ray head needs ray[default], which is not installed in {sys.prefix}",
            advice="Run `pip install 'airflow-provider-raydatallm[local]'`",
        )
    return version


def _this_python() -> str:
    return f"{platform.python_version()} of {os.path.realpath(sys.prefix)}"


def _check_fits(record: HeadRecord, ray_version: str, min_cpus: int) -> None:
    head = record.head
    running = f"Ray {head.ray_version} on Python {record.python}"
    wanted = f"Ray {ray_version} on Python {_this_python()}"
    if running != wanted:
        raise LocalHeadError(
            f"the embedded Ray head in {head.folder} (process {head.pid}) is {running}, but this process has "
            f"{wanted}",
            advice=f"Stop it (its jobs end) with `{STOP_COMMAND}`, or set {FOLDER_VARIABLE} to another "
            "folder",
        )
    if head.num_cpus < min_cpus:
        raise LocalHeadError(
            f"the embedded Ray head in {head.folder} has {head.num_cpus} logical CPUs, but {min_cpus} are "
            "needed",
            advice=f"Stop it (its jobs end) with `{STOP_COMMAND}`; the next start gives it {min_cpus}",
        )


def _is_healthy(record: HeadRecord, timeout: float) -> bool:
    """Fails at once when a process is dead, but waits for answers: a busy machine can take seconds."""
    deadline = time.monotonic() + timeout
    while all(process_identity(pid) == identity for pid, identity in record.processes.items()):
        fault = _find_fault(record.head.address, record.agent, record.head.token)
        if fault is None:
            return True
        if time.monotonic() > deadline or fault.endswith(_REFUSED):
            return False
        time.sleep(0.5)
    return False


def _find_fault(address: str, agent: str, token: str, *, starts: bool = False) -> str | None:
    """Returns None when jobs can be submitted, else which endpoint fails and how.

    :param starts: whether the head is being started
    """
    import httpx

    checks = [
        f"{address}/api/version",
        f"{address}/api/gcs_healthz",
        f"{agent}/api/healthz",  # raylet and GCS
    ]
    if starts:
        # Passes through the node's agent. Until the dashboard knows that, submissions fail with "No available
        # agent". Later Ray may take another node of this address for the head, also one that is dead.
        checks.append(f"{address}/api/v0/logs?node_ip=127.0.0.1&glob=none&timeout=10")
    headers = {"Authorization": f"Bearer {token}"}
    try:
        with httpx.Client(headers=headers, timeout=_REQUEST_SECONDS, trust_env=False) as client:
            for url in checks:
                if (status := client.get(url).status_code) != 200:
                    return f"{url}: HTTP {status}"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return f"{address}: {error!r}"
    return None


# Runs between the caller and the head, so that the head is not the caller's child: it neither becomes a
# zombie of a long-lived caller nor ends with the caller's process tree.
_LAUNCH = """
import subprocess, sys
log, *command = sys.argv[1:]
out = open(log, "ab")
head = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
print(head.pid)
"""


def _start(folder: Path, num_cpus: int, ray_version: str, deadline: float) -> LocalHead:
    import psutil

    (folder / "head.json").unlink(missing_ok=True)
    head_folder.remove_sessions(folder)
    log = folder / "head.log"
    log.unlink(missing_ok=True)
    token = secrets.token_urlsafe(32)
    head_folder.write_private(folder / "token", token)
    gcs, dashboard, agent_port, client = free_ports(4)
    address, agent = f"http://127.0.0.1:{dashboard}", f"http://127.0.0.1:{agent_port}"
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--include-dashboard=true"),
        *(f"--port={gcs}", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent_port}"),
        *(f"--ray-client-server-port={client}", f"--num-cpus={num_cpus}", f"--temp-dir={folder / 'tmp'}"),
        *("--disable-usage-stats", "--log-style=record", "--log-color=false"),
    ]
    launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(log), *command]
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        env = head_environment(folder)
        launched = subprocess.run(
            launch, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
        )
        pid = int(launched.stdout)
        while fault := _find_fault(address, agent, token, starts=True):
            if process_identity(pid) is None:
                raise _start_error(folder, "ended by itself while it started")
            if time.monotonic() > deadline:
                raise _start_error(folder, f"was not ready in time ({fault})")
            time.sleep(0.2)
        head = LocalHead(address, token, pid, num_cpus, started_at, folder, ray_version, f"127.0.0.1:{gcs}")
        pids = [pid, *(child.pid for child in psutil.Process(pid).children())]
        processes = {pid: str(process_identity(pid)) for pid in pids}
        head_folder.write_record(HeadRecord(head, agent, _this_python(), processes))
        return head
    except BaseException as error:
        end_processes(folder, {})
        if isinstance(error, OSError | subprocess.SubprocessError | psutil.Error):
            raise LocalHeadError(
                f"the embedded Ray head in {folder} could not be started: {error}"
            ) from error
        raise


def _start_error(folder: Path, what: str) -> LocalHeadError:
    log = folder / "head.log"
    return LocalHeadError(
        f"the embedded Ray head {what}",
        advice=f"See the end of {log}, and {folder}/tmp/session_latest/logs",
        log=log.read_text(errors="replace").splitlines()[-20:],
    )


def free_ports(count: int) -> list[int]:
    """Returns free ports outside the ranges of Ray's workers (10002-19999) and the kernel (from 32768)."""
    free: set[int] = set()
    for port in random.sample(range(20000, 32768), 500):
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            free.add(port)
        if len(free) == count:
            return list(free)
    raise LocalHeadError(f"the embedded Ray head needs {count} free TCP ports between 20000 and 32767")
