"""Time before this process's first line of Python, from Linux and Ray."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

#: Variable with the job's metadata, set by Ray in the job's process.
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_TIMEOUT_S = 10


def process_seconds() -> float:
    """Returns the age of this process."""
    # The name may hold any character, so fields count from its end; the 22nd of all is the start time.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def environment_seconds() -> float | None:
    """Returns seconds from the job's submission to the start of this process, in which Ray builds the
    environment (`runtime_env`, shipped code); None outside a job, or when Ray does not answer."""
    from ray.util.state import get_job

    began = time.time() - process_seconds()
    try:
        submission_id = json.loads(os.environ[_JOB_CONFIG])["metadata"]["job_submission_id"]
        submitted = get_job(submission_id, timeout=_TIMEOUT_S).start_time / 1000
    except Exception:  # not a job of the Jobs API, or no dashboard
        return None
    return float(max(began - submitted, 0.0))
