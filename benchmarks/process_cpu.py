"""CPU time by kind of process, of this process and of all that Ray starts under it.

A process of its own takes the samples, so that sampling costs none of the kinds anything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from types import TracebackType
from typing import Any

from benchmarks.fresh import ROOT

#: Kinds, by the title that Ray gives a process; the first that matches.
KINDS = {
    "feeders": r"ray::.*Feeder",
    "workers": r"ray::\w*Worker(?![\w(])",
    "writers": r"ray::WriterActor",
    "dedup": r"ray::DedupCoordinator",
    "Ray itself": r"(?!ray::)|ray::(Dashboard|RuntimeEnv)Agent",
    "reading, Ray Data's actors": r"ray::",
}
DRIVER = "driver"
_SAMPLE_SECONDS = 0.25


class ProcessCpu:
    """Samples while it is open."""

    def __enter__(self) -> ProcessCpu:
        command = [sys.executable, "-m", "benchmarks.process_cpu", str(os.getpid())]
        self._sampler = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._samples: list[tuple[float, dict[str, float]]] = []
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        output, _ = self._sampler.communicate()
        self._samples = json.loads(output)

    def seconds(self, start: float | None = None, stop: float | None = None) -> dict[str, float]:
        """Returns CPU seconds by kind between two epoch times, or from the first to the last sample. Those of
        a process that ended are counted up to its last sample."""
        first, last = self._sample_at(start, 0), self._sample_at(stop, -1)
        return {kind: last.get(kind, 0.0) - first.get(kind, 0.0) for kind in (DRIVER, *KINDS)}

    def _sample_at(self, when: float | None, otherwise: int) -> dict[str, float]:
        if when is None:
            return self._samples[otherwise][1]
        return min(self._samples, key=lambda sample: abs(sample[0] - when))[1]


def _sample_until_closed(pid: int) -> None:
    import psutil

    closed = threading.Event()

    def wait_until_closed() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=wait_until_closed, daemon=True).start()
    seen: dict[psutil.Process, float] = {}
    total: dict[str, float] = defaultdict(float)
    samples = []
    root = psutil.Process(pid)
    while True:
        is_last = closed.is_set()
        for process in (root, *root.children(recursive=True)):
            try:
                times, title = process.cpu_times(), " ".join(process.cmdline())
            except psutil.Error:
                continue
            seconds = times.user + times.system
            kind = DRIVER if process.pid == pid else next(k for k, p in KINDS.items() if re.match(p, title))
            if process.pid != os.getpid():
                total[kind] += seconds - seen.get(process, 0.0)  # a process has several titles in its life
            seen[process] = seconds
        samples.append((time.time(), dict(total)))
        if is_last:
            break
        closed.wait(_SAMPLE_SECONDS)
    print(json.dumps(samples))


if __name__ == "__main__":
    _sample_until_closed(int(sys.argv[1]))
