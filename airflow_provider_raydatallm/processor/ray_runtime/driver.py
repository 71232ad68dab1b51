"""The driver process of a job: its connection to Ray, SIGTERM, and the logs of the job's other processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from types import FrameType
from typing import Any

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.processor.ray_runtime.bounded_calls import call_within
from airflow_provider_raydatallm.processor.ray_runtime.bytecode import bytecode_variables

#: Last lines of a dead process's output that may hold its reason, and seconds for one request.
_LOG_LINES = {"out": 1000, "err": 20}
_LOG_TIMEOUT_S = 60
#: Seconds before each try: a busy node may not answer at once, and only failed runs read logs.
_LOG_BACKOFF_S = (0, 1, 2, 4, 8)
#: Seconds for all of it: Ray's requests for a log's text have no limit.
_LOGS_TIMEOUT_S = 180
#: Lines by which Ray knows whose output follows.
_OF_RAY = re.compile(r"^:(?:job_id|actor_name|task_name):.*\n?", re.MULTILINE)
#: Instead of a job's id, in names of logs.
_NO_JOB = "ffffffff"

_connecting = threading.Lock()


class StopRequested(BaseException):
    """The process received SIGTERM."""

    failure = Failure(
        "stopped",
        "the job was told to stop: its task, or its run, was marked or cleared, or somebody else, or its "
        "cluster, stopped it",
    )


def stop_on_sigterm() -> None:
    """Raises `StopRequested` in the main thread at the first SIGTERM; ignores later ones."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise StopRequested


def connect_to_ray() -> None:
    """Connects this process to its cluster, once."""
    import ray

    with _connecting:
        if not ray.is_initialized():
            ray.init(logging_level="warning", runtime_env=_own_environment())
            # Ray's state API would search for a cluster, and could find another on this machine.
            os.environ.setdefault("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
            stop_on_sigterm()  # Ray installs its own handler


def _own_environment() -> dict[str, Any]:
    """The `runtime_env` by which workers keep bytecode as this process does, and find what it can import. A
    submitted job's finds that by itself."""
    env_vars = bytecode_variables()
    path = os.environ.get("PYTHONPATH")
    if path and "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:
        folders = (os.path.abspath(folder) for folder in path.split(os.pathsep) if folder)
        env_vars["PYTHONPATH"] = os.pathsep.join(folders)
    return {"env_vars": env_vars} if env_vars else {}


def process_log(**process: Any) -> str:
    """Returns the last lines that an actor (`actor_id`) or process (`node_id`, `pid`) of this job printed,
    those of its standard error last; "" if they cannot be read."""
    with contextlib.suppress(TimeoutError):
        return call_within(_LOGS_TIMEOUT_S, lambda: _read_log(**process))
    return ""


def _read_log(**process: Any) -> str:
    for seconds in _LOG_BACKOFF_S:
        time.sleep(seconds)
        if output := _read_stream("out", **process):
            return _OF_RAY.sub("", "\n".join([output.rstrip("\n"), _read_stream("err", **process)]))
    return ""


def _read_stream(suffix: str, **process: Any) -> str:
    from ray.util.state import get_log

    options: dict[str, Any] = {"tail": _LOG_LINES[suffix], "timeout": _LOG_TIMEOUT_S, "errors": "replace"}
    for place in (lambda: {**process, "suffix": suffix}, lambda: _moved_log(suffix, **process)):
        # The failure that is being reported matters more.
        with contextlib.suppress(Exception):
            if text := "".join(get_log(**place(), **options)):
                return text
    return ""


def _moved_log(suffix: str, **process: Any) -> dict[str, str]:
    """The node and file of a dead process's log that Ray moved: it does so on nodes with over 200 logs, and
    does not find them by their process any more."""
    import ray
    from ray.util.state import get_actor, list_logs

    if "actor_id" in process:
        actor = get_actor(process["actor_id"])
        process = {"node_id": actor.node_id, "pid": actor.pid}
    node_id = process["node_id"]
    # A process that Ray started before any job needed it has another name.
    for job in (ray.get_runtime_context().get_job_id(), _NO_JOB):
        pattern = f"old/worker-*-{job}-{process['pid']}.{suffix}"
        files = list_logs(node_id=node_id, glob_filter=pattern, timeout=_LOG_TIMEOUT_S)
        if names := [name for group in files.values() for name in group]:
            return {"node_id": node_id, "filename": names[0]}
    raise FileNotFoundError(f"log of process {process['pid']}")
