"""Finds or submits the Ray job of a task's slice, so that never two of them run.

The job's record (`record`) is written as an intent before the job is submitted, and confirmed after. An
earlier attempt's job is taken over when its configuration is the same and it runs or has published; it is
stopped when its configuration differs. When the slice is finished, the record keeps the task's result: an
attempt that dies before Airflow takes note of it has not lost it.

Where Airflow keeps no state, or has lost it, the jobs that the cluster lists tell by their metadata which one
is the task's. An attempt that was thought dead and wakes up leaves record and cluster to the newer one.

Before a job is submitted to another cluster than the one before, that one is stopped. If its cluster cannot
be reached, the record keeps it: the task stops it at its end, or its next try does.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from airflow_provider_raydatallm.clusters.base import (
    ClusterEndedError,
    ClusterStartingError,
    Holder,
    Order,
)
from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayConnectionNotFoundError,
    RayLLMInputError,
    RayLLMJobError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.lookup import patience
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.submit.ray_job import make_submission_id
from airflow_provider_raydatallm.task import own_xcom
from airflow_provider_raydatallm.task.airflow_features import NO_FAILURES
from airflow_provider_raydatallm.task.job.cancel import OWNER_KEY, TaskAttempt, find_ended
from airflow_provider_raydatallm.task.job.left_jobs import stop_and_wait, stop_left_jobs
from airflow_provider_raydatallm.task.job.record import (
    SERIES,
    STATE_KEY,
    JobRecord,
    LeftJob,
    find_listed_job,
    hash_of,
)
from airflow_provider_raydatallm.task.job.sending import send_job
from airflow_provider_raydatallm.task.job.verdict import Finished, JobWatch
from airflow_provider_raydatallm.task.job.waiter import JobRef, TaskLog
from airflow_provider_raydatallm.task.queue.places import QueuePlace, Turn, task_key

if TYPE_CHECKING:
    from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
    from airflow_provider_raydatallm.submit.ray_job import JobSubmission

T = TypeVar("T")

#: A job that stops this soon after takeover was stopped by the previous attempt.
_LATE_STOP_SECONDS = 60.0
#: Jobs that one attempt submits at most, when the cluster loses them.
_MAX_SUBMISSIONS = 3
#: Between two lines in the log about a cluster that is away.
_WARNING_SECONDS = 30.0


class JobTracker:
    """
    :param wait_options: how to wait for a job; without the job's ids.
    :param build_submission: what a job would be; needs connections that only submitting needs.
    :param ti: the running task instance.
    :param state_store: `context["task_state_store"]`, if this Airflow has one.
    :param commits_alone: whether a job publishes while no task waits for it.
    :param record: of the job that this attempt waited for in the triggerer.
    :param order: says what cluster is to be made for the task, if one is.
    """

    def __init__(
        self,
        wait_options: JobRef,
        build_submission: Callable[[], JobSubmission],
        ti: Any,
        state_store: Any,
        log: TaskLog,
        commits_alone: bool = False,
        record: JobRecord | None = None,
        order: Callable[[], Order | None] = lambda: None,
    ) -> None:
        self._build_submission = build_submission
        self.task = TaskAttempt.from_task_instance(ti)
        self._wait_options = wait_options
        self._commits_alone, self._order = commits_alone, order
        self._holder = Holder(task_key(asdict(self.task)), self.task.try_number)
        #: To the cluster that a job of this attempt is submitted to.
        self.hook = RayHook(wait_options.ray_conn_id, self._holder, order)
        #: To clusters that records name, by their identities.
        self._hooks: dict[str, RayHook] = {}
        self._ti = ti
        self._store = state_store
        self._log = log
        stored = self._read_store() if record is None else None
        self._record = record or JobRecord.from_json(stored)
        #: Whether the store names no job, but holds something.
        self._is_unreadable = self._record is None and stored is not None
        #: Identities of clusters that the task may hold, beside that of `hook`.
        self._held = {job.cluster} if (job := self.job) is not None else set()
        #: Id of a job that had ended when `find_job` found it.
        self.ended_job: str | None = None

    @cached_property
    def submission(self) -> JobSubmission:
        return self.keep_trying(self._build_submission)

    @property
    def ended_run(self) -> str | None:
        """Id of this attempt's job, if it ended without a published slice."""
        record = self._record
        return record.submission_id if record is not None and record.phase == "ended" else None

    @cached_property
    def _spec_hash(self) -> str:
        return hash_of(self.submission)

    @property
    def job(self) -> JobRef | None:
        """The job that this attempt waits for, if it has one."""
        record = self._record
        if record is None or record.is_over:
            return None
        ids = {n: getattr(record, n) for n in ("cluster", "submission_id", "nonce")}
        return replace(self._wait_options, **ids)

    @property
    def record(self) -> JobRecord:
        """Of the job that this attempt waits for."""
        assert self._record is not None
        return self._record

    @property
    def _series(self) -> str:
        return self.submission.metadata[SERIES]

    def hook_of(self, job: JobRef) -> RayHook:
        """Returns a hook to a job's cluster that has read its connection already, if one has.

        :raises RayConnectionError: when another version of the provider wrote which cluster that is.
        """
        return self._hook_to(job.cluster)

    def _hook_to(self, cluster: str) -> RayHook:
        if self.hook.acquired and cluster == self.hook.acquired:
            self.hook.keep()
            return self.hook
        if cluster not in self._hooks:
            self._hooks[cluster] = RayHook.to_cluster(cluster, self._holder)
        return self._hooks[cluster]

    def lost_result(self) -> dict[str, Any] | None:
        """Returns the task's result where the attempt before had it, and died before Airflow took note."""
        result = self._record.result if self._record is not None else None
        return result if result and self.goes_on else None

    def lost_decision(self) -> dict[str, Any] | None:
        """Returns what a person decided, where no attempt before could carry it out."""
        return self._record.decision if self._record is not None else None

    @property
    def goes_on(self) -> bool:
        """Whether the record is of an earlier try, which this attempt goes on with: what was asked is the
        same, and nobody has cleared the task since."""
        record = self._record
        return record is not None and record.is_left_to(self._spec_hash, self._series, self.task.try_number)

    def find_job(self, *, may_list: bool = True) -> JobRef | None:
        """Takes over the job of an earlier attempt, if there is one that this attempt can use.

        :param may_list: whether to ask the cluster for its jobs where no record is left.
        """
        if self._record is None and may_list and (self.task.try_number > 1 or self._is_unreadable):
            self._record = self._find_listed_record()
        self._stop_left_jobs()
        record = self._record
        if record is None or record.is_over:
            return None
        if not self._is_usable(record):
            self._note(replace(self.record, phase="ended"))
            return None
        self._log.info("Found Ray job %s of an earlier attempt", record.submission_id)
        taken_over = replace(record, phase="submitted", submission_count=0, taken_over_at=time.time())
        self._note(
            replace(
                taken_over, try_number=self.task.try_number, try_series=self._series,
                commits_alone=self._commits_alone,
            )
        )  # fmt: skip
        return self.job

    def _find_listed_record(self) -> JobRecord | None:
        """
        :raises RayLLMJobError: when the cluster does not list its jobs, of which one may be this task's.
        """
        hook = self.hook

        def is_there() -> bool:
            try:
                hook.call(jobs_api.get_version())
            except ClusterStartingError:  # no job can be on it: who submits one waits in line for it
                return False
            return True

        if not self.keep_trying(is_there, hook):
            return None
        try:
            jobs = hook.call(jobs_api.list_jobs())
        except (RayConnectionError, RayUnreachableError) as e:
            if self._is_unreadable:
                raise RayLLMJobError(
                    "another version of the provider wrote the record of the task's job, this one cannot "
                    f"read it, and the cluster does not list its jobs ({e.failure.headline})",
                    advice=f"Stop the task's job, if it runs, and clear the key {STATE_KEY!r} of the task's "
                    "state",
                ) from e
            self._log.warning("Cannot look for a Ray job of an earlier try: the cluster lists none: %s", e)
            return None
        job = find_listed_job(jobs, self.submission.metadata)
        return JobRecord.of_listed_job(job, hook.cluster) if job is not None else None

    def _is_usable(self, record: JobRecord) -> bool:
        job_id, hook = record.submission_id, self.hook
        is_moved = not self.keep_trying(lambda: hook.means(record.cluster))
        # None is made to look for a job that a former one had.
        if self.keep_trying(lambda: self.hook.is_made_to_order):
            hook = self._hook_to(record.cluster)
        self._push_owner(job_id)

        def ask() -> jobs_api.JobInfo | None:
            return hook.call(jobs_api.get_status(job_id))

        try:
            # A refused token is waited for while a job may run: a task that fails for good would leave it.
            also = (RayConnectionError,) if record.phase == "submitted" else ()
            if is_moved:  # no cluster is started to look for the job of a task that was moved away from it
                hook = self._hook_to(record.cluster)
                hook.hold()
            info = ask() if is_moved else self.keep_trying(ask, hook, also)
        except ClusterEndedError:
            info = None
        except (RayConnectionError, RayConnectionNotFoundError, RayUnreachableError) as e:
            if not is_moved:
                raise
            # The task was moved to another cluster, and the one before may no longer exist.
            self._log.warning(
                "Leaving Ray job %s alone: cannot reach its cluster (%s): %s", job_id, record.cluster, e
            )  # fmt: skip
            self._leave_job(record)
            return False
        if info is None:
            self._log.info("Ray job %s no longer exists on the cluster", job_id)
            return False
        if not self.task.is_of(info.metadata):
            self._log.warning("Leaving Ray job %s alone: it is not of the task whose record names it", job_id)
            return False
        self.keep_trying(lambda: hook.note_job(job_id), hook)  # whoever submitted it may have died before
        is_same = record.spec_hash == self._spec_hash
        if info.status not in jobs_api.TERMINAL:
            if not is_same:
                reason = "the task's configuration has changed"
                if not record.spec_hash:
                    reason = "another version of the provider wrote its record, which this one cannot read"
                self._log.info("Stopping Ray job %s: %s", job_id, reason)
                self.keep_trying(lambda: stop_and_wait(hook, job_id), hook)
            return is_same
        if not record.answers(self._spec_hash, self._series):
            return False
        self.ended_job = job_id
        watch = JobWatch(record.nonce)
        watch.read_log_end(hook.call(jobs_api.read_log_tail(job_id, info, 200)))
        if not watch.has_outcome:  # its log may have gone with its node: then the waiter asks the store
            return info.status == "SUCCEEDED"
        verdict = watch.decide(info.status)
        # What waits for a person may have been published or discarded since.
        return isinstance(verdict, Finished) and verdict.report.get("outcome") != "held"

    def queue_place(self, queue_timeout: float) -> QueuePlace:
        options = self._wait_options
        return QueuePlace(
            options.ray_conn_id, self._holder.task, time.time(), queue_timeout, options.deadline,
            options.reconnect_timeout,
        )  # fmt: skip

    def leave_used_cluster(self) -> None:
        """Before a job is submitted: none of the task's runs any more.

        :raises RayLLMJobError: when a newer attempt of the task has a job.
        """
        if self._order() is not None:  # else none is made before `submit` looks
            self._refuse_if_newer()
        self.keep_trying(self.hook.leave_used)

    def renew_submission(self) -> None:
        """Builds it again before it is sent: credentials that were lent for it may end meanwhile."""
        self.__dict__.pop("submission", None)

    def submit(self, turn: Turn | None = None) -> JobRef:
        """
        :param turn: of a task that has waited for it.
        :raises RayConnectionError, RayClusterUnfitError, RayUnreachableError: before any job starts.
        :raises RayLLMJobError: when a newer attempt of the task has a job.
        """
        self._refuse_if_newer()
        self._intend(self.keep_trying(self.hook.acquire))
        is_sent = False

        def send() -> None:
            nonlocal is_sent
            self._held.add(cluster := self.hook.acquire())
            if cluster != self.record.cluster:
                self._move_intent(cluster, is_sent=is_sent)
            is_sent = True
            send_job(self.record, self.submission, self._wait_options.orphan_timeout, self.hook, turn)

        self.keep_trying(send)
        record = self.record
        self._note(replace(record, phase="submitted"))
        self._note_job(record.submission_id)
        self._release(needed=record.cluster)
        self._log.info(
            "Submitted Ray job %s: %s", record.submission_id, self.hook.job_url(record.submission_id)
        )
        if advice := self.hook.dashboard_advice:
            self._log.info("%s", advice)
        return cast("JobRef", self.job)

    def _refuse_if_newer(self) -> None:
        if (newer := self._newer_record()) is not None:
            raise RayLLMJobError(
                f"try {newer.try_number} of the task has Ray job {newer.submission_id}; this one, "
                f"{self.task.try_number}, submits no other"
            )

    def _note_job(self, job_id: str) -> None:
        """:raises RayConnectionError: when it may not be said of which job the cluster is; then none runs."""
        try:
            self.keep_trying(lambda: self.hook.note_job(job_id))
        except RayConnectionError:
            self.keep_trying(lambda: stop_and_wait(self.hook, job_id))
            self.mark_ended()
            raise

    def _intend(self, cluster: str) -> None:
        """Records a job before it is submitted to `cluster`."""
        nonce = uuid.uuid4().hex
        # A try may submit several jobs, and an id must never be used twice.
        name = make_submission_id(self.submission.metadata, f"{self._ti.id}-{nonce[:6]}")
        record = JobRecord(
            phase="intent",
            cluster=cluster,
            submission_id=name,
            nonce=nonce,
            spec_hash=self._spec_hash,
            fingerprint=fingerprint(self.submission.job),
            try_number=self.task.try_number,
            try_series=self._series,
            commits_alone=self._commits_alone,
            submission_count=self._submission_count + 1,
            left=self._left_jobs,
            question=self.question,
            is_put=self.question_is_put,
        )
        self._save(record)
        self._push_owner(name)

    def _move_intent(self, cluster: str, *, is_sent: bool) -> None:
        """Records that the job is for another cluster, which was acquired: the one before has ended since, or
        the connection meant it no more.

        :param is_sent: whether the job may run on the one before, whose answer was lost.
        """
        record = self.record
        if is_sent:
            self._leave_job(record)
            self._intend(cluster)
            self._stop_left_jobs()
        else:
            self._save(replace(record, cluster=cluster))
        self._release(needed=cluster)

    def submit_status_job(self, job: SliceJob, run: str, ended: JobRef | None = None) -> JobRef:
        """Submits a job that reads the store, which this machine may not be able to read.

        :param job: the slice, which the DAG may describe otherwise by now.
        :param run: id of the job that ended without a report: an earlier version is not its result.
        :param ended: that job, on whose cluster it is asked where that was made for it.
        """
        if ended is not None and (hook := self.hook_of(ended)).is_made_to_order:  # no other one is made
            return self._submit_command(job, "status", "--name", run, hook=hook, cluster=ended.cluster)
        return self._submit_command(job, "status", "--name", run)

    def submit_decision(self, job: SliceJob, staged: str, words: Sequence[str]) -> JobRef:
        """Submits a job that publishes or discards a staged version, which this machine does not reach.

        :param job: see `submit_status_job`.
        :param words: of the command, which say what was decided.
        """
        self.leave_used_cluster()
        starting_s = self.submission.job.limits.queue
        self._held.add(self.keep_trying(self.hook.acquire, starting_s=starting_s))
        sent = self._submit_command(job, "decide", "--staged", staged, *words)
        self._note_job(sent.submission_id)
        return sent

    def _submit_command(
        self,
        job: SliceJob,
        command: Literal["status", "decide"],
        *words: str,
        hook: RayHook | None = None,
        cluster: str = "",
    ) -> JobRef:
        """:param hook, cluster: to which it goes; by default, the one that this attempt acquired."""
        to = hook or self.hook
        nonce = uuid.uuid4().hex
        name = make_submission_id(self.submission.metadata, f"{command}-{nonce[:12]}")
        submission = replace(self.submission, job=job)
        self.keep_trying(lambda: submission.submit(to, command, name, nonce, words), to)
        return replace(
            self._wait_options, cluster=cluster or self.hook.acquired, submission_id=name, nonce=nonce,
            orphan_timeout=None, deadline=None,
        )  # fmt: skip

    def keep_trying(
        self,
        call: Callable[[], T],
        hook: RayHook | None = None,
        also: tuple[type[Exception], ...] = (),
        starting_s: float | None = None,
    ) -> T:
        """Calls what needs a connection or its cluster, for `reconnect_timeout` while one of them is away, or
        something else answers in its place.

        :param hook: that the call uses, if not the tracker's own.
        :param also: errors that are waited for, too.
        :param starting_s: seconds to wait for a cluster that starts, where they are others.
        :raises RayUnreachableError, RayConnectionNotFoundError: when it stays away.
        """
        began, warned_at = time.monotonic(), -float("inf")
        may_pass: tuple[type[Exception], ...] = (RayUnreachableError, RayConnectionNotFoundError, *also)
        while True:
            try:
                return call()
            except ClusterEndedError:
                raise
            except may_pass as e:
                allowed = patience(e, self._wait_options.reconnect_timeout)
                if isinstance(e, ClusterStartingError) and starting_s is not None:
                    allowed = starting_s
                until = began + allowed
                if time.monotonic() > until:
                    raise
                if time.monotonic() - warned_at > _WARNING_SECONDS:
                    self._log.warning("Waiting for the cluster: %s", e)
                    warned_at = time.monotonic()
            time.sleep(min(self._wait_options.poll_interval, max(until - time.monotonic(), 0)))
            (hook or self.hook).reread()  # its address may have been corrected

    def can_resubmit(self, *, stopped: bool) -> bool:
        """Whether this attempt replaces its lost job: one that the cluster forgot, or one that was stopped
        (`stopped`) on behalf of the attempt before."""
        if self._submission_count >= _MAX_SUBMISSIONS:
            return False
        taken_over = self._record.taken_over_at if self._record is not None else None
        return not stopped or (taken_over is not None and time.time() - taken_over < _LATE_STOP_SECONDS)

    @property
    def _submission_count(self) -> int:
        """Jobs that this attempt has submitted, from whichever process."""
        record = self._record
        return record.submission_count if record and record.try_number == self.task.try_number else 0

    def mark_ended(self, question: dict[str, Any] | None = None) -> None:
        """Records that the job ended without a published slice, so that no attempt waits for it again.

        :param question: what a person is asked then.
        """
        if (record := self._record) is not None:
            if question is not None:
                record = replace(record, question=question, is_put=False)
            self._note(replace(record, phase="ended"))
        self._leave_clusters()

    def note_decision(self, decision: dict[str, Any] | None) -> None:
        """Records what a person decided, before it is carried out; None: it was, or cannot be."""
        if self._record is not None and self._record.decision != decision:
            question = self._record.question if decision is None else None
            self._note(replace(self._record, decision=decision, question=question))

    def note_put(self) -> None:
        """Says that Airflow has the question, and keeps answers to it alone."""
        if self._record is not None:
            self._note(replace(self._record, is_put=True))

    @property
    def question_is_put(self) -> bool:
        return self._record is not None and self._record.is_put

    def settle_question(self) -> None:
        """Says that nobody can answer it any more."""
        if self._record is not None and self._record.question is not None:
            self._note(replace(self._record, question=None))

    @property
    def question(self) -> dict[str, Any] | None:
        """What a person was asked last, perhaps by an earlier attempt, and had not decided."""
        return self._record.question if self._record is not None else None

    def conclude(self, result: dict[str, Any]) -> None:
        """Records that the slice is finished, and the task's result."""
        if self._record is not None and self._record.result is None:
            self._note(self._record.conclude(result, self.task.try_number))
        self._leave_clusters()

    @contextlib.contextmanager
    def releasing(self, cluster: str = "") -> Iterator[None]:
        """Releases the task's clusters where the work within ends it without a job that may run.

        :param cluster: identity of one that the task acquired before it was deferred; "" for none.
        """
        self._held.add(cluster)
        try:
            yield
        except NO_FAILURES:
            raise
        except BaseException as e:
            record = self._record
            is_own = record is not None and record.try_number == self.task.try_number
            # After another error the next try looks for the job, which may have been submitted.
            is_refused = isinstance(e, RayLLMInputError) and is_own and self.record.phase == "intent"
            if record is None or record.is_over or is_refused:
                self._leave_clusters()
            raise

    def _leave_clusters(self) -> None:
        self._stop_left_jobs()
        self._release()

    def _leave_job(self, record: JobRecord) -> None:
        """Keeps in mind that the job may run where the task no longer is."""
        self._record = replace(record, left=[*record.left, LeftJob(record.cluster, record.submission_id)])

    @property
    def _left_jobs(self) -> list[LeftJob]:
        return self._record.left if self._record is not None else []

    def _stop_left_jobs(self) -> None:
        if jobs := self._left_jobs:
            left = stop_left_jobs(jobs, self.task, self._log)
            self._note(replace(self.record, left=left))

    def _release(self, needed: str = "") -> None:
        """Releases the clusters that the task holds. A cluster that does not hear of it ends with its
        lifetime.

        :param needed: identity of the one that has the task's job.
        """
        for cluster in (self._held | {self.hook.acquired}) - {"", needed}:
            try:
                self._hook_to(cluster).release(find_ended)
            except Exception as e:  # a published slice stays published
                self._log.warning("Cannot release %s: %s", cluster, e)
            else:
                self._held.discard(cluster)

    def is_recorded(self) -> bool:
        """Whether Airflow keeps a record of the job that this attempt waits for, under this attempt's own id:
        to one that was cleared or given up, Airflow shows none."""
        record = JobRecord.from_json(self._read_store())
        return record is not None and record == self._record

    def _newer_record(self) -> JobRecord | None:
        """Returns the record of a newer attempt: this one was thought dead, and woke up."""
        record = JobRecord.from_json(self._read_store())
        return record if record is not None and record.try_number > self.task.try_number else None

    def _read_store(self) -> Any:
        return self._store.get(STATE_KEY) if self._store is not None else None

    def _save(self, record: JobRecord) -> None:
        self._record = record
        if self._store is not None:
            self._store.set(STATE_KEY, asdict(record))

    def _note(self, record: JobRecord) -> None:
        """Saves what spares another attempt work, unless a newer one has its own record. Without it a job is
        found, and a slice is published, all the same: the task does not fail for it."""
        try:
            if self._newer_record() is None:
                self._save(record)
        except Exception as e:  # of Airflow's API server, or a state store of the user's own
            self._record = record
            self._log.warning("Cannot keep the record of Ray job %s: %s", record.submission_id, e)

    def _push_owner(self, submission_id: str) -> None:
        own_xcom.push(self._ti, OWNER_KEY, self.task.owner_record(submission_id))
