"""What a task makes of a decision, whatever happens meanwhile: with a cluster whose jobs run in this
process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError, RayLLMJobError
from airflow_provider_raydatallm.operators import slice_task
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.processor.ask_again import ask_again_for_people, ask_again_rejected
from airflow_provider_raydatallm.processor.publish.published import current_report
from airflow_provider_raydatallm.processor.publish.staged_commands import (
    commit_for_people,
    discard_for_people,
    discard_rejected,
    publish_approved,
)
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from airflow_provider_raydatallm.task import decisions, hold
from airflow_provider_raydatallm.task.job import cancel, tracker
from airflow_provider_raydatallm.task.job.verdict import EndedWithoutReport, Failed, Finished, Verdict
from airflow_provider_raydatallm.triggers.question import QuestionTrigger
from tests.support.arguments import written
from tests.support.context import StateStore, context_of
from tests.support.fake_cluster import FakeCluster
from tests.support.in_process import STUB, InProcess, changed, run_in_process

BOB = {"id": "7", "name": "bob"}
APPROVAL = {"chosen_options": ["Approve"], "responded_by_user": BOB, "timedout": False}
REJECTION = {**APPROVAL, "chosen_options": ["Reject"]}


class World:
    """:ivar jobs: the commands of those that were submitted. :ivar lost: how many reports of decisions are
    lost. :ivar asked: how often a person was.
    :ivar again: how many rows a person had asked again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cluster, self.store = folder, InProcess(), StateStore()
        self.jobs: list[str] = []
        self.lost = self.asked = self.again = 0
        self._sent: dict[str, tuple[str, SliceJob, tuple[str, ...]]] = {}

    def submit(self, submission: JobSubmission, command: str, name: str, words: tuple[str, ...] = ()) -> None:
        self.jobs.append(command)
        self._sent[name] = command, submission.job, words

    async def wait(self, ref: Any, *args: Any, hook: Any) -> Verdict:
        command, job, words = self._sent[ref.submission_id]
        report = None
        try:
            if command == "run":
                report = run_in_process(job, self.cluster)
            elif words[2:] and words[2].startswith("--again="):
                ask_again_rejected(job, words[1], words[2].partition("=")[2])
            elif "--reject" in words:
                discard_rejected(job, words[1])
            else:
                report = publish_approved(job, words[1])
        except SliceError as e:
            return Failed(e.failure)
        if command == "decide" and self.lost:
            self.lost -= 1
            return EndedWithoutReport("unknown")
        return Finished({"rejected": words[1]} if report is None else report.model_dump(mode="json"))

    def task(self, **given: Any) -> RayLLMBatchOperator:
        arguments = {
            "slice_key": "2026-01-31", "input_path": f"{self.folder}/in.parquet", "prompt": "{name}?",
            "output_path": f"{self.folder}/out", "model_source": "m/m", "engine": STUB,
            "quality__gates": [{"of": "rows", "then": "hold"}], **given,
        }  # fmt: skip
        with DAG("d", schedule=None):
            return RayLLMBatchOperator(task_id="t", deferrable=False, **written(**arguments))

    def ask(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the try's context, and what Airflow keeps."""
        task = self.task(**given)
        context = context_of(task, self.store)
        with pytest.raises(BaseException) as pause:  # noqa: PT011 - of two kinds, by Airflow's version
            task.execute(context)
        assert pause.typename in ("TaskAwaitingInput", "TaskDeferred")
        return context, pause.value.kwargs  # type: ignore[attr-defined]

    def retry(self, answer: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
        """:param answer: which Airflow has to what an earlier try had asked."""
        task = self.task(**given)
        return execute(task, context_of(task, self.store, try_number=2), answer)

    @property
    def slice_job(self) -> SliceJob:
        return next(job for command, job, _ in self._sent.values() if command == "run")


def execute(task: RayLLMBatchOperator, context: Any, answer: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        return task.execute(context)
    except TaskDeferred as pause:
        if not isinstance(pause.trigger, QuestionTrigger):
            raise
    return task.execute_answered(context, answer or {})


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster, tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    pq.write_table(pa.table({"name": ["a", "b", "c"]}), tmp_path / "in.parquet")
    monkeypatch.setattr(RayLLMBatchOperator, "_user_packages", lambda self, folder: [])
    monkeypatch.setattr(cancel, "_read_owner_and_state", lambda attempt: (None, None))
    monkeypatch.setattr(
        JobSubmission, "submit",
        lambda self, hook, command, name, nonce, words=(): world.submit(self, command, name, tuple(words)),
    )  # fmt: skip
    monkeypatch.setattr(
        tracker, "send_job", lambda record, job, *args: world.submit(job, "run", record.submission_id)
    )
    monkeypatch.setattr(slice_task, "wait_for_job", world.wait)

    def ask(**question: Any) -> None:
        world.asked += 1

    monkeypatch.setattr("airflow.sdk.execution_time.hitl.upsert_hitl_detail", ask)
    yield world
    assert world.cluster.answered in (0, 3 + world.again)  # nothing is paid twice


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does not reach the storage."""
    monkeypatch.setattr(hold, "decide_here", lambda *args: False)


@pytest.mark.parametrize("force", [False, True])
def test_try_that_died_after_it_had_published_has_lost_nothing(world: World, force: bool) -> None:
    context, kept = world.ask(rerun__force=force)
    result = world.task(rerun__force=force).execute_decision(context, APPROVAL, **kept)
    assert (result["outcome"], result["published_version"]) == ("published", 1)
    assert world.retry(rerun__force=force) == result
    assert (world.jobs, world.asked) == (["run"], 1)


def test_retry_after_an_approval_publishes_and_asks_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, kept = world.ask()

    def fail(*args: Any) -> bool:
        raise SliceError("the storage is busy", kind="transient")

    with monkeypatch.context() as patch:
        patch.setattr(hold, "decide_here", fail)
        with pytest.raises(RayLLMJobError, match="busy"):
            world.task().execute_decision(context, APPROVAL, **kept)
    assert world.retry()["outcome"] == "published"
    assert (world.jobs, world.asked) == (["run"], 1)


@pytest.mark.parametrize(("clears", "given"), [(1, {}), (0, {"prompt": "Other {name}"})])
def test_approval_counts_for_what_was_asked_only(
    world: World, monkeypatch: pytest.MonkeyPatch, clears: int, given: dict[str, Any]
) -> None:
    context, kept = world.ask()
    with monkeypatch.context() as patch:
        patch.setattr(slice_task.SliceTask, "_carry_out", lambda *args: {})  # it dies there
        world.task().execute_decision(context, APPROVAL, **kept)
    task = world.task(**given)
    with task._start_attempt(context_of(task, world.store, try_number=2, clears=clears)) as later:
        assert not later.goes_on
    task = world.task()
    with task._start_attempt(context_of(task, world.store, try_number=2)) as later:
        assert later.goes_on
        decision = later.lost_decision()
    assert decision is not None
    assert (decision["is_approval"], decision["held"]["staged"]) == (True, kept["held"]["staged"])


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("force", [False, True])
def test_lost_report_of_an_approval_asks_nobody_again(world: World, force: bool) -> None:
    context, kept = world.ask(rerun__force=force)
    world.lost = 1
    result = world.task(rerun__force=force).execute_decision(context, APPROVAL, **kept)
    assert (result["outcome"], result["published_version"]) == ("published", 1)
    assert (world.jobs, world.asked) == (["run", "decide", "decide"], 1)


@pytest.mark.usefixtures("far")
def test_reports_that_stay_lost_are_the_next_tries(world: World) -> None:
    context, kept = world.ask(rerun__force=True)
    world.lost = 2
    with pytest.raises(RayLLMJobError, match="nothing is known of Ray job"):
        world.task(rerun__force=True).execute_decision(context, APPROVAL, **kept)
    assert world.retry(rerun__force=True)["outcome"] == "published"
    assert world.asked == 1


LENIENT = {"quality__gates": [{"of": "rows", "max": 5, "then": "hold"}]}
STRICT = {"quality__gates": [{"of": "rows", "max": 2, "then": "hold"}]}


@pytest.mark.parametrize("clears", [0, 1])
@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("decision", ["reject", "again"])
def test_rejection_that_was_not_carried_out_is_by_the_next_try(
    world: World, monkeypatch: pytest.MonkeyPatch, decision: str, edited: bool, clears: int
) -> None:
    """Also where the gates would let the slice pass by now."""
    context, kept = world.ask(**STRICT)
    chosen = REJECTION if decision == "reject" else again("name = 'a'")
    with monkeypatch.context() as patch:
        patch.setattr(slice_task.SliceTask, "_carry_out", lambda *args: {})  # it dies there
        world.task(**STRICT).execute_decision(context, chosen, **kept)
    world.again = 1 if decision == "again" else 0
    task = world.task(**(LENIENT if edited else STRICT))
    retry = context_of(task, world.store, try_number=2, clears=clears)
    if decision == "again" and edited:
        assert task.execute(retry)["outcome"] == "published"  # with the new answer
        return
    with pytest.raises(BaseException) as ended:  # noqa: PT011 - of three kinds
        task.execute(retry)
    is_rejected = isinstance(ended.value, RayLLMInputError) and "was rejected by bob" in str(ended.value)
    assert is_rejected == (decision == "reject" and not edited and not clears)
    assert current_report(world.slice_job) is None


def test_decision_that_another_version_kept_is_asked_for_anew(world: World) -> None:
    context, _ = world.ask(**STRICT)
    task = world.task(**STRICT)
    with task._start_attempt(context) as attempt:
        attempt.note_decision({"by": "bob"})
    with pytest.raises(RayLLMInputError, match="a person decided, and nothing"):
        world.retry(**STRICT)
    with pytest.raises(BaseException) as pause:  # noqa: PT011 - of two kinds, by Airflow's version
        world.retry(**STRICT)
    assert pause.typename in ("TaskAwaitingInput", "TaskDeferred")


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("lost", [1, 2])
def test_rejection_whose_report_is_lost_is_asked_for_again(world: World, lost: int) -> None:
    context, kept = world.ask(**STRICT)
    world.lost = lost
    expected = r"was rejected by bob" if lost == 1 else "nothing is known of Ray job"
    with pytest.raises((RayLLMInputError, RayLLMJobError), match=expected):
        world.task(**STRICT).execute_decision(context, REJECTION, **kept)
    assert world.jobs == ["run", "decide", "decide"]
    if lost == 2:
        with pytest.raises(RayLLMInputError, match="was rejected by bob"):
            world.retry(**STRICT)
    assert current_report(world.slice_job) is None


@pytest.mark.usefixtures("far")
def test_rejection_of_what_was_published_meanwhile_says_so(world: World) -> None:
    context, kept = world.ask()
    commit_for_people(world.slice_job.address, None)
    with pytest.raises(RayLLMInputError, match="was published already, as version 1"):
        world.task().execute_decision(context, REJECTION, **kept)


@pytest.mark.usefixtures("far")
def test_rejection_of_what_was_discarded_meanwhile_is_one(world: World) -> None:
    context, kept = world.ask()
    discard_for_people(world.slice_job.address, None)
    with pytest.raises(RayLLMInputError, match="was rejected by bob"):
        world.task().execute_decision(context, REJECTION, **kept)
    assert current_report(world.slice_job) is None


@pytest.mark.parametrize("condition", ["", "name = 'a'"])
def test_approval_of_what_was_discarded_meanwhile_is_refused_without_a_job(
    world: World, condition: str
) -> None:
    context, kept = world.ask()
    if condition:
        ask_again_for_people(world.slice_job.address, None, condition)
    else:
        discard_for_people(world.slice_job.address, None)
    with pytest.raises(RayLLMInputError, match="was discarded meanwhile") as refused:
        world.task().execute_decision(context, APPROVAL, **kept)
    assert "Clear the task: it asks again, and answers no row again" in refused.value.failure.advice
    assert (world.jobs, current_report(world.slice_job)) == (["run"], None)


@pytest.mark.parametrize("rendered", ["bob", {"user": ["bob"]}, {"users": "bob"}, {"reject_after": "400d"}])
def test_hold_that_cannot_work_is_refused_before_a_row_is_paid(world: World, rendered: Any) -> None:
    task = world.task()
    task.quality = {**task.quality, "hold": rendered}  # as Airflow does it
    with pytest.raises(RayLLMInputError, match=r"quality\.hold"):
        task.execute(context_of(task, world.store))
    assert world.jobs == []


def test_answer_to_what_was_asked_before_a_clear_is_none(world: World) -> None:
    """Airflow resumes the task with it while its job runs."""
    task = world.task()
    task.deferrable = True
    context = context_of(task, world.store, clears=1)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context)
    for _ in range(2):
        kept = deferred.value.kwargs
        with pytest.raises(TaskDeferred) as deferred:
            task.execute_complete(context, APPROVAL, **kept)
        assert deferred.value.method_name == "execute_complete"
    assert world.jobs == ["run"]
    assert current_report(world.slice_job) is None


@pytest.mark.parametrize("clears", [0, 1])
@pytest.mark.parametrize("decision", ["reject", "again"])
def test_rejection_that_airflow_told_nobody_counts(world: World, decision: str, clears: int) -> None:
    """It has one that was given after the task was cleared, or whose process died. Whatever the gates say."""
    _, held = world.ask()
    task = world.task(quality__gates=[])
    context = context_of(task, world.store, try_number=2, clears=clears)
    if decision == "reject":
        with pytest.raises(RayLLMInputError, match="was rejected by bob"):
            execute(task, context, REJECTION)
        assert (world.jobs, current_report(world.slice_job)) == (["run"], None)
    else:
        world.again = 1
        assert execute(task, context, again("name = 'a'"))["outcome"] == "published"
    with pytest.raises(SliceError, match="no staged version"):
        commit_for_people(world.slice_job.address, held["held"]["staged"])


def test_approval_that_airflow_told_nobody_counts_unless_the_task_was_cleared(world: World) -> None:
    world.ask()
    cleared = context_of(world.task(), world.store, try_number=2, clears=1)
    with pytest.raises(BaseException) as pause:  # noqa: PT011 - of two kinds, by Airflow's version
        execute(world.task(), cleared, APPROVAL)
    assert pause.typename in ("TaskAwaitingInput", "TaskDeferred")
    assert current_report(world.slice_job) is None
    context = context_of(world.task(), world.store, try_number=3, clears=1)
    assert execute(world.task(), context, APPROVAL)["outcome"] == "published"
    assert world.asked == 2


@pytest.mark.parametrize("before", ["approved", "again"])
def test_answer_to_the_question_before_publishes_nothing_of_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Airflow has it until the next one is put, and the process that was to put it died."""
    world.ask()
    task = world.task()
    with task._start_attempt(context_of(task, world.store, try_number=2, clears=1)) as attempt:
        attempt.mark_ended(question=attempt.question)
    answer = APPROVAL if before == "approved" else again("name = 'a'")
    with pytest.raises(BaseException) as pause:  # noqa: PT011 - of two kinds, by Airflow's version
        world.retry(answer)
    assert pause.typename in ("TaskAwaitingInput", "TaskDeferred")
    assert (world.asked, current_report(world.slice_job)) == (2, None)


def test_rejection_that_may_be_of_the_question_before_counts(world: World) -> None:
    world.ask()
    task = world.task()
    with task._start_attempt(context_of(task, world.store, try_number=2)) as attempt:
        attempt.mark_ended(question=attempt.question)
    with pytest.raises(RayLLMInputError, match="was rejected by bob"):
        world.retry(REJECTION)


def test_answer_that_is_no_decision_is_over_with_its_try(world: World) -> None:
    context, kept = world.ask()
    with pytest.raises(RayLLMInputError, match="no condition says which rows"):
        world.task().execute_decision(context, again(""), **kept)
    with pytest.raises(BaseException) as pause:  # noqa: PT011 - of two kinds, by Airflow's version
        world.retry(again(""))
    assert pause.typename in ("TaskAwaitingInput", "TaskDeferred")


def test_question_is_withdrawn_once(world: World) -> None:
    """A try that dies after that has nothing to look for."""
    world.ask()
    task = world.task(quality__gates=[])
    with pytest.raises(TaskDeferred) as pause:
        task.execute(context_of(task, world.store, try_number=2))
    assert pause.value.method_name == "execute_answered"
    with task._start_attempt(context_of(task, world.store, try_number=2)) as attempt:
        attempt.settle_question()
    assert task.execute(context_of(task, world.store, try_number=3))["outcome"] == "published"


def test_rejection_of_what_nothing_says_ends_the_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as where somebody removed the task's state: its question was not withdrawn."""
    world.ask()
    task = world.task(quality__gates=[])
    task.deferrable = True
    context = context_of(task, StateStore(), try_number=2, clears=1)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context)
    assert deferred.value.method_name == "execute_complete"
    stopped: list[str] = []
    monkeypatch.setattr(decisions, "stop_and_wait", lambda hook, job: stopped.append(job))
    with pytest.raises(RayLLMInputError, match="a person decided, and nothing"):
        task.execute_complete(context, REJECTION, **(deferred.value.kwargs or {}))
    assert len(stopped) == 1


def again(condition: str) -> dict[str, Any]:
    return {**APPROVAL, "chosen_options": ["Answer again"], "params_input": {"condition": condition}}


def decide_again(world: World, context: Any, kept: dict[str, Any], condition: str) -> dict[str, Any]:
    """Returns what Airflow keeps, when the task asks once more."""
    with pytest.raises(BaseException) as pause:  # noqa: PT011 - of two kinds, by Airflow's version
        world.task().execute_decision(context, again(condition), **kept)
    assert pause.typename in ("TaskAwaitingInput", "TaskDeferred"), pause.value
    return pause.value.kwargs  # type: ignore[attr-defined,no-any-return]


def test_rows_are_asked_again_and_the_result_is_decided_of_anew(world: World) -> None:
    context, kept = world.ask()
    second = decide_again(world, context, kept, "name = 'a' OR name = 'b'")
    world.again = 2
    assert second["held"]["staged"] != kept["held"]["staged"]
    third = decide_again(world, context, second, "name = 'c'")
    world.again = 3
    assert world.task().execute_decision(context, APPROVAL, **third)["outcome"] == "published"
    assert (world.jobs, world.asked) == (["run", "decide", "run", "decide", "run"], 3)


@pytest.mark.parametrize("decision", [REJECTION, again("name = 'a'")], ids=["reject", "again"])
def test_decision_of_what_was_staged_anew_meanwhile_ends_the_task_and_says_so(
    world: World, decision: dict[str, Any]
) -> None:
    context, kept = world.ask()
    more = [{"of": "rows", "then": "hold"}, {"of": "median:answer", "max": 100}]
    anew = run_in_process(changed(world.slice_job, quality__gates=more), world.cluster)
    with pytest.raises(RayLLMInputError, match=rf"it has: {anew.staged_version}") as refused:
        world.task().execute_decision(context, decision, **kept)
    assert "Clear the task: it asks again, and answers no row again" in refused.value.failure.advice
    assert anew.staged_version is not None
    publish_approved(world.slice_job, anew.staged_version)


def test_condition_that_is_none_ends_the_task_and_discards_nothing(world: World) -> None:
    context, kept = world.ask()
    with pytest.raises(RayLLMInputError, match="is no condition on the answered rows") as refused:
        world.task().execute_decision(context, again("nobody = 1"), **kept)
    assert "Clear the task: it asks again, and answers no row again" in refused.value.failure.advice
    publish_approved(world.slice_job, kept["held"]["staged"])


def test_try_that_dies_before_rows_are_asked_again_leaves_them_to_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, kept = world.ask()
    with monkeypatch.context() as patch:
        patch.setattr(slice_task.SliceTask, "_submit", lambda *args: {})  # it dies there
        world.task().execute_decision(context, again("name = 'a'"), **kept)
    with pytest.raises(BaseException) as pause:  # noqa: PT011 - of two kinds, by Airflow's version
        world.retry()
    world.again = 1
    assert pause.value.kwargs["held"]["staged"] != kept["held"]["staged"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("answer", [REJECTION, again("name = 'a'")], ids=["reject", "again"])
def test_question_that_another_version_kept_is_asked_anew_once_a_decision_of_it_has_failed(
    world: World, answer: dict[str, Any]
) -> None:
    world.ask()
    task = world.task()
    with task._start_attempt(context_of(task, world.store)) as attempt:
        attempt.mark_ended(question={"of": "a later version of the provider"})
        attempt.note_put()
    with pytest.raises(RayLLMInputError, match="nothing that this version"):
        world.retry(answer)
    cleared = context_of(world.task(), world.store, try_number=3, clears=1)
    with pytest.raises(BaseException) as pause:  # noqa: PT011 - of two kinds, by Airflow's version
        execute(world.task(), cleared)
    assert pause.typename in ("TaskAwaitingInput", "TaskDeferred")


@pytest.mark.parametrize("is_late", [True, False])
def test_rows_are_asked_again_by_an_answer_that_came_before_its_question_was_noted_as_put(
    world: World, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """The process died in between; an answer from before the slice was held was to another question."""

    def die(tracker: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tracker.JobTracker, "note_put", die)
        task = world.task(**STRICT)
        with pytest.raises(KeyboardInterrupt):
            task.execute(context_of(task, world.store))
    world.again = int(is_late)
    answer = {**again("name = 'a'"), "responded_at": time.time() + (1 if is_late else -60)}
    assert world.retry(answer, **LENIENT)["outcome"] == "published"


@pytest.mark.parametrize("gates", [[], [{"of": "truncated", "max": 0.5}]])
def test_hold_that_no_gate_uses_is_refused(world: World, gates: list[dict[str, Any]]) -> None:
    with pytest.raises(RayLLMInputError, match="nobody would be asked"):
        world.task(quality__gates=gates, quality__hold={"users": ["alice"]})
