"""Why a cluster has not started yet, in Kubernetes' own words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from airflow_provider_raydatallm.clusters.kuberay.api import KubernetesApi
from airflow_provider_raydatallm.clusters.kuberay.ray_job import RayJob, state
from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError

_MOST_WORDS = 300
#: What the scheduler and the autoscaler say of nodes, and of groups of them, on which a pod can never run.
_NEVER = re.compile(r"\d+ node\(s\) (didn't match Pod's node affinity/selector|had untolerated taint.*)")
#: What the autoscaler says of groups whose nodes are too small, too.
_NEVER_IN_GROUP = re.compile(rf"{_NEVER.pattern}|\d+ Insufficient \S+")


class Waiting(NamedTuple):
    """:ivar is_hopeless: whether no node that there is, or that the autoscaler may add, is for its pods."""

    words: str
    is_hopeless: bool = False


def why_it_waits(api: KubernetesApi, job: RayJob) -> Waiting:
    """Returns what it waits for; less where the API server does not show its pods and events."""
    with contextlib.suppress(RayConnectionError, RayUnreachableError):
        cluster = (job.get("status") or {}).get("rayClusterName")
        pods = api.pods(f"ray.io/cluster={cluster}") if cluster else []
        if (refused := _refused_for_good(api, pods)) is not None:
            return Waiting(plain_text(refused), is_hopeless=True)
        return Waiting(plain_text("; ".join(_reasons(api, job, cluster, pods))))
    return Waiting(_stage(job))


def _refused_for_good(api: KubernetesApi, pods: list[dict[str, Any]]) -> str | None:
    for pod in pods:
        said = _unscheduled(pod)
        if said is None or not _all_say(_NEVER, str(said.get("message"))):
            continue
        # Without an autoscaler's word somebody may still add nodes.
        for event in reversed(api.events("Pod", pod["metadata"]["name"], "reason=NotTriggerScaleUp")):
            if _all_say(_NEVER_IN_GROUP, str(event.get("message"))):
                return f"{pod['metadata']['name']}: {_said(said)}; {_said(event)}"
            break
    return None


def _all_say(reason: re.Pattern[str], message: str) -> bool:
    """:param message: such as `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) ...`."""
    reasons = re.split(r"[,.;] ", message.partition(": ")[2].partition(" preemption:")[0].rstrip(". "))
    return all(reason.fullmatch(one) for one in reasons)


def _reasons(
    api: KubernetesApi, job: RayJob, cluster: str | None, pods: list[dict[str, Any]]
) -> Iterator[str]:
    yield _stage(job)
    name = job["metadata"]["name"]
    if job["spec"].get("suspend"):
        # The name that Kueue gives to what it admits, but for its end.
        of_queue = f"rayjob-{name}-"
        for event in reversed(api.events("Workload", "", "reason=Pending")):
            if event["involvedObject"]["name"].startswith(of_queue):
                yield _said(event)
                return
    if pods:
        running = sum(pod["status"].get("phase") == "Running" for pod in pods)
        yield f"{running} of {len(pods)} pods run"
    for pod in pods:
        if (why := _why_pod_waits(pod)) is not None:
            yield f"{pod['metadata']['name']}: {why}"
            return  # the others mostly wait for the same
    about = [("RayCluster", cluster)] if cluster else []
    for kind, of in (*about, ("RayJob", name)):
        if warnings := api.events(kind, of, "type=Warning"):
            yield _said(warnings[-1])
            return


def _stage(job: RayJob) -> str:
    if job["spec"].get("suspend"):
        return "it waits until Kueue admits it"
    if not state(job):
        return "KubeRay has not looked at it yet: its operator may not run"
    return "KubeRay makes it"


def _unscheduled(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for condition in pod["status"].get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return dict(condition)
    return None


def _why_pod_waits(pod: Mapping[str, Any]) -> str | None:
    status = pod["status"]
    if (condition := _unscheduled(pod)) is not None:
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
