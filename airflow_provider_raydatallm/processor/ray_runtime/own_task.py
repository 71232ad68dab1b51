"""Which job this process is, and which Airflow task submitted it, by the job's metadata."""

from __future__ import annotations

import json
import os

#: By which Ray tells a driver its job's metadata.
CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def own_metadata() -> dict[str, str]:
    """Returns the metadata of this process's job; {} where it is none."""
    return json.loads(os.environ.get(CONFIG, "{}")).get("metadata") or {}


def own_job() -> str | None:
    """Returns the id of this process's job; None where it is none."""
    return own_metadata().get("job_submission_id")


def own_task() -> dict[str, str] | None:
    """Returns the task's DAG and name; None where no task submitted this process."""
    metadata = own_metadata()
    dag_id, task_id = metadata.get("dag_id"), metadata.get("task_id")
    return {"dag_id": dag_id, "task_id": task_id} if dag_id and task_id else None
