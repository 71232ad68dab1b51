"""What a person decided of a slice that waited: found, kept in the record and carried out, by any try."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.exceptions import RayLLMInputError, RayLLMJobError, error_of
from airflow_provider_raydatallm.task import hold
from airflow_provider_raydatallm.task.job import verdict as job_verdict
from airflow_provider_raydatallm.task.job.left_jobs import stop_and_wait
from airflow_provider_raydatallm.task.job.tracker import JobTracker
from airflow_provider_raydatallm.task.job.waiter import JobRef, TaskLog

#: That an attempt submits to publish what was approved, while their reports are lost.
_DECISION_JOBS = 2

#: Waits for a job.
Wait = Callable[[JobRef], job_verdict.Verdict]
Decided = tuple[hold.HeldSlice, hold.Decision]


def take_answer(tracker: JobTracker, event: Mapping[str, Any]) -> Decided | None:
    """Keeps what a person answered to an earlier try's question. Returns None for what is asked for anew: an
    approval of what was asked before a clear, or otherwise, and whatever publishes or pays where the answer
    may be to the question before.

    :raises RayLLMInputError: also when nothing says what was asked.
    """
    chosen = event["chosen_options"]
    if chosen == [hold.APPROVE] and not (
        tracker.question is not None and tracker.goes_on and tracker.question_is_put
    ):
        return None
    try:
        held = hold.HeldSlice.from_kwargs(tracker.question)
    except RayLLMInputError:
        tracker.settle_question()  # else a cleared task could not read it, either
        raise
    is_of_this = tracker.question_is_put or event.get("responded_at", 0.0) > held.held_at
    if chosen != [hold.REJECT] and not is_of_this:  # perhaps to the question before
        return None
    return held, keep(tracker, held, event)


def keep(tracker: JobTracker, held: hold.HeldSlice, event: Mapping[str, Any]) -> hold.Decision:
    """
    :raises RayLLMInputError: when it is no decision: the question is over, and a cleared task asks anew.
    """
    try:
        decision = hold.Decision.of(event, held.hold)
    except RayLLMInputError:
        tracker.settle_question()
        raise
    tracker.note_decision(decision.to_json(held))
    return decision


def lost(tracker: JobTracker) -> Decided | None:
    """Returns what a person decided, where no attempt before could carry it out.

    :raises RayLLMInputError: when another version of the provider kept what this one cannot read.
    """
    if (kept := tracker.lost_decision()) is None:
        return None
    try:
        decision, held = hold.Decision.from_json(kept)
    except RayLLMInputError:
        tracker.note_decision(None)  # else a cleared task could not read it, either
        raise
    return held, decision


def stop_rejected(tracker: JobTracker, job: JobRef) -> NoReturn:
    """Stops a job that may publish what a person rejected."""
    hook = tracker.hook_of(job)
    tracker.keep_trying(lambda: stop_and_wait(hook, job.submission_id), hook)
    tracker.mark_ended()
    raise hold.unknown_question()


def carry_out(
    tracker: JobTracker, held: hold.HeldSlice, decision: hold.Decision, wait: Wait, log: TaskLog
) -> tuple[Report | bool, JobRef | None]:
    """Returns the report of what was published, or True for what was rejected, and the job that did it, if
    this machine could not."""
    ref = None
    try:
        done = hold.decide_here(tracker.submission, held, decision)
        if done is False:
            if not decision.again:
                log.info("The cluster does it: %s is out of reach here", plain_text(held.job.slice_path))
            done, ref = _carry_out_on_cluster(tracker, held, decision, wait)
    except (SliceError, RayLLMInputError) as e:
        if e.failure.kind != "transient":  # no try can
            tracker.note_decision(None)
        if isinstance(e, SliceError):
            raise error_of(hold.with_advice(e.failure, decision)) from e
        raise
    if not decision.is_approval:
        tracker.note_decision(None)
    return done, ref


def _carry_out_on_cluster(
    tracker: JobTracker, held: hold.HeldSlice, decision: hold.Decision, wait: Wait
) -> tuple[Report | bool, JobRef]:
    for _ in range(_DECISION_JOBS):
        ref = tracker.submit_decision(held.job, held.staged, decision.words)
        verdict = wait(ref)
        if isinstance(verdict, job_verdict.Finished):
            return Report.model_validate(verdict.report) if decision.is_approval else True, ref
        if isinstance(verdict, job_verdict.Failed):
            raise error_of(hold.with_advice(verdict.failure, decision))
    what = "publish" if decision.is_approval else "discard"
    raise RayLLMJobError(
        f"nothing is known of Ray job {ref.submission_id}, which was to {what} {held.staged}",
        advice="The next try does it, unless that is done",
    )
