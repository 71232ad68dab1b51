"""What tasks do with clusters that KubeRay makes for them, over the Kubernetes API of tests."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, task_group
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider_raydatallm.clusters.base import ClusterStartingError, Holder
from airflow_provider_raydatallm.clusters.kuberay import cluster as kuberay
from airflow_provider_raydatallm.clusters.kuberay import made_clusters, ray_job
from airflow_provider_raydatallm.clusters.kuberay.api import KubernetesApi
from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayLLMInputError,
    RayLLMJobError,
    RayQueueTimeoutError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.operators import ray_cluster
from airflow_provider_raydatallm.operators.ray_cluster import CleanRayClustersOperator, RayClusterOperator
from airflow_provider_raydatallm.task import own_xcom
from airflow_provider_raydatallm.task.job.cancel import find_ended
from airflow_provider_raydatallm.task.job.record import STATE_KEY
from airflow_provider_raydatallm.task.job.tracker import JobTracker
from airflow_provider_raydatallm.task.job.verdict import EndedWithoutReport
from airflow_provider_raydatallm.task.queue import gate as submission_gate
from airflow_provider_raydatallm.task.queue import places
from airflow_provider_raydatallm.task.queue.gate import SubmissionGate
from airflow_provider_raydatallm.task.queue.line import wait_in_line
from airflow_provider_raydatallm.task.queue.places import task_key
from airflow_provider_raydatallm.triggers.submission_turn import SubmissionTurnTrigger
from tests.support.context import StateStore, context_of
from tests.support.fake_cluster import Log
from tests.support.kube.events import record
from tests.support.kube.tasks import CLUSTER, CONNECTION, CONTAINER, Task, World, eventually


def test_slice_has_a_cluster_of_its_own_that_ends_with_it(world: World) -> None:
    tracker = world.tracker("a")
    job = world.submit(tracker)
    assert world.job["spec"]["jobId"] == job.submission_id
    eventually(lambda: world.job["status"]["jobDeploymentStatus"] == "Running")
    assert world.head.token  # KubeRay's own: the calls had it
    tracker.conclude({"outcome": "published"})
    eventually(world.nothing_is_left)


def test_address_may_name_the_cluster_its_service_and_namespace(world: World) -> None:
    tracker = world.tracker("a", address="https://ray.example.com/{namespace}/{cluster}/{service}")
    world.wait_for_cluster(tracker)
    cluster = world.job["status"]["rayClusterName"]
    assert tracker.hook.settings.address == f"https://ray.example.com/ml/{cluster}/{cluster}-head-svc"


def test_gpus_are_held_by_the_nodes_of_ones_own_cluster(world: World) -> None:
    gpu = {**CLUSTER["spec"]["workerGroupSpecs"][0]}
    gpu["template"] = {
        "spec": {"containers": [{**CONTAINER, "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}
    }
    template = {**CLUSTER, "spec": {**CLUSTER["spec"], "workerGroupSpecs": [{**gpu, "replicas": 3}]}}
    world.operator.hold_pods("l4", "Unschedulable")
    own, shared = world.tracker("a", template=template), world.tracker("b", template=template, name="all")
    with pytest.raises(ClusterStartingError):
        own.hook.acquire()
    eventually(lambda: len(world.kube.objects("pods")) == 4)
    assert own.hook.held_nodes() == []  # pending pods hold none
    world.operator.release_pods()
    world.wait_for_cluster(own)
    nodes = own.hook.held_nodes()
    assert [node.gpus for node in nodes] == [2, 2, 2]
    assert all(0 <= (node.started or 0) - node.scheduled < 30 for node in nodes)
    assert abs(time.time() - nodes[0].scheduled) < 60
    world.wait_for_cluster(shared)
    assert shared.hook.held_nodes() == ()  # others hold them, too
    with world.kube.away():
        assert own.hook.held_nodes() == ()


def test_cluster_without_a_token_is_sent_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-the-environment")
    template = {**CLUSTER, "spec": {**CLUSTER["spec"], "authOptions": {"mode": "disabled"}}}
    tracker = world.tracker("a", template=template)
    world.submit(tracker)
    assert (world.head.token, tracker.hook.settings.token) == (None, "")


def test_cluster_of_an_edited_template_follows_one_that_no_job_came_to(world: World) -> None:
    world.wait_for_cluster(world.tracker("a"))
    first = world.job["metadata"]["name"]
    edited = {**CLUSTER, "spec": {**CLUSTER["spec"], "rayVersion": "2.59.0"}}
    later = world.tracker("a", template=edited, try_number=2)
    world.wait_for_cluster(later)
    eventually(lambda: first not in [job["metadata"]["name"] for job in world.kube.objects("rayjobs")])
    later._leave_clusters()
    eventually(world.nothing_is_left)


def test_late_try_ends_no_cluster_of_a_newer_one(world: World) -> None:
    edited = {**CLUSTER, "spec": {**CLUSTER["spec"], "rayVersion": "2.59.0"}}
    newer = world.tracker("a", template=edited, try_number=2)
    world.wait_for_cluster(newer)
    late = world.tracker("a", template=edited)
    late.hook.acquire()
    late._leave_clusters()
    assert "deletionTimestamp" not in world.job["metadata"]
    world.wait_for_cluster(world.tracker("a"))  # of the template before
    jobs = [job["metadata"] for job in world.kube.objects("rayjobs")]
    assert [("deletionTimestamp" in job) for job in jobs] == [False, False]


def test_kuberay_ends_what_airflow_has_forgotten(world: World) -> None:
    world.submit(world.tracker("a"))
    eventually(lambda: world.job["status"]["jobDeploymentStatus"] == "Running")
    world.end_job()
    eventually(lambda: world.job["status"]["jobDeploymentStatus"] == "Complete")
    assert world.kube.objects("rayclusters")  # for a look at the job's log
    world.kube.store.pass_time(300)
    eventually(lambda: not world.kube.objects("rayclusters") and not world.operator.heads.living())


def test_cluster_that_no_job_came_to_is_ended_by_kuberay_and_made_anew(world: World) -> None:
    tracker = world.tracker("a")
    world.wait_for_cluster(tracker)
    first = tracker.hook.acquired
    world.kube.store.pass_time(800)
    eventually(lambda: world.job["status"]["jobDeploymentStatus"] == "Failed")
    world.kube.store.pass_time(300)
    eventually(lambda: not world.operator.heads.living())
    tracker.hook.reread()
    job = world.submit(tracker)
    assert job.cluster != first
    tracker.conclude({"outcome": "published"})
    eventually(world.nothing_is_left)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_next_try_goes_on_where_the_one_before_has_its_job(world: World, is_recorded: bool) -> None:
    store = StateStore()
    job = world.submit(world.tracker("a", store))
    later = world.tracker("a", store if is_recorded else StateStore(), try_number=2)
    found = later.find_job()
    assert found is not None
    assert (found.submission_id, found.cluster) == (job.submission_id, job.cluster)
    later.mark_ended()
    eventually(world.nothing_is_left)


def test_try_that_died_before_its_job_was_noted_has_it_noted_by_the_next(world: World) -> None:
    store, tracker = StateStore(), None
    tracker = world.tracker("a", store)
    world.wait_for_cluster(tracker)
    world.kube.fail("patch", "rayjobs", 500, times=1000)
    with pytest.raises(RayUnreachableError):
        tracker.submit()
    world.kube.forgive()
    assert "jobId" not in world.job["spec"]
    world.kube.fail("patch", "rayjobs", 503)  # a moment's failure loses no job
    found = world.tracker("a", store, try_number=2).find_job()
    assert found is not None
    assert world.job["spec"]["jobId"] == found.submission_id


def test_cluster_that_is_gone_with_its_job_is_made_for_no_look_at_it(world: World) -> None:
    store = StateStore()
    world.submit(world.tracker("a", store))
    world.kube.store.delete("rayjobs", "ml", world.job["metadata"]["name"])
    eventually(world.nothing_is_left)
    later = world.tracker("a", store, try_number=2)
    assert later.find_job() is None
    assert store[STATE_KEY]["phase"] == "ended"
    assert world.nothing_is_left()
    assert world.submit(later).cluster


@pytest.mark.parametrize(("mode", "sees_pods"), [("token", True), ("token", False), ("disabled", True)])
def test_cluster_that_kuberay_ended_with_its_job_is_waited_for_by_no_try(
    world: World, mode: str, sees_pods: bool
) -> None:
    store = StateStore()
    template = {**CLUSTER, "spec": {**CLUSTER["spec"], "authOptions": {"mode": mode}}}
    world.submit(world.tracker("a", store, template=template))
    world.end_job()
    eventually(lambda: world.job["status"]["jobDeploymentStatus"] == "Complete")
    world.kube.store.pass_time(300)
    eventually(lambda: not world.kube.objects("pods") and not world.kube.objects("secrets"))
    if not sees_pods:
        world.kube.fail("list", "pods", 403, times=1000)
    later = world.tracker("a", store, try_number=2, template=template)
    assert later.find_job() is None
    assert store[STATE_KEY]["phase"] == "ended"
    assert world.submit(later).cluster


def test_tasks_share_a_cluster_by_its_name_until_the_last_has_its_result(world: World) -> None:
    first, second = (world.tracker(key, name="backfill") for key in ("a", "b"))
    assert world.submit(first).cluster == world.submit(second).cluster
    assert "jobId" not in world.job["spec"]  # it is nobody's own
    assert len(world.head.jobs) == 2
    first.conclude({"outcome": "published"})
    assert world.job["metadata"]["name"] == "backfill"
    second.mark_ended()
    eventually(world.nothing_is_left)


@pytest.mark.parametrize("dies", [False, True])
def test_cluster_of_a_setup_task_ends_with_the_last_of_teardown_and_tasks(world: World, dies: bool) -> None:
    with DAG("backfill", schedule=None):
        cluster = {"template": CLUSTER, "namespace": "ml", "name": "backfill"}
        make = RayClusterOperator(task_id="make", ray_conn_id=CONNECTION, cluster=cluster)
        end = make.ends("end")
    assert end.is_teardown
    for try_number in (1, 2) if dies else (1,):
        assert make.execute(context_of(make, StateStore(), try_number=try_number)).endswith("/ml/backfill")
    tracker = world.tracker("a", name="backfill")
    world.submit(tracker)
    end.execute(context_of(end, StateStore()))
    assert len(world.head.jobs) == 1  # the task has its result before the cluster ends
    tracker.conclude({"outcome": "published"})
    eventually(world.nothing_is_left)
    end.execute(context_of(end, StateStore()))  # as where the setup has failed


@pytest.mark.parametrize(("name", "map_index"), [("t", -1), ("t_3", 3)])
def test_teardown_ends_the_cluster_of_tasks_that_were_killed_or_marked(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, map_index: int
) -> None:
    with DAG("backfill", schedule=None):
        cluster = {"template": CLUSTER, "namespace": "ml", "name": "backfill"}
        make = RayClusterOperator(task_id="make", ray_conn_id=CONNECTION, cluster=cluster)
        end = make.ends("end")
    states = {"make": "success", name: "running", "end": "running"}
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", None, raising=False)
    monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", lambda **_: {"r": states})
    make.execute(context_of(make))
    key = task_key({"dag_id": "backfill", "run_id": "r", "task_id": "t", "map_index": str(map_index)})
    RayHook.to_cluster(f"kuberay:{CONNECTION}@kubernetes_default/ml/backfill", Holder(key, 2)).hold()
    end.execute(context_of(end))
    assert len(ray_job.holds(world.job)) == 1  # a task that runs
    states[name] = "failed"
    end.execute(context_of(end))
    eventually(world.nothing_is_left)


def test_who_releases_a_shared_cluster_drops_what_tasks_hold_that_have_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were killed, say, and released nothing. The setup's hold is there until the teardown."""
    states: dict[str, dict[str, str]] = {
        "r": {"t": "failed", "t_3": "running", "make": "success"},
        "gone": {},
    }
    asked: list[dict[str, Any]] = []

    def get_task_states(**given: Any) -> dict[str, dict[str, str]]:
        asked.append(given)
        return states

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", None, raising=False)
    monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", get_task_states)
    world.wait_for_cluster(world.tracker("own", name="backfill"))
    own = ray_job.owner_of(world.job)
    cluster = f"kuberay:{CONNECTION}@kubernetes_default/ml/backfill"
    setup = Holder("d/r/make/-1", 1, until=None)
    killed, runs, deleted = (Holder(f"d/{task}", 1) for task in ("r/t/-1", "r/t/3", "gone/t/-1"))
    for holder in (setup, killed, runs, deleted):
        RayHook.to_cluster(cluster, holder).hold()
    RayHook.to_cluster(cluster, Holder(own, 1)).release(find_ended)
    assert asked == [{"dag_id": "d", "run_ids": ["gone", "r"], "task_ids": ["t"]}]
    left = {ray_job.hash_of(holder.task) for holder in (setup, runs, deleted)}
    assert ray_job.holds(world.job).keys() == left
    for holder in (runs, deleted, setup):
        assert not world.nothing_is_left()
        RayHook.to_cluster(cluster, holder).release(find_ended)
    eventually(world.nothing_is_left)


