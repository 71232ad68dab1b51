"""A slice that waits for a person, by Airflow's required actions: the question, and what its answer
does. Meanwhile there is no job, no cluster and no worker: only the staged version."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import pydantic
from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_raydatallm.contract.base import Contract
from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.contract.result.errors import SliceError, StorageError
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.spec.hold import Hold
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.task import submission
from airflow_provider_raydatallm.task.airflow_features import await_input

if TYPE_CHECKING:
    from uuid import UUID

    from airflow.sdk import Context

    from airflow_provider_raydatallm.submit.ray_job import JobSubmission

APPROVE, REJECT, AGAIN = "Approve", "Reject", "Answer again"
#: Of the question's form.
_CONDITION = "condition"
_ASK_AGAIN = "Clear the task: it asks again, and answers no row again"


class HeldSlice(Contract):
    """What Airflow keeps for the resume.

    :ivar staged: name of the version that waits.
    :ivar verdicts: of the gates that hold it, for people.
    :ivar hold: as it was when the question was put.
    :ivar held_at: epoch seconds from which on a person may be asked; 0 in what earlier builds kept.
    """

    job: SliceJob
    staged: str
    verdicts: tuple[str, ...]
    hold: Hold
    held_at: float = 0.0

    @classmethod
    def of(cls, job: SliceJob, report: Report, hold: Hold) -> HeldSlice:
        held = tuple(str(gate) for gate in report.gates or () if gate.verdict == "held")
        return cls(job=job, staged=str(report.staged_version), verdicts=held, hold=hold, held_at=time.time())

    def to_kwargs(self) -> dict[str, Any]:
        """Returns it as JSON."""
        return {"held": self.model_dump(mode="json", exclude_defaults=True)}

    @classmethod
    def from_kwargs(cls, held: Any) -> HeldSlice:
        """:raises RayLLMInputError: when another version of the provider kept what this one cannot read, or
        nothing was kept."""
        try:
            return cls.model_validate(held)
        except pydantic.ValidationError:
            raise unknown_question() from None


@dataclass(frozen=True)
class Decision:
    """
    :param by: who decided, for people.
    :param again: in SQL, which rows of a rejected version are asked again; "" for none.
    """

    is_approval: bool
    by: str
    again: str = ""

    @classmethod
    def of(cls, event: Mapping[str, Any], hold: Hold) -> Decision:
        """
        :param event: of Airflow, when the task is resumed.
        :raises RayLLMInputError: when it is no decision, or of somebody who may not: nothing is published.
        """
        chosen, user = event.get("chosen_options"), event.get("responded_by_user")
        after = hold.reject_after or hold.approve_after
        is_late = after is not None and event.get("error_type") == "timeout"
        of_people = ([AGAIN],) if user else ()  # by nobody: a question that was withdrawn
        if chosen not in ([APPROVE], [REJECT], *of_people) and not is_late:
            raise RayLLMInputError(
                f"Airflow resumed the task without a decision: {event.get('error') or chosen!r:.200}",
                advice=_ASK_AGAIN,
            )
        # Of a task that asks a second time Airflow keeps the first question: what then counts as chosen in
        # the end, and who may answer, may be of a DAG before it was edited.
        if not user:
            return cls(hold.approve_after is not None, "nobody in time, and so quality.hold")
        name = plain_text(str(user["name"]))
        if hold.users and str(user["id"]) not in hold.users:
            raise RayLLMInputError(
                f"{name} decided, whom quality.hold does not name: it names {', '.join(hold.users)}",
                advice=_ASK_AGAIN,
            )
        if chosen != [AGAIN]:
            return cls(chosen == [APPROVE], name)
        condition = str((event.get("params_input") or {}).get(_CONDITION) or "").strip()
        if not condition:
            raise RayLLMInputError(
                f"{name} chose {AGAIN!r}, and no condition says which rows", advice=_ASK_AGAIN
            )
        return cls(False, name, condition)

    @property
    def words(self) -> list[str]:
        """Of the command `decide`."""
        if self.is_approval:
            return []
        return [f"--again={self.again}"] if self.again else ["--reject"]

    def to_json(self, held: HeldSlice) -> dict[str, Any]:
        """Returns it, with the slice, for who carries it out where this process dies."""
        return {**held.to_kwargs(), **asdict(self)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> tuple[Decision, HeldSlice]:
        """:raises RayLLMInputError: when another version of the provider kept what this one cannot read."""
        own = {field.name: kept.get(field.name) for field in fields(cls)}
        if not isinstance(own["is_approval"], bool) or not all(
            isinstance(own[n], str) for n in ("by", "again")
        ):
            return HeldSlice.from_kwargs(None)  # type: ignore[return-value]  # raises
        return cls(**own), HeldSlice.from_kwargs(kept.get("held"))  # type: ignore[arg-type]

    def __str__(self) -> str:
        verdict = f"{AGAIN} where {plain_text(self.again)}:" if self.again else "Rejected by"
        return f"{'Approved by' if self.is_approval else verdict} {self.by}"


def unknown_question() -> RayLLMInputError:
    return RayLLMInputError(
        "a person decided, and nothing that this version of the provider can read says of what",
        advice=_ASK_AGAIN,
    )


def withdraw(ti_id: UUID) -> dict[str, Any]:
    """Has Airflow take no answer any more to what the task instance asked. Returns the event of one that it
    has; nothing where there is none, or no question. Blocks, and only a triggerer may.
    """
    from airflow.sdk.execution_time.hitl import get_hitl_detail_content_detail, update_hitl_detail_response

    refusal: AirflowRuntimeError | None = None
    try:
        update_hitl_detail_response(ti_id, [AGAIN], {})
    except AirflowRuntimeError as e:  # it is answered, or there is none
        refusal = e
    try:
        answer = get_hitl_detail_content_detail(ti_id)
    except AirflowRuntimeError as e:
        if e.error.detail and e.error.detail.get("status_code") == 404:
            return {}
        raise
    if refusal is not None and not answer.response_received:
        raise refusal
    if (user := answer.responded_by_user) is None:  # nobody, or a limit that passed: the new try asks anew
        return {}
    return {
        "chosen_options": list(answer.chosen_options or ()),
        "responded_by_user": {"id": user.id, "name": user.name},
        "params_input": answer.params_input or {},
        "responded_at": answer.responded_at.timestamp() if answer.responded_at is not None else 0.0,
    }


def ask(
    context: Context, held: HeldSlice, *, page: str, method_name: str, on_put: Callable[[], None]
) -> NoReturn:
    """Puts the question to people, and ends the task's process until one of them has decided.

    :param page: address of the slice's page.
    :param method_name: of the operator, which continues then.
    :param on_put: called once Airflow has the question.
    """
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail

    hold = held.hold
    after = hold.reject_after or hold.approve_after
    defaults = None if after is None else [REJECT if hold.reject_after is not None else APPROVE]
    ti: Any = context["ti"]
    options = [APPROVE, REJECT, AGAIN]
    upsert_hitl_detail(
        ti_id=ti.id,
        options=options,
        subject=f"Publish slice {plain_text(held.job.slice_key)}?",
        body=_body(held, page),
        defaults=defaults,
        params=_form(),
        assigned_users=[{"id": user, "name": user} for user in hold.users] or None,
    )
    on_put()
    await_input(
        ti_id=ti.id,
        options=options,
        params=_form(),
        defaults=defaults,
        timeout=None if after is None else timedelta(seconds=after),
        method_name=method_name,
        kwargs=held.to_kwargs(),
    )


def decide_here(submission_: JobSubmission, held: HeldSlice, decision: Decision) -> Report | bool:
    """Does what was decided, if this machine reaches the slice: its report, or True for what was rejected.
    False where the cluster has to.

    :raises SliceError: when it cannot be published, such as one that somebody discarded meanwhile.
    """
    from airflow_provider_raydatallm.processor.publish import staged_commands

    job = held.job
    if decision.again:  # which reads the rows
        return False
    if submission.uses_another_store(submission_):
        return False
    is_known = staged_commands.is_known_here(job, held.staged)
    if is_known is None:
        return False
    if decision.is_approval and not is_known:
        raise SliceError(
            f"{held.staged} of slice {job.slice_key!r} was discarded meanwhile, perhaps to have rows of it "
            "asked again",
            kind="input",
            advice=_ASK_AGAIN,
        )
    try:
        if decision.is_approval:
            return staged_commands.publish_approved(job, held.staged)
        staged_commands.discard_rejected(job, held.staged)
    except StorageError:  # such as of a disk that this machine may only read
        return False
    return True


def rejection(held: HeldSlice, decision: Decision) -> RayLLMInputError:
    why = f": {'; '.join(held.verdicts)}" if held.verdicts else ""
    return RayLLMInputError(
        f"slice {held.job.slice_key!r} was rejected by {decision.by}{why}",
        advice=(
            "Nothing of it is published, and its finished rows are kept",
            "Change what was wrong and clear the task: rows whose request stays the same are not asked again",
        ),
    )


def with_advice(failure: Failure, decision: Decision) -> Failure:
    """What to do when a decision cannot be carried out: of a version that was staged anew, say."""
    return failure if decision.is_approval else replace(failure, advice=(*failure.advice, _ASK_AGAIN))


def _body(held: HeldSlice, page: str) -> str:
    """In Markdown, and without figures: Airflow shows the first text again when the task asks a second time,
    of another version perhaps."""
    job = held.job
    return (
        f"All rows of slice {_code(job.slice_key)} are answered, and nothing of it is published in "
        f"{_code(job.slice_path)}. [Its page]({page}) shows what the gates say, and the slice beside others."
        f"\n\n**{APPROVE}** publishes it and asks the model nothing. **{REJECT}** publishes nothing; its "
        f"finished rows are kept. **{AGAIN}** asks the model once more about the rows of the condition below "
        "only, and comes back here if the gates say so."
    )


def _form() -> dict[str, Any]:
    """What a person may fill in, as Airflow keeps it."""
    param = Param(
        None,
        type=["null", "string"],
        title="Rows where",
        description=f"Of '{AGAIN}': a condition in SQL over the published columns, such as answer IS NULL",
    )
    return {_CONDITION: param.serialize()}


def _code(text: str) -> str:
    """As Markdown shows it without reading it."""
    return f"`{plain_text(text).replace('`', chr(39)):.300}`"
