"""How this process came to be: the time before its first line, as Linux and Ray know it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

#: What Ray hands a job's process of the job itself.
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_ASK_SECONDS = 10


def process_seconds() -> float:
    """For how long this process has been there."""
    # The fields after the name, which may hold anything; the 22nd of all is when it began.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def environment_seconds() -> float | None:
    """From the submission of this process's job to the process's start, in which Ray has its environment made
    (`runtime_env`, shipped code); None where it is no job, or that cannot be told."""
    from ray.util.state import get_job

    began = time.time() - process_seconds()
    try:
        submission_id = json.loads(os.environ[_JOB])["metadata"]["job_submission_id"]
        submitted = get_job(submission_id, timeout=_ASK_SECONDS).start_time / 1000
    except Exception:  # no job of the Jobs API's, or no dashboard to ask
        return None
    return float(max(began - submitted, 0.0))