def test_many_tasks_release_a_shared_cluster_at_once(world: World) -> None:
    world.wait_for_cluster(world.tracker("own", name="backfill"))
    cluster = f"kuberay:{CONNECTION}@kubernetes_default/ml/backfill"
    hooks = [RayHook.to_cluster(cluster, Holder(f"d/r/t/{n}", 1)) for n in range(24)]
    for hook in hooks:
        hook.hold()
    with ThreadPoolExecutor(len(hooks)) as threads:
        list(threads.map(RayHook.release, hooks))
    assert list(ray_job.holds(world.job)) == [ray_job.hash_of(ray_job.owner_of(world.job))]


def test_holds_of_ended_tasks_are_dropped_while_kuberay_writes(world: World) -> None:
    world.wait_for_cluster(world.tracker("own", name="backfill"))
    cluster = f"kuberay:{CONNECTION}@kubernetes_default/ml/backfill"
    for task in ("d/r/t/1", "d/r/t/2"):
        RayHook.to_cluster(cluster, Holder(task, 1)).hold()

    def find_ended(tasks: Collection[str]) -> Collection[str]:
        if not asked:
            labels = {"metadata": {"labels": {"ray.io/reconciled": "true"}}}
            KubernetesApi("kubernetes_default", "ml").patch("backfill", labels)
        asked.append(tasks)
        return tasks

    asked: list[Collection[str]] = []
    RayHook.to_cluster(cluster, Holder("d/r/t/1", 1)).release(find_ended)
    eventually(world.nothing_is_left)
    assert len(asked) == 2


