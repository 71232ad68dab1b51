"""The processes of a trial: each is forked from a server that has everything imported and nothing open.

`Children.run` starts one and waits; `start` leaves it running. What a process found is a JSON file that it
writes when it ends; a process that was killed has written none.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

_PRELOAD = ["tests.chaos.preload"]


@dataclass
class Child:
    process: BaseProcess
    result_path: Path
    log_path: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def wait(self, seconds: float) -> bool:
        self.process.join(seconds)
        return self.process.exitcode is not None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.join(10)

    @property
    def is_over(self) -> bool:
        return self.process.exitcode is not None

    @property
    def killed(self) -> bool:
        return self.process.exitcode == -signal.SIGKILL

    @property
    def result(self) -> dict[str, Any]:
        """`{"value": ...}`, or `{"error": ..., "type": ...}`; {} of one that was killed."""
        return json.loads(self.result_path.read_text()) if self.result_path.exists() else {}

    def wait_until_stopped(self, seconds: float) -> bool:
        """Whether it was stopped (SIGSTOP), rather than ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.exitcode is None:
            try:
                state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                return False
            if state == "T":
                return True
            time.sleep(0.01)
        return False

    def go_on(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended before it came to its step
            os.kill(self.pid, signal.SIGCONT)


class Children:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOAD)
        # The server takes its modules from here, whatever the working directory of this process is.
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

    def start(self, what: Callable[..., Any], *args: Any, name: str = "") -> Child:
        self._count += 1
        base = self.folder / f"{self._count:03}-{name or what.__name__}"
        result, log = base.with_suffix(".json"), base.with_suffix(".log")
        process = self._context.Process(target=_main, args=(what, args, str(result), str(log)))
        process.start()
        return Child(process, result, log)

    def run(self, what: Callable[..., Any], *args: Any, seconds: float = 300, name: str = "") -> Child:
        child = self.start(what, *args, name=name)
        if not child.wait(seconds):
            child.kill()
            raise TimeoutError(f"{name or what.__name__} did not end in {seconds:g} s: {child.log_path}")
        return child

    def ask(self, what: Callable[..., Any], *args: Any) -> Any:
        """The value of a process that must not fail."""
        child = self.run(what, *args)
        if "value" not in child.result:
            raise RuntimeError(f"{what.__name__} failed: {child.result or child.process.exitcode}")
        return child.result["value"]


def _main(what: Callable[..., Any], args: tuple[Any, ...], result: str, log: str) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # what one that hangs is at: kill -USR1
    try:
        said: dict[str, Any] = {"value": what(*args)}
    except BaseException as e:
        traceback.print_exc()
        said = {"error": str(e), "type": type(e).__name__}
    part = f"{result}.part"
    Path(part).write_text(json.dumps(said, default=str))
    os.replace(part, result)
    sys.stdout.flush()
    os._exit(0)  # no thread of a client is waited for
