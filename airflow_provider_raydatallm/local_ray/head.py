"""The embedded Ray head: one per user and folder, started or joined by `ensure_head`, ended by `stop_head`.

- Callers of one folder take turns (flock), so any number of processes at once get the same head.
- The head outlives the process that started it; it listens on loopback only and asks for a token.
- A head is joined only if it is healthy; otherwise all that is left of it is ended before a new one starts.
- Its processes are known by an environment variable that names the folder, by output that goes into the
  folder, and by descent from such a process; never by a program's name: another Ray is left alone.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from airflow_provider_raydatallm.local_ray.processes import (
    MARKER_VARIABLE,
    LocalHeadError,
    end_processes,
    process_identity,
)

__all__ = ["LocalHead", "LocalHeadError", "ensure_head", "head_status", "stop_head"]

FOLDER_VARIABLE = "AIRFLOW_RAY_LLM_LOCAL_DIR"
STOP_COMMAND = "airflow-ray-llm local stop"


@dataclass(frozen=True)
class LocalHead:
    """A healthy embedded head."""

    address: str
    """The Ray Jobs API and dashboard, `http://127.0.0.1:PORT`."""
    token: str = field(repr=False)
    pid: int
    """Of `ray start --block`, the leader of its own session."""
    num_cpus: int
    """Logical CPUs: what Ray schedules by, not what the machine has."""
    started_at: str
    """ISO 8601, UTC."""
    folder: Path
    ray_version: str
    gcs_address: str
    """Where drivers on this machine connect to."""

    def environment(self) -> dict[str, str]:
        """Of a process on this machine whose Ray is to connect to it."""
        return _environment(self.folder) | {"RAY_ADDRESS": self.gcs_address}


def ensure_head(folder: Path | None = None, *, min_cpus: int = 8, timeout: float = 120) -> LocalHead:
    """Join the healthy head of `folder`, or start one; jobs can be submitted when this returns.

    :param folder: home of the head; default `$AIRFLOW_RAY_LLM_LOCAL_DIR`, else `airflow-ray-llm-<uid>` in the
        temporary folder of this machine
    :param min_cpus: logical CPUs that the head must have (with 4, Ray Data LLM hangs)
    :param timeout: seconds, for waiting for other callers and for the start together
    :raises LocalHeadError: ray is not installed, the folder cannot be used, the running head does not fit
        (another Python or Ray, too few CPUs), or the start failed, which leaves nothing running
    """
    deadline = time.monotonic() + timeout
    ray_version = installed_ray()
    folder = _own(_resolve(folder))
    with _locked(folder, deadline):
        record = _read(folder)
        if record and _is_healthy(record, patience=min(30.0, timeout / 2)):
            _check_fits(record, ray_version, min_cpus)
            return record.head
        end_processes(folder, record.processes if record else {})
        num_cpus = max(min_cpus, os.cpu_count() or 1)
        try:
            return _start(folder, num_cpus, ray_version, deadline)
        except LocalHeadError:
            if time.monotonic() > deadline:
                raise
            # Once more: `ray start` gives up after 30 s on a busy machine, and a free port can be lost.
            return _start(folder, num_cpus, ray_version, deadline)


def stop_head(folder: Path | None = None) -> int:
    """End every process of the head of `folder`, jobs and engines included; return how many were ended."""
    folder = _own(_resolve(folder))
    with _locked(folder, time.monotonic() + 150):
        record = _read(folder)
        ended = end_processes(folder, record.processes if record else {})
        for name in ("head.json", "token"):
            (folder / name).unlink(missing_ok=True)
        _free_disk(folder)
        return ended


def head_status(folder: Path | None = None) -> LocalHead | None:
    """Return the healthy head of `folder`, or None; changes nothing."""
    record = _read(_resolve(folder))
    return record.head if record and _is_healthy(record, patience=5.0) else None


# --- The folder ---

_OWN_NAMES = {"head.lock", "head.json", "head.log", "token", "tmp"}
"""`tmp` is Ray's."""


@dataclass(frozen=True)
class _Record:
    """What `head.json` says of the head that was started last."""

    head: LocalHead
    agent: str
    python: str
    processes: dict[int, str]
    """Identity by pid of `ray start` and its direct children: the head lives while all of them do."""