def test_clusters_that_all_their_tasks_have_left_are_ended_by_a_dag(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All were killed, say, the teardown too: nobody is left who would release it."""
    with DAG("backfill", schedule=None):
        cluster = {"template": CLUSTER, "namespace": "ml", "name": "backfill"}
        make = RayClusterOperator(task_id="make", ray_conn_id=CONNECTION, cluster=cluster)
        make.ends("end")
        clean = CleanRayClustersOperator(task_id="clean", namespace="ml")
    states = {"make": "success", "t": "failed", "end": None}

    def get_task_states(dag_id: str, **_: Any) -> dict[str, Any]:
        return {"r": states if dag_id == "backfill" else {"t": "up_for_retry"}}

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", None, raising=False)
    monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", get_task_states)
    make.execute(context_of(make))
    killed = Holder("backfill/r/t/-1", 1)
    RayHook.to_cluster(f"kuberay:{CONNECTION}@kubernetes_default/ml/backfill", killed).hold()
    world.wait_for_cluster(world.tracker("own"))
    assert clean.execute(context_of(clean)) == []  # the teardown is still to come
    states["end"] = "failed"
    assert clean.execute(context_of(clean)) == ["backfill"]
    eventually(lambda: len(world.kube.objects("rayjobs")) == 1)
    assert ray_job.owner_of(world.job).startswith("own/")


def test_job_that_goes_on_without_its_task_keeps_its_cluster(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit(world.tracker("own"))  # with cancel_on_kill=False, say
    assert list(made_clusters.clean("kubernetes_default", "ml", lambda tasks: tasks)) == []
    world.end_job()
    eventually(lambda: ray_job.is_ending(world.job))
    assert list(made_clusters.clean("kubernetes_default", "ml", lambda tasks: tasks)) == []
    monkeypatch.setattr(made_clusters, "_LOOKED_AT", timedelta(0))  # its task looks there no more
    [cleaned] = made_clusters.clean("kubernetes_default", "ml", lambda tasks: tasks)
    assert cleaned.owner.startswith("own/")
    eventually(world.nothing_is_left)


def test_cluster_that_a_task_needs_again_is_not_cleaned_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task was cleared after Airflow was asked."""
    world.wait_for_cluster(world.tracker("own"))

    def find_ended(tasks: Collection[str]) -> Collection[str]:
        if 2 in ray_job.holds(world.job).values():
            return ()
        world.tracker("own", try_number=2).hook.acquire()
        return tasks

    assert list(made_clusters.clean("kubernetes_default", "ml", find_ended)) == []
    assert list(ray_job.holds(world.job).values()) == [2]


def test_cluster_that_cannot_be_ended_keeps_no_other(world: World) -> None:
    for name in ("a", "b", "c"):
        world.kube.objects("rayjobs")
        tracker = world.tracker(name)
        with pytest.raises(ClusterStartingError):
            tracker.hook.acquire()
    world.kube.fail("delete", "rayjobs", 403, message="no")
    cleaned = made_clusters.clean("kubernetes_default", "ml", lambda tasks: tasks)
    names = [next(cleaned).name for _ in range(2)]
    with pytest.raises(RayConnectionError, match="refuses to delete"):
        next(cleaned)
    eventually(lambda: len(world.kube.objects("rayjobs")) == 1)
    assert world.job["metadata"]["name"] not in names


def test_cluster_is_ended_also_while_kuberay_writes(world: World) -> None:
    world.wait_for_cluster(world.tracker("own"))
    world.kube.fail("delete", "rayjobs", 409)
    [cleaned] = made_clusters.clean("kubernetes_default", "ml", lambda tasks: tasks)
    assert cleaned.owner.startswith("own/")
    eventually(world.nothing_is_left)


def test_teardown_belongs_to_the_mapped_group_of_its_setup() -> None:
    cluster = {"template": CLUSTER, "namespace": "ml", "name": "backfill"}
    made: list[RayClusterOperator] = []
    with DAG("backfill", schedule=None):

        @task_group
        def of_day(day: str) -> None:
            made.append(RayClusterOperator(task_id="make", ray_conn_id=CONNECTION, cluster=cluster))
            made[0].ends("end")

        of_day.expand(day=["a", "b"])
        with pytest.raises(RayLLMInputError, match=r"end_all and of_day\.make are not in the same mapped"):
            made[0].ends("end_all")


def test_setup_without_a_teardown_says_until_when_its_cluster_stays(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with DAG("backfill", schedule=None):
        cluster = {"template": CLUSTER, "namespace": "ml", "name": "backfill", "lifetime": "90m"}
        make = RayClusterOperator(task_id="make", ray_conn_id=CONNECTION, cluster=cluster)
    make.execute(context_of(make))
    assert "No task ends this cluster (`ends`): KubeRay does, after 1.5 hours" in capsys.readouterr().out
    assert ray_job.needing(world.job, lambda tasks: tasks) == ray_job.holds(world.job).keys()


def test_task_that_is_called_as_anothers_mapped_instance_keeps_its_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", None, raising=False)
    states = {"t": {"t_3": "success", "t_4": "running"}, "t_3": {"t_3": "running"}}

    def get_task_states(task_ids: list[str], **_: Any) -> dict[str, Any]:
        [task_id] = task_ids  # Airflow's answer for both has one of the two names
        return {"r": states[task_id]}

    monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", get_task_states)
    assert find_ended(["d/r/t/3", "d/r/t_3/-1", "d/r/t/4", "no key"]) == ["d/r/t/3"]


def test_airflow_is_asked_for_no_more_runs_than_an_address_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def get_task_states(run_ids: list[str], **_: Any) -> dict[str, Any]:
        asked.append(len(run_ids))
        return {run_id: {"t": "failed"} for run_id in run_ids}

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", None, raising=False)
    monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", get_task_states)
    tasks = [f"d/{day}/t/-1" for day in range(250)]
    assert find_ended(tasks) == tasks
    assert asked == [100, 100, 50]


def test_airflow_that_cannot_be_asked_leaves_every_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_ended(["d/r/t/-1"]) == []  # by hand, without Airflow

    def fail(**given: Any) -> None:
        raise AirflowRuntimeError(ErrorResponse())

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", None, raising=False)
    monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", fail)
    assert find_ended(["d/r/t/-1"]) == []


def test_cluster_of_another_template_is_not_shared(world: World) -> None:
    world.wait_for_cluster(world.tracker("a", name="backfill"))
    other = {**CLUSTER, "spec": {**CLUSTER["spec"], "rayVersion": "2.59.0"}}
    with pytest.raises(RayConnectionError, match="'backfill' was made by another template"):
        world.tracker("b", name="backfill", template=other).hook.acquire()


def test_cluster_that_others_made_is_left_alone(world: World) -> None:
    body = {
        "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "backfill", "namespace": "ml"},
        "spec": {"submissionMode": "InteractiveMode", "rayClusterSpec": CLUSTER["spec"]},
    }  # fmt: skip
    world.kube.store.create("rayjobs", "ml", body)
    with pytest.raises(RayConnectionError, match="a RayJob 'backfill' that no task had made"):
        world.tracker("a", name="backfill").hook.acquire()


@pytest.mark.parametrize(("group", "why", "told"), [
    ("l4", "Unschedulable", r"0/3 nodes are available: 3 Insufficient"),
    ("l4", "Full", r"0/3 nodes are available: 1 node\(s\) had untolerated taint"),
    ("headgroup", "ImagePullBackOff", r"ImagePullBackOff: Back-off pulling image"),
    ("l4", "FailedCreate", r"exceeded quota"),
])  # fmt: skip
def test_what_a_cluster_waits_for_is_told_in_the_words_of_kubernetes(
    world: World, group: str, why: str, told: str
) -> None:
    world.operator.hold_pods(group, why)
    tracker, texts = world.tracker("a"), list[str]()

    def is_told() -> bool:
        with pytest.raises(ClusterStartingError) as starting:
            tracker.hook.acquire()
        texts.append(starting.value.failure.sentence)
        return any(words in texts[-1] for words in (why, told.partition(":")[0]))

    eventually(is_told)
    with pytest.raises(ClusterStartingError, match=told):
        tracker.hook.acquire()
    world.operator.release_pods()
    world.submit(tracker)


def test_wait_for_a_queue_is_told_in_its_words(world: World) -> None:
    tracker = world.tracker("a", queue="gpus")
    with pytest.raises(ClusterStartingError, match="it waits until Kueue admits it"):
        tracker.hook.acquire()
    why = "couldn't assign flavors to pod set gpu: insufficient unused quota for nvidia.com/gpu in flavor l4"
    for name, said in ((world.job["metadata"]["name"], why), ("other", "of another")):
        of_job = {"name": f"rayjob-{name}-1a2b3", "namespace": "ml", "uid": name}
        workload = {"kind": "Workload", "apiVersion": "kueue.x-k8s.io/v1beta1", "metadata": of_job}
        record(world.kube.store, workload, "Warning", "Pending", said, "kueue-admission")
    with pytest.raises(ClusterStartingError, match=f"it waits until Kueue admits it; Pending: {why}"):
        tracker.hook.acquire()
    tracker._leave_clusters()
    eventually(world.nothing_is_left)


def test_pods_that_fit_no_kind_of_node_fail_the_task_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission_gate, "_TRY_SECONDS", 0.02)
    world.operator.hold_pods("l4", "NoSuchNode")
    tracker = world.tracker("a")
    gate = SubmissionGate(tracker.queue_place(600), Log(), tracker.hook)
    with (
        tracker.releasing(),
        pytest.raises(RayConnectionError, match=r"adds none: .*4 node.s. didn't match Pod's node affinity"),
    ):
        asyncio.run(gate.enter(has_turn=False, holds=True))
    tracker._leave_clusters()
    eventually(world.nothing_is_left)


@pytest.mark.parametrize("state", ["failed", "scheduled", "deferred"])
def test_cluster_that_starts_ends_with_its_marked_task_and_waits_for_a_cleared_one(
    world: World, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    world.operator.hold_pods("l4", "Unschedulable")
    tracker = world.tracker("a")
    with pytest.raises(ClusterStartingError):
        tracker.hook.acquire()
    trigger = SubmissionTurnTrigger(asdict(replace(tracker.queue_place(600), cluster=tracker.hook.acquired)))
    trigger.task_instance = tracker._ti
    monkeypatch.setattr(own_xcom, "pull", lambda *_: None)
    monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", lambda **_: {"r": {"t": state}})
    asyncio.run(trigger.on_kill())
    if state == "failed":
        eventually(world.nothing_is_left)
    else:
        assert "deletionTimestamp" not in world.job["metadata"]


def test_task_that_waits_for_pods_fails_within_its_limit_and_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission_gate, "_TRY_SECONDS", 0.02)
    world.operator.hold_pods("l4", "Unschedulable")
    tracker, log = world.tracker("a"), Log()
    place = replace(tracker.queue_place(600), queue_timeout=5.0)
    gate = SubmissionGate(place, log, tracker.hook)
    with pytest.raises(RayQueueTimeoutError, match="Insufficient"):
        asyncio.run(gate.enter(has_turn=False, holds=True))
    with tracker.releasing(), pytest.raises(RayQueueTimeoutError):
        raise RayQueueTimeoutError("as its task")
    tracker._leave_clusters()
    eventually(world.nothing_is_left)


@pytest.mark.parametrize("world", ["1.5", ""], indirect=True)
def test_kuberay_that_would_end_no_cluster_is_refused_and_nothing_is_left(world: World) -> None:
    with pytest.raises(RayConnectionError, match=r"older than 1\.6|knows no rayjobs"):
        world.tracker("a").hook.acquire()
    eventually(world.nothing_is_left)


@pytest.mark.parametrize(("leaves", "status", "told"), [
    ({"namespace": "gone"}, None, 'namespaces "gone" not found'),
    ({}, (403, "Forbidden", 'rayjobs.ray.io is forbidden: User "a" cannot create resource'), "cannot create"),
    ({}, (400, "BadRequest", 'admission webhook "policy" denied the request: no team'), "request: no team"),
])  # fmt: skip
def test_refusal_is_told_in_the_words_of_kubernetes(
    world: World, leaves: dict[str, Any], status: tuple[int, str, str] | None, told: str
) -> None:
    if status is not None:
        world.kube.fail("create", "rayjobs", *status, times=10)
    with pytest.raises(RayConnectionError, match=told):
        world.tracker("a", **leaves).hook.acquire()


def test_answer_that_is_lost_makes_no_second_cluster(world: World) -> None:
    world.kube.lose_answers("create", "rayjobs")
    tracker = world.tracker("a")
    with pytest.raises(RayUnreachableError):
        tracker.hook.acquire()
    world.submit(tracker)
    tracker.conclude({"outcome": "published"})
    eventually(world.nothing_is_left)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("has_ended", [True, False])
def test_job_that_follows_one_has_a_cluster_of_its_own(world: World, has_ended: bool, is_known: bool) -> None:
    """KubeRay follows the first: it would end the cluster two minutes after that, or never, if it is lost."""
    tracker = world.tracker("a")
    first = world.submit(tracker)
    eventually(lambda: world.job["status"]["jobDeploymentStatus"] == "Running")
    if has_ended:
        world.end_job("FAILED")
    else:
        world.head.jobs.clear()
    second = tracker if is_known else world.tracker("a", try_number=2)
    second.leave_used_cluster()
    assert world.submit(second).cluster != first.cluster
    eventually(lambda: len(world.kube.objects("rayjobs")) == 1)
    assert world.job["spec"]["jobId"] == second.record.submission_id
    second.conclude({"outcome": "published"})
    eventually(world.nothing_is_left)


def test_job_is_noted_on_no_cluster_that_was_made_since_and_has_the_name(world: World) -> None:
    tracker = world.tracker("a")
    world.submit(tracker)
    hook, old = tracker.hook, world.job
    world.kube.store.delete("rayjobs", "ml", old["metadata"]["name"])
    eventually(world.nothing_is_left)
    world.wait_for_cluster(world.tracker("a"))
    assert world.job["metadata"]["name"] == old["metadata"]["name"]
    known = {**old, "spec": {key: value for key, value in old["spec"].items() if key != "jobId"}}
    hook._cluster._watch.note(known)
    hook.note_job("of the first")
    assert "jobId" not in world.job["spec"]


def test_name_that_somebody_else_has_is_left_to_them(world: World) -> None:
    world.submit(world.tracker("a"))
    name, body = world.job["metadata"]["name"], world.job
    world.kube.store.delete("rayjobs", "ml", name)
    eventually(world.nothing_is_left)
    theirs = {**body, "metadata": {"name": name, "labels": {"app": "theirs"}}}
    world.kube.store.create("rayjobs", "ml", theirs)
    job = world.submit(world.tracker("a"))
    assert job.cluster.rpartition("/")[2] == f"{name.removesuffix('-1')}-2"


def test_lost_record_and_an_edited_template_leave_one_cluster(world: World) -> None:
    world.submit(world.tracker("a"))
    template = {**CLUSTER, "spec": {**CLUSTER["spec"], "headServiceAnnotations": {"edited": "yes"}}}
    edited = world.tracker("a", try_number=2, template=template)
    world.wait_for_cluster(edited)
    assert edited.find_job() is None
    edited.leave_used_cluster()
    world.submit(edited)
    eventually(lambda: len(world.kube.objects("rayjobs")) == 1)
    assert world.job["spec"]["jobId"] == edited.record.submission_id


def test_command_ends_no_cluster_that_was_made_since_and_has_the_name(world: World) -> None:
    world.wait_for_cluster(world.tracker("a"))
    [listed] = made_clusters.find("kubernetes_default", "ml")
    world.kube.store.delete("rayjobs", "ml", listed.name)
    eventually(world.nothing_is_left)
    world.wait_for_cluster(world.tracker("a"))
    with pytest.raises(RayUnreachableError, match="UID"):
        made_clusters.end("kubernetes_default", "ml", listed)
    assert world.job["metadata"]["name"] == listed.name


def test_cluster_that_waits_for_its_first_job_is_kept_for_it(world: World) -> None:
    tracker = world.tracker("a")
    world.wait_for_cluster(tracker)
    cluster = tracker.hook.acquired
    tracker.leave_used_cluster()
    resumed = world.tracker("a")
    resumed.leave_used_cluster()
    assert (resumed.hook.acquire(), world.submit(tracker).cluster) == (cluster, cluster)


@pytest.mark.parametrize("is_same_process", [True, False])
def test_late_try_makes_no_cluster_beside_that_of_a_newer_one(world: World, is_same_process: bool) -> None:
    store = StateStore()
    late = world.tracker("a", store)
    world.submit(late)
    world.head.jobs.clear()
    if not is_same_process:
        resumed = world.tracker("a", store)
        resumed._record, late = late.record, resumed
    newer = world.tracker("a", store, try_number=2)
    newer.leave_used_cluster()
    world.submit(newer)
    with pytest.raises(RayLLMJobError, match="try 2 of the task has Ray job"):
        late.leave_used_cluster()
    eventually(lambda: len(world.kube.objects("rayjobs")) == 1)
    newer.conclude({"outcome": "published"})
    eventually(world.nothing_is_left)


def test_job_that_follows_one_whose_cluster_was_deleted_has_another(world: World) -> None:
    tracker = world.tracker("a")
    first = world.submit(tracker)
    hook = tracker.hook_of(first)
    world.kube.store.delete("rayjobs", "ml", world.job["metadata"]["name"])
    eventually(lambda: hook.has_ended)
    eventually(world.nothing_is_left)
    tracker.leave_used_cluster()
    world.submit(tracker)
    assert world.job["spec"]["jobId"] == tracker.record.submission_id


def test_cluster_whose_nodes_kueue_takes_back_is_lost_with_its_job(world: World) -> None:
    """KubeRay would wait for that job, on new nodes, until the cluster's lifetime is over."""
    tracker = world.tracker("a", queue="gpus")
    with pytest.raises(ClusterStartingError):
        tracker.hook.acquire()
    name, uid = (world.job["metadata"][key] for key in ("name", "uid"))

    def suspend(value: bool) -> None:
        world.kube.store.patch(
            "rayjobs", "ml", name, lambda job: {**job, "spec": {**job["spec"], "suspend": value}}
        )

    suspend(False)
    first = world.submit(tracker)
    eventually(lambda: world.job["status"]["jobDeploymentStatus"] == "Running")
    suspend(True)
    hook = tracker.hook_of(first)
    eventually(lambda: hook.has_ended)
    suspend(False)
    eventually(lambda: world.job["status"]["jobDeploymentStatus"] == "Initializing")
    assert hook.has_ended
    tracker.leave_used_cluster()
    with pytest.raises(ClusterStartingError):
        tracker.hook.acquire()
    eventually(lambda: len(world.kube.objects("rayjobs")) == 1)
    assert world.job["metadata"]["uid"] != uid


def test_try_without_a_record_waits_in_line_for_its_cluster_not_for_a_job_on_it(world: World) -> None:
    world.operator.hold_pods("l4", "Unschedulable")
    with pytest.raises(ClusterStartingError):
        world.tracker("a").hook.acquire()
    second = world.tracker("a", try_number=2)
    with second.releasing():
        assert second.find_job() is None
    assert second.hook.acquired


def test_job_that_its_cluster_may_not_be_told_of_is_stopped(world: World) -> None:
    tracker = world.tracker("a")
    world.wait_for_cluster(tracker)
    world.kube.fail("patch", "rayjobs", 403, times=1000)
    with pytest.raises(RayConnectionError, match="it refuses to patch rayjobs"):
        tracker.submit()
    assert [job["status"] for job in world.head.jobs] == ["STOPPED"]
    eventually(world.nothing_is_left)


@pytest.mark.parametrize("waits_s", [0, 4])
def test_job_that_decides_waits_for_its_cluster_and_ends_it(world: World, waits_s: float) -> None:
    """As long as `limits.queue` says, which is longer than `limits.reconnect`."""
    tracker = world.tracker("a")
    world.operator.hold_pods("l4", "Unschedulable")
    threading.Timer(waits_s, world.operator.release_pods).start()
    sent = tracker.submit_decision(tracker.submission.job, "000001-12345678", ["commit"])
    assert world.job["spec"]["jobId"] == sent.submission_id


@pytest.mark.parametrize("fault", ["cut", "expired", "429", "away"])
def test_task_outlasts_an_api_server_that_fails_for_a_while(world: World, fault: str) -> None:
    world.operator.hold_pods("l4", "Unschedulable")
    tracker = world.tracker("a")
    with pytest.raises(ClusterStartingError):
        tracker.hook.acquire()
    if fault == "cut":
        world.kube.cut_watches()
    elif fault == "expired":
        world.kube.store.forget_history()
        world.kube.cut_watches()
    elif fault == "429":
        world.kube.fail("list", "rayjobs", 429, times=3)
        world.kube.cut_watches()
    else:
        with world.kube.away():
            for _ in range(3):
                with pytest.raises((ClusterStartingError, RayUnreachableError)):
                    tracker.hook.acquire()
                time.sleep(0.2)
    world.operator.release_pods()
    world.submit(tracker)
    tracker.conclude({"outcome": "published"})
    eventually(world.nothing_is_left)


def test_waiting_task_asks_the_api_server_for_one_watch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kuberay, "_REASON_SECONDS", 10.0)
    monkeypatch.setattr(places, "_LOOK_SECONDS", 0.05)
    world.operator.hold_pods("l4", "Unschedulable")
    trackers = [world.tracker(key) for key in "abcdefgh"]
    for tracker in trackers:
        with pytest.raises(ClusterStartingError):
            tracker.hook.acquire()
    before = len(world.kube.calls)
    for _ in range(100):
        for tracker in trackers:
            with pytest.raises(ClusterStartingError):
                tracker.hook.acquire()
    assert len(world.kube.calls) - before < 8
    assert sum(call[0] == "watch" for call in world.kube.calls) <= 2


