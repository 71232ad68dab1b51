"""A slice that waits for a person, beside Airflow: what is read of a decision, and done."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk.api.datamodels._generated import HITLDetailResponse
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.spec.hold import Hold
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.processor.publish.published import current_report
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from airflow_provider_raydatallm.task import hold, submission
from tests.support.in_process import InProcess, changed, job_of, run_in_process

BOB = {"id": "7", "name": "bob"}
APPROVAL, REJECTION = hold.Decision(True, "bob"), hold.Decision(False, "bob")


@pytest.fixture
def held(tmp_path: Path) -> hold.HeldSlice:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"name": ["a", "b", "c"]}), tmp_path / "in" / "a.parquet")
    job = changed(
        job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out"),
        quality__gates=[{"of": "rows", "then": "hold"}],
    )
    return hold.HeldSlice.of(job, run_in_process(job, InProcess()), Hold())


def again(condition: str | None) -> dict[str, Any]:
    given = {} if condition is None else {"params_input": {"condition": condition}}
    return {"chosen_options": ["Answer again"], "responded_by_user": BOB, **given}


@pytest.mark.parametrize("condition", [None, "", "  "])
def test_rows_are_not_asked_again_without_a_condition(condition: str | None) -> None:
    with pytest.raises(RayLLMInputError, match="no condition says which rows"):
        hold.Decision.of(again(condition), Hold())


def submission_of(job: SliceJob, **variables: str) -> JobSubmission:
    return JobSubmission(job, [], {"env_vars": variables}, dict, {})


@pytest.mark.parametrize(
    ("event", "decision"),
    [
        ({"chosen_options": ["Approve"], "responded_by_user": BOB}, APPROVAL),
        ({"chosen_options": ["Reject"], "responded_by_user": BOB}, REJECTION),
        (again("n IS NULL"), hold.Decision(False, "bob", "n IS NULL")),
        ({**again("n IS NULL"), "chosen_options": ["Reject"]}, REJECTION),
    ],
)
def test_decision_is_whose_it_is(event: dict[str, Any], decision: hold.Decision) -> None:
    assert hold.Decision.of(event, Hold()) == decision


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"chosen_options": []},
        {"chosen_options": None},
        {"chosen_options": ["approve"]},
        {"chosen_options": ["Approve", "Reject"]},
        {"chosen_options": "Approve"},
        {"error": "The response timeout has passed", "error_type": "timeout"},
        {"chosen_options": ["Approve", "Answer again"]},
    ],
)
def test_what_is_no_decision_publishes_nothing(event: dict[str, Any]) -> None:
    with pytest.raises(RayLLMInputError, match="without a decision"):
        hold.Decision.of(event, Hold())


def test_held_slice_comes_back_from_what_airflow_keeps(held: hold.HeldSlice) -> None:
    kept = held.to_kwargs()
    assert hold.HeldSlice.from_kwargs(**kept) == held
    assert held.verdicts == ("rows is 3",)
    with pytest.raises(RayLLMInputError, match="this version of the provider"):
        hold.HeldSlice.from_kwargs({"of": "a newer provider"})


def test_approval_is_carried_out_where_the_slice_is_in_reach(held: hold.HeldSlice) -> None:
    for _ in range(2):  # the process died before Airflow took note
        report = hold.decide_here(submission_of(held.job), held, APPROVAL)
        assert isinstance(report, Report)
        assert (report.outcome, report.published_version) == ("published", 1)


def test_rejection_is_carried_out_where_the_slice_is_in_reach(held: hold.HeldSlice) -> None:
    assert hold.decide_here(submission_of(held.job), held, REJECTION) is True
    assert hold.decide_here(submission_of(held.job), held, REJECTION) is True
    with pytest.raises(SliceError, match=f"{held.staged} of slice '2026-01-31' was discarded meanwhile"):
        hold.decide_here(submission_of(held.job), held, APPROVAL)
    assert current_report(held.job) is None
    assert "slice '2026-01-31' was rejected by bob: rows is 3" in str(hold.rejection(held, REJECTION))


@pytest.mark.parametrize("decision", [APPROVAL, REJECTION])
def test_cluster_carries_it_out_where_this_machine_may_have_another_disk(
    held: hold.HeldSlice, decision: hold.Decision
) -> None:
    other = held.model_copy(update={"staged": "000001-00000000"})
    assert hold.decide_here(submission_of(held.job), other, decision) is False


def test_cluster_carries_it_out_where_the_store_may_be_another(held: hold.HeldSlice) -> None:
    elsewhere = submission_of(held.job, AWS_ENDPOINT_URL="http://other:9000")
    assert hold.decide_here(elsewhere, held, APPROVAL) is False
    assert current_report(held.job) is None


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"hold": {"reject_after": "soon"}}, "quality.hold: reject_after"),
        ({"hold": {"reject_after": "1d", "approve_after": "1d"}}, "exclude each other"),
        ({"hold": {"user": ["bob"]}}, "there is no user"),
        ({"hold": {"users": "bob"}}, "quality.hold: users"),
        ({"hold": {"reject_after": "400d"}}, "quality.hold: reject_after"),
        ({"hold": {"users": []}}, "quality.hold: users"),
        ({"hold": {"users": [""]}}, "quality.hold: users"),
    ],
)
def test_hold_that_cannot_work_is_refused_by_name(written: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        submission.hold_of(written)


def test_hold_may_be_rendered_as_text() -> None:
    read = submission.hold_of({"hold": '{"users": ["bob"], "approve_after": "2h"}'})
    assert (read.users, read.approve_after, read.reject_after) == (("bob",), 7200, None)
    assert submission.hold_of(None) == submission.hold_of({})


@pytest.mark.parametrize("first", ["Approve", "Reject"])
def test_silence_counts_as_the_dag_said_when_it_asked(first: str) -> None:
    """Airflow says what the first question of the task said."""
    event = {"chosen_options": [first], "responded_by_user": None, "timedout": True}
    by = "nobody in time, and so quality.hold"
    assert hold.Decision.of(event, Hold(reject_after=60)) == hold.Decision(False, by)
    assert hold.Decision.of(event, Hold(approve_after=60)) == hold.Decision(True, by)


def test_silence_counts_where_the_first_question_had_no_end() -> None:
    event = {"error": "The response timeout has passed", "error_type": "timeout"}
    assert hold.Decision.of(event, Hold(reject_after=60)).is_approval is False
    assert hold.Decision.of(event, Hold(approve_after=60)).is_approval is True
    with pytest.raises(RayLLMInputError, match="without a decision"):
        hold.Decision.of({"error": "no", "error_type": "validation"}, Hold(approve_after=60))


def test_decision_of_somebody_whom_the_dag_does_not_name_by_now_publishes_nothing() -> None:
    event = {"chosen_options": ["Approve"], "responded_by_user": BOB}
    assert hold.Decision.of(event, Hold(users=("7",))) == APPROVAL
    with pytest.raises(RayLLMInputError, match=r"bob decided, whom quality\.hold does not name"):
        hold.Decision.of(event, Hold(users=("alice",)))


def test_question_shows_what_others_wrote_as_text(
    monkeypatch: pytest.MonkeyPatch, held: hold.HeldSlice
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        "airflow.sdk.execution_time.hitl.upsert_hitl_detail", lambda **said: asked.update(said)
    )
    job = changed(held.job, slice_key="`[x](http://evil)")
    named = held.model_copy(update={"job": job, "hold": Hold(users=("bob",), reject_after=60)})
    with pytest.raises(BaseException) as pause:  # noqa: PT011 - of two kinds, by Airflow's version
        hold.ask(
            cast("Any", {"ti": SimpleNamespace(id="t")}), named, page="http://a/b", method_name="go_on",
            on_put=lambda: asked.update(is_put=bool(asked)),
        )  # fmt: skip
    assert pause.typename in ("TaskAwaitingInput", "TaskDeferred")
    assert asked["is_put"]
    assert (asked["options"], asked["defaults"]) == (["Approve", "Reject", "Answer again"], ["Reject"])
    assert asked["params"]["condition"]["schema"]["type"] == ["null", "string"]
    assert asked["assigned_users"] == [{"id": "bob", "name": "bob"}]
    assert "`'[x](http://evil)`" in asked["body"]


TI = UUID("01a2b3c4-0000-7000-8000-000000000000")


class Required:
    """Airflow's required action of a task: `answer` is what it has; None where there is no action."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | None) -> None:
        self.answer = answer
        monkeypatch.setattr("airflow.sdk.execution_time.hitl.update_hitl_detail_response", self._update)
        monkeypatch.setattr("airflow.sdk.execution_time.hitl.get_hitl_detail_content_detail", self._get)

    def _update(self, ti_id: UUID, chosen_options: list[str], params_input: dict[str, Any]) -> None:
        if self.answer is None or self.answer:
            self._fail(404 if self.answer is None else 409)
        self.answer = {"chosen_options": chosen_options, "responded_by_user": None}

    def _get(self, ti_id: UUID) -> HITLDetailResponse:
        if self.answer is None:
            self._fail(404)
        return HITLDetailResponse(
            **{
                "response_received": bool(self.answer),
                "responded_at": None,
                "chosen_options": (),
                **(self.answer or {}),
            }
        )

    @staticmethod
    def _fail(status: int) -> NoReturn:
        raise AirflowRuntimeError(
            ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": status})
        )


