"""Says in the job's own metadata that it no longer waits for room, so that a task may submit the next one.

Ray has no call for that. It keeps a job's metadata in the record that its Jobs API lists, a JSON object in
the cluster's key-value store, which Ray itself rewrites only when a job starts and ends.
"""

from __future__ import annotations

import json
import logging
import os
import threading

from airflow_provider_raydatallm.contract.job.phase import ADMITTED, PHASE, WAITING
from airflow_provider_raydatallm.processor.ray_runtime.driver import connect_to_ray
from airflow_provider_raydatallm.processor.ray_runtime.own_task import CONFIG

logger = logging.getLogger(__name__)

_RECORD, _NAMESPACE = "_ray_internal_job_info_", b"job"

_said = threading.Event()


def say_admitted() -> None:
    """Does nothing where a task did not submit this process, and after the first call."""
    if _said.is_set() or CONFIG not in os.environ:
        return
    _said.set()
    try:
        _update_record(json.loads(os.environ[CONFIG])["metadata"]["job_submission_id"])
    except Exception as e:  # the slice matters more
        logger.warning(
            "the cluster does not know that this job has had its turn, so that it counts among the "
            "max_waiting_jobs until it ends: %s: %s",
            type(e).__name__,
            e,
        )


def _update_record(submission_id: str) -> None:
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

    connect_to_ray()
    key = f"{_RECORD}{submission_id}".encode()
    record = json.loads(_internal_kv_get(key, namespace=_NAMESPACE) or b"{}")
    metadata = record.get("metadata") or {}
    if record.get("status") == "RUNNING" and metadata.get(PHASE) == WAITING:
        metadata[PHASE] = ADMITTED
        _internal_kv_put(key, json.dumps(record).encode(), namespace=_NAMESPACE)
