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


class RayModelNotFoundError(RayLLMInputError):
    """The model is not where `model_source` says, is not whole, or needs a permission that the job lacks."""


class RayLLMJobError(AirflowException):
    """The Ray job ended without a published slice. Nothing was published, finished rows are kept, and a retry
    goes on with the others."""


class RayQueueTimeoutError(RayLLMJobError):
    """There was no room on the cluster within `queue_timeout`. No engine was started."""


class RayOutOfMemoryError(RayLLMJobError):
    """The model does not fit into the GPU's memory, or something else fills that. Only when it is the latter
    does a retry help."""


class RayEngineDiedError(RayLLMJobError):
    """A process of the job, or a node under it, died: a lost machine, a node out of memory, a crash."""


class RayJobStoppedError(RayLLMJobError):
    """The job was told to stop: by somebody at the cluster, for its task, or as no task waited for it."""


class RayUnreachableError(RayLLMJobError):
    """The cluster's Jobs API did not answer within the time allowed."""


#: What the Ray side calls a failure (`SliceError.kind`) and what Airflow raises for it.
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
