"""KubeRay's reconciliation of a RayJob in InteractiveMode: somebody else submits the Ray job."""

from __future__ import annotations

import base64
import secrets
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from tests.support.kube.clusters import (
    TOKEN_KEY,
    Clusters,
    head_service,
    owner_reference,
    requires_token,
    secret_name,
)
from tests.support.kube.errors import ApiError
from tests.support.kube.events import record
from tests.support.kube.store import Object, Store
from tests.support.kube.validation import job_fault

FINALIZER = "ray.io/rayjob-finalizer"
COMPONENT = "rayjob-controller"
#: For how long Ray's answers may be missing before the RayJob has failed.
STATUS_CHECK_TIMEOUT_S = 300
_TERMINAL = ("STOPPED", "SUCCEEDED", "FAILED")


class Jobs:
    def __init__(self, store: Store, clusters: Clusters) -> None:
        self.store = store
        self.clusters = clusters

    def reconcile(self, job: Object) -> None:
        if "deletionTimestamp" in job["metadata"]:
            self._let_go(job)
            return
        before = deepcopy(job.get("status") or {})
        status = job["status"] = deepcopy(before)
        if (fault := job_fault(job)) is not None:
            name = f"{job['metadata']['namespace']}/{job['metadata']['name']}"
            self._record(job, "Warning", fault[0], f"{name}: {fault[1]}", "Validate")
            status |= {
                "jobDeploymentStatus": "ValidationFailed",
                "reason": "ValidationFailed",
                "message": fault[1],
            }
        else:
            steps = {
                "": self._begin,
                "Initializing": self._initialize,
                "Waiting": self._wait,
                "Running": self._watch,
                "Suspending": self._suspend,
                "Suspended": self._resume,
                "Complete": self._shut_down,
                "Failed": self._shut_down,
            }
            step = steps.get(status.get("jobDeploymentStatus", ""))
            if step is None:
                return
            step(job, status)
        self._write_status(job, before)

    # --- the steps, which change the status

    def _begin(self, job: Object, status: Object) -> None:
        metadata = job["metadata"]
        if FINALIZER not in metadata.get("finalizers", []):
            metadata["finalizers"] = [*metadata.get("finalizers", []), FINALIZER]
            stored = self.store.update("rayjobs", metadata["namespace"], job)
            metadata["resourceVersion"] = stored["metadata"]["resourceVersion"]
        if not status.get("rayClusterName"):
            suffix = "".join(secrets.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))
            status["rayClusterName"] = f"{metadata['name']}-{suffix}"
        status |= {"jobDeploymentStatus": "Initializing", "startTime": self.store.timestamp()}

    def _initialize(self, job: Object, status: Object) -> None:
        if self._is_to_be_suspended(job, status) or self._is_late(job, status, "activeDeadlineSeconds"):
            return
        if self._is_late(job, status, "preRunningDeadlineSeconds"):
            return
        cluster = self._cluster(job)
        if (cluster.get("status") or {}).get("state") != "ready":
            status["rayClusterStatus"] = cluster.get("status") or {}
            return
        status["dashboardURL"] = f"127.0.0.1:{self.clusters.ports(cluster)['dashboard']}"
        status["jobDeploymentStatus"] = "Waiting"

    def _wait(self, job: Object, status: Object) -> None:
        if self._is_late(job, status, "preRunningDeadlineSeconds") or not job["spec"].get("jobId"):
            return
        status |= {"jobId": job["spec"]["jobId"], "jobDeploymentStatus": "Running"}

    def _watch(self, job: Object, status: Object) -> None:
        if self._is_to_be_suspended(job, status) or self._is_late(job, status, "activeDeadlineSeconds"):
            return
        if self._is_silent(status):
            return
        cluster = self._cluster(job)
        self._make_service(job, cluster)
        try:
            found = self._ask_ray(job, cluster, "GET", status["jobId"])
        except httpx.HTTPError:
            status.setdefault("jobStatusCheckFailureStartTime", self.store.timestamp())
            return
        if found is None:
            return  # not submitted yet, or forgotten by a new head
        status.pop("jobStatusCheckFailureStartTime", None)
        status |= {
            "rayClusterStatus": cluster.get("status") or {},
            "jobStatus": found["status"],
            "message": found.get("message") or "",
            "rayJobInfo": {
                name: _moment(found[key])
                for name, key in (("startTime", "start_time"), ("endTime", "end_time"))
                if found.get(key)
            },
        }
        if found["status"] in _TERMINAL:
            has_failed = found["status"] == "FAILED"
            status["jobDeploymentStatus"] = "Failed" if has_failed else "Complete"
            if has_failed:
                status["reason"] = "AppFailed"

    def _suspend(self, job: Object, status: Object) -> None:
        if self._delete_cluster(job):
            start = status.get("startTime")
            status.clear()
            status |= {"startTime": start, "jobStatus": "", "jobDeploymentStatus": "Suspended"}

    def _resume(self, job: Object, status: Object) -> None:
        if not job["spec"].get("suspend"):
            status["jobDeploymentStatus"] = ""

    def _shut_down(self, job: Object, status: Object) -> None:
        """Deletes the cluster; the RayJob stays."""
        ends = _time(status["endTime"]) + timedelta(seconds=job["spec"]["ttlSecondsAfterFinished"])
        if job["spec"].get("shutdownAfterJobFinishes") and self.store.now() > ends:
            self._delete_cluster(job)

    def _let_go(self, job: Object) -> None:
        """Stops the Ray job, and drops the finalizer whether that succeeds or not."""
        metadata, status = job["metadata"], job.get("status") or {}
        if FINALIZER not in metadata.get("finalizers", []):
            return
        cluster = self._find_cluster(job)
        if status.get("jobStatus") not in _TERMINAL and cluster is not None and status.get("dashboardURL"):
            with suppress(httpx.HTTPError):
                self._ask_ray(job, cluster, "POST", f"{status.get('jobId', '')}/stop")
        metadata["finalizers"].remove(FINALIZER)
        self.store.update("rayjobs", metadata["namespace"], job)

    # --- what ends a step

    def _is_to_be_suspended(self, job: Object, status: Object) -> bool:
        if job["spec"].get("suspend"):
            status["jobDeploymentStatus"] = "Suspending"
            return True
        return False

    def _is_late(self, job: Object, status: Object, deadline: str) -> bool:
        seconds = job["spec"].get(deadline)
        if seconds is None or self.store.now() < _time(status["startTime"]) + timedelta(seconds=seconds):
            return False
        status["jobDeploymentStatus"] = "Failed"
        status["reason"] = "PreRunningDeadlineExceeded" if deadline.startswith("pre") else "DeadlineExceeded"
        name = deadline[0].upper() + deadline[1:]
        status["message"] = (
            f"The RayJob has passed the {deadline}. StartTime: {status['startTime']}. {name}: {seconds}"
        )
        return True

    def _is_silent(self, status: Object) -> bool:
        since = status.get("jobStatusCheckFailureStartTime")
        if since is None or self.store.now() < _time(since) + timedelta(seconds=STATUS_CHECK_TIMEOUT_S):
            return False
        status["jobDeploymentStatus"], status["reason"] = "Failed", "JobStatusCheckTimeoutExceeded"
        status["message"] = (
            f"Job status checks have been failing since {_time(since):%Y-%m-%d %H:%M:%S}; "
            f"exceeded timeout of {STATUS_CHECK_TIMEOUT_S}s"
        )
        return True

    # --- the API and Ray

    def _write_status(self, job: Object, before: Object) -> None:
        status = job["status"]
        crucial = ("jobStatus", "jobDeploymentStatus", "rayClusterStatus", "jobStatusCheckFailureStartTime")
        if all(_without_time(status.get(key)) == _without_time(before.get(key)) for key in crucial):
            return
        state = status.get("jobDeploymentStatus")
        status["failed"] = before.get("failed", 0) + (state == "Failed")
        status["succeeded"] = before.get("succeeded", 0) + (
            state == "Complete" and status.get("jobStatus") == "SUCCEEDED"
        )
        if state in ("Complete", "Failed"):
            status["endTime"] = self.store.timestamp()
        self.store.update("rayjobs", job["metadata"]["namespace"], job, status=True)

    def _find_cluster(self, job: Object) -> Object | None:
        name = (job.get("status") or {}).get("rayClusterName", "")
        try:
            return self.store.get("rayclusters", job["metadata"]["namespace"], name)
        except ApiError:
            return None

    def _cluster(self, job: Object) -> Object:
        if (cluster := self._find_cluster(job)) is not None:
            return cluster
        metadata, name = job["metadata"], job["status"]["rayClusterName"]
        labels = {
            **metadata.get("labels", {}),
            "ray.io/originated-from-cr-name": metadata["name"],
            "ray.io/originated-from-crd": "RayJob",
            "ray.io/job-submission-mode": job["spec"]["submissionMode"],
        }
        body = {
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": metadata.get("annotations", {}),
                "ownerReferences": [owner_reference(job)],
            },
            "spec": job["spec"]["rayClusterSpec"],
        }
        full_name = f"{metadata['namespace']}/{name}"
        try:
            made = self.store.create("rayclusters", metadata["namespace"], body)
        except ApiError as error:
            message = f"Failed to create RayCluster {full_name}: {error.message}"
            self._record(job, "Warning", "FailedToCreateRayCluster", message, "Create")
            raise
        self._record(job, "Normal", "CreatedRayCluster", f"Created RayCluster {full_name}", "Create")
        return made

    def _delete_cluster(self, job: Object) -> bool:
        """Returns whether it is gone."""
        if (cluster := self._find_cluster(job)) is None:
            return True
        if "deletionTimestamp" not in cluster["metadata"]:
            namespace, name = cluster["metadata"]["namespace"], cluster["metadata"]["name"]
            self.store.delete("rayclusters", namespace, name)
            self._record(job, "Normal", "DeletedRayCluster", f"Deleted cluster {namespace}/{name}", "Delete")
        return False

    def _make_service(self, job: Object, cluster: Object) -> None:
        """Makes the job's own service, which stays with the RayJob when its cluster goes."""
        name, namespace = f"{job['metadata']['name']}-head-svc", job["metadata"]["namespace"]
        if not any(s["metadata"]["name"] == name for s in self.store.objects("services", namespace)):
            service = head_service(cluster, name, self.clusters.ports(cluster))
            service["metadata"] |= {
                "labels": {
                    "ray.io/originated-from-cr-name": job["metadata"]["name"],
                    "ray.io/originated-from-crd": "RayJob",
                    "ray.io/node-type": "head",
                },
                "ownerReferences": [owner_reference(job)],
            }
            self.store.create("services", namespace, service)

    def _ask_ray(self, job: Object, cluster: Object, method: str, path: str) -> Any:
        """Returns None if Ray does not know the job.

        :raises httpx.HTTPError: Ray cannot be reached, or refuses
        :raises ApiError: the secret is missing
        """
        headers = {}
        if requires_token(cluster):
            secret = self.store.get("secrets", job["metadata"]["namespace"], secret_name(cluster))
            headers["Authorization"] = f"Bearer {base64.b64decode(secret['data'][TOKEN_KEY]).decode()}"
        url = f"http://{job['status']['dashboardURL']}/api/jobs/{path}"
        with httpx.Client(headers=headers, timeout=2, trust_env=False) as ray:
            response = ray.request(method, url)
        if response.status_code == 404:
            return None
        return response.raise_for_status().json()

    def _record(self, job: Object, type: str, reason: str, message: str, action: str) -> None:
        record(self.store, job, type, reason, message, COMPONENT, action)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _without_time(value: Any) -> Any:
    """Returns it as it is compared: a status does not change by when it was looked at."""
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if key != "lastUpdateTime"}
    return value or ""
