"""Bytecode of a job's processes, where a node keeps none: its imports would be compiled for each slice.

It lies in the folder into which Ray unpacked this code, and goes with it: whoever can write there can change
the code, too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

#: Python's variables: the folder, and that none is written.
BYTECODE_VARIABLES = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")
#: Packages that take long to import.
_LARGE = ("ray", "transformers", "vllm")
_kept: dict[str, str] = {}


def keep_bytecode() -> None:
    """Makes this process, and those it starts, keep bytecode. Changes nothing outside a job, where Python
    keeps it anyway, or where the job sets one of Python's variables."""
    package = next((p for p in Path(__file__).parents if p.name.startswith("_ray_pkg_")), None)
    if package is None or sys.pycache_prefix or _is_set_by_job() or not any(map(_is_lost, _LARGE)):
        return
    sys.pycache_prefix, sys.dont_write_bytecode = str(package / ".bytecode"), False
    _kept.update(zip(BYTECODE_VARIABLES, (sys.pycache_prefix, ""), strict=True))
    os.environ |= _kept


def bytecode_variables() -> dict[str, str]:
    """Returns what makes the job's other processes keep it, too."""
    return dict(_kept)


def _is_set_by_job() -> bool:
    config = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    env_vars = (config.get("runtime_env") or {}).get("env_vars") or {}
    return not env_vars.keys().isdisjoint(BYTECODE_VARIABLES)


def _is_lost(name: str) -> bool:
    """Whether a package has no bytecode, and Python keeps none of it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or os.path.exists(importlib.util.cache_from_source(spec.origin)):
        return False
    return sys.dont_write_bytecode or not os.access(os.path.dirname(spec.origin), os.W_OK)