def test_release_and_a_new_hold_at_once_leave_the_cluster_to_the_new_one(world: World) -> None:
    first = world.tracker("a", name="backfill")
    world.submit(first)
    others = [world.tracker(key, name="backfill") for key in "bcde"]
    errors: list[Exception] = []

    def run(tracker: JobTracker) -> None:
        try:
            world.submit(tracker)
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(tracker,)) for tracker in others]
    for thread in threads:
        thread.start()
    first.conclude({"outcome": "published"})
    for thread in threads:
        thread.join()
    assert not errors
    for tracker in others:
        assert RayHook.to_cluster(tracker.job.cluster).call(_version())  # type: ignore[union-attr]
        tracker.conclude({"outcome": "published"})
    eventually(world.nothing_is_left)


def _version() -> Any:

    return jobs_api.get_version()


def test_release_ends_no_cluster_that_somebody_has_held_since_it_looked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (world.tracker(key, name="backfill") for key in "ab")
    world.submit(first)
    get, asked = KubernetesApi.get, []

    def hold_meanwhile(api: KubernetesApi, name: str) -> Any:
        found = get(api, name)
        if not asked:
            asked.append(name)
            world.wait_for_cluster(second)
        return found

    monkeypatch.setattr(KubernetesApi, "get", hold_meanwhile)
    first.conclude({"outcome": "published"})
    assert asked
    assert "deletionTimestamp" not in world.job["metadata"]
    assert list(ray_job.holds(world.job)) == [ray_job.hash_of(second._holder.task)]
    world.submit(second)
    second.conclude({"outcome": "published"})
    eventually(world.nothing_is_left)


