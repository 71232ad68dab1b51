"""A separate process that kills an engine's processes when the worker that started them is gone.

vLLM's processes do not watch their parent: a worker that is killed (out of memory, SIGKILL) would leave one
that holds the GPU for as long as the node lives. The guard reads a pipe, which closes when the worker dies,
however it dies, and then kills every process with the worker's mark in its environment.

It runs as a script, and imports nothing slow or fragile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

_MARK = "AIRFLOW_RAY_LLM_WORKER"


class ProcessGuard:
    """Guards all processes that this one starts from now on."""

    def __init__(self) -> None:
        os.environ[_MARK] = uuid.uuid4().hex
        os.environ["SPT_NOENV"] = "1"  # vLLM's setproctitle would wipe the mark
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__, os.environ[_MARK]],
            stdin=subprocess.PIPE,  # children do not inherit this end
            start_new_session=True,  # so that killing the worker's process group spares the guard
        )

    def kill(self) -> None:
        """Kills them now."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _kill_marked(mark: str) -> None:
    variable = f"{_MARK}={mark}".encode()
    while pids := [pid for pid in _other_processes() if _is_marked(pid, variable)]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _other_processes() -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and int(p.name) != os.getpid()]


def _is_marked(pid: int, variable: bytes) -> bool:
    try:
        if variable not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return False
        # Python's resource tracker removes the others' shared memory, and then ends.
        return b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it is gone, or belongs to another user
        return False


if __name__ == "__main__":
    sys.stdin.buffer.read()
    _kill_marked(sys.argv[1])
