"""A process of its own that ends an engine's processes when the worker that started them is gone.

vLLM's processes do not watch their parent: a worker that is killed outright (out of memory, SIGKILL) would
leave one that holds the GPU for as long as the node lives. The guard waits for the end of a pipe, which comes
when the worker dies, however it dies, and kills every process that has the worker's mark in its environment.

Run as a script: it imports nothing that takes long or could break.
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
        os.environ["SPT_NOENV"] = "1"  # by setproctitle vLLM names its processes; it would wipe the mark
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__, os.environ[_MARK]],
            stdin=subprocess.PIPE,  # its end here is not inherited
            start_new_session=True,  # who kills the worker's group is not to kill the guard
        )

    def end(self) -> None:
        """Kill them now."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _kill_marked(mark: str) -> None:
    wanted = f"{_MARK}={mark}".encode()
    while found := [pid for pid in _processes() if _is_marked(pid, wanted)]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _processes() -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and int(p.name) != os.getpid()]


def _is_marked(pid: int, wanted: bytes) -> bool:
    try:
        if wanted not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return False
        # Python's own removes the shared memory of the others, and then ends.
        return b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it is gone, or somebody else's
        return False


if __name__ == "__main__":
    sys.stdin.buffer.read()
    _kill_marked(sys.argv[1])
