"""Which attempt of a task a job belongs to, so that a stop that comes late hits nobody else's work.

Airflow does not order the end of one attempt before the start of the next: a trigger's `on_kill` may run when
the next attempt has found the job and waits for it, or when another triggerer has taken the trigger over.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_raydatallm.exceptions import RayLLMInputError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook

if TYPE_CHECKING:
    from airflow_provider_raydatallm.task.job_waiter import JobRef, TaskLog

#: XCom of the attempt that waits for a job: its number and the job's id.
OWNER_KEY = "ray_llm_job"


@dataclass(frozen=True)
class TaskAttempt:
    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    try_number: int

    @classmethod
    def of(cls, ti: Any) -> TaskAttempt:
        """:param ti: any of Airflow's task instances."""
        return cls(ti.dag_id, ti.task_id, ti.run_id, ti.map_index, ti.try_number)

    def owns_job(self, submission_id: str) -> dict[str, Any]:
        """What this attempt pushes to XCom before it looks at the job."""
        return {"submission_id": submission_id, "try_number": self.try_number}


def is_waited_for(
    submission_id: str, attempt: TaskAttempt, owner: Any, state: str | None, *, deferred: bool
) -> bool:
    """Whether somebody other than this attempt waits for the job now.

    :param owner: the task's XCom `OWNER_KEY`, None when there is none.
    :param state: the task's state, None when it has none or is gone.
    :param deferred: whether this attempt waited in a triggerer.
    """
    if deferred and state == "deferred":
        return True  # nobody did anything to the task: another triggerer has its trigger
    return (
        isinstance(owner, dict)
        and owner.get("submission_id") == submission_id
        and owner.get("try_number", 0) > attempt.try_number
    )


async def stop_own_job(
    ref: JobRef, attempt: TaskAttempt, log: TaskLog, *, deferred: bool, within: float
) -> None:
    """Ask a job to stop, unless somebody else waits for it.

    When Airflow or the cluster cannot be asked within so many seconds, the job is left: it ends by itself
    when nobody waits for it (`orphan_timeout`).
    """
    try:
        await asyncio.wait_for(_stop(ref, attempt, log, deferred), within)
    except (TimeoutError, AirflowRuntimeError, RayLLMJobError, RayLLMInputError) as e:
        log.warning(
            "Ray job %s could not be stopped (%s: %s); it ends by itself when nobody waits for it",
            ref.submission_id, type(e).__name__, e,
        )  # fmt: skip


async def _stop(ref: JobRef, attempt: TaskAttempt, log: TaskLog, deferred: bool) -> None:
    owner, state = await asyncio.to_thread(_ask_airflow, attempt)
    if is_waited_for(ref.submission_id, attempt, owner, state, deferred=deferred):
        log.info("Ray job %s goes on: it is waited for elsewhere", ref.submission_id)
        return
    log.info("Stopping Ray job %s", ref.submission_id)
    await RayHook(ref.ray_conn_id).acall(jobs_api.stop(ref.submission_id))


def _ask_airflow(attempt: TaskAttempt) -> tuple[Any, str | None]:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from airflow.sdk.execution_time.xcom import XCom

    where = asdict(attempt)
    where.pop("try_number")
    owner = XCom.get_one(key=OWNER_KEY, **where)
    states = RuntimeTaskInstance.get_task_states(
        dag_id=attempt.dag_id,
        task_ids=[attempt.task_id],
        run_ids=[attempt.run_id],
        map_index=attempt.map_index if attempt.map_index >= 0 else None,
    )
    return owner, next(iter((states.get(attempt.run_id) or {}).values()), None)
