"""What KubeRay refuses, which the API has let through."""

from __future__ import annotations

import re

from tests.support.kube.store import Object

MAX_CLUSTER_NAME = 53
_DNS_1035 = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_DNS_1035_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
    "character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for "
    f"validation is '{_DNS_1035}')"
)


def job_fault(job: Object) -> tuple[str, str] | None:
    """Returns an event's reason and a sentence, or None."""
    metadata, spec = job["metadata"], job.get("spec") or {}
    if (fault := _name_fault(metadata["name"], "RayJob", MAX_CLUSTER_NAME - 6)) is not None:
        return "InvalidRayJobMetadata", f"The RayJob metadata is invalid: {fault}"
    if (fault := _spec_fault(spec)) is not None:
        return "InvalidRayJobSpec", f"The RayJob spec is invalid: {fault}"
    return None


def cluster_fault(cluster: Object) -> tuple[str, str] | None:
    """Returns an event's reason and a sentence, or None."""
    name = cluster["metadata"]["name"]
    if (fault := _name_fault(name, "RayCluster", MAX_CLUSTER_NAME)) is not None:
        return "InvalidRayClusterMetadata", fault
    if (fault := _cluster_spec_fault(cluster["spec"])) is not None:
        return "InvalidRayClusterSpec", fault
    return None


def _name_fault(name: str, kind: str, longest: int) -> str | None:
    if len(name) > longest:
        return f"{kind} name should be no more than {longest} characters"
    if not re.fullmatch(_DNS_1035, name):
        return f"{kind} name should be a valid DNS1035 label: [{_DNS_1035_RULE}]"
    return None


def _spec_fault(spec: Object) -> str | None:
    if spec.get("suspend") and not spec.get("shutdownAfterJobFinishes"):
        return "a RayJob with shutdownAfterJobFinishes set to false is not allowed to be suspended"
    if spec["ttlSecondsAfterFinished"] < 0:
        return "TTLSecondsAfterFinished must be a non-negative integer"
    if spec["ttlSecondsAfterFinished"] > 0 and not spec.get("shutdownAfterJobFinishes"):
        return "a RayJob with shutdownAfterJobFinishes set to false cannot have TTLSecondsAfterFinished"
    if "rayClusterSpec" not in spec:
        return "one of RayClusterSpec or ClusterSelector must be set"
    if spec["submissionMode"] != "InteractiveMode":
        return "the operator of tests knows no submissionMode but InteractiveMode"
    if spec["backoffLimit"] > 0:
        return "BackoffLimit is incompatible with InteractiveMode"
    if (spec["rayClusterSpec"].get("authOptions") or {}).get("enableK8sTokenAuth"):
        return "K8s token auth mode is currently not supported for RayJob"
    if (fault := _cluster_spec_fault(spec["rayClusterSpec"])) is not None:
        return fault
    if spec.get("activeDeadlineSeconds", 1) <= 0:
        return "activeDeadlineSeconds must be a positive integer"
    if spec["backoffLimit"] < 0:
        return "backoffLimit must be a positive integer"
    return None


def _cluster_spec_fault(spec: Object) -> str | None:
    if not spec["headGroupSpec"]["template"].get("spec", {}).get("containers"):
        return "headGroupSpec should have at least one container"
    for group in spec.get("workerGroupSpecs", []):
        name, least, most = group["groupName"], group["minReplicas"], group["maxReplicas"]
        if not group["template"].get("spec", {}).get("containers"):
            return "workerGroupSpec should have at least one container"
        if least < 0:
            return f"worker group {name} has negative minReplicas {least}"
        if least > most:
            return f"worker group {name} has minReplicas {least} greater than maxReplicas {most}"
        if group.get("resources") and group.get("rayStartParams", {}).keys() & {"num-cpus", "num-gpus"}:
            return (
                f"resource fields should not be set in both rayStartParams and Resources for {name} group; "
                "please use only one"
            )
    if (spec.get("authOptions") or {}).get("mode") == "token":
        version = spec.get("rayVersion", "")
        if not version:
            unknown = "authOptions.mode is 'token' but RayVersion was not specified"
            return f"{unknown}. Ray version 2.52.0 or later is required"
        if [int(part) for part in re.findall(r"\d+", version)[:2]] < [2, 52]:
            return f"authOptions.mode is 'token' but minimum Ray version is 2.52.0, got {version}"
    return None
