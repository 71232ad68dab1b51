"""Why a cluster has not started yet, in Kubernetes' own words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_raydatallm.clusters.kuberay.api import KubernetesApi
from airflow_provider_raydatallm.clusters.kuberay.ray_job import RayJob, state
from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError

_MOST_WORDS = 300


def why_it_waits(api: KubernetesApi, job: RayJob) -> str:
    """Returns what it waits for; less where the API server does not show its pods and events."""
    with contextlib.suppress(RayConnectionError, RayUnreachableError):
        return plain_text("; ".join(_reasons(api, job)))
    return _stage(job)


def _reasons(api: KubernetesApi, job: RayJob) -> Iterator[str]:
    cluster = (job.get("status") or {}).get("rayClusterName")
    yield _stage(job)
    pods = api.pods(f"ray.io/cluster={cluster}") if cluster else []
    if pods:
        running = sum(pod["status"].get("phase") == "Running" for pod in pods)
        yield f"{running} of {len(pods)} pods run"
    for pod in pods:
        if (why := _why_pod_waits(pod)) is not None:
            yield f"{pod['metadata']['name']}: {why}"
            return  # the others mostly wait for the same
    about = [("RayCluster", cluster)] if cluster else []
    for kind, name in (*about, ("RayJob", job["metadata"]["name"])):
        if warnings := api.warnings(kind, name):
            yield _said(warnings[-1])
            return


def _stage(job: RayJob) -> str:
    if job["spec"].get("suspend"):
        return "it waits until Kueue admits it"
    if not state(job):
        return "KubeRay has not looked at it yet: its operator may not run"
    return "KubeRay makes it"


def _why_pod_waits(pod: Mapping[str, Any]) -> str | None:
    status = pod["status"]
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _said(condition)
    for container in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        of_state = container.get("state") or {}
        for said in (of_state.get("waiting"), of_state.get("terminated")):
            if said and said.get("reason") not in ("ContainerCreating", "PodInitializing", "Completed"):
                return _said(said)
    if status.get("phase") == "Failed":
        return _said(status)
    return None


def _said(by: Mapping[str, Any]) -> str:
    return ": ".join(str(by[key]) for key in ("reason", "message") if by.get(key))[:_MOST_WORDS]
