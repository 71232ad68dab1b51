"""What vLLM tells of its start. It does so in its log and nowhere else: the times stay in its own process."""

from __future__ import annotations

import os
import re
import stat

#: Of the model with all that is done to its weights, where that is told; by each process that has a part.
_LOAD = re.compile(r"(?:Model loading took \S+ GiB memory and|Loading weights took) ([\d.]+) seconds")
_INIT = re.compile(r"init engine \([^)]*\) took ([\d.]+) s\w*(?: \(compilation: ([\d.]+) s)?")
_STDOUT = 1


def startup_seconds(log: str) -> dict[str, float]:
    """Seconds by `load`, `compile` and `warm_up` (profiling, the cache, CUDA graphs), as far as they stand in
    a log."""
    told = {}
    if loads := [float(seconds) for seconds in _LOAD.findall(log)]:
        told["load"] = max(loads)
    if inits := _INIT.findall(log):
        whole, compiling = inits[-1]
        told["compile"] = float(compiling or 0)  # left out where there was none
        told["warm_up"] = float(whole) - told["compile"]
    return told


def process_log() -> str:
    """What this process and its children wrote to stdout, which Ray keeps in a file; "" elsewhere."""
    if not stat.S_ISREG(os.fstat(_STDOUT).st_mode):
        return ""
    with open(f"/proc/self/fd/{_STDOUT}", errors="replace") as log:
        return log.read()
