"""Hears in Airflow's API server that a person marks a task, and has the task's Ray job stopped at once, also
while neither a worker nor a triggerer lives that would do it. (No listener hears of a clear.)

The person's request does not wait for that, and cannot fail by it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import threading
from importlib.util import find_spec
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

log = logging.getLogger(__name__)


class MarkListener:
    @hookimpl
    def on_task_instance_failed(self, previous_state: Any, task_instance: Any) -> None:
        _on_end(previous_state, task_instance)

    @hookimpl
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None:
        _on_end(previous_state, task_instance)

    @hookimpl
    def on_task_instance_skipped(self, previous_state: Any, task_instance: Any) -> None:
        _on_end(previous_state, task_instance)


class RayLLMPlugin(AirflowPlugin):
    name = "ray_llm"
    # In the API server only: wherever DAGs are parsed, any listener makes Airflow refuse tasks with
    # `end_from_trigger`. Before 3.3 Airflow keeps no state of tasks, which names their jobs.
    listeners = (
        [MarkListener()] if "airflow.api_fastapi.main" in sys.modules and find_spec("airflow.state") else []
    )


def _on_end(previous_state: Any, task_instance: Any) -> None:
    if previous_state is not None:
        return  # the task has ended by itself, or the scheduler gave it up
    try:
        from sqlalchemy import event
        from sqlalchemy.orm import object_session

        ti = task_instance
        attempt = (ti.dag_id, ti.task_id, ti.run_id, ti.map_index, ti.try_number)
        # The request may still fail: then the task runs on.
        event.listen(object_session(ti), "after_commit", lambda _: _stop_job(attempt), once=True)
    except Exception as e:
        _warn(task_instance, e)


def _stop_job(attempt: tuple[Any, ...]) -> None:
    try:
        asyncio.run_coroutine_threadsafe(_stop(attempt), _background())
    except Exception as e:
        _warn(attempt, e)


async def _stop(attempt: tuple[Any, ...]) -> None:
    try:
        from airflow_provider_raydatallm.plugins.marked_job import stop_marked_job
        from airflow_provider_raydatallm.task.job.cancel import TaskAttempt

        await stop_marked_job(TaskAttempt(*attempt))
    except Exception as e:
        _warn(attempt, e)


@functools.cache
def _background() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ray-llm-marks", daemon=True).start()
    return loop


def _warn(task: Any, error: Exception) -> None:
    log.warning(
        "Could not stop the Ray job, if any, of marked %s; it ends after its limits.orphan: %r", task, error
    )
