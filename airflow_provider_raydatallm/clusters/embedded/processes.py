"""The processes of the embedded Ray head: how to recognise them, and how to end them.

They are recognised by an environment variable that names the folder, by output that goes into the folder, and
by descent from such a process; never by a program's name, since engines rename themselves and another Ray
must be left alone. When a head is killed, vLLM's processes can survive with gigabytes each, so ending repeats
until none is found.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_raydatallm.contract.job.environment import inherited
from airflow_provider_raydatallm.contract.result.failure import Failure

if TYPE_CHECKING:
    import psutil

#: Set in every process of a head, to the head's folder.
MARKER_VARIABLE = "AIRFLOW_RAY_LLM_HEAD"
#: Between SIGTERM and SIGKILL; Ray's own default for a stopped job.
GRACE_SECONDS = 3.0


class LocalHeadError(RuntimeError):
    """The embedded Ray head cannot be started, joined or stopped. Its text holds the end of the head's log.

    :param log: last lines of the head's log, where they may say why.
    """

    def __init__(self, sentence: str, *, advice: str = "", log: Sequence[str] = ()) -> None:
        log_of = "the embedded Ray head" if log else ""
        self.failure = Failure("connection", sentence, advice=(advice,), log=tuple(log), log_of=log_of)
        super().__init__("\n".join([self.failure.text, *self.failure.log]))


def head_environment(folder: Path) -> dict[str, str]:
    """Returns the environment of the head, which its jobs inherit."""
    # vLLM would bind each engine on this machine to the same cores.
    env = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"} | inherited(os.environ)
    return env | {
        # Jobs run `python`, which must be the one that has ray.
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), env.get("PATH", os.defpath)]),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        # Unless this is off, Ray replaces --node-ip-address=127.0.0.1 by the machine's outward address and
        # listens on every interface.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Otherwise a caller under `uv run` makes Ray start every worker by that same command.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Otherwise Ray starts a worker for each logical CPU at once.
        "RAY_prestart_worker_first_driver": "0",
        MARKER_VARIABLE: str(folder),
        # Makes setproctitle (Ray, vLLM) leave /proc/PID/environ alone, where the marker is read.
        "SPT_NOENV": "1",
    }


def check_outside(folder: Path) -> None:
    """:raises LocalHeadError: when this process is one of the head's."""
    if os.environ.get(MARKER_VARIABLE) == str(folder):
        raise LocalHeadError(f"this process runs inside the embedded Ray head in {folder}: it cannot end it")


def end_processes(folder: Path, recorded: Mapping[int, str], timeout: float = 30.0) -> int:
    """Sends SIGTERM, then SIGKILL, until no process of the head is left. Returns how many were ended.

    :param recorded: identities by pid of processes that are known to be the head's
    :param timeout: seconds after which a process that survives SIGKILL is an error
    """
    import psutil

    check_outside(folder)
    known = dict(recorded)
    ended: set[tuple[int, str]] = set()
    started = time.monotonic()
    while processes := find_processes(folder, known):
        elapsed = time.monotonic() - started
        if elapsed > timeout:
            pids = sorted(processes)
            raise LocalHeadError(f"processes of the embedded Ray head survive SIGKILL: pids {pids}")
        for pid, process in processes.items():
            if (identity := process_identity(pid)) is None:
                continue
            with suppress(psutil.Error):
                if elapsed > GRACE_SECONDS:
                    process.kill()
                elif (pid, identity) not in ended:
                    process.terminate()
            known[pid] = identity
            ended.add((pid, identity))
        time.sleep(0.1)
    return len(ended)


def find_processes(folder: Path, known: dict[int, str]) -> dict[int, psutil.Process]:
    """Returns the live processes of the head: known or recognised ones, and all that descend from them."""
    import psutil

    children: dict[int, list[psutil.Process]] = defaultdict(list)
    pending: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            children[process.ppid()].append(process)
            identity = known.get(process.pid)
            if (identity and identity == process_identity(process.pid)) or _is_recognised(process, folder):
                pending.append(process)
    family: dict[int, psutil.Process] = {}
    while pending:
        process = pending.pop()
        if process.pid not in family and process.pid != os.getpid():
            family[process.pid] = process
            pending += children[process.pid]
    return {pid: process for pid, process in family.items() if process_identity(pid)}


def _is_recognised(process: psutil.Process, folder: Path) -> bool:
    """Whether it has the marker, or writes its output into the folder, as workers and drivers do."""
    import psutil

    is_marked = False
    with suppress(psutil.AccessDenied):
        is_marked = process.environ().get(MARKER_VARIABLE) == str(folder)
    proc = f"/proc/{process.pid}"
    try:
        if not is_marked and not any(os.readlink(f"{proc}/fd/{n}").startswith(f"{folder}/") for n in (1, 2)):
            return False
        # A container on this machine may have its own head in a folder of the same name.
        return os.path.samefile(f"{proc}/root{folder}", folder)
    except OSError:
        return False


def process_identity(pid: int) -> str | None:
    """Returns what distinguishes a process from a later one with its pid; None for a zombie or no process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    # Ticks since boot: unlike psutil's creation time, they do not move when the clock is set.
    return None if fields[0] in "ZX" else f"{boot} {fields[19]}"
