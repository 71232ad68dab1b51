"""KubeRay's operator and the cluster's nodes, each in a thread, with what a test makes them do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from tests.support.kube.clusters import Clusters
from tests.support.kube.errors import ApiError
from tests.support.kube.heads import FakeHeads, Heads
from tests.support.kube.jobs import Jobs
from tests.support.kube.kubelet import CLUSTER_LABEL, Kubelet
from tests.support.kube.server import Kube


class RayOperator:
    """`stop` and `start` make a new operator of it, since it keeps nothing but what the API has; nodes and
    their processes go on meanwhile. Leaving the block ends them, too."""

    def __init__(self, kube: Kube, heads: Heads | None = None) -> None:
        self.kube = kube
        self.heads = heads or FakeHeads()
        self.kubelet = Kubelet(kube.store, self.heads)
        kube.read_log = lambda pod: self.heads.log(pod["metadata"]["uid"])
        self._clusters = Clusters(kube.store, self.kubelet)
        self._jobs = Jobs(kube.store, self._clusters)
        self._nodes = _Loop(self.kubelet.step, self.heads.interval_s)
        self._operator: _Loop | None = None

    def __enter__(self) -> RayOperator:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        try:
            self._nodes.stop()
        finally:
            self.heads.close()

    def start(self) -> None:
        self._nodes.start()
        if self._operator is not None:
            return
        self._operator = _Loop(self._reconcile, self.heads.interval_s)
        self._operator.start()

    def stop(self) -> None:
        if self._operator is not None:
            self._operator.stop()
            self._operator = None

    def hold_pods(self, group: str, kind: str) -> None:
        """Keeps new pods of a group from running, until `release_pods`.

        :param group: "headgroup", or a worker group's name
        :param kind: "Unschedulable"; "NoSuchNode", also by the autoscaler, or "Full", whose groups of nodes
            are; "ImagePullBackOff", or "FailedCreate" by a quota
        """
        self.kubelet.holds[group] = kind

    def release_pods(self) -> None:
        self.kubelet.holds.clear()

    def kill_pod(self, name: str, reason: str = "Evicted") -> None:
        """:param reason: "Evicted", or "OOMKilled"; a container that may restart does, in the same pod"""
        self.kubelet.kill_pod(name, reason)

    def drain_node(self, pod: str) -> None:
        """Takes the node of a pod away, and the pod with it."""
        self.kubelet.drain(pod)

    def leftovers(self) -> list[str]:
        """Returns what there is of RayJobs, RayClusters and what they own, and of the pods' processes."""
        kinds = ("rayjobs", "rayclusters", "pods", "services", "secrets")
        objects = [(plural, item["metadata"]) for plural in kinds for item in self.kube.objects(plural)]
        return [
            f"{plural}/{metadata['name']}"
            for plural, metadata in objects
            if plural != "secrets" or CLUSTER_LABEL in metadata.get("labels", {})
        ] + [f"process of pod {uid}" for uid in self.heads.living()]

    def _reconcile(self) -> None:
        for plural, reconcile in (
            ("rayjobs", self._jobs.reconcile),
            ("rayclusters", self._clusters.reconcile),
        ):
            for item in self.kube.objects(plural):
                try:
                    reconcile(item)
                except ApiError:
                    continue  # it was changed meanwhile, or cannot be now: the next pass tries again


class _Loop:
    """Repeats work in a thread. Its error is raised when it is stopped."""

    def __init__(self, work: Callable[[], None], interval_s: float) -> None:
        self._work = work
        self._interval_s = interval_s
        self._end = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(60)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not self._end.wait(self._interval_s):
            try:
                self._work()
            except Exception as error:
                self._error = error
                return
