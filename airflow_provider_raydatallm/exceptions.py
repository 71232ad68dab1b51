"""Errors of the provider. They are public API: retry policies and callbacks match on them.

Two families, so that Airflow never retries what cannot get better:

* `RayLLMInputError` and its kin: the DAG, the connection or the data is wrong. No retry can mend it; the task
  fails at once (`AirflowFailException`).
* `RayLLMJobError` and its kin: something broke on the way. A retry may succeed and Airflow's `retries` apply.

The Ray side knows the same errors by name (`processor.errors.SliceError.kind`), without importing Airflow.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException


class RayLLMInputError(AirflowFailException):
    """What was asked for cannot work: a wrong argument, a missing column, an input that matches nothing, a
    broken file."""


class RayConnectionError(RayLLMInputError):
    """The Airflow connection is unknown or unusable, or the cluster refuses its token."""


class RayClusterUnfitError(RayLLMInputError):
    """The cluster is reachable but cannot run the slice: its Ray is too old, or it lacks CPUs or GPUs for the
    stages."""


class RayLLMJobError(AirflowException):
    """The Ray job ended without a published slice. Nothing was published; a retry starts it anew."""


class RayJobStoppedError(RayLLMJobError):
    """The Ray job was told to stop: by a person, by a kill of the task, or because no task waited for it.
    Finished rows are kept."""


class RayUnreachableError(RayLLMJobError):
    """The cluster's Jobs API did not answer within the time allowed."""


#: What the Ray side calls a failure (`SliceError.kind`) and what Airflow raises for it.
BY_KIND: dict[str, type[AirflowException]] = {
    "input": RayLLMInputError,
    "cluster": RayClusterUnfitError,
    "run": RayLLMJobError,
    "stopped": RayJobStoppedError,
}
