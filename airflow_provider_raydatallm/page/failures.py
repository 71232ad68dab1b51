"""The records of failed tries (`task.failed_try`), beside a page of task instances."""

from __future__ import annotations

from typing import Any

from airflow.models.xcom import XComModel
from sqlalchemy import ColumnElement, Subquery, and_, case, func, null
from sqlalchemy.orm import aliased

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.page.answers import FailureLine, FailureStory
from airflow_provider_raydatallm.page.xcom_values import parsed, text_if_short
from airflow_provider_raydatallm.task.failed_try import FAILURE_KEY, RECORD_BYTES, shown, shows_row_texts

#: States of a task instance after a try that failed. The record of others is that of an earlier try.
AFTER_FAILURE = frozenset({"failed", "up_for_retry"})
#: What lists do not tell.
_LONG = ("log", "log_of", "frames")

#: The XCom of a record, to be joined by `is_of`.
record = aliased(XComModel)
#: Its text; "" of one that is longer than any that a task writes, and null where there is none.
record_text = case(
    (record.key.is_not(None), func.coalesce(text_if_short(record.value, RECORD_BYTES), "")), else_=null()
).label("failure")


def is_of(dag_id: str, task_id: str, runs: Subquery) -> ColumnElement[bool]:
    """
    :param runs: a page of them.
    """
    return and_(
        record.dag_id == dag_id,
        record.task_id == task_id,
        record.run_id == runs.c.run_id,
        record.map_index == runs.c.map_index,
        record.key == FAILURE_KEY,
    )


def read_failure(state: str | None, text: str | None, *, whole: bool) -> Failure | None:
    """Returns the record of a task instance's last try, without what `[ray_llm] show_samples` hides; None
    when it did not fail, or left none.

    :param text: JSON, or what somebody made of it.
    :param whole: whether with what a list does not tell: to make it safe takes time.
    """
    if text is None or state not in AFTER_FAILURE:
        return None
    value = parsed(text)
    if isinstance(value, dict) and not whole:
        untold = _LONG if shows_row_texts() else (*_LONG, "row_texts")
        value = {name: part for name, part in value.items() if name not in untold}
    return parse(value)


def parse(value: Any) -> Failure:
    """Reads a record, and leaves out what `[ray_llm] show_samples` hides."""
    return shown(Failure.parse(value))


def line_of(failure: Failure | None) -> FailureLine | None:
    return None if failure is None else FailureLine.model_validate(_texts(failure))


def story_of(failure: Failure | None) -> FailureStory | None:
    return None if failure is None else FailureStory.model_validate(_texts(failure))


def _texts(failure: Failure) -> dict[str, Any]:
    place = {name: at for name, at in vars(failure.place).items() if at is not None}
    return {**vars(failure), "place": place}
