"""Reads what parts of vLLM's start took from its log.

vLLM (0.26 to 0.29) has no API for it: load and warm-up times are local variables that it only logs, and the
compile time stays in the engine's process (`compilation_config.compilation_time`), which tells its sizes to
the worker's process, but not this. Code of ours in vLLM's own processes (`worker_extension_cls`) could read
that one number and not the others, and would take the place of a user's own extension. If the log's words
change, the report lacks these parts, and nothing else happens.
"""

from __future__ import annotations

import os
import re
import stat

#: Time to load the model, with the processing of its weights where vLLM reports that; a line per process.
_LOAD = re.compile(r"(?:Model loading took \S+ GiB(?: memory)? and|Loading weights took) ([\d.]+) seconds")
_INIT = re.compile(r"init engine \([^)]*\) took ([\d.]+) s\w*(?: \(compilation: ([\d.]+) s)?")
_STDOUT = 1


def parse_startup_seconds(log: str) -> dict[str, float]:
    """Seconds by `load`, `compile` and `warm_up` (profiling, the cache, CUDA graphs), as far as a log has
    them; of the slowest process, where data-parallel ranks start at once."""
    seconds = {}
    if loads := [float(load) for load in _LOAD.findall(log)]:
        seconds["load"] = max(loads)
    if inits := _INIT.findall(log):
        # The log leaves out a compilation of zero.
        total, compilation = max((float(total), float(compilation or 0)) for total, compilation in inits)
        seconds |= {"compile": compilation, "warm_up": total - compilation}
    return seconds


def read_process_log() -> str:
    """What this process and its children wrote to stdout, which Ray redirects to a file; "" elsewhere."""
    if not stat.S_ISREG(os.fstat(_STDOUT).st_mode):
        return ""
    with open(f"/proc/self/fd/{_STDOUT}", errors="replace") as log:
        return log.read()