def _resolve(folder: Path | None) -> Path:
    if sys.platform == "win32":
        raise LocalHeadError("the embedded Ray head runs on Linux and macOS only: connect to a Ray cluster")
    if folder is None and (configured := os.environ.get(FOLDER_VARIABLE)):
        folder = Path(configured)
    if folder is None:
        # macOS: its temporary folder of each user is by itself too long for the sockets in it.
        temporary = "/tmp" if sys.platform == "darwin" else tempfile.gettempdir()
        folder = Path(temporary, f"airflow-ray-llm-{os.getuid()}")
        # Both: a link that another user left there may point at a folder of ours.
        with suppress(FileNotFoundError):
            _check_owner(folder)
    return folder.expanduser().resolve()


def _check_owner(folder: Path) -> None:
    if (owner := folder.lstat().st_uid) != os.getuid():
        raise LocalHeadError(
            f"the folder of the embedded Ray head, {folder}, belongs to user id {owner}, but this process "
            f"runs as {os.getuid()}. Set {FOLDER_VARIABLE} to a folder of your own."
        )


def _own(folder: Path) -> Path:
    """Make the folder if need be; refuse one that is too long, another user's, or holds other files."""
    socket_path = f"{folder}/tmp/session_2026-01-31_00-00-00_000000_{2**22}/sockets/plasma_store"
    limit = 103 if sys.platform == "darwin" else 107
    if (excess := len(os.fsencode(socket_path)) - limit) > 0:
        raise LocalHeadError(
            f"the folder of the embedded Ray head, {folder}, is {excess} bytes too long for Unix sockets. "
            f"Set {FOLDER_VARIABLE} to a shorter path."
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(folder)
        names = {path.name for path in folder.iterdir()}
        if (strangers := names - _OWN_NAMES) and "head.lock" not in names:
            raise LocalHeadError(
                f"the folder of the embedded Ray head, {folder}, holds other files ({min(strangers)}, ...). "
                f"Set {FOLDER_VARIABLE} to a folder that is empty or not there."
            )
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise LocalHeadError(
            f"the folder of the embedded Ray head, {folder}, cannot be used: {error}. "
            f"Set {FOLDER_VARIABLE} to another one."
        ) from error
    return folder


@contextmanager
def _locked(folder: Path, deadline: float) -> Iterator[None]:
    import fcntl

    with (folder / "head.lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LocalHeadError(
                        "another process is still starting or stopping the embedded Ray head "
                        f"(it holds {lock.name}): wait for it, or end it and try again"
                    ) from None
                time.sleep(0.1)
        yield


def _read(folder: Path) -> _Record | None:
    """None when nothing, or nothing whole, was recorded."""
    try:
        state = json.loads((folder / "head.json").read_text())
        token = (folder / "token").read_text()
        head = LocalHead(**state["head"], token=token, folder=folder)
        processes = {int(pid): str(identity) for pid, identity in state["processes"].items()}
        return _Record(head, str(state["agent"]), str(state["python"]), processes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: Path, text: str) -> None:
    """Readable by this user only; whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    part.replace(path)


def _free_disk(folder: Path) -> None:
    """Of Ray's sessions, which have all ended, only the last one's logs stay."""
    sessions = sorted(folder.glob("tmp/session_2*"))
    for session in sessions[:-1]:
        shutil.rmtree(session, ignore_errors=True)
    for entry in sessions[-1].iterdir() if sessions else ():
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink(missing_ok=True)
        elif entry.name != "logs":
            shutil.rmtree(entry, ignore_errors=True)


# --- Joining ---


def installed_ray() -> str:
    """Version of ray in this environment, without importing it (seconds)."""
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    # Without its extra `default`, ray has no dashboard and so no Jobs API.
    if not version or importlib.util.find_spec("aiohttp_cors") is None:
        raise LocalHeadError(
            f"the embedded Ray head needs ray[default], which is not installed in {sys.prefix}: "
            "pip install 'airflow-provider-raydatallm[local]'"
        )
    return version


def _this_python() -> str:
    return f"{platform.python_version()} of {os.path.realpath(sys.prefix)}"


def _check_fits(record: _Record, ray_version: str, min_cpus: int) -> None:
    head = record.head
    running = f"Ray {head.ray_version} on Python {record.python}"
    wanted = f"Ray {ray_version} on Python {_this_python()}"
    if running != wanted:
        raise LocalHeadError(
            f"the embedded Ray head in {head.folder} is {running}, but this process has {wanted}. Stop it "
            f"(its jobs end) with `{STOP_COMMAND}`, or have a second one by {FOLDER_VARIABLE}=another folder."
        )
    if head.num_cpus < min_cpus:
        raise LocalHeadError(
            f"the embedded Ray head in {head.folder} has {head.num_cpus} logical CPUs, but {min_cpus} are "
            f"needed. Stop it (its jobs end) with `{STOP_COMMAND}`; the next start gives it {min_cpus}."
        )


def _is_healthy(record: _Record, patience: float) -> bool:
    """A dead process settles it; silence does not at once: a busy machine can take seconds to answer."""
    deadline = time.monotonic() + patience
    while all(process_identity(pid) == identity for pid, identity in record.processes.items()):
        if _fault(record.head.address, record.agent, record.head.token) is None:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return False


def _fault(address: str, agent: str, token: str) -> str | None:
    """None when jobs can be submitted; else what does not answer as it should."""
    import httpx

    checks = (
        f"{address}/api/version",
        f"{address}/api/gcs_healthz",
        # Goes through the node's agent, as submitting does: "No available agent" is over when this answers.
        f"{address}/api/v0/logs?node_ip=127.0.0.1&glob=none&timeout=5",
        f"{agent}/api/healthz",  # raylet and GCS
    )
    headers = {"Authorization": f"Bearer {token}"}
    try:
        with httpx.Client(headers=headers, timeout=6, trust_env=False) as client:
            for url in checks:
                if (status := client.get(url).status_code) != 200:
                    return f"{url}: HTTP {status}"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return f"{address}: {error!r}"
    return None


# --- Starting ---

# Runs between the caller and the head, so that the head is nobody's child: it stays no zombie of a long-lived
# caller, and whoever ends the caller's process tree does not reach it.
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
    _free_disk(folder)
    log = folder / "head.log"
    log.unlink(missing_ok=True)
    token = secrets.token_urlsafe(32)
    _write(folder / "token", token)
    gcs, dashboard, agent_port, client = _free_ports(4)
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
        env = _environment(folder)
        launched = subprocess.run(
            launch, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
        )
        pid = int(launched.stdout)
        while fault := _fault(address, agent, token):
            if process_identity(pid) is None:
                raise _start_error(folder, "ended by itself while it started")
            if time.monotonic() > deadline:
                raise _start_error(folder, f"was not ready in time ({fault})")
            time.sleep(0.2)
        head = LocalHead(address, token, pid, num_cpus, started_at, folder, ray_version, f"127.0.0.1:{gcs}")
        facts = {name: value for name, value in asdict(head).items() if name not in ("token", "folder")}
        pids = [pid, *(child.pid for child in psutil.Process(pid).children())]
        processes = {str(pid): process_identity(pid) for pid in pids}
        state = {"head": facts, "agent": agent, "python": _this_python(), "processes": processes}
        _write(folder / "head.json", json.dumps(state, indent=1))
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
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    return LocalHeadError(
        f"the embedded Ray head {what}. The end of {log}:\n{tail}\nMore in {folder}/tmp/session_latest/logs."
    )


def _environment(folder: Path) -> dict[str, str]:
    """What the head and its jobs inherit."""
    # RAY_ADDRESS and the like would lead it astray (RAY_lower_case is Ray's tuning and stays); Airflow's
    # settings and connections hold secrets that must not outlive the task, in every job's environment.
    env = {name: value for name, value in os.environ.items() if not re.match(r"RAY_[A-Z]|_*AIRFLOW_", name)}
    return env | {
        # Jobs say `python`, and must get the one that has ray.
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), env.get("PATH", os.defpath)]),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        # When this is off, --node-ip-address=127.0.0.1 means 127.0.0.1, as on macOS; else Ray puts the
        # machine's outward address in its place and listens on every interface.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Else a caller under `uv run` makes Ray start every worker by that same command.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # A job starts what it needs: without this Ray starts a worker for each logical CPU at once.
        "RAY_prestart_worker_first_driver": "0",
        MARKER_VARIABLE: str(folder),
        # setproctitle (Ray, vLLM) then leaves /proc/PID/environ as it is, where the marker is read.
        "SPT_NOENV": "1",
    }


def _free_ports(count: int) -> list[int]:
    """Free ports apart from those that Ray's workers (10002-19999) and the kernel (from 32768) give out."""
    free: set[int] = set()
    for port in random.sample(range(20000, 32768), 500):
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            free.add(port)
        if len(free) == count:
            return list(free)
    raise LocalHeadError(f"the embedded Ray head needs {count} free TCP ports between 20000 and 32767")
