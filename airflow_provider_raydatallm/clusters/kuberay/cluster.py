"""The kind `kuberay`: a cluster on Kubernetes that tasks have made, each its own or all one of a name."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection, Sequence, Set
from functools import cached_property
from urllib.parse import quote, unquote

from airflow_provider_raydatallm.clusters.base import (
    Access,
    Cluster,
    ClusterEndedError,
    ClusterStartingError,
    FindEnded,
    Gateway,
    Holder,
    Identity,
    none_has_ended,
)
from airflow_provider_raydatallm.clusters.blueprint import BY_KUBERNETES, Blueprint
from airflow_provider_raydatallm.clusters.kuberay import ray_job
from airflow_provider_raydatallm.clusters.kuberay.api import ConflictError, KubernetesApi
from airflow_provider_raydatallm.clusters.kuberay.pending import Waiting, why_it_waits
from airflow_provider_raydatallm.clusters.kuberay.pods import held_node
from airflow_provider_raydatallm.clusters.kuberay.ray_job import RayJob
from airflow_provider_raydatallm.clusters.kuberay.watch import RayJobWatch, watch_of
from airflow_provider_raydatallm.contract.result.gpus_held import HeldNode
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError

#: Seconds for which what a cluster waits for is not asked again.
_REASON_SECONDS = 10.0
#: Tries to release a cluster while the API server fails, and seconds between two.
_TRIES, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 8, 0.2, 3.0
#: For so long it is released while others change it.
_RELEASE_SECONDS = 60.0
#: Of its own that a task finds taken by others.
_MOST_NAMES = 5
_waiting: dict[str, tuple[float, Waiting]] = {}


class KubeRayCluster(Cluster):
    """Identified by its RayJob: connection to Kubernetes, namespace and name. A cluster that follows one of
    the same name is the same cluster, whose jobs the new one does not know."""

    kind = "kuberay"
    host_name = "kuberay"
    ends_when_released = True
    is_made_to_order = True

    #: Names of what was made for the task, when it was last looked for.
    _others: Collection[str] = ()

    @cached_property
    def _api(self) -> KubernetesApi:
        if self._own:
            conn_id, namespace, _ = map(unquote, self._own.split("/"))
            return KubernetesApi(conn_id, namespace)
        blueprint = self._blueprint
        return KubernetesApi(blueprint.kubernetes_conn_id, blueprint.namespace or "")

    @property
    def identity(self) -> str:
        """Of a cluster that is shared it is known before it is made."""
        if not self._own and self._wanted is not None and (name := self._blueprint.name) is not None:
            return str(Identity(self.kind, self.conn_id, self._own_of(name)))
        return super().identity

    def _own_of(self, name: str) -> str:
        return "/".join(quote(part, safe="") for part in (self._api.conn_id, self._api.namespace, name))

    @property
    def _name(self) -> str:
        return unquote(self._own.split("/")[2])

    @cached_property
    def _blueprint(self) -> Blueprint:
        if self._wanted is None:
            raise RayConnectionError(
                f"{self.label} means a cluster that is made for its tasks, and this one says of none",
                advice="Describe it in the task's argument cluster",
            )
        return self._wanted.blueprint

    @property
    def _watch(self) -> RayJobWatch:
        return watch_of(self._api)

    def means(self, identity: str) -> bool:
        """Each that was made for the task is meant, and each of the name."""
        of_own = identity.partition("@")[2]
        if not identity.startswith(f"{self.kind}:{self.conn_id}@") or of_own.count("/") != 2:
            return False
        conn_id, namespace, name = map(unquote, of_own.split("/"))
        if (conn_id, namespace) != (self._api.conn_id, self._api.namespace):
            return False
        return self._blueprint.name in (None, name)

    def acquire(self, holder: Holder | None) -> None:
        if self._own:
            if holder is not None:
                self._hold(holder)
            return
        if holder is None:
            raise RayConnectionError(
                f"{self.label} means a cluster that is made for a task: nothing else can call it"
            )
        job = self._find(holder) or self._make(holder)
        self._own = self._own_of(str(job["metadata"]["name"]))

    def address(self) -> Access:
        job = self._watch.get(self._name)
        if job is None or "deletionTimestamp" in job["metadata"]:
            raise ClusterEndedError(f"{self.label}: Ray cluster {self._name} was released")
        status = job.get("status") or {}
        if ray_job.state(job) == "ValidationFailed":
            raise RayConnectionError(
                f"{self.label}: KubeRay refuses Ray cluster {self._name}: {ray_job.why_it_ended(job)}"
            )
        if ray_job.state(job) == "Failed" and status.get("reason") != "AppFailed":
            raise ClusterEndedError(
                f"{self.label}: KubeRay has ended Ray cluster {self._name}: {ray_job.why_it_ended(job)}"
            )
        if ray_job.is_ending(job) and not self._has_pods(job):
            raise self._ended_with_job()
        if not status.get("dashboardURL"):
            if ray_job.is_used(job):  # whether or not there are others by now
                raise ClusterEndedError(
                    f"{self.label}: Kueue has taken back the nodes of Ray cluster {self._name}"
                )
            waiting = self._waiting(job)
            if waiting.is_hopeless:
                raise RayConnectionError(
                    f"{self.label}: Kubernetes has no node for Ray cluster {self._name}, and adds none: "
                    f"{waiting.words}",
                    advice="Correct nodeSelector and tolerations in cluster.template, or add such nodes",
                )
            raise ClusterStartingError(f"{self.label}: Ray cluster {self._name} starts: {waiting.words}")
        address, gateway = self._way(job)
        return Access(address, self._token(job), gateway, is_passing=not ray_job.secret_of(job))

    def note_job(self, submission_id: str) -> None:
        job = self._watch.get(self._name)
        if job is None or job["spec"].get("jobId") or ray_job.is_shared(job):
            return
        changes = {"metadata": {"uid": job["metadata"]["uid"]}, "spec": {"jobId": submission_id}}
        with contextlib.suppress(ConflictError):  # one that was made since, and has the name
            if (patched := self._api.patch(self._name, changes)) is not None:
                self._watch.note(patched)

    @property
    def is_used(self) -> bool:
        """KubeRay follows one job, also one that its head has lost."""
        job = self._watch.get(self._name)
        return job is None or ray_job.is_used(job)

    def held_nodes(self) -> Sequence[HeldNode]:
        """As they are now: pods that are gone held some, too."""
        job = self._watch.get(self._name)
        cluster = (job.get("status") or {}).get("rayClusterName") if job is not None else None
        if job is None or ray_job.is_shared(job) or not cluster:
            return ()
        return list(filter(None, map(held_node, self._api.pods(f"ray.io/cluster={cluster}"))))

    def release(self, holder: Holder | None, find_ended: FindEnded = none_has_ended) -> None:
        """Asks again where the API server fails for a moment: a shared cluster would wait for this holder.
        Many may release it at once."""
        if holder is None:
            return
        pause_s, tries, until = _FIRST_PAUSE_S, _TRIES, time.monotonic() + _RELEASE_SECONDS
        while True:
            try:
                job = self._drop_hold(holder)
                break
            except RayUnreachableError as e:
                is_conflict = isinstance(e, ConflictError)
                tries -= not is_conflict
                if not tries or time.monotonic() > until:
                    raise
            time.sleep(random.uniform(0, pause_s) if is_conflict else pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if job is not None:
            self._drop_ended(job, find_ended)

    def _drop_hold(self, holder: Holder) -> RayJob | None:
        """Returns what others still hold.

        :raises ConflictError: when somebody else has changed it meanwhile.
        """
        own = ray_job.hash_of(holder.task)
        job = self._api.get(self._name)
        if job is None or not ray_job.is_ours(job) or "deletionTimestamp" in job["metadata"]:
            return None
        return None if ray_job.holds(job).get(own, 0) > holder.try_number else self._drop(job, {own})

    def _drop_ended(self, job: RayJob, find_ended: FindEnded) -> None:
        """Drops what others hold whose tasks have ended. Who changes the holds meanwhile does it in turn."""
        holds = ray_job.holds(job)
        latest: RayJob | None = job
        for _ in range(_TRIES):
            if latest is None or ray_job.holds(latest) != holds:
                return
            try:
                self._drop(latest, holds.keys() - ray_job.needing(latest, find_ended))
                return
            except ConflictError:  # KubeRay writes there, too
                latest = self._api.get(self._name)

    def _drop(self, job: RayJob, tasks: Set[str]) -> RayJob | None:
        """Drops holds; ends the cluster when no other is left, else returns what it is now.

        :raises ConflictError: when somebody else has changed it since.
        """
        version = str(job["metadata"]["resourceVersion"])
        if not ray_job.holds(job).keys() - tasks:
            self._api.delete(self._name, version)
            return None
        if not tasks:
            return job
        dropped = {ray_job.hold_key(task): None for task in tasks}
        changes = {"annotations": dropped, "resourceVersion": version}
        patched: RayJob | None = self._api.patch(self._name, {"metadata": changes})
        return patched

    def describe(self, check: Callable[[Access], tuple[bool, str]]) -> tuple[bool, str]:
        return True, "Tasks have their Ray clusters made by KubeRay: their argument `cluster` says how"

    def _hold(self, holder: Holder) -> None:
        """Notes that a task's newest try needs it."""
        own = ray_job.hash_of(holder.task)
        job = self._watch.get(self._name)
        if job is None or ray_job.is_ending(job) or ray_job.holds(job).get(own, 0) >= holder.try_number:
            return  # `address` says what has become of it
        patched = self._api.patch(self._name, {"metadata": {"annotations": ray_job.hold_of(holder)}})
        if patched is not None:
            self._watch.note(patched)

    def _find(self, holder: Holder) -> RayJob | None:
        """Returns the cluster that was made for the task, or has the name, if it is as the task wants it."""
        blueprint = self._blueprint
        if blueprint.name is None:
            listed, _ = self._api.find(ray_job.task_selector(holder.task))
            self._others = {str(one["metadata"]["name"]) for one in listed}
            made = [one for one in listed if not ray_job.is_ending(one) and self._will_do(one)]
            same = [one for one in made if ray_job.digest_of(one) == blueprint.digest]
            found = max(same, key=lambda one: str(one["metadata"]["creationTimestamp"]), default=None)
            self._remove_left([one for one in listed if one is not found], holder)
        else:
            found = self._api.get(blueprint.name)
        if found is None:
            return None
        if blueprint.name is not None:
            self._check_shared(found)
        self._check_age(found)
        if ray_job.holds(found).get(ray_job.hash_of(holder.task), 0) >= holder.try_number:
            self._watch.note(found)  # a newer try's hold stays
            return found
        patched: RayJob | None = self._api.patch(
            found["metadata"]["name"], {"metadata": {"annotations": ray_job.hold_of(holder)}}
        )
        if patched is None or "deletionTimestamp" in patched["metadata"]:
            raise self._is_ending(found)
        self._watch.note(patched)
        return patched

    def _will_do(self, job: RayJob) -> bool:
        return self._wanted is None or not (self._wanted.is_unused and ray_job.is_used(job))

    def _remove_left(self, others: Sequence[RayJob], holder: Holder) -> None:
        """Removes what earlier tries of the task have left: clusters that KubeRay has ended, those that never
        had a job, such as of a template before it was edited, and those whose job is over."""
        for job in others:
            is_removed = "deletionTimestamp" in job["metadata"]
            is_earlier = ray_job.holds(job).get(ray_job.hash_of(holder.task), 0) <= holder.try_number
            has_job = ray_job.is_used(job) and not ray_job.is_ending(job)
            is_left = not (has_job and self._will_do(job))
            if is_left and is_earlier and not is_removed:
                with contextlib.suppress(ConflictError):
                    self._api.delete(job["metadata"]["name"], str(job["metadata"]["resourceVersion"]))

    def _check_shared(self, job: RayJob) -> None:
        name = job["metadata"]["name"]
        if not ray_job.is_ours(job):
            raise RayConnectionError(
                f"{self.label}: there is a RayJob {name!r} that no task had made",
                advice="Give another cluster.name",
            )
        if ray_job.is_ending(job):
            if "deletionTimestamp" not in job["metadata"]:
                self._api.delete(name, str(job["metadata"]["resourceVersion"]))
            raise self._is_ending(job)
        if ray_job.digest_of(job) != self._blueprint.digest:
            raise RayConnectionError(
                f"{self.label}: the Ray cluster {name!r} was made by another template than this task's",
                advice="Give all its tasks one template, or another cluster.name",
            )

    def _is_ending(self, job: RayJob) -> ClusterStartingError:
        return ClusterStartingError(
            f"{self.label}: Ray cluster {job['metadata']['name']} of before is ending; then it is made anew"
        )

    def _make(self, holder: Holder) -> RayJob:
        assert self._wanted is not None
        self._check_secret()
        taken: set[str] = set()
        while True:
            body = ray_job.to_ray_job(self._wanted, holder, {*self._others, *taken})
            name = body["metadata"]["name"]
            try:
                made: RayJob = self._api.create(body)
            except ConflictError:  # another task was first, or somebody else has the name
                if (found := self._find(holder)) is not None:
                    return found
                if self._blueprint.name is not None or len(taken) == _MOST_NAMES:
                    raise RayUnreachableError(f"{self.label}: Ray cluster {name} came and went") from None
                taken.add(name)
            else:
                break
        self._check_age(made)
        self._watch.note(made)
        return made

    def _check_secret(self) -> None:
        """KubeRay could neither make a cluster without the token that the template names, nor remove it."""
        name = (self._blueprint.spec["authOptions"] or {}).get("secretName")
        if name and self._api.secret(name) is None:
            raise RayConnectionError(
                f"{self._api.label}: there is no Secret {name!r} in namespace {self._api.namespace!r}, which "
                "cluster.template names in authOptions",
                advice="Make it, or leave secretName out: KubeRay makes a token for each cluster",
            )

    def _check_age(self, job: RayJob) -> None:
        if "preRunningDeadlineSeconds" not in job["spec"]:
            self._api.delete(job["metadata"]["name"])
            raise RayConnectionError(
                f"{self._api.label}: its KubeRay is older than 1.6: it would not end a cluster without a job",
                advice="Upgrade KubeRay and its custom resources",
            )

    def _waiting(self, job: RayJob) -> Waiting:
        key, now = str(job["metadata"]["uid"]), time.monotonic()
        for old in [uid for uid, (at, _) in _waiting.items() if now - at >= _REASON_SECONDS]:
            _waiting.pop(old, None)
        if key not in _waiting:
            _waiting[key] = (now, why_it_waits(self._api, job))
        return _waiting[key][1]

    def _has_pods(self, job: RayJob) -> bool:
        """Whether there is anything of the cluster, as far as this account may know."""
        try:
            return bool(self._api.pods(f"ray.io/cluster={job['status']['rayClusterName']}"))
        except RayConnectionError:
            return True

    def _ended_with_job(self) -> ClusterEndedError:
        return ClusterEndedError(
            f"{self.label}: KubeRay has ended Ray cluster {self._name}: its job had ended"
        )

    def _way(self, job: RayJob) -> tuple[str, Gateway | None]:
        """Returns the address of its Jobs API, and what is on the way there."""
        status = job["status"]
        address = ray_job.address_of(job)
        if address is None:
            return f"http://{status['dashboardURL']}", None
        service = ray_job.service_of(job)
        if address == BY_KUBERNETES:
            return self._api.way_to(service, int(status["dashboardURL"].rpartition(":")[2]))
        cluster, namespace = status["rayClusterName"], self._api.namespace
        return address.format(cluster=cluster, service=service, namespace=namespace), None

    def _token(self, job: RayJob) -> str:
        """ "" where it asks for none: nobody else's is sent to it."""
        if not ray_job.asks_for_token(job):
            return ""
        name = ray_job.secret_of(job) or job["status"]["rayClusterName"]
        token = (self._api.secret(name) or {}).get("auth_token")
        if not token and ray_job.is_ending(job):
            raise self._ended_with_job()
        if not token:
            raise RayUnreachableError(f"{self._api.label}: Secret {name} has no auth_token yet")
        return token
