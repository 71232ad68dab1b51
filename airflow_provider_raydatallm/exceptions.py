"""Errors of the provider. They are public API: retry policies and callbacks match on them.

* `RayLLMInputError` and its subclasses: the DAG, the connection or the data is wrong. A retry cannot succeed;
  the task fails at once (`AirflowFailException`).
* `RayLLMJobError` and its subclasses: a retry may succeed, and Airflow's `retries` apply.

Each carries its record as `failure`: kind, sentence, advice, place, root cause, counts and the log's end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from airflow_provider_raydatallm.contract.result.errors import text_of
from airflow_provider_raydatallm.contract.result.failure import Failure, Kind
from airflow_provider_raydatallm.contract.result.failure_patterns import first_line


class _RecordedError(AirflowException):
    """Carries the record of what went wrong; its text is the record's message."""

    kind: ClassVar[Kind] = "transient"
    failure: Failure

    def __init__(self, sentence: str | Failure = "", *, advice: str | Sequence[str] = ()) -> None:
        """
        :param sentence: what is wrong, with the value; or the whole record.
        :param advice: what to do about it.
        """
        if not isinstance(sentence, Failure):
            advice = (advice,) if isinstance(advice, str) else tuple(advice)
            sentence = Failure(self.kind, sentence, advice=advice)
        self.failure = sentence
        super().__init__(sentence.message)


class RayLLMInputError(_RecordedError, AirflowFailException):
    """A wrong argument, a missing column, an input that matches nothing, a broken file."""

    kind: ClassVar[Kind] = "input"


class RayConnectionError(RayLLMInputError):
    """The Airflow connection is invalid, or the cluster refuses its token."""

    kind = "connection"


class RayClusterUnfitError(RayLLMInputError):
    """The cluster is reachable but cannot run the slice: its Ray is too old, or it lacks CPUs or GPUs."""

    kind = "cluster"


class RayModelNotFoundError(RayLLMInputError):
    """The model is missing at `model_source`, incomplete, or needs a permission that the job lacks."""

    kind = "model"


class RayLLMJobError(_RecordedError):
    """The Ray job ended without publishing the slice. Finished rows are kept; a retry continues with the
    rest."""

    kind: ClassVar[Kind] = "transient"


class RayQueueTimeoutError(RayLLMJobError):
    """The cluster had no room within `limits.queue`. No engine was started."""

    kind = "queue"


class RayOutOfMemoryError(RayLLMJobError):
    """The model does not fit into the GPU's memory, or something else uses it; only then can a retry help."""

    kind = "gpu_memory"


class RayEngineDiedError(RayLLMJobError):
    """A process or a node of the job died: a lost machine, a node out of memory, a crash."""

    kind = "engine"


class RayJobStoppedError(RayLLMJobError):
    """The job was cancelled by a user, by its task, or by `limits.orphan`."""

    kind = "stopped"


class RayUnreachableError(RayLLMJobError):
    """The cluster's Jobs API, or what keeps Airflow's connections, did not answer within the time allowed."""

    kind = "unreachable"


class RayConnectionNotFoundError(RayLLMJobError):
    """Airflow has no such connection. A retry succeeds once it was added, or its secrets backend is back."""

    kind = "no_connection"


_CLASSES = (
    RayLLMInputError, RayConnectionError, RayClusterUnfitError, RayModelNotFoundError, RayLLMJobError,
    RayQueueTimeoutError, RayOutOfMemoryError, RayEngineDiedError, RayJobStoppedError, RayUnreachableError,
    RayConnectionNotFoundError,
)  # fmt: skip
#: What Airflow raises for each kind of failure.
BY_KIND: dict[Kind, type[BaseException]] = {
    **{cls.kind: cls for cls in _CLASSES},
    "timeout": AirflowTaskTimeout,
}


def error_of(failure: Failure) -> BaseException:
    """Returns the exception of a record's kind, which carries it."""
    if failure.kind == "timeout":
        return with_failure(AirflowTaskTimeout(failure.message), failure)
    return BY_KIND[failure.kind](failure)


def with_failure(error: BaseException, failure: Failure) -> BaseException:
    """Has an exception of Airflow's, or anybody's that can, carry a record."""
    with contextlib.suppress(Exception):
        error.failure = failure  # type: ignore[attr-defined]
    return error


def carried_failure(error: BaseException) -> Failure | None:
    """Returns the record that an exception carries."""
    with contextlib.suppress(Exception):  # its own code may raise anything
        if isinstance(failure := getattr(error, "failure", None), Failure):
            return failure
    return None


def failure_of(error: BaseException) -> Failure:
    """Returns the record that an exception carries; of one without, what its class and its text say."""
    if (carried := carried_failure(error)) is not None:
        return carried
    name, text = type(error).__name__, text_of(error)
    kind: Kind = "timeout" if isinstance(error, AirflowTaskTimeout) else "transient"
    return Failure(kind, first_line(f"{name}: {text}" if text else name), cause=f"{name}: {text}")