def test_task_in_line_for_a_cluster_that_ends_has_another_made(world: World) -> None:
    tracker = world.tracker("a")
    world.wait_for_cluster(tracker)
    place = replace(tracker.queue_place(600), cluster=tracker.hook.acquired)
    world.kube.store.delete("rayjobs", "ml", world.job["metadata"]["name"])
    eventually(world.nothing_is_left)
    turn = asyncio.run(asyncio.wait_for(wait_in_line(place, Log()), 60))
    assert turn.place.cluster == place.cluster
    world.submit(world.tracker("a"))
    assert world.job["status"]["jobDeploymentStatus"]


def test_nothing_of_the_connection_is_sent_to_a_cluster_that_was_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes the template says what runs there."""
    of_connection = {"conn_type": "ray", "host": "kuberay", "extra": {"headers": {"X-Proxy-Key": "secret"}}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", json.dumps(of_connection))
    tracker = world.tracker("a")
    world.submit(tracker)
    assert (tracker.hook.settings.headers, tracker.hook.settings.use_environment) == ({}, False)


def test_job_of_a_cluster_that_is_gone_is_followed_by_one_on_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job that asks the store first: it would have the cluster made for itself."""
    tracker = world.tracker("a")
    ref = world.submit(tracker)
    world.kube.store.delete("rayjobs", "ml", world.job["metadata"]["name"])
    eventually(world.nothing_is_left)
    with DAG("a", schedule=None):
        task = Task(
            task_id="t", ray_conn_id=CONNECTION, slice_key="a", input_path="/no/in", prompt="{name}",
            output_path="/no/out", model_source="m",
        )  # fmt: skip
    submitted: list[Any] = []

    def submit(self: Task, context: Any, tracker: JobTracker, turn: Any = None) -> dict[str, Any]:
        submitted.append(tracker)
        return {}

    monkeypatch.setattr(Task, "_submit", submit)
    monkeypatch.setattr(
        JobTracker, "submit_status_job", lambda *args: pytest.fail("a job that asks the store was submitted")
    )
    silent = EndedWithoutReport("unknown")
    assert task._conclude(context_of(task, StateStore()), tracker, tracker.submission.job, ref, silent) == {}
    assert submitted == [tracker]


