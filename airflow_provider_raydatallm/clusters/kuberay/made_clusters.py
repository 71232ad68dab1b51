"""The clusters that tasks have had made, for people and for who cleans up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_raydatallm.clusters.base import FindEnded, none_has_ended
from airflow_provider_raydatallm.clusters.kuberay import ray_job
from airflow_provider_raydatallm.clusters.kuberay.api import ConflictError, KubernetesApi
from airflow_provider_raydatallm.clusters.kuberay.ray_job import RayJob
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError

_TRIES = 3
#: For so long a cluster that has ended is left to its task.
_LOOKED_AT = timedelta(minutes=10)


@dataclass(frozen=True)
class MadeCluster:
    """
    :ivar state: KubeRay's word for it; "New" before it has looked.
    :ivar reason: why KubeRay ended it, or refuses it.
    :ivar owner: the task that had it made: DAG, run, task and map index.
    :ivar holders: how many tasks need it.
    :ivar ends_by: when KubeRay ends it at the latest; "" where it has, or has not begun to make it.
    """

    name: str
    uid: str
    state: str
    reason: str
    has_ended: bool
    owner: str
    holders: int
    made_at: str
    ends_by: str


def find(conn_id: str, namespace: str) -> list[MadeCluster]:
    """Returns them, the oldest first.

    :param namespace: "" for the connection's.
    :raises RayConnectionError, RayUnreachableError: when the API server cannot be asked, or refuses.
    """
    found, _ = KubernetesApi(conn_id, namespace).find(ray_job.MANAGED)
    return sorted(map(_made, found), key=lambda cluster: (cluster.made_at, cluster.name))


def end(conn_id: str, namespace: str, cluster: MadeCluster) -> None:
    """Ends it, whoever needs it, and no other one of its name.

    :raises RayConnectionError, RayUnreachableError: see `find`.
    """
    KubernetesApi(conn_id, namespace).delete(cluster.name, uid=cluster.uid)


def clean(conn_id: str, namespace: str, find_ended: FindEnded = none_has_ended) -> Iterator[MadeCluster]:
    """Ends those whose every task has ended and released nothing, but for one with a job, which may go on
    without its task, and with which KubeRay ends it. Removes what KubeRay keeps of those that it has ended.
    Yields each.

    :param find_ended: see `Cluster.release`.
    :raises RayConnectionError, RayUnreachableError: see `find`.
    """
    api, errors = KubernetesApi(conn_id, namespace), []
    for job in api.find(ray_job.MANAGED)[0]:
        try:
            if _clean(api, job, find_ended):
                yield _made(job)
        except (RayConnectionError, RayUnreachableError) as e:
            errors.append(e)
    if errors:
        raise errors[0]


def _clean(api: KubernetesApi, job: RayJob, find_ended: FindEnded) -> bool:
    latest: RayJob | None = job
    for _ in range(_TRIES):
        if latest is None or latest["metadata"]["uid"] != job["metadata"]["uid"]:
            return False
        if "deletionTimestamp" in latest["metadata"] or not _is_left(latest, find_ended):
            return False
        metadata = latest["metadata"]
        try:
            api.delete(str(metadata["name"]), str(metadata["resourceVersion"]), str(metadata["uid"]))
            return True
        except ConflictError:  # a task needs it again, or KubeRay has written
            latest = api.get(str(metadata["name"]))
    return False


def _is_left(job: RayJob, find_ended: FindEnded) -> bool:
    if ray_job.is_ending(job):
        # A task may still look there for what has become of its job.
        since = (job.get("status") or {}).get("endTime") or job["metadata"]["creationTimestamp"]
        return datetime.now(UTC) - datetime.fromisoformat(since) > _LOOKED_AT
    return not ray_job.is_used(job) and not ray_job.needing(job, find_ended)


def _made(job: RayJob) -> MadeCluster:
    metadata, has_ended = job["metadata"], ray_job.is_ending(job)
    started = (job.get("status") or {}).get("startTime")
    lifetime_s = job["spec"].get("activeDeadlineSeconds")
    ends_by = ""
    if started and lifetime_s and not has_ended:
        at = datetime.fromisoformat(started) + timedelta(seconds=lifetime_s)
        ends_by = at.isoformat(timespec="seconds")
    return MadeCluster(
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        state="Ending" if "deletionTimestamp" in metadata else ray_job.state(job) or "New",
        reason=ray_job.why_it_ended(job) if has_ended else "",
        has_ended=has_ended,
        owner=ray_job.owner_of(job),
        holders=len(ray_job.holds(job)),
        made_at=str(metadata["creationTimestamp"]),
        ends_by=ends_by,
    )
