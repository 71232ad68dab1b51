"""Reads what parts of vLLM's start took. vLLM reports it in its log only."""

from __future__ import annotations

import os
import re
import stat

#: Time to load the model, with the processing of its weights where vLLM reports that; a line per process.
_LOAD = re.compile(r"(?:Model loading took \S+ GiB memory and|Loading weights took) ([\d.]+) seconds")
_INIT = re.compile(r"init engine \([^)]*\) took ([\d.]+) s\w*(?: \(compilation: ([\d.]+) s)?")
_STDOUT = 1


def parse_startup_seconds(log: str) -> dict[str, float]:
    """Seconds by `load`, `compile` and `warm_up` (profiling, the cache, CUDA graphs), as far as a log has
    them."""
    seconds = {}
    if loads := [float(load) for load in _LOAD.findall(log)]:
        seconds["load"] = max(loads)
    if inits := _INIT.findall(log):
        total, compilation = inits[-1]
        seconds["compile"] = float(compilation or 0)  # the log leaves out a time of zero
        seconds["warm_up"] = float(total) - seconds["compile"]
    return seconds


def read_process_log() -> str:
    """What this process and its children wrote to stdout, which Ray redirects to a file; "" elsewhere."""
    if not stat.S_ISREG(os.fstat(_STDOUT).st_mode):
        return ""
    with open(f"/proc/self/fd/{_STDOUT}", errors="replace") as log:
        return log.read()
