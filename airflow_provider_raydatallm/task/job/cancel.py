"""Asks Airflow whether an attempt still waits for its job, and stops the job when nobody does.

Airflow does not order the end of one attempt before the start of the next: a trigger's `on_kill` may run
after the next attempt has found the job, or after another triggerer has taken over the trigger.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_raydatallm.exceptions import RayLLMInputError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task import own_xcom
from airflow_provider_raydatallm.task.queue.places import task_key

if TYPE_CHECKING:
    from airflow_provider_raydatallm.task.job.waiter import JobRef, TaskLog

logger = logging.getLogger(__name__)

#: That one question about tasks may name: they stand in an address.
_MOST_RUNS = 100
#: Between two tries to stop a job.
_AGAIN_SECONDS = 0.5
#: States of a task that last.
ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
#: XCom of the attempt that waits for a job: the attempt's number and the job's id.
OWNER_KEY = "ray_llm_job"


@dataclass(frozen=True)
class TaskAttempt:
    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    try_number: int

    @classmethod
    def from_task_instance(cls, ti: Any) -> TaskAttempt:
        return cls(ti.dag_id, ti.task_id, ti.run_id, ti.map_index, ti.try_number)

    @property
    def task(self) -> dict[str, Any]:
        """What all tries of a task have in common, by the names that Airflow's own functions take."""
        return {name: value for name, value in asdict(self).items() if name != "try_number"}

    def is_of(self, metadata: Mapping[str, str]) -> bool:
        """Whether a job is of this task, whichever of its tries."""
        return task_key(metadata) == task_key(asdict(self))

    def owner_record(self, submission_id: str) -> dict[str, Any]:
        """The value of `OWNER_KEY`; pushed before this attempt asks the cluster about the job."""
        return {"submission_id": submission_id, "try_number": self.try_number}


def has_other_waiter(
    submission_id: str, attempt: TaskAttempt, owner: Any, state: str | None, *, deferred: bool
) -> bool:
    """Whether another attempt or triggerer waits for the job now.

    :param owner: the task's XCom `OWNER_KEY`, if any.
    :param state: the task's state; None when it has none or was deleted.
    :param deferred: whether this attempt waited in a triggerer.
    """
    if deferred and state == "deferred":
        return True  # the task was not touched: another triggerer has its trigger
    return (
        isinstance(owner, dict)
        and owner.get("submission_id") == submission_id
        and owner.get("try_number", 0) > attempt.try_number
    )


async def still_waits(
    submission_id: str, attempt: TaskAttempt, is_recorded: Callable[[], bool] | None = None
) -> bool:
    """Whether Airflow still wants this attempt to wait for the job: not when the task was marked, cleared or
    given up, or its run deleted, while this process, or its machine, hung.

    The owner's record may be gone: people and clean-up jobs delete XComs. Then the task's state decides: one
    that is deferred has no other attempt that runs; for one that runs, its own record does.

    :param is_recorded: of an attempt that waits on its worker: whether Airflow keeps a record of the job for
        this attempt (`JobTracker.is_recorded`).
    """
    from airflow.sdk.execution_time import task_runner

    if not hasattr(task_runner, "SUPERVISOR_COMMS"):
        return True  # an operator that is run by hand: Airflow does not know of it
    owner, state = await asyncio.to_thread(_read_owner_and_state, attempt)
    if isinstance(owner, dict):
        return state in ("running", "deferred") and owner == attempt.owner_record(submission_id)
    if is_recorded is None:
        return state == "deferred"
    return state == "running" and await asyncio.to_thread(is_recorded)


def has_ended(attempt: TaskAttempt) -> bool:
    """Whether Airflow says that the task is over, or a person did; not of one whose run was deleted.

    :raises AirflowRuntimeError: when Airflow cannot be asked.
    """
    return _read_owner_and_state(attempt)[1] in ENDED


