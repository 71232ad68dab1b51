"""Errors of the provider. They are public API: retry policies and callbacks match on them.

* `RayLLMInputError` and its subclasses: the DAG, the connection or the data is wrong. A retry cannot succeed;
  the task fails at once (`AirflowFailException`).
* `RayLLMJobError` and its subclasses: a retry may succeed, and Airflow's `retries` apply.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException


class RayLLMInputError(AirflowFailException):
    """A wrong argument, a missing column, an input that matches nothing, a broken file."""


class RayConnectionError(RayLLMInputError):
    """The Airflow connection is invalid, or the cluster refuses its token."""


class RayClusterUnfitError(RayLLMInputError):
    """The cluster is reachable but cannot run the slice: its Ray is too old, or it lacks CPUs or GPUs."""


class RayModelNotFoundError(RayLLMInputError):
    """The model is missing at `model_source`, incomplete, or needs a permission that the job lacks."""


class RayLLMJobError(AirflowException):
    """The Ray job ended without publishing the slice. Finished rows are kept; a retry continues with the
    rest."""


class RayQueueTimeoutError(RayLLMJobError):
    """The cluster had no room within `limits.queue`. No engine was started."""


class RayOutOfMemoryError(RayLLMJobError):
    """The model does not fit into the GPU's memory, or something else uses it; only then can a retry help."""


class RayEngineDiedError(RayLLMJobError):
    """A process or a node of the job died: a lost machine, a node out of memory, a crash."""


class RayJobStoppedError(RayLLMJobError):
    """The job was cancelled by a user, by its task, or by `limits.orphan`."""


class RayUnreachableError(RayLLMJobError):
    """The cluster's Jobs API, or what keeps Airflow's connections, did not answer within the time allowed."""


class RayConnectionNotFoundError(RayLLMJobError):
    """Airflow has no such connection. A retry succeeds once it was added, or its secrets backend is back."""


#: What Airflow raises for each `contract.errors.SliceError.kind`.
BY_KIND: dict[str, type[AirflowException]] = {
    "input": RayLLMInputError,
    "model": RayModelNotFoundError,
    "cluster": RayClusterUnfitError,
    "queue": RayQueueTimeoutError,
    "gpu_memory": RayOutOfMemoryError,
    "engine": RayEngineDiedError,
    "stopped": RayJobStoppedError,
    "transient": RayLLMJobError,
}
