"""Scheduler and kubelet in one: runs what the store has as pods, and writes how they are."""

from __future__ import annotations

import base64
import shlex
import threading
from contextlib import suppress
from typing import Any

from tests.support.kube.errors import ApiError
from tests.support.kube.events import record
from tests.support.kube.heads import Heads
from tests.support.kube.store import Object, Store

CLUSTER_LABEL, NODE_TYPE_LABEL, GROUP_LABEL = "ray.io/cluster", "ray.io/node-type", "ray.io/group"
UNSCHEDULABLE, IMAGE_PULL, QUOTA = "Unschedulable", "ImagePullBackOff", "FailedCreate"
NO_SUCH_NODE, FULL = "NoSuchNode", "Full"
NODE = "node-1"
_INITIALIZING = {"waiting": {"reason": "PodInitializing"}}
_CREATING = {"waiting": {"reason": "ContainerCreating"}}


class Kubelet:
    """`holds`: by a pod's group, why its new pods do not run; `QUOTA` is for who creates them."""

    def __init__(self, store: Store, heads: Heads) -> None:
        self.store = store
        self.heads = heads
        self.holds: dict[str, str] = {}
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            pods = {pod["metadata"]["uid"]: pod for pod in self.store.objects("pods", "", _is_of_ray)}
            for uid in self.heads.living():
                if uid not in pods:
                    self.heads.kill(uid)
            for pod in pods.values():
                try:
                    self._advance(pod)
                except ApiError:
                    continue  # deleted or changed meanwhile: the next step sees it

    def kill_pod(self, name: str, reason: str) -> None:
        """Ends a pod's process as a node does that has no memory left.

        :param reason: "Evicted" for the pod, or "OOMKilled" for its container, which its policy may restart
        """
        with self._lock, suppress(ApiError):  # it is deleted at that moment
            pod = self._pod(name)
            self.heads.kill(pod["metadata"]["uid"])
            if reason == "Evicted":
                message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 48Mi. "
                record(self.store, pod, "Warning", "Evicted", message, "kubelet")
                ended = {"terminated": self._terminated(137, "Error", "")}
                self._write(pod, "Failed", ended, reason="Evicted", message=message)
            else:
                self._end_container(pod, self._terminated(137, "OOMKilled", ""))

    def drain(self, name: str) -> None:
        """Deletes a pod as a node does that goes away."""
        with self._lock:
            pod = self._pod(name)
            message = f"Marking for deletion Pod {pod['metadata']['namespace']}/{name}"
            record(self.store, pod, "Normal", "TaintManagerEviction", message, "taint-eviction-controller")
            self.store.delete("pods", pod["metadata"]["namespace"], name)
            self.heads.kill(pod["metadata"]["uid"])

    def _pod(self, name: str) -> Object:
        return next(pod for pod in self.store.objects("pods") if pod["metadata"]["name"] == name)

    def _advance(self, pod: Object) -> None:
        uid, status = pod["metadata"]["uid"], pod["status"]
        if status["phase"] in ("Failed", "Succeeded"):
            return
        if self.heads.is_alive(uid):
            if status["phase"] == "Pending":
                self._write(pod, "Running", {"running": {"startedAt": self.store.timestamp()}})
            elif not is_ready(pod) and self.heads.is_ready(uid):
                self._write(pod, "Running", _state(pod), ready=True)
        elif _state(pod).keys() & {"running"} or _state(pod) == _CREATING:
            self.heads.kill(uid)  # what is left of it
            self._end_container(pod, self._terminated(1, "Error", self.heads.log(uid)))
        else:
            self._start(pod)

    def _start(self, pod: Object) -> None:
        if (hold := self.holds.get(pod["metadata"]["labels"][GROUP_LABEL])) is not None:
            self._hold(pod, hold)
            return
        if pod["metadata"]["labels"][NODE_TYPE_LABEL] == "worker" and not self._has_ready_head(pod):
            if _state(pod) != _INITIALIZING:
                self._write(pod, "Pending", _INITIALIZING)
            return
        container = pod["spec"]["containers"][0]
        try:
            env = self._environment(pod["metadata"]["namespace"], container)
        except ApiError as error:
            self._write(
                pod,
                "Pending",
                {"waiting": {"reason": "CreateContainerConfigError", "message": error.message}},
            )
            return
        self.heads.start(pod["metadata"]["uid"], _flags(container), env)
        if pod["status"]["phase"] == "Pending":
            self._write(pod, "Pending", _CREATING)
        else:
            self._write(pod, "Running", {"running": {"startedAt": self.store.timestamp()}})

    def _has_ready_head(self, worker: Object) -> bool:
        """Whether the container that workers begin with, which waits for the head, would end."""
        wanted = {**worker["metadata"]["labels"], NODE_TYPE_LABEL: "head"}
        return any(
            is_ready(pod)
            and all(pod["metadata"]["labels"][key] == wanted[key] for key in (CLUSTER_LABEL, NODE_TYPE_LABEL))
            for pod in self.store.objects("pods", worker["metadata"]["namespace"], _is_of_ray)
        )

    def _hold(self, pod: Object, hold: str) -> None:
        if hold in (UNSCHEDULABLE, NO_SUCH_NODE, FULL):
            wanted = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
            lacking = "nvidia.com/gpu" if "nvidia.com/gpu" in wanted else "cpu"
            why = f"3 Insufficient {lacking}"
            if hold != UNSCHEDULABLE:
                why = (
                    "1 node(s) had untolerated taint {dedicated: web}, 2 node(s) didn't match Pod's node "
                    "affinity/selector"
                )
            message = (
                f"0/3 nodes are available: {why}. preemption: 0/3 nodes are available: 3 No victims found."
            )
            if _condition(pod, "PodScheduled").get("status") == "False":
                return
            scheduled = {
                "type": "PodScheduled",
                "status": "False",
                "reason": UNSCHEDULABLE,
                "message": message,
            }
            status = {
                **pod["status"],
                "conditions": [{**scheduled, "lastTransitionTime": self.store.timestamp()}],
            }
            self._write_status(pod, status)
            record(self.store, pod, "Warning", "FailedScheduling", message, "default-scheduler", "Scheduling")
            if hold in (NO_SUCH_NODE, FULL):
                groups = "4 node(s) didn't match Pod's node affinity/selector, "
                groups += "1 max node group size reached" if hold == FULL else "1 Insufficient nvidia.com/gpu"
                said = f"pod didn't trigger scale-up: {groups}"
                record(self.store, pod, "Normal", "NotTriggerScaleUp", said, "cluster-autoscaler")
        elif hold == IMAGE_PULL:
            image = pod["spec"]["containers"][0].get("image", "")
            message = f'Back-off pulling image "{image}"'
            waiting = {"reason": hold, "message": f"{message}: ErrImagePull: not found"}
            if _state(pod) == {"waiting": waiting}:
                return
            self._write(pod, "Pending", {"waiting": waiting})
            failed = f'Failed to pull image "{image}": not found'
            record(self.store, pod, "Warning", "Failed", failed, "kubelet")
            record(self.store, pod, "Warning", "Failed", "Error: ImagePullBackOff", "kubelet")
            record(self.store, pod, "Normal", "BackOff", message, "kubelet")

    def _environment(self, namespace: str, container: Object) -> dict[str, str]:
        env: dict[str, str] = {}
        for variable in container.get("env", []):
            source = variable.get("valueFrom", {}).get("secretKeyRef")
            if source is None:
                env[variable["name"]] = variable.get("value", "")
                continue
            try:
                env[variable["name"]] = self._from_secret(namespace, source["name"], source["key"])
            except ApiError:
                if not source.get("optional"):
                    raise
        return env

    def _from_secret(self, namespace: str, name: str, key: str) -> str:
        """:raises ApiError: 404, where there is no such key"""
        data = self.store.get("secrets", namespace, name).get("data", {})
        if key not in data:
            raise ApiError(404, f"couldn't find key {key} in Secret {namespace}/{name}")
        return base64.b64decode(data[key]).decode()

    def _end_container(self, pod: Object, terminated: dict[str, Any]) -> None:
        """Ends the pod with its container, or leaves the container to be started again."""
        if pod["spec"].get("restartPolicy", "Always") == "Never":
            self._write(pod, "Failed", {"terminated": terminated})
            return
        waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
        self._write(pod, "Running", {"waiting": waiting}, ended={"terminated": terminated})

    def _terminated(self, code: int, reason: str, message: str) -> dict[str, Any]:
        return {"exitCode": code, "reason": reason, "message": message, "finishedAt": self.store.timestamp()}

    def _write(
        self,
        pod: Object,
        phase: str,
        state: dict[str, Any],
        *,
        ready: bool = False,
        ended: dict[str, Any] | None = None,
        **why: str,
    ) -> None:
        """:param ended: the state of the container that was there before this one"""
        before = (pod["status"].get("containerStatuses") or [{}])[0]
        container = {
            "name": pod["spec"]["containers"][0]["name"],
            "image": pod["spec"]["containers"][0].get("image", ""),
            "imageID": "",
            "ready": ready,
            "started": "running" in state,
            "restartCount": before.get("restartCount", 0) + (ended is not None),
            "state": state,
            "lastState": ended if ended is not None else before.get("lastState", {}),
        }
        conditions = [self._condition(pod, kind, True) for kind in ("PodScheduled", "Initialized")]
        conditions += [self._condition(pod, kind, ready) for kind in ("ContainersReady", "Ready")]
        status = {
            "phase": phase,
            "qosClass": pod["status"]["qosClass"],
            "hostIP": "127.0.0.1",
            "podIP": "127.0.0.1",
            "startTime": pod["status"].get("startTime") or self.store.timestamp(),
            "conditions": conditions,
            "containerStatuses": [container],
            **why,
        }
        if "nodeName" not in pod["spec"]:
            metadata = pod["metadata"]
            spec = {**pod["spec"], "nodeName": NODE}
            pod = self.store.update("pods", metadata["namespace"], {**pod, "spec": spec})
        self._write_status(pod, status)

    def _write_status(self, pod: Object, status: dict[str, Any]) -> None:
        self.store.update("pods", pod["metadata"]["namespace"], {**pod, "status": status}, status=True)

    def _condition(self, pod: Object, kind: str, is_true: bool) -> dict[str, Any]:
        condition = {
            "type": kind,
            "status": "True" if is_true else "False",
            "lastTransitionTime": self.store.timestamp(),
        }
        before = _condition(pod, kind)
        if before.get("status") == condition["status"]:
            condition["lastTransitionTime"] = before["lastTransitionTime"]
        if not is_true:
            name = pod["spec"]["containers"][0]["name"]
            message = f"containers with unready status: [{name}]"
            condition |= {"reason": "ContainersNotReady", "message": message}
        return condition


def _is_of_ray(pod: Object) -> bool:
    return GROUP_LABEL in pod["metadata"].get("labels", {})


def _flags(container: Object) -> dict[str, str]:
    """Returns the flags of the `ray start` that the container runs."""
    _, _, command = container["args"][0].partition("ray start ")
    flags = (flag.removeprefix("--").partition("=") for flag in shlex.split(command))
    return {name: value for name, _, value in flags}


def _state(pod: Object) -> dict[str, Any]:
    """Returns the state of the pod's container, {} before it has one."""
    state: dict[str, Any] = (pod["status"].get("containerStatuses") or [{"state": {}}])[0]["state"]
    return state


def _condition(pod: Object, kind: str) -> dict[str, Any]:
    found = (c for c in pod["status"].get("conditions", []) if c["type"] == kind)
    return next(found, {})


def is_ready(pod: Object) -> bool:
    return _condition(pod, "Ready").get("status") == "True"
