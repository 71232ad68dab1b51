"""The RayJob of a cluster: KubeRay makes the cluster that it describes, waits for a job that somebody submits
there (`InteractiveMode`), and ends the cluster with the job, or by its deadlines. Pure.

Facts of KubeRay 1.6 and 1.7, read in its `rayjob_controller.go`: before the job is known only
`preRunningDeadlineSeconds` ends the cluster, and after that only `activeDeadlineSeconds`, also when the
cluster does not know the job any more. Both count from the same start.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Mapping
from itertools import count
from typing import Any

from airflow_provider_raydatallm.clusters.base import FindEnded, Holder, Order
from airflow_provider_raydatallm.clusters.blueprint import API_VERSION

_OWN = "airflow-ray-llm"
MANAGED = f"app.kubernetes.io/managed-by={_OWN}"
_TASK, _DIGEST, _OWNER, _ADDRESS = (f"{_OWN}/{name}" for name in ("task", "digest", "owner", "address"))
_HOLD = f"{_OWN}/hold-"
_QUEUE = "kueue.x-k8s.io/queue-name"
#: Seconds for which the cluster stays after its job: for a look at the job's log.
_TTL_SECONDS = 120
#: Seconds after which a cluster ends that has no job yet: its task may be gone, and one that still waits has
#: another made.
_MOST_SECONDS = 3600
#: Seconds that KubeRay has to note the job, once it is submitted.
_NOTE_SECONDS = 60

RayJob = Mapping[str, Any]


def to_ray_job(order: Order, holder: Holder, others: Collection[str] = ()) -> dict[str, Any]:
    """:param others: names of what was made for the task and is there."""
    blueprint = order.blueprint
    lifetime = math.ceil(blueprint.lifetime)
    waits = lifetime
    if blueprint.name is None:
        waits = min(lifetime, math.ceil(order.queue_s) + _NOTE_SECONDS, _MOST_SECONDS)
    labels = {"app.kubernetes.io/managed-by": _OWN, _DIGEST: blueprint.digest}
    if blueprint.name is None:
        labels[_TASK] = hash_of(holder.task)
    if blueprint.queue is not None:
        labels[_QUEUE] = blueprint.queue
    annotations = {_OWNER: holder.task, **hold_of(holder)}
    if blueprint.address is not None:  # for those who come later, and know the object alone
        annotations[_ADDRESS] = blueprint.address
    return {
        "apiVersion": API_VERSION,
        "kind": "RayJob",
        "metadata": {
            "name": blueprint.name or _new_name(holder, others),
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "submissionMode": "InteractiveMode",
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": _TTL_SECONDS,
            "preRunningDeadlineSeconds": waits,
            "activeDeadlineSeconds": lifetime,
            "suspend": blueprint.queue is not None,  # until Kueue admits it
            "rayClusterSpec": blueprint.spec,
        },
    }  # fmt: skip


def task_selector(task: str) -> str:
    return f"{MANAGED},{_TASK}={hash_of(task)}"


def hash_of(task: str) -> str:
    """What stands for a task where Kubernetes takes no longer text."""
    return hashlib.sha256(task.encode()).hexdigest()[:16]


def hold_of(holder: Holder) -> dict[str, str]:
    until = "" if holder.until is None else f" {holder.until or holder.task}"
    return {f"{_HOLD}{hash_of(holder.task)}": f"{holder.try_number}{until}"}


def holds(job: RayJob) -> dict[str, int]:
    """Returns the newest try of each task that holds it, by the task's hash."""
    return {task: int(value.partition(" ")[0]) for task, value in _holds(job).items()}


def needing(job: RayJob, find_ended: FindEnded) -> set[str]:
    """Returns the hashes of the tasks whose holds have not ended."""
    until = {task: value.partition(" ")[2] for task, value in _holds(job).items()}
    named = set(until.values()) - {""}
    ended = set(find_ended(named)) if named else set()
    return {task for task, name in until.items() if name not in ended}


def _holds(job: RayJob) -> dict[str, str]:
    found = job["metadata"].get("annotations") or {}
    return {
        key.removeprefix(_HOLD): value
        for key, value in found.items()
        if key.startswith(_HOLD) and value.partition(" ")[0].isdecimal()
    }


def hold_key(task_hash: str) -> str:
    return f"{_HOLD}{task_hash}"


def is_shared(job: RayJob) -> bool:
    return _TASK not in (job["metadata"].get("labels") or {})


def is_used(job: RayJob) -> bool:
    """Whether it has the one job that KubeRay follows, and with which it ends its cluster."""
    return bool(job["spec"].get("jobId")) and not is_shared(job)


def address_of(job: RayJob) -> str | None:
    """How its Jobs API is reached, if not by its service."""
    address = (job["metadata"].get("annotations") or {}).get(_ADDRESS)
    return str(address) if address else None


def service_of(job: RayJob) -> str:
    """The Kubernetes service of its head."""
    return str(job["status"]["rayClusterStatus"]["head"]["serviceName"])


def asks_for_token(job: RayJob) -> bool:
    return _auth_options(job).get("mode") == "token"


def secret_of(job: RayJob) -> str:
    """The Secret that its template names; "" where KubeRay makes one for each cluster."""
    return str(_auth_options(job).get("secretName") or "")


def _auth_options(job: RayJob) -> Mapping[str, Any]:
    return job["spec"]["rayClusterSpec"].get("authOptions") or {}


def owner_of(job: RayJob) -> str:
    """The task that had it made."""
    return str((job["metadata"].get("annotations") or {}).get(_OWNER, ""))


def is_ours(job: RayJob) -> bool:
    return (job["metadata"].get("labels") or {}).get("app.kubernetes.io/managed-by") == _OWN


def digest_of(job: RayJob) -> str:
    return str((job["metadata"].get("labels") or {}).get(_DIGEST))


def is_ending(job: RayJob) -> bool:
    """Whether its cluster has ended, or will within minutes."""
    return "deletionTimestamp" in job["metadata"] or state(job) in ("Complete", "Failed", "ValidationFailed")


def state(job: RayJob) -> str:
    return str((job.get("status") or {}).get("jobDeploymentStatus") or "")


def why_it_ended(job: RayJob) -> str:
    status = job.get("status") or {}
    words = [str(status[key]) for key in ("reason", "message") if status.get(key)]
    return ": ".join(words)


def _new_name(holder: Holder, others: Collection[str]) -> str:
    """The same whenever it is asked for: a request whose answer was lost, and that comes late, makes no
    second cluster."""
    slug = re.sub(r"[^a-z0-9]+", "-", holder.task.lower()).strip("-")[:24].strip("-")
    parts = ("llm", slug, hash_of(holder.task)[:8], str(holder.try_number))
    first = "-".join(filter(None, parts))
    return next(name for n in count(1) if (name := f"{first}-{n}") not in others)
