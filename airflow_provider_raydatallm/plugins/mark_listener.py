"""Hears in Airflow's API server that a person marks a task or a run, and has their Ray jobs stopped at once,
also while neither a worker nor a triggerer lives that would do it. (No listener hears of a clear.)

The person's request does not wait for that, and cannot fail by it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import astuple
from importlib.util import find_spec
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

log = logging.getLogger(__name__)

_Stop = Callable[..., Coroutine[Any, Any, None]]
#: Fields of the rows by which a run and an attempt are known.
_RUN = ("dag_id", "run_id")
_ATTEMPT = ("dag_id", "task_id", "run_id", "map_index", "try_number")


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

    # Of a run's tasks that wait for their next try, or for a worker, Airflow tells no listener.

    @hookimpl
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None:
        _after_commit(dag_run, _stop_jobs_of_run, _RUN)

    @hookimpl
    def on_dag_run_success(self, dag_run: Any, msg: str) -> None:
        _after_commit(dag_run, _stop_jobs_of_run, _RUN)


class RayLLMPlugin(AirflowPlugin):
    name = "ray_llm"
    # In the API server only: runs end by themselves in the scheduler, and wherever DAGs are parsed, any
    # listener makes Airflow refuse tasks with `end_from_trigger`. Before 3.3 Airflow keeps no state of tasks,
    # which names their jobs.
    listeners = (
        [MarkListener()] if "airflow.api_fastapi.main" in sys.modules and find_spec("airflow.state") else []
    )


def _on_end(previous_state: Any, task_instance: Any) -> None:
    # Where there is one, the task has ended by itself, or the scheduler gave it up.
    if previous_state is None:
        _after_commit(task_instance, _stop_job, _ATTEMPT)


def _after_commit(row: Any, stop: _Stop, names: tuple[str, ...]) -> None:
    """Has jobs stopped once the mark is in the database: the request may still fail, and the task runs on.

    :param names: of the row's fields that `stop` takes.
    """
    try:
        from sqlalchemy import event
        from sqlalchemy.orm import object_session

        ids = tuple(getattr(row, name) for name in names)
        event.listen(object_session(row), "after_commit", lambda _: _start(stop, ids), once=True)
    except Exception as e:
        _warn(row, e)


def _start(stop: _Stop, ids: tuple[Any, ...]) -> None:
    try:
        asyncio.run_coroutine_threadsafe(_log_errors(stop, ids), _background())
    except Exception as e:
        _warn(ids, e)


async def _log_errors(stop: _Stop, ids: tuple[Any, ...]) -> None:
    try:
        await stop(*ids)
    except Exception as e:
        _warn(ids, e)


async def _stop_job(*attempt: Any) -> None:
    from airflow_provider_raydatallm.plugins.marked_job import stop_marked_job
    from airflow_provider_raydatallm.task.job.cancel import TaskAttempt

    await stop_marked_job(TaskAttempt(*attempt))


async def _stop_jobs_of_run(dag_id: str, run_id: str) -> None:
    from airflow_provider_raydatallm.plugins.marked_job import unfinished_attempts

    for attempt in unfinished_attempts(dag_id, run_id):
        _start(_stop_job, astuple(attempt))


@functools.cache
def _background() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ray-llm-marks", daemon=True).start()
    return loop


def _warn(marked: Any, error: Exception) -> None:
    log.warning(
        "Could not stop the Ray job, if any, of marked %s; it ends after its limits.orphan: %r", marked, error
    )