def test_store_is_asked_on_the_cluster_of_the_job_that_ended_without_a_word(world: World) -> None:
    """No other one is made for that, and this one stays for two minutes."""
    store = StateStore()
    ref = world.submit(world.tracker("a", store))
    eventually(lambda: world.job["status"]["jobDeploymentStatus"] == "Running")
    world.end_job("FAILED")
    eventually(lambda: world.job["status"]["jobDeploymentStatus"] == "Failed")
    resumed = world.tracker("a", store)
    asked = resumed.submit_status_job(resumed.submission.job, ref.submission_id, ref)
    assert asked.cluster == ref.cluster
    assert len(world.kube.objects("rayjobs")) == 1


def shared(**leaves: Any) -> tuple[RayClusterOperator, Any]:
    with DAG("backfill", schedule=None):
        cluster = {"template": CLUSTER, "namespace": "ml", "name": "backfill", **leaves}
        make = RayClusterOperator(task_id="make", ray_conn_id=CONNECTION, cluster=cluster)
        return make, make.ends("end")


def test_setup_that_fails_leaves_no_cluster(world: World) -> None:
    """Airflow runs its teardown only when it has succeeded."""
    make, _ = shared()
    world.kube.lose_answers("create", "rayjobs")
    with pytest.raises(RayUnreachableError):
        make.execute(context_of(make))  # type: ignore[arg-type]
    eventually(world.nothing_is_left)


