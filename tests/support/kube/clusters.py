"""KubeRay's reconciliation of a RayCluster: its secret, head service, pods and status."""

from __future__ import annotations

import math
import secrets
import string
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from airflow_provider_raydatallm.clusters.embedded.head import free_ports
from tests.support.kube.errors import ApiError
from tests.support.kube.events import record
from tests.support.kube.kubelet import (
    CLUSTER_LABEL,
    GROUP_LABEL,
    NODE_TYPE_LABEL,
    QUOTA,
    Kubelet,
    is_ready,
)
from tests.support.kube.store import Object, Store
from tests.support.kube.validation import cluster_fault

HEAD_GROUP = "headgroup"
COMPONENT = "raycluster-controller"
TOKEN_KEY = "auth_token"
EXCEEDED = (
    "exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=8, "
    "limited: requests.nvidia.com/gpu=8"
)


def owner_reference(owner: Object) -> Object:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def head_service(cluster: Object, name: str, ports: dict[str, int]) -> Object:
    """:param ports: on loopback, where the head listens in place of pod and service"""
    labels = _labels(cluster, "head", HEAD_GROUP)
    del labels[GROUP_LABEL], labels["ray.io/is-ray-node"]
    listed = [{"name": key, "port": port, "targetPort": port} for key, port in sorted(ports.items())]
    spec = {"clusterIP": "None", "type": "ClusterIP", "selector": labels, "ports": listed}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def secret_name(cluster: Object) -> str:
    """Returns the secret that holds its token."""
    options = cluster["spec"].get("authOptions") or {}
    own: str = cluster["metadata"]["name"]
    return options.get("secretName") or own[-50:].lstrip(string.digits + string.punctuation)


def requires_token(cluster: Object) -> bool:
    return (cluster["spec"].get("authOptions") or {}).get("mode") == "token"


