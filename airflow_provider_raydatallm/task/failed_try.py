"""What is left of a try that failed: its record beside the task instance, and the last lines of its log."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.exceptions import AirflowConfigException

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.failure_patterns import known_words
from airflow_provider_raydatallm.exceptions import carried_failure, failure_of, with_failure
from airflow_provider_raydatallm.task import own_xcom
from airflow_provider_raydatallm.task.job.log_entries import clean

if TYPE_CHECKING:
    from airflow.sdk import Context

logger = logging.getLogger(__name__)

#: Key of the XCom that holds the record. The next try removes it, as Airflow does with all.
FAILURE_KEY = "ray_llm_failure"
#: Of its JSON.
RECORD_BYTES = 16_384
_HIDDEN = (
    "Texts that may quote a row are left out here: `airflow-ray-llm show OUTPUT SLICE` has them, and "
    "[ray_llm] show_samples shows them"
)


def shows_row_texts() -> bool:
    """Whether `[ray_llm] show_samples` allows texts from rows on the page, and in what a task leaves in
    Airflow. A value that is neither hides them: a setting fails neither a page nor a task."""
    try:
        return conf.getboolean("ray_llm", "show_samples", fallback=False)
    except AirflowConfigException as e:
        logger.warning("[ray_llm] show_samples counts as False: %s", e)
        return False


def shown(failure: Failure) -> Failure:
    """Returns a record without what may quote a row, unless the setting allows it; what is left says so."""
    if shows_row_texts():
        return failure
    hidden = failure.without_row_texts()
    if hidden.sentence != failure.sentence and (words := known_words(failure.cause)):
        hidden = replace(hidden, sentence=f"{hidden.sentence}: {words}")
    if failure.log_of:  # a log that no row comes into
        hidden = replace(hidden, log=failure.log, log_of=failure.log_of)
    return replace(hidden, advice=(*hidden.advice, _HIDDEN)) if _says_less(hidden, failure) else hidden


def _says_less(hidden: Failure, failure: Failure) -> bool:
    """Whether a record told more before it was hidden: not where its root error only repeats the sentence."""
    cause = failure.cause.rstrip(".")
    return (hidden.sentence, hidden.row_texts, hidden.log) != (
        failure.sentence,
        failure.row_texts,
        failure.log,
    ) or cause not in f"{hidden.sentence}\n{hidden.cause}"


def record_failure(context: Context, error: BaseException, log: Any) -> Failure:
    """Keeps the record of what ends a try, and logs what of it the error's own text lacks: Airflow logs that
    next, for every error.

    No failure here fails the task in another way.
    """
    failure = _record_of(error)
    try:
        own_xcom.push(context["ti"], FAILURE_KEY, failure.to_json(RECORD_BYTES))
    except Exception as e:
        log.warning("Airflow keeps no record of why this try failed: %s", e)
    log.debug("Where the task failed", exc_info=error)
    if failure.log:
        log.info("::group::The end of %s's log", failure.log_of or "the Ray job")
        for line in failure.log:
            log.error("%s", clean(line))
        log.info("::endgroup::")
    if failure.count_words:
        log.info("Rows when it failed: %s", failure.count_words)
    return failure


def _record_of(error: BaseException) -> Failure:
    """Returns the record of an error, which it then carries, with its text changed to what may be shown."""
    carried = carried_failure(error)
    if carried is None:
        # Raised in this process, which reads no rows; Airflow logs the whole text.
        failure = replace(failure_of(error), cause="")
    elif (failure := shown(carried)) != carried:
        error.args = (failure.message,)
    with_failure(error, failure)
    return failure


def show_last(task: Any, failure: Failure, log: Any) -> None:
    """Has Airflow log the sentence below its own traceback, when all else has been logged: above it, which
    line of the user's own code failed; below it, what to do, and where it was. Airflow shows the lines of one
    entry as one."""
    for name in ("on_failure_callback", "on_retry_callback"):
        callbacks = getattr(task, name) or ()
        callbacks = [callbacks] if callable(callbacks) else callbacks
        # `dag.test()` runs all tries of a task on one object.
        others = [one for one in callbacks if not isinstance(one, _LastLines)]
        setattr(task, name, [*others, _LastLines(failure, log)])


@dataclass(frozen=True)
class _LastLines:
    failure: Failure
    log: Any

    def __call__(self, context: Any) -> None:
        self.log.info("::endgroup::")  # Airflow folds what follows a try's end
        failure, where = self.failure, str(self.failure.place)
        lines = [*failure.frames, failure.headline, *failure.advice, *([f"Where: {where}"] if where else ())]
        for line in lines:
            self.log.error("%s", clean(line))