def find_ended(tasks: Collection[str]) -> list[str]:
    """Returns those of other tasks that Airflow says are over; none where it cannot be asked, nor of a run
    that was deleted.

    :param tasks: their `task_key`s.
    """
    from airflow.sdk.execution_time import task_runner

    if not hasattr(task_runner, "SUPERVISOR_COMMS"):
        return []  # an operator that is run by hand: Airflow does not know of it
    asked: dict[tuple[str, str], dict[tuple[str, int], str]] = defaultdict(dict)
    for task in tasks:
        with contextlib.suppress(ValueError):  # what nobody of ours has written
            dag_id, _, rest = task.partition("/")
            run_id, task_id, index = rest.rsplit("/", 2)
            asked[dag_id, task_id][run_id, int(index)] = task
    ended: list[str] = []
    for (dag_id, task_id), instances in asked.items():
        found = list(instances.items())
        for begin in range(0, len(found), _MOST_RUNS):
            ended += _ended_of(dag_id, task_id, dict(found[begin : begin + _MOST_RUNS]))
    return ended


def _ended_of(dag_id: str, task_id: str, instances: Mapping[tuple[str, int], str]) -> Iterator[str]:
    """One task by itself: in an answer about several, the name of a mapped one's instance may be another's.

    :param instances: by run and map index.
    """
    from airflow.sdk.execution_time import task_runner

    try:
        states = task_runner.RuntimeTaskInstance.get_task_states(
            dag_id=dag_id, run_ids=sorted({run_id for run_id, _ in instances}), task_ids=[task_id]
        )
    except AirflowRuntimeError as e:
        logger.warning("Cannot ask Airflow which tasks of %s have ended; their holds stay: %s", dag_id, e)
        return
    for (run_id, map_index), task in instances.items():
        name = task_id if map_index < 0 else f"{task_id}_{map_index}"
        state = (states.get(run_id) or {}).get(name)
        if getattr(state, "value", state) in ENDED:
            yield task


async def stop_own_job(
    ref: JobRef, attempt: TaskAttempt, log: TaskLog, hook: RayHook, *, deferred: bool, timeout_s: float
) -> None:
    """Asks a job to stop, unless another attempt or triggerer waits for it.

    Tries again for `timeout_s` while Airflow, the connection or the cluster does not answer. Then the job is
    left to its `limits.orphan`.

    :param hook: to the job's cluster; it starts no embedded Ray if the job is on one.
    """
    try:
        await keep_trying(lambda: _stop(ref, attempt, log, hook, deferred), hook, timeout_s)
    except (TimeoutError, AirflowRuntimeError, RayLLMJobError, RayLLMInputError) as e:
        log.warning(
            "Could not stop Ray job %s (%s: %s); it ends after its limits.orphan",
            ref.submission_id, type(e).__name__, e,
        )  # fmt: skip


async def keep_trying(stop: Callable[[], Awaitable[None]], hook: RayHook, timeout_s: float) -> None:
    """Stops a job; tries again while Airflow, the connection or the cluster does not answer.

    :param hook: that `stop` uses.
    :raises Exception: the last error, when `timeout_s` have passed.
    """
    error: Exception = TimeoutError()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await stop()
                except (AirflowRuntimeError, RayLLMJobError) as e:
                    error = e
                await asyncio.sleep(_AGAIN_SECONDS)
                hook.reread()
    raise error


async def _stop(ref: JobRef, attempt: TaskAttempt, log: TaskLog, hook: RayHook, deferred: bool) -> None:
    owner, state = await asyncio.to_thread(_read_owner_and_state, attempt)
    if has_other_waiter(ref.submission_id, attempt, owner, state, deferred=deferred):
        log.info("Leaving Ray job %s running; another attempt is waiting for it.", ref.submission_id)
        return
    log.info("Stopping Ray job %s", ref.submission_id)
    await hook.acall(jobs_api.stop(ref.submission_id))


def _read_owner_and_state(attempt: TaskAttempt) -> tuple[Any, str | None]:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    owner = own_xcom.pull(attempt, OWNER_KEY)
    states = RuntimeTaskInstance.get_task_states(
        dag_id=attempt.dag_id,
        task_ids=[attempt.task_id],
        run_ids=[attempt.run_id],
        map_index=attempt.map_index if attempt.map_index >= 0 else None,
    )
    return owner, next(iter((states.get(attempt.run_id) or {}).values()), None)