class Clusters:
    def __init__(self, store: Store, kubelet: Kubelet) -> None:
        self.store = store
        self.kubelet = kubelet

    def reconcile(self, cluster: Object) -> None:
        if "deletionTimestamp" in cluster["metadata"]:
            return
        if (fault := cluster_fault(cluster)) is not None:
            name = f"{cluster['metadata']['namespace']}/{cluster['metadata']['name']}"
            message = f"The RayCluster {'metadata' if 'Metadata' in fault[0] else 'spec'} is invalid {name}"
            self._record(cluster, "Warning", fault[0], f"{message}: {fault[1]}", "Validate")
            return
        failure = None
        try:
            self._make_secret(cluster)
            self._make_service(cluster)
            self._make_pods(cluster)
        except _PodFailure as error:
            failure = error
        self._write_status(cluster, failure)

    def pods(self, cluster: Object) -> list[Object]:
        metadata = cluster["metadata"]
        return self.store.objects(
            "pods",
            metadata["namespace"],
            lambda pod: pod["metadata"].get("labels", {}).get(CLUSTER_LABEL) == metadata["name"],
        )

    def ports(self, cluster: Object) -> dict[str, int]:
        """Returns those of its head service, by name; {} before there is one."""
        metadata = cluster["metadata"]
        try:
            service = self.store.get("services", metadata["namespace"], f"{metadata['name']}-head-svc")
        except ApiError:
            return {}
        return {port["name"]: port["port"] for port in service["spec"]["ports"]}

    def _make_secret(self, cluster: Object) -> None:
        options = cluster["spec"].get("authOptions")
        if options is None or options.get("mode") == "disabled" or options.get("secretName"):
            return
        name, namespace = secret_name(cluster), cluster["metadata"]["namespace"]
        if not any(s["metadata"]["name"] == name for s in self.store.objects("secrets", namespace)):
            labels = {CLUSTER_LABEL: cluster["metadata"]["name"]}
            metadata = {"name": name, "labels": labels, "ownerReferences": [owner_reference(cluster)]}
            data = {TOKEN_KEY: secrets.token_urlsafe(32)}
            self.store.create("secrets", namespace, {"metadata": metadata, "stringData": data})

    def _make_service(self, cluster: Object) -> None:
        if self.ports(cluster):
            return
        names = ("client", "dashboard", "gcs-server", "metrics", "serve")
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        service = head_service(cluster, f"{cluster['metadata']['name']}-head-svc", ports)
        service["metadata"]["ownerReferences"] = [owner_reference(cluster)]
        namespace = cluster["metadata"]["namespace"]
        self.store.create("services", namespace, service)
        name = f"{namespace}/{service['metadata']['name']}"
        self._record(cluster, "Normal", "CreatedService", f"Created service {name}", "Create")

    def _make_pods(self, cluster: Object) -> None:
        if cluster["spec"].get("suspend"):
            for pod in self.pods(cluster):
                self._delete_pod(cluster, pod)
            return
        self._make_group(cluster, cluster["spec"]["headGroupSpec"], HEAD_GROUP, 1)
        for group in cluster["spec"].get("workerGroupSpecs", []):
            self._make_group(cluster, group, group["groupName"], _wanted(group))

    def _make_group(self, cluster: Object, group: Object, name: str, wanted: int) -> None:
        pods = [pod for pod in self.pods(cluster) if pod["metadata"]["labels"][GROUP_LABEL] == name]
        ended = [pod for pod in pods if _has_ended(pod)]
        for pod in ended or pods[wanted:]:
            self._delete_pod(cluster, pod)
        if ended:
            raise _PodFailure("", f"delete {len(ended)} unhealthy Pods")  # made anew in the next pass
        for _ in range(wanted - len(pods)):
            self._create_pod(cluster, group, name)

    def _create_pod(self, cluster: Object, group: Object, name: str) -> None:
        metadata = cluster["metadata"]
        namespace, is_head = metadata["namespace"], name == HEAD_GROUP
        kind, where = ("head", "Head") if is_head else ("worker", "Worker")
        if not (ports := self.ports(cluster)):
            raise ApiError(404, f"{cluster['metadata']['name']} was deleted meanwhile")
        pod = _pod(cluster, group, name, ports)
        if self.kubelet.holds.get(name) == QUOTA:
            name_of_pod = f"{pod['metadata']['generateName']}{metadata['uid'][:5]}"
            refused = f'pods "{name_of_pod}" is forbidden: {EXCEEDED}'
            what = (
                f"head Pod {namespace}/"
                if is_head
                else f"worker Pod for the cluster {namespace}/{metadata['name']}"
            )
            message = f"Failed to create {what}, {refused}"
            self._record(cluster, "Warning", f"FailedToCreate{where}Pod", message, "Create")
            raise _PodFailure(f"FailedCreate{where}Pod", f"FailedCreate{where}Pod\n{refused}")
        made = self.store.create("pods", namespace, pod)
        message = f"Created {kind} Pod {namespace}/{made['metadata']['name']}"
        self._record(cluster, "Normal", f"Created{where}Pod", message, "Create")

    def _delete_pod(self, cluster: Object, pod: Object) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        kind = pod["metadata"]["labels"][NODE_TYPE_LABEL]
        self.store.delete("pods", namespace, name)
        message = f"Deleted {kind} Pod {namespace}/{name}; Pod status: {pod['status']['phase']}"
        self._record(cluster, "Normal", f"Deleted{kind.capitalize()}Pod", message, "Delete")

    def _record(self, cluster: Object, type: str, reason: str, message: str, action: str) -> None:
        record(self.store, cluster, type, reason, message, COMPONENT, action)

    def _write_status(self, cluster: Object, failure: _PodFailure | None) -> None:
        status = deepcopy(cluster.get("status") or {})
        pods, groups = self.pods(cluster), cluster["spec"].get("workerGroupSpecs", [])
        head = next((pod for pod in pods if pod["metadata"]["labels"][NODE_TYPE_LABEL] == "head"), None)
        workers = [pod for pod in pods if pod is not head]
        wanted = sum(_wanted(group) for group in groups)
        active = [group for group in groups if not group.get("suspend")]
        status |= {
            "observedGeneration": cluster["metadata"]["generation"],
            "desiredWorkerReplicas": wanted,
            "minWorkerReplicas": sum(group["minReplicas"] * group["numOfHosts"] for group in active),
            "maxWorkerReplicas": min(
                2**31 - 1, sum(group["maxReplicas"] * group["numOfHosts"] for group in active)
            ),
            "readyWorkerReplicas": sum(is_ready(pod) for pod in workers),
            "availableWorkerReplicas": sum(pod["status"]["phase"] == "Running" for pod in workers),
            "endpoints": {name: str(port) for name, port in self.ports(cluster).items()},
            "head": {"serviceName": f"{cluster['metadata']['name']}-head-svc"},
        }
        if head is not None:
            address = head["status"].get("podIP", "")
            status["head"] |= {"podName": head["metadata"]["name"], "podIP": address, "serviceIP": address}
        are_running = bool(pods) and all(is_ready(pod) for pod in pods)
        if failure is None and are_running and len(pods) == wanted + 1:
            status["state"], status["reason"] = "ready", ""
        if cluster["spec"].get("suspend") and not pods:
            status["state"] = "suspended"
        status["conditions"] = list(
            self._conditions(status.get("conditions", []), head, are_running, failure)
        )
        if status != cluster.get("status"):
            now = self.store.timestamp()
            status["lastUpdateTime"] = now
            if status.get("state") != (cluster.get("status") or {}).get("state"):
                status["stateTransitionTimes"] = {
                    **status.get("stateTransitionTimes", {}),
                    status["state"]: now,
                }
            namespace = cluster["metadata"]["namespace"]
            self.store.update("rayclusters", namespace, {**cluster, "status": status}, status=True)

    def _conditions(
        self, before: list[Object], head: Object | None, are_running: bool, failure: _PodFailure | None
    ) -> Iterator[Object]:
        old = {condition["type"]: condition for condition in before}

        def condition(kind: str, is_true: bool, reason: str, message: str) -> Object:
            status = "True" if is_true else "False"
            since = old.get(kind, {})
            is_same = since.get("status") == status
            at = since["lastTransitionTime"] if is_same else self.store.timestamp()
            told = {"type": kind, "status": status, "reason": reason, "message": message}
            return {**told, "lastTransitionTime": at}

        if head is None:
            yield condition("HeadPodReady", False, "HeadPodNotFound", "Head Pod not found")
        else:
            yield condition("HeadPodReady", is_ready(head), *_head_reason(head))
        if are_running or old.get("RayClusterProvisioned", {}).get("status") == "True":
            message = "All Ray Pods are ready for the first time"
            yield condition("RayClusterProvisioned", True, "AllPodRunningAndReadyFirstTime", message)
        else:
            message = "RayCluster Pods are being provisioned for first time"
            yield condition("RayClusterProvisioned", False, "RayClusterPodsProvisioning", message)
        if failure is not None and failure.reason:
            yield condition("ReplicaFailure", True, failure.reason, str(failure))
        elif failure is not None and "ReplicaFailure" in old:
            yield old["ReplicaFailure"]


