"""What Airflow lacks before 3.3, all in one place. Nothing here asks for a version: a feature is there or
not.

The task state store is not among these: a context without it has none.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from airflow.sdk import exceptions
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessor
from airflow.triggers.base import BaseTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

#: A task can set the partition of its assets' events.
HAS_EVENT_PARTITIONS = hasattr(OutletEventAccessor, "add_partitions")
#: A trigger is told when a person clears or marks its task. Before, it is cancelled, as when its triggerer
#: ends.
HAS_TRIGGER_ON_KILL = hasattr(BaseTrigger, "on_kill")
#: By it a task waits for a person without a trigger.
_AWAITING_INPUT: Any = getattr(exceptions, "TaskAwaitingInput", None)
#: What ends a task's process, and is no failure.
NO_FAILURES: tuple[type[BaseException], ...] = (
    AirflowSkipException,
    TaskDeferred,
    *filter(None, [_AWAITING_INPUT]),
)


def await_input(
    *,
    ti_id: UUID,
    options: list[str],
    params: dict[str, Any],
    defaults: list[str] | None,
    timeout: timedelta | None,
    method_name: str,
    kwargs: dict[str, Any],
) -> NoReturn:
    """Ends the task's process until a person has chosen one of the options.

    :param defaults: what counts as chosen after `timeout`.
    :param method_name: of the operator, which is called then, with `kwargs` and the event.
    """
    if _AWAITING_INPUT is not None:
        raise _AWAITING_INPUT(method_name=method_name, kwargs=kwargs, timeout=timeout)
    from airflow.providers.standard.triggers.hitl import HITLTrigger
    from airflow.sdk.timezone import utcnow

    until = None if timeout is None else utcnow() + timeout
    trigger = HITLTrigger(
        ti_id=ti_id, options=options, params=params, defaults=defaults, timeout_datetime=until
    )
    raise TaskDeferred(trigger=trigger, method_name=method_name, kwargs=kwargs)


def runs_inline() -> bool:
    """Returns whether `dag.test()`, `airflow dags test` or `airflow tasks test` runs the task.

    They run a deferred task's trigger themselves. A triggerer on the same database runs it too, finds that
    the task is not deferred any more, and stops the job, as it does for a task that somebody cleared.
    """
    from airflow.sdk.execution_time import supervisor, task_runner  # slow, and there when a task runs

    return isinstance(getattr(task_runner, "SUPERVISOR_COMMS", None), supervisor.InProcessSupervisorComms)


def is_test_run(context: Context) -> bool:
    """Returns whether `dag.test()` or `airflow dags test` made the run, which stays when they end. A task is
    not told by what its run was triggered, but by whom."""
    return getattr(context["dag_run"], "triggering_user_name", None) == "dag_test"


def partition_key(context: Context) -> str | None:
    """Returns the partition of a run, which the context itself has from 3.3 on only."""
    run: Any = context["dag_run"]
    return getattr(run, "partition_key", None)


def partition_date(context: Context) -> datetime | None:
    """Returns the date that Airflow wrote as the run's partition key; None for a key that is no date.

    Before 3.3 a task is not told: it is computed as the scheduler does for the schedule's runs and backfills.
    """
    run: Any = context["dag_run"]
    if partition_key(context) is None or hasattr(run, "partition_date"):
        return getattr(run, "partition_date", None)
    from airflow.serialization.encoders import coerce_to_core_timetable

    compute = getattr(coerce_to_core_timetable(context["dag"].timetable), "_get_partition_date", None)
    return None if compute is None else compute(run_date=run.run_after)