def test_setup_that_fails_leaves_the_cluster_of_others_alone(world: World) -> None:
    body = {
        "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "backfill", "namespace": "ml"},
        "spec": {"submissionMode": "InteractiveMode", "rayClusterSpec": CLUSTER["spec"]},
    }  # fmt: skip
    world.kube.store.create("rayjobs", "ml", body)
    make, end = shared()
    with pytest.raises(RayConnectionError, match="that no task had made"):
        make.execute(context_of(make))  # type: ignore[arg-type]
    end.execute(context_of(end))  # type: ignore[arg-type]
    assert "deletionTimestamp" not in world.job["metadata"]


@pytest.mark.parametrize("fault", ["edited", "away"])
def test_teardown_ends_what_its_setup_had_made(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    make, _ = shared()
    made = make.execute(context_of(make))  # type: ignore[arg-type]
    _, end = shared(name="other") if fault == "edited" else shared()
    context = context_of(end)  # type: ignore[arg-type]
    context["ti"].others = {"make": made}
    if fault == "away":
        monkeypatch.setattr(kuberay, "_TRIES", 1)
        monkeypatch.setattr(ray_cluster, "_PAUSE_SECONDS", 0.05)
        world.kube.fail("get", "rayjobs", 503, times=5)
    end.execute(context)
    eventually(world.nothing_is_left)


def test_old_kuberay_is_refused_also_where_the_answer_was_lost(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    world.submit(world.tracker("a"))
    job = world.job
    del job["spec"]["preRunningDeadlineSeconds"]
    world.kube.store.update("rayjobs", "ml", job)
    with pytest.raises(RayConnectionError, match=r"older than 1\.6"):
        world.tracker("a").hook.acquire()
    eventually(world.nothing_is_left)


def test_cluster_whose_token_is_nowhere_is_not_made(world: World) -> None:
    """KubeRay could not remove it, either."""
    options = {"mode": "token", "secretName": "gone"}
    template = {**CLUSTER, "spec": {**CLUSTER["spec"], "authOptions": options}}
    with pytest.raises(RayConnectionError, match="there is no Secret 'gone' in namespace 'ml'"):
        world.tracker("a", template=template).hook.acquire()
    assert world.nothing_is_left()