class _PodFailure(Exception):
    """Ends a pass over the pods; the next one goes on. `reason`: "" where none is shown."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


def _wanted(group: Object) -> int:
    if group.get("suspend"):
        return 0
    replicas: int = min(max(group["replicas"], group["minReplicas"]), group["maxReplicas"])
    return replicas * int(group["numOfHosts"])


def _has_ended(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Failed", "Succeeded")


def _head_reason(head: Object) -> tuple[str, str]:
    """Returns why the head pod is ready or not, as far as the pod says it."""
    condition = next((c for c in head["status"].get("conditions", []) if c["type"] == "Ready"), None)
    if condition is None:
        return "Unknown", ""
    if condition["status"] == "True":
        return "HeadPodRunningAndReady", ""
    message = condition["message"]
    for container in head["status"]["containerStatuses"]:
        state = container["state"].get("waiting") or container["state"].get("terminated")
        if state is not None:
            return state["reason"], f"{message}; {container['name']}: {state.get('message', '')}"
    return condition["reason"], message


def _labels(cluster: Object, kind: str, group: str) -> dict[str, str]:
    name = cluster["metadata"]["name"]
    return {
        "ray.io/is-ray-node": "yes",
        CLUSTER_LABEL: name,
        NODE_TYPE_LABEL: kind,
        GROUP_LABEL: group,
        "ray.io/identifier": f"{name}-{kind}"[-63:],
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }


def _pod(cluster: Object, group: Object, group_name: str, ports: dict[str, int]) -> Object:
    metadata, template = cluster["metadata"], deepcopy(group["template"])
    kind = "head" if group_name == HEAD_GROUP else "worker"
    prefix = metadata["name"] if kind == "head" else f"{metadata['name']}-{group_name}"
    container = template["spec"]["containers"][0]
    container["command"] = ["/bin/bash", "-c", "--"]
    container["args"] = [f"ulimit -n 65536; ray start {_flags(group, container, kind, ports)}"]
    if requires_token(cluster):
        key = {"name": secret_name(cluster), "key": TOKEN_KEY}
        container["env"] = [
            *container.get("env", []),
            {"name": "RAY_AUTH_MODE", "value": "token"},
            {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": key}},
        ]
    if (options := cluster["spec"].get("gcsFaultToleranceOptions")) is not None:
        space = options.get("externalStorageNamespace") or metadata["uid"]
        container["env"] = [
            *container.get("env", []),
            {"name": "RAY_external_storage_namespace", "value": space},
        ]
        if kind == "head":
            container["env"] += [{"name": "RAY_REDIS_ADDRESS", "value": options["redisAddress"]}]
        else:
            container["env"] += [{"name": "RAY_gcs_rpc_server_reconnect_timeout_s", "value": "600"}]
    own = template.get("metadata") or {}
    labels = {**(own.get("labels") or {}), **(group.get("labels") or {})}
    return {
        "metadata": {
            "generateName": f"{prefix[:50]}-{kind}-".lower(),
            "labels": {**labels, **_labels(cluster, kind, group_name)},
            "annotations": own.get("annotations") or {},
            "ownerReferences": [owner_reference(cluster)],
        },
        "spec": template["spec"],
    }


def _flags(group: Object, container: Object, kind: str, ports: dict[str, int]) -> str:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    flags: dict[str, Any] = dict(group.get("rayStartParams") or {})
    if (cpu := limits.get("cpu") or requests.get("cpu")) is not None:
        flags.setdefault("num-cpus", _whole(str(cpu)))
    if (gpu := limits.get("nvidia.com/gpu")) is not None:
        flags.setdefault("num-gpus", gpu)
    if kind == "head":
        flags |= {"port": ports["gcs-server"], "dashboard-port": ports["dashboard"]}
        flags["ray-client-server-port"] = ports["client"]
    else:
        flags["address"] = f"127.0.0.1:{ports['gcs-server']}"
    words = ["--head"] if kind == "head" else []
    words += [f"--{name}={value}" for name, value in flags.items() if name not in ("head", "block")]
    return " ".join([*words, "--block"])


def _whole(cpu: str) -> int:
    """Rounds a quantity of CPUs up, as Ray counts whole ones."""
    return math.ceil(int(cpu[:-1]) / 1000) if cpu.endswith("m") else math.ceil(float(cpu))
