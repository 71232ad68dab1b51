"""One attempt of a task at its slice: which Ray job answers it, found again or submitted, never two.

What is known of the job is kept in Airflow's task state store, which survives retries, clears, and the deaths
of workers and triggerers: written as an intent before the job is submitted and confirmed after, with the
hash of what was asked. A job of an earlier attempt is taken over when it was asked the same and goes on, or
has published; it is stopped when it was asked something else. When the slice is done the state is deleted.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayLLMJobError, RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.submit.ray_job import make_submission_id
from airflow_provider_raydatallm.task.job_cancel import OWNER_KEY, TaskAttempt
from airflow_provider_raydatallm.task.job_verdict import Finished, JobWatch
from airflow_provider_raydatallm.task.job_waiter import JobRef, TaskLog, owner_key

if TYPE_CHECKING:
    from airflow_provider_raydatallm.submit.ray_job import JobSubmission

STATE_KEY = "ray_llm_job"
#: How long a job that was told to stop may take: it has 30 s for its last rows.
_STOP_SECONDS = 60.0
#: A job that stops so soon after it was taken over was stopped on behalf of the attempt before.
_LATE_STOP_SECONDS = 60.0
#: Jobs that one attempt submits, when the cluster forgets them one after the other.
_MAX_SUBMISSIONS = 3


@dataclass(frozen=True)
class JobRecord:
    """What is kept of a job.

    :param asked: hash of the spec and its code.
    :param fingerprint: for people who read the state.
    :param try_number: of the attempt that waits for it.
    :param nth: how many jobs that attempt has submitted, with this one.
    """

    phase: Literal["intent", "submitted", "ended"]
    ray_conn_id: str
    submission_id: str
    nonce: str
    spec_hash: str
    fingerprint: str
    try_number: int
    submission_count: int = 1
    taken_over_at: float | None = None

    @classmethod
    def read(cls, state_store: Any) -> JobRecord | None:
        found = state_store.get(STATE_KEY) if state_store is not None else None
        known = {f.name for f in fields(cls)}
        try:
            # Another version of the provider may have written it.
            return cls(**{k: v for k, v in found.items() if k in known}) if found else None
        except TypeError:
            return None


class JobTracker:
    """
    :param waiting: how a job is waited for.
    :param ti: the task instance as it runs.
    :param state_store: `context["task_state_store"]`; without one nothing is found again.
    :param finish_by: epoch seconds at which the slice should be finished.
    """

    def __init__(
        self,
        waiting: JobRef,
        shipment: JobSubmission,
        ti: Any,
        state_store: Any,
        log: TaskLog,
        finish_by: float | None = None,
    ) -> None:
        self.shipment = shipment
        self._finish_by = finish_by
        self._waiting = waiting
        self._hook = RayHook(waiting.ray_conn_id)
        self.task = TaskAttempt.of(ti)
        self._ti = ti
        self._store = state_store
        self._log = log
        self._asked = _hash_of(shipment)
        self._state = JobRecord.read(state_store)

    @property
    def job(self) -> JobRef | None:
        """The job that this attempt waits for, if it has one."""
        state = self._state
        if state is None or state.phase == "ended":
            return None
        return replace(
            self._waiting,
            ray_conn_id=state.ray_conn_id,
            submission_id=state.submission_id,
            nonce=state.nonce,
        )

    def find(self) -> JobRef | None:
        """The unfinished job of an earlier attempt that does what this one wants, taken over; None when there
        is none."""
        state = self._state
        if state is None or state.phase == "ended":
            return None
        if not self._is_wanted(state):
            self.mark_ended()
            return None
        self._log.info("Found Ray job %s of an earlier attempt", state.submission_id)
        taken = replace(
            state,
            phase="submitted",
            try_number=self.task.try_number,
            submission_count=0,
            taken_over_at=time.time(),
        )
        self._save(taken)
        return self.job

    def _is_wanted(self, state: JobRecord) -> bool:
        hook = RayHook(state.ray_conn_id)
        self._push_owner(state.submission_id)
        try:
            info = hook.call(jobs_api.get_status(state.submission_id))
        except (RayConnectionError, RayUnreachableError) as e:
            if state.ray_conn_id == self._hook.ray_conn_id:
                raise
            # The task was moved to another cluster, and the one before may be no more.
            self._log.warning("Ray job %s is left to itself: %s", state.submission_id, e)
            return False
        if info is None:
            self._log.info("The cluster does not know Ray job %s any more", state.submission_id)
            return False
        if state.spec_hash != self._asked:
            self._log.info("Ray job %s was asked something else: it is stopped", state.submission_id)
            _stop_and_wait(hook, state.submission_id)
            return False
        if info.status not in jobs_api.TERMINAL:
            return True
        watch = JobWatch(state.nonce)
        watch.check_status(hook.call(jobs_api.read_log_tail(state.submission_id, info, 200)))
        return isinstance(watch.check(info.status), Finished)

    def submit(self) -> JobRef:
        """Submit a job.

        :raises RayConnectionError, RayClusterUnfitError, RayUnreachableError: before anything was started.
        """
        name = make_submission_id(self.shipment.metadata, str(self._ti.id))
        if self._state is not None and self._state.submission_id.startswith(name):
            # An id must never be used twice.
            name = f"{name}-{uuid.uuid4().hex[:6]}"
        state = JobRecord(
            phase="intent",
            ray_conn_id=self._hook.ray_conn_id,
            submission_id=name,
            nonce=uuid.uuid4().hex,
            spec_hash=self._asked,
            fingerprint=fingerprint(self.shipment.job),
            try_number=self.task.try_number,
            submission_count=self._submitted + 1,
        )
        self._save(state)
        self._push_owner(name)
        arguments = ["--name", name]
        if self._waiting.orphan_timeout is not None:
            self._hook.call(jobs_api.send_heartbeat(owner_key(name)))
            arguments += ["--owner", owner_key(name), "--orphan-timeout", f"{self._waiting.orphan_timeout:g}"]
        if self._finish_by is not None:
            arguments += ["--finish-by", f"{self._finish_by:.0f}"]
        self.shipment.submit(self._hook, "run", name, state.nonce, arguments)
        self._save(replace(state, phase="submitted"))
        self._log.info("Submitted Ray job %s: %s", name, self._hook.job_url(name))
        job = self.job
        assert job is not None
        return job

    def submit_status(self) -> JobRef:
        """Submit a job that looks into the store, which this machine may not be able to read."""
        nonce = uuid.uuid4().hex
        name = make_submission_id(self.shipment.metadata, f"status-{nonce[:12]}")
        self.shipment.submit(self._hook, "status", name, nonce)
        return replace(self._waiting, submission_id=name, nonce=nonce, orphan_timeout=None, deadline=None)

    def may_submit_again(self, *, stopped: bool) -> bool:
        """Whether a job that was lost is replaced within this attempt: one that the cluster forgot, or one
        that was stopped for the attempt before this one."""
        if self._submitted >= _MAX_SUBMISSIONS:
            return False
        taken_over = self._state.taken_over_at if self._state is not None else None
        return not stopped or (taken_over is not None and time.time() - taken_over < _LATE_STOP_SECONDS)

    @property
    def _submitted(self) -> int:
        """How many jobs this attempt has submitted, in whatever process."""
        state = self._state
        return state.submission_count if state is not None and state.try_number == self.task.try_number else 0

    def mark_ended(self) -> None:
        """The job is over without a published slice: no attempt waits for it again."""
        if self._state is not None:
            self._save(replace(self._state, phase="ended"))

    def clear(self) -> None:
        """The slice is done: nothing is left to find."""
        self._state = None
        if self._store is not None:
            self._store.delete(STATE_KEY)

    def _save(self, state: JobRecord) -> None:
        self._state = state
        if self._store is not None:
            self._store.set(STATE_KEY, asdict(state))

    def _push_owner(self, submission_id: str) -> None:
        self._ti.xcom_push(OWNER_KEY, self.task.owns_job(submission_id))


def _hash_of(shipment: JobSubmission) -> str:
    """What a job is asked: its spec, which holds the user's code's hash, and its environment, without what
    only lends it access."""
    asked = json.dumps(
        [shipment.job.model_dump(mode="json"), shipment.runtime_env], sort_keys=True, default=str
    )
    return hashlib.sha256(asked.encode()).hexdigest()[:32]


def _stop_and_wait(hook: RayHook, submission_id: str) -> None:
    hook.call(jobs_api.stop(submission_id))
    until = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < until:
        info = hook.call(jobs_api.get_status(submission_id))
        if info is None or info.status in jobs_api.TERMINAL:
            return
        time.sleep(1.0)
    raise RayLLMJobError(f"Ray job {submission_id} was told to stop and is still there: stop it by hand")
