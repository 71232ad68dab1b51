"""The processes of the embedded Ray head: which they are, and how they end.

They are known by an environment variable that names the folder, by output that goes into the folder, and by
descent from such a process; never by a program's name, since engines rename themselves and another Ray has to
be left alone. After a head is killed, vLLM's processes can live on with gigabytes each: ending goes on until
none is found.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

MARKER_VARIABLE = "AIRFLOW_RAY_LLM_HEAD"
"""Set in every process of a head, to the head's folder."""

GRACE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL; as long as Ray gives a job that is stopped."""


class LocalHeadError(RuntimeError):
    """The embedded Ray head cannot be started, joined or stopped."""


def end_processes(folder: Path, recorded: Mapping[int, str], patience: float = 30.0) -> int:
    """SIGTERM, then SIGKILL, until no process of the head is left; return how many there were.

    :param recorded: identities by pid of processes that are known to be the head's
    :param patience: seconds until what outlives SIGKILL is an error
    """
    import psutil

    if os.environ.get(MARKER_VARIABLE) == str(folder):
        raise LocalHeadError(f"this process runs inside the embedded Ray head in {folder}: it cannot end it")
    known = dict(recorded)
    ended: set[tuple[int, str]] = set()
    begin = time.monotonic()
    while members := _members(folder, known):
        elapsed = time.monotonic() - begin
        if elapsed > patience:
            raise LocalHeadError(
                f"processes of the embedded Ray head outlive SIGKILL: pids {sorted(members)}"
            )
        for pid, process in members.items():
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


def _members(folder: Path, known: dict[int, str]) -> dict[int, psutil.Process]:
    """Return the live processes of the head: known or recognised ones, and all that descend from them."""
    import psutil

    children: dict[int, list[psutil.Process]] = defaultdict(list)
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            children[process.ppid()].append(process)
            identity = known.get(process.pid)
            if (identity and identity == process_identity(process.pid)) or _is_recognised(process, folder):
                found.append(process)
    members: dict[int, psutil.Process] = {}
    while found:
        process = found.pop()
        if process.pid not in members and process.pid != os.getpid():
            members[process.pid] = process
            found += children[process.pid]
    return {pid: process for pid, process in members.items() if process_identity(pid)}


def _is_recognised(process: psutil.Process, folder: Path) -> bool:
    """Started with the marker, or (Linux) writing its output into the folder, as workers and drivers do."""
    import psutil

    marked = False
    with suppress(psutil.AccessDenied):
        marked = process.environ().get(MARKER_VARIABLE) == str(folder)
    if not sys.platform.startswith("linux"):
        return marked
    proc = f"/proc/{process.pid}"
    try:
        if not marked and not any(os.readlink(f"{proc}/fd/{n}").startswith(f"{folder}/") for n in (1, 2)):
            return False
        # A container on this machine may have a folder of the same name, and its own head in it.
        return os.path.samefile(f"{proc}/root{folder}", folder)
    except OSError:
        return False


def process_identity(pid: int) -> str | None:
    """What tells a process from a later one with its pid; None when it is gone or a zombie."""
    if sys.platform.startswith("linux"):
        # Ticks since boot: unlike psutil's creation time, this does not move when the clock is set.
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        return None if fields[0] in "ZX" else f"{boot} {fields[19]}"
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.Error:
        return None