@pytest.mark.parametrize("answer", [{}, None])
def test_question_that_nobody_answered_is_withdrawn(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | None
) -> None:
    action = Required(monkeypatch, answer)
    assert hold.withdraw(TI) == {}
    assert (action.answer is None) == (answer is None)
    assert hold.withdraw(TI) == {}  # a try that died before it knew


def test_answer_that_airflow_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    bob = {"id": "7", "name": "bob"}
    Required(monkeypatch, {"chosen_options": ["Reject"], "responded_by_user": bob})
    event = hold.withdraw(TI)
    assert hold.Decision.of(event, Hold()) == hold.Decision(False, "bob")


def test_question_that_could_not_be_withdrawn_now_counts_as_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Required, "_update", lambda self, *args: self._fail(500))
    Required(monkeypatch, {})
    with pytest.raises(AirflowRuntimeError):
        hold.withdraw(TI)


def test_what_nobody_answered_is_no_decision() -> None:
    """A question that was withdrawn, say."""
    event = {"chosen_options": ["Answer again"], "responded_by_user": None}
    with pytest.raises(RayLLMInputError, match="without a decision"):
        hold.Decision.of(event, Hold(approve_after=60))


def test_answer_that_cannot_be_read_now_is_no_withdrawal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Required, "_get", lambda self, ti_id: self._fail(503))
    Required(monkeypatch, {"chosen_options": ["Reject"]})
    with pytest.raises(AirflowRuntimeError):
        hold.withdraw(TI)
