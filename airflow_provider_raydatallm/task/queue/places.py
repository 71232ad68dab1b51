"""A task submits its job only while few jobs wait for room on the cluster: each that does is a process on the
Ray head. The others hold their submission: on their worker (`gate`), or, deferred, in the
triggerer (`line`). A task that holds has submitted nothing: whatever kills it, nothing is lost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_raydatallm.contract.job.phase import BEHIND, PHASE, WAITING
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.exceptions import (
    RayLLMInputError,
    RayLLMJobError,
    RayQueueTimeoutError,
    error_of,
    failure_of,
)
from airflow_provider_raydatallm.hooks.jobs_api import LiveJobs
from airflow_provider_raydatallm.task.job.log_entries import clean
from airflow_provider_raydatallm.task.job.waiter import TaskLog

#: Between two looks at the cluster's jobs, and how many times the seconds that a look took it.
_LOOK_SECONDS, _LOOK_COSTS = 10.0, 10
#: Between two lines in a task's log.
_LOG_SECONDS, _WARNING_SECONDS = 60.0, 30.0


@dataclass(frozen=True)
class QueuePlace:
    """A task that is to submit a job. Holds only JSON values: Airflow stores it with the trigger.

    :param task: its `task_key`.
    :param since: epoch seconds at which it came.
    :param queue_timeout: seconds from then until it fails.
    :param deadline: epoch seconds at which the attempt's execution_timeout passes.
    :param reconnect_timeout: seconds for which the cluster may be away.
    :param cluster: identity of the cluster that the job is for, once it was acquired.
    """

    ray_conn_id: str
    task: str
    since: float
    queue_timeout: float
    deadline: float | None
    reconnect_timeout: float
    cluster: str = ""

    @classmethod
    def from_kwargs(cls, kwargs: Any) -> QueuePlace | None:
        """Returns None for what another version of the provider has kept: the task comes anew."""
        try:
            return cls(**kwargs)
        except TypeError:
            return None

    @property
    def waited_s(self) -> float:
        return max(time.time() - self.since, 0.0)

    def seconds_left(self, waits_for: str) -> float:
        """
        :param waits_for: what, for people: "3 jobs wait for room on the cluster".
        :raises RayQueueTimeoutError, AirflowTaskTimeout: when there are none.
        """
        if self.deadline is not None and time.time() >= self.deadline:
            raise AirflowTaskTimeout("execution_timeout has passed while the task waited to submit its job")
        if self.waited_s >= self.queue_timeout:
            raise RayQueueTimeoutError(
                f"the job could not be submitted within limits.queue: waited {self.waited_s:,.0f} s, and in "
                f"the end {waits_for}",
                advice=(
                    "Nothing was started",
                    "Raise limits.queue, add nodes, or lower the number of concurrent runs (max_active_runs, "
                    "a pool)",
                ),
            )
        left = self.queue_timeout - self.waited_s
        return left if self.deadline is None else min(left, self.deadline - time.time())


@dataclass(frozen=True)
class Turn:
    """What a task is called with.

    :param behind: tasks that stood behind it in line.
    """

    place: QueuePlace
    behind: int = 0

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Turn | None:
        """Returns None for what another version of the provider has kept: the task comes anew."""
        place = QueuePlace.from_kwargs(event.get("place"))
        if place is None:
            return None
        # What has passed since is not the cluster's: the DAG may be paused, or have no slot for its task.
        waited_s = float(event.get("waited_s", place.waited_s))
        return cls(replace(place, since=time.time() - waited_s), int(event.get("behind", 0)))

    def to_event(self) -> dict[str, Any]:
        return {"place": asdict(self.place), "waited_s": self.place.waited_s, "behind": self.behind}


def max_waiting_jobs() -> int:
    return max(1, int(conf.getint("ray_llm", "max_waiting_jobs", fallback=8)))


def task_key(metadata: Mapping[str, str]) -> str:
    """The task instance that a job is of, whichever of its tries."""
    return "/".join(str(metadata.get(name, "")) for name in ("dag_id", "run_id", "task_id", "map_index"))


def dag_of(task: str) -> str:
    """:param task: its `task_key`."""
    return task.partition("/")[0]


def count_waiting(jobs: LiveJobs) -> int:
    return sum(metadata.get(PHASE) == WAITING for metadata in jobs.metadata)


def count_in_line(jobs: LiveJobs) -> int:
    """Returns how many tasks stood in line when the newest of the jobs that wait was submitted: a line forms,
    and ends, only while jobs wait."""
    waiting = [metadata for metadata in jobs.metadata if metadata.get(PHASE) == WAITING]
    behind = waiting[-1].get(BEHIND, "0") if waiting else "0"
    return int(behind) if behind.isdecimal() else 0


def jobs_text(waiting: int) -> str:
    return f"{waiting} jobs wait for room on the cluster (max_waiting_jobs is {max_waiting_jobs()})"


def seconds_between_looks(last_look_s: float) -> float:
    """A cluster that has run thousands of jobs takes long to list them: ask it the less often."""
    return max(_LOOK_SECONDS, _LOOK_COSTS * last_look_s)


class QueueLog:
    """Tells a task's log what its submission waits for: when that changes, and once a minute at most."""

    def __init__(self, log: TaskLog) -> None:
        self._log = log
        #: What it waits for now.
        self.waits_for = "the task waited for a look at the cluster's jobs"
        self._last_text = ""
        self._last_time = self._last_warning = -float("inf")

    def waiting(self, waits_for: str) -> None:
        self.waits_for = waits_for
        now = time.monotonic()
        if waits_for != self._last_text and now - self._last_time >= _LOG_SECONDS:
            self._log.info("Waiting to submit the job: %s", waits_for)
            self._last_text, self._last_time = waits_for, now

    def unlisted(self, refusal: str) -> None:
        self._log.warning(
            "The cluster does not let this task list its jobs, so the task submits its own without regard to "
            "max_waiting_jobs: %s",
            clean(refusal),
        )

    def unreachable(self, error: Exception) -> None:
        self.waits_for = f"the cluster could not be asked for its jobs: {clean(failure_of(error).headline)}"
        if time.monotonic() - self._last_warning >= _WARNING_SECONDS:
            self._log.warning("Waiting for the cluster: %s", clean(str(error)))
            self._last_warning = time.monotonic()


#: What may end the waiting.
QUEUE_ERRORS = (AirflowTaskTimeout, RayLLMInputError, RayLLMJobError)


def error_event(error: BaseException, place: QueuePlace) -> dict[str, Any]:
    """Returns as JSON, which a trigger hands to its task, why it does not get its turn."""
    return {**Turn(place).to_event(), "failure": failure_of(error).to_json()}


def raise_error_of(event: Mapping[str, Any]) -> None:
    if "failure" in event:
        raise error_of(Failure.parse(event["failure"], clean))
