"""`SliceTask`: the course of a task's attempt, whatever its job is.

It finds or submits the job of its slice (`task.job.tracker`), once it has a place (`task.queue.gate`),
waits for it here or in the triggerer (`task.job.waiter`), and turns its verdict into the task's outcome
(`task.outcome`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from airflow.sdk.exceptions import (
    AirflowRuntimeError,
    AirflowSkipException,
    AirflowTaskTimeout,
)

from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.contract.log.progress_text import result_lines
from airflow_provider_raydatallm.contract.result.gpus_held import GpusHeld
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.exceptions import (
    RayJobStoppedError,
    RayLLMInputError,
    RayLLMJobError,
    carried_failure,
    error_of,
)
from airflow_provider_raydatallm.hooks.http_clients import close_clients
from airflow_provider_raydatallm.lineage.assets import record_asset_events
from airflow_provider_raydatallm.lineage.openlineage import SliceLineage
from airflow_provider_raydatallm.links.output import OutputLink, output_url
from airflow_provider_raydatallm.links.page_address import slice_page, with_host
from airflow_provider_raydatallm.links.ray import RayJobLink
from airflow_provider_raydatallm.links.slice_page import SlicePageLink
from airflow_provider_raydatallm.task import decisions, hold, own_xcom, submission, telemetry
from airflow_provider_raydatallm.task.airflow_features import NO_FAILURES, partition_key, runs_inline
from airflow_provider_raydatallm.task.failed_try import record_failure, show_last
from airflow_provider_raydatallm.task.job import verdict as job_verdict
from airflow_provider_raydatallm.task.job.cancel import still_waits, stop_own_job
from airflow_provider_raydatallm.task.job.log_entries import clean
from airflow_provider_raydatallm.task.job.record import DeferredJob
from airflow_provider_raydatallm.task.job.tracker import JobTracker
from airflow_provider_raydatallm.task.job.waiter import JobRef, wait_for_job
from airflow_provider_raydatallm.task.mapped_task import CheckedWhenMapped
from airflow_provider_raydatallm.task.outcome import build_result, failure_of
from airflow_provider_raydatallm.task.queue.gate import SubmissionGate
from airflow_provider_raydatallm.task.queue.places import Turn, raise_error_of
from airflow_provider_raydatallm.task.run_slice import warnings_of_run
from airflow_provider_raydatallm.task.slice_entry import write_entry
from airflow_provider_raydatallm.task.text_templates import TextTemplates

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raydatallm.clusters.base import Order
    from airflow_provider_raydatallm.contract.spec.hold import Hold
    from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
    from airflow_provider_raydatallm.submit.ray_job import JobSubmission

T = TypeVar("T")

#: Airflow kills a task's process 5 seconds after SIGTERM.
_STOP_SECONDS = 4.0
_STOPPED = "Airflow stopped the task: it, or its run, was marked or cleared, or its worker was shut down"
_AFTER_STOP = "Clear the task, and it goes on with the rest"
#: A job that was held for longer is built anew: its lent credentials are to last for the job.
_CREDENTIALS_SECONDS = 60.0


class SliceTask(SliceLineage, TextTemplates, CheckedWhenMapped):
    """Base of operators whose subclass says what the job is, and how to wait for it."""

    operator_extra_links = (RayJobLink(), SlicePageLink(), OutputLink())

    deferrable: bool
    cancel_on_kill: bool
    emit_partition: bool

    _killed = False
    #: Whether Airflow has been told where the task's buttons lead.
    _has_links = False
    #: Whether `execute` or a method that continues it runs.
    _executing = False
    _tracker: JobTracker | None = None
    #: What the job is, once that is known: whether it shares an engine, its connection says.
    _submission: JobSubmission | None = None
    #: Whether the job reported the error that ends the task.
    _job_says_why = False
    #: Interrupts the waiting.
    _interrupt: Callable[[], object] | None = None

    def __init__(self, **kwargs: Any) -> None:
        # Of a class without an `__init__` of its own, Airflow gives mapped tasks BaseOperator's raw defaults,
        # such as `inlets=None`, with which they cannot start.
        super().__init__(**kwargs)

    def _build_submission(self, context: Context) -> JobSubmission:
        """
        :raises RayLLMInputError: naming the argument that cannot work.
        """
        raise NotImplementedError

    def _wait_options(self, context: Context) -> JobRef:
        """Returns how to wait for a job, without the job's ids."""
        raise NotImplementedError

    def _order(self) -> Order | None:
        """Returns what cluster is to be made for the task, if one is.

        :raises RayLLMInputError: naming what cannot work.
        """
        return None

    @property
    def _hold(self) -> Hold:
        """:raises RayLLMInputError: naming what cannot work."""
        raise NotImplementedError

    def execute(self, context: Context) -> dict[str, Any]:
        return cast("dict[str, Any]", self._recording(context, self._begin))

    def _begin(self, context: Context) -> dict[str, Any]:
        try:
            return self._find_or_submit(context)
        except Exception:
            if not self._has_links:  # the run has no slice that they could lead to
                self._push_links(context, None)
            raise

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        resume = super().resume_execution
        return self._recording(context, lambda context: resume(next_method, next_kwargs, context))

    def _recording(self, context: Context, work: Callable[[Context], Any]) -> Any:
        """Does the work. What ends it without a result leaves its record, and is the log's last line."""
        try:
            return work(context)
        except NO_FAILURES:
            raise
        except BaseException as e:
            self._leave_failure(e)
            failure = record_failure(context, e, self.log)
            self.record_failure(failure)
            show_last(self, failure, self.log)
            if isinstance(e, (RayLLMInputError, RayLLMJobError)):
                # Its sentence says all: of whose frames it is, the debug log says.
                raise e.with_traceback(None) from None
            raise

    def _leave_failure(self, error: BaseException) -> None:
        """Leaves the record in the table's metadata, too, unless the job has done so or still may."""
        if self._submission is None or self._tracker is None or self._job_says_why or self._killed:
            return
        failure = carried_failure(error)
        if failure is None or failure.kind in ("stopped", "timeout"):
            return
        task = {"dag_id": self.dag_id, "task_id": self.task_id}
        try:
            submission.leave_failure(self._submission, failure, task, self._tracker.ended_run)
        except Exception as e:  # a connection whose storage it is
            self.log.debug("The table's metadata does not say why", exc_info=e)

    def execute_in_turn(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continues `execute` when it is this task's turn to submit its job, or it waited for too long.

        :param event: of `SubmissionTurnTrigger`.
        """
        return self._find_or_submit(context, event)

    def _find_or_submit(self, context: Context, event: Mapping[str, Any] | None = None) -> dict[str, Any]:
        is_first, event = event is None, event or {}
        # The place comes in the event: `dag.test()` drops what a task keeps for its resume.
        turn = Turn.from_event(event)
        acquired = turn.place.cluster if turn is not None else ""
        with self._start_attempt(context) as tracker, tracker.releasing(acquired):
            raise_error_of(event)
            if tracker.question is not None and is_first and not runs_inline():
                self._withdraw_question(context)
            decided = decisions.take_answer(tracker, event) if "chosen_options" in event else None
            if decided is not None:
                self.log.info("%s, whom an earlier try had asked", decided[1])
                return self._carry_out(context, tracker, *decided)
            tracker.settle_question()
            job = tracker.submission.job
            self._name_mapped_task(context, job)
            self.record_run(job, ray_job_id=tracker.job.submission_id if tracker.job else None)
            self.log.info("Slice %s -> %s", plain_text(job.slice_key), plain_text(job.slice_path))
            for warning in warnings_of_run(context, job) if turn is None else ():
                self.log.warning("%s", plain_text(warning))
            write_entry(context, self.outlets, job)
            self._push_links(context, job)
            if (result := tracker.lost_result()) is not None:
                self.log.info("An earlier try finished the slice, and ended before Airflow knew")
                return self._finish(context, job, result)
            if (lost := decisions.lost(tracker)) is not None:
                held, decision = lost
                if decision.is_approval and tracker.goes_on:
                    self.log.info("%s: an earlier try could not publish %s", decision, held.staged)
                    return self._carry_out(context, tracker, held, decision)
                if not decision.is_approval:
                    self.log.info("%s: an earlier try could not carry it out", decision)
                    self._decide(tracker, held, decision)
                    if tracker.goes_on and not decision.again:
                        raise hold.rejection(held, decision)
            if (running_job := tracker.find_job(may_list=turn is None)) is not None:
                return self._wait(context, tracker, running_job)
            # Which store that is, a connection may say.
            report = tracker.keep_trying(lambda: submission.read_finished_report(tracker.submission))
            if report is not None:
                return self._succeed(context, tracker, job, None, report)
            return self._submit(context, tracker, turn)

    def _withdraw_question(self, context: Context) -> NoReturn:
        from airflow_provider_raydatallm.triggers.question import QuestionTrigger

        self.log.info("An earlier try has asked a person: looking for the answer")
        self.defer(trigger=QuestionTrigger(str(context["ti"].id)), method_name="execute_answered")

    def execute_answered(self, context: Context, event: dict[str, Any] | None = None) -> dict[str, Any]:
        """Continues `execute` once nobody can answer any more what an earlier try had asked.

        :param event: of `QuestionTrigger`, or of Airflow, to which somebody answered meanwhile.
        """
        return self._find_or_submit(context, event or {})

    def execute_complete(
        self,
        context: Context,
        event: dict[str, Any],
        job: dict[str, Any] | None = None,
        spec: dict[str, Any] | None = None,
        record: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Continues `execute` after the waiting in the triggerer.

        :param job, spec, record: the job that the task waited for (`DeferredJob.to_kwargs`).
        """
        deferred = DeferredJob.from_kwargs(job, spec, record)
        with self._start_attempt(context, deferred) as tracker:
            slice_job = deferred.slice_job if deferred is not None else tracker.submission.job
            ref = deferred.ref if deferred is not None else tracker.job
            self._name_mapped_task(context, slice_job)
            self.record_run(slice_job, ray_job_id=ref.submission_id if ref else None)
            verdict = job_verdict.from_event(event)
            if verdict is None:  # of a triggerer with another version of the provider: ask the job again
                if ref is None:
                    raise RayLLMJobError(
                        f"cannot read what the triggerer says of the job: {event}",
                        advice="It may be of another version of the provider: the next try asks the cluster",
                    )
                if "chosen_options" in event:  # to a question that no record has, and so was not withdrawn
                    if event["chosen_options"] != [hold.APPROVE]:
                        decisions.stop_rejected(tracker, ref)
                    self._defer_to(ref, slice_job, tracker)
                verdict = _run_async(self._wait_unless_killed(ref, tracker))
            return self._conclude(context, tracker, slice_job, ref, verdict)

    def execute_decision(
        self, context: Context, event: dict[str, Any], held: dict[str, Any]
    ) -> dict[str, Any]:
        """Continues `execute` when a person has decided of a slice that waited for it.

        :param event: of Airflow.
        :param held: the slice (`HeldSlice`).
        """
        with self._start_attempt(context) as tracker, tracker.releasing():
            waiting = hold.HeldSlice.from_kwargs(held)
            self._name_mapped_task(context, waiting.job)
            decision = decisions.keep(tracker, waiting, event)
            self.log.info("%s", decision)
            return self._carry_out(context, tracker, waiting, decision)

    def _carry_out(
        self, context: Context, tracker: JobTracker, held: hold.HeldSlice, decision: hold.Decision
    ) -> dict[str, Any]:
        done, ref = self._decide(tracker, held, decision)
        if decision.again:
            return self._submit(context, tracker)
        if not isinstance(done, Report):
            raise hold.rejection(held, decision)
        return self._succeed(context, tracker, held.job, ref, done)

    def _decide(
        self, tracker: JobTracker, held: hold.HeldSlice, decision: hold.Decision
    ) -> tuple[Report | bool, JobRef | None]:
        def wait(ref: JobRef) -> job_verdict.Verdict:
            verdict = _run_async(self._wait_unless_killed(ref, tracker))
            self._job_says_why = isinstance(verdict, job_verdict.Failed)
            return verdict

        return decisions.carry_out(tracker, held, decision, wait, self.log)

    def on_kill(self) -> None:
        # Airflow calls this from a signal handler, in the middle of `execute`, which continues afterwards; or
        # on a timeout, after it has left `execute`.
        self._killed = True
        if self._interrupt is not None:
            self._interrupt()
        elif not self._executing and self._tracker is not None and self._tracker.job is not None:
            _run_async(self._stop(self._tracker.job, self._tracker))

    @property
    def _defers(self) -> bool:
        return self.deferrable and not self._killed and not runs_inline()

    @contextlib.contextmanager
    def _start_attempt(self, context: Context, deferred: DeferredJob | None = None) -> Iterator[JobTracker]:
        self._executing = True
        try:
            self._tracker = self._build_tracker(context, deferred)
            yield self._tracker
        finally:
            self._executing = False

    def _build_tracker(self, context: Context, deferred: DeferredJob | None) -> JobTracker:
        if deferred is not None:  # whatever the DAG says by now
            wait_options = replace(
                deferred.ref, cluster="", submission_id="", nonce="", url="", since=time.time()
            )
        else:
            wait_options = self._wait_options(context)
        store = context.get("task_state_store")
        build = partial(self._build_submission, context)
        record = deferred.record if deferred is not None else None
        commits_alone = not self.cancel_on_kill
        return JobTracker(
            wait_options, build, context["ti"], store, self.log, commits_alone, record, self._order
        )

    def _push_links(self, context: Context, job: SliceJob | None) -> None:
        ti: Any = context["ti"]
        page, output = "", None
        if job is not None:
            page, output = _page_of(ti), output_url(job.slice_path)
        # Airflow reads each link when the task ends, and logs one that is not there as an error.
        own_xcom.push(ti, SlicePageLink.xcom_key, page)
        own_xcom.push(ti, OutputLink.xcom_key, output or "")
        own_xcom.push(ti, RayJobLink.xcom_key, "")
        self._has_links = True

    @staticmethod
    def _name_mapped_task(context: Context, job: SliceJob) -> None:
        """Mapped tasks show their slice instead of a number."""
        map_index = context["ti"].map_index
        if map_index is not None and map_index >= 0 and not context.get("map_index_template"):
            label = {"ray_llm_slice": plain_text(job.slice_key), "map_index_template": "{{ ray_llm_slice }}"}
            cast("dict[str, Any]", context).update(label)

    def _submit(self, context: Context, tracker: JobTracker, turn: Turn | None = None) -> dict[str, Any]:
        """Submits the job once few others wait for room on the cluster, and waits for it.

        :param turn: of a task that has waited for that in the triggerer.
        """
        tracker.leave_used_cluster()
        has_turn = turn is not None
        turn = turn or Turn(tracker.queue_place(tracker.submission.job.limits.queue))
        place = turn.place
        defers = self._defers
        with contextlib.closing(SubmissionGate(place, self.log, tracker.hook)) as gate:
            if not _run_async(self._unless_killed(gate.enter(has_turn=has_turn, holds=not defers))):
                from airflow_provider_raydatallm.triggers.submission_turn import SubmissionTurnTrigger

                place = replace(place, cluster=gate.cluster)
                self.defer(trigger=SubmissionTurnTrigger(asdict(place)), method_name="execute_in_turn")
            if gate.held_s > _CREDENTIALS_SECONDS:
                tracker.renew_submission()
            job = tracker.submit(turn)
        return self._wait(context, tracker, job)

    def _wait(self, context: Context, tracker: JobTracker, job: JobRef) -> dict[str, Any]:
        slice_job = tracker.submission.job
        self.record_run(slice_job, ray_job_id=job.submission_id)
        hook = tracker.hook_of(job)
        job = replace(job, url=tracker.keep_trying(lambda: hook.job_url(job.submission_id), hook))
        own_xcom.push(context["ti"], RayJobLink.xcom_key, job.url)
        has_ended = job.submission_id == tracker.ended_job
        if self._defers and not has_ended:
            self._stop_if_marked(job, tracker)
            self._defer_to(job, slice_job, tracker)
        verdict = _run_async(self._wait_unless_killed(job, tracker))
        return self._conclude(context, tracker, slice_job, job, verdict)

    def _defer_to(self, job: JobRef, slice_job: SliceJob, tracker: JobTracker) -> NoReturn:
        from airflow_provider_raydatallm.triggers.ray_job import RayJobTrigger

        trigger = RayJobTrigger(asdict(job), self.cancel_on_kill)
        kwargs = DeferredJob(job, slice_job, tracker.record).to_kwargs()
        self.defer(trigger=trigger, method_name="execute_complete", kwargs=kwargs)

    def _stop_if_marked(self, job: JobRef, tracker: JobTracker) -> None:
        """Airflow refuses to defer a task that was marked while its job was submitted: no trigger would stop
        the job then, and nobody wait for it."""
        try:
            is_wanted = _run_async(still_waits(job.submission_id, tracker.task, tracker.is_recorded))
        except AirflowRuntimeError as e:  # the API server is busy or away; deferring tells
            self.log.warning("Cannot ask Airflow whether the task was marked meanwhile: %s", e)
            return
        if not is_wanted:
            _run_async(self._stop(job, tracker))
            raise RayJobStoppedError("Airflow no longer wants this task to wait for its job")

    async def _wait_unless_killed(self, job: JobRef, tracker: JobTracker) -> job_verdict.Verdict:
        asks = partial(still_waits, job.submission_id, tracker.task, tracker.is_recorded)
        waiting = wait_for_job(job, self.log, asks, hook=tracker.hook_of(job))
        return await self._unless_killed(waiting, partial(self._stop, job, tracker))

    async def _unless_killed(
        self, work: Coroutine[Any, Any, T], stop: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> T:
        """
        :param stop: called when the task is killed.
        """
        waiting = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        self._interrupt = lambda: loop.call_soon_threadsafe(waiting.cancel)
        if self._killed:
            waiting.cancel()  # the signal came while the job was being submitted
        try:
            return await waiting
        except asyncio.CancelledError:
            if not self._killed:
                raise
            if stop is not None:
                await stop()
            raise RayJobStoppedError(_STOPPED, advice=_AFTER_STOP) from None
        finally:
            self._interrupt = None

    async def _stop(self, job: JobRef, tracker: JobTracker) -> None:
        if not self.cancel_on_kill:
            self.log.info("Leaving Ray job %s running; the task's next try waits for it.", job.submission_id)
            return
        hook = tracker.hook_of(job)
        await stop_own_job(job, tracker.task, self.log, hook, deferred=False, timeout_s=_STOP_SECONDS)

    def _conclude(
        self,
        context: Context,
        tracker: JobTracker,
        slice_job: SliceJob,
        ref: JobRef | None,
        verdict: job_verdict.Verdict,
    ) -> dict[str, Any]:
        """Turns a verdict into the task's result; replaces a job that was lost.

        :raises RayLLMInputError, RayLLMJobError, AirflowTaskTimeout: for a job without a result.
        """
        job_id = ref.submission_id if ref is not None else "?"
        if isinstance(verdict, job_verdict.TimedOut):
            raise AirflowTaskTimeout(f"execution_timeout {self.execution_timeout} has passed")
        if isinstance(verdict, job_verdict.ClusterUnreachable):
            if verdict.refused and ref is not None and tracker.hook_of(ref).is_machine_bound:
                _run_async(self._stop(ref, tracker))  # the triggerer could not: this worker may
            raise error_of(failure_of(verdict, job_id))
        if isinstance(verdict, job_verdict.Unconfirmed):
            if ref is not None:
                _run_async(self._stop(ref, tracker))
            raise error_of(failure_of(verdict, job_id))
        is_silent = isinstance(verdict, job_verdict.EndedWithoutReport)
        # On a cluster that is made anew, the job itself finds what is published.
        if is_silent and not (ref is not None and tracker.hook_of(ref).has_ended):
            self.log.warning("The job ended without a report; checking the store from the cluster")
            status_job = tracker.submit_status_job(slice_job, job_id, ref)
            status_verdict = _run_async(self._wait_unless_killed(status_job, tracker))
            if isinstance(status_verdict, job_verdict.Finished):
                verdict = job_verdict.Finished(status_verdict.report)
        if isinstance(verdict, job_verdict.Finished):
            report = Report.model_validate(verdict.report)
            if report.outcome == "held":
                self._wait_for_person(context, tracker, slice_job, ref, report, verdict.started_at)
            return self._succeed(context, tracker, slice_job, ref, report, verdict.started_at)
        cause = verdict.failure.kind if isinstance(verdict, job_verdict.Failed) else verdict.why
        if cause in ("stopped", "unknown") and tracker.can_resubmit(stopped=cause == "stopped"):
            self.log.warning("The job was lost; submitting another one for the missing rows")
            return self._submit(context, tracker)
        tracker.mark_ended()
        self._job_says_why = isinstance(verdict, job_verdict.Failed)
        raise error_of(failure_of(verdict, job_id))

    def _build_result(
        self,
        context: Context,
        tracker: JobTracker,
        slice_job: SliceJob,
        ref: JobRef | None,
        report: Report,
        job_start: float | None = None,
    ) -> dict[str, Any]:
        """Before the task lets its cluster go."""
        nodes = tracker.hook_of(ref).held_nodes() if ref is not None else ()
        held = GpusHeld.of(nodes, report, job_start, time.time())
        if held is not None:
            self.log.info("%s", held)
        task_start = context["ti"].start_date.timestamp()
        return build_result(
            report, slice_job.paths, ref, task_start=task_start, job_start=job_start, gpus_held=held
        )

    def _wait_for_person(
        self,
        context: Context,
        tracker: JobTracker,
        slice_job: SliceJob,
        ref: JobRef | None,
        report: Report,
        job_start: float | None,
    ) -> NoReturn:
        held = hold.HeldSlice.of(slice_job, report, self._hold)
        result = self._build_result(context, tracker, slice_job, ref, report, job_start)
        tracker.mark_ended(question=held.to_kwargs()["held"])
        write_entry(context, self.outlets, slice_job, result)
        for line in result_lines(report):
            self.log.info("%s", clean(line))
        page = with_host(_page_of(context["ti"]))
        hold.ask(context, held, page=page, method_name="execute_decision", on_put=tracker.note_put)

    def _succeed(
        self,
        context: Context,
        tracker: JobTracker,
        slice_job: SliceJob,
        ref: JobRef | None,
        report: Report,
        job_start: float | None = None,
    ) -> dict[str, Any]:
        result = self._build_result(context, tracker, slice_job, ref, report, job_start)
        tracker.conclude(result)
        task_start = context["ti"].start_date.timestamp()
        telemetry.record(result, dag_id=self.dag_id, task_id=self.task_id, task_start=task_start)
        for line in result_lines(report):
            self.log.info("%s", clean(line))
        return self._finish(context, slice_job, result)

    def _finish(self, context: Context, slice_job: SliceJob, result: dict[str, Any]) -> dict[str, Any]:
        self.record_run(slice_job, result=result)
        write_entry(context, self.outlets, slice_job, result)
        if result["outcome"] in ("empty", "kept") and slice_job.source.on_empty == "skip":
            key = slice_job.slice_key
            if result["outcome"] == "empty":
                raise AirflowSkipException(f"slice {key!r} has no rows")
            rows, version = result["counts"]["succeeded"], result["published_version"]
            raise AirflowSkipException(
                f"slice {key!r} has no rows now: the {rows:,} of version {version} stay published"
            )
        record_asset_events(
            self.outlets, context["outlet_events"], slice_job, result,
            partition_key=partition_key(context), emit_partition=self.emit_partition,
        )  # fmt: skip
        return result


def _page_of(ti: Any) -> str:
    return slice_page(ti.dag_id, ti.task_id, ti.run_id, -1 if ti.map_index is None else ti.map_index)


def _run_async(work: Coroutine[Any, Any, T]) -> T:
    async def run_and_close_clients() -> T:
        try:
            return await work
        finally:
            await close_clients()

    return asyncio.run(run_and_close_clients())
