"""The KubeRay operator of tests, as far as a user of its API sees it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from kubernetes import client, config

from tests.support.kube.heads import FakeHeads, RealHeads
from tests.support.kube.operator import RayOperator
from tests.support.kube.server import Kube, kube_server
from tests.support.waiting import wait_for

RAY = ("ray.io", "v1", "ml", "rayjobs")
CONTAINER = {
    "name": "ray",
    "image": "rayproject/ray:2.60.0",
    "resources": {"limits": {"cpu": "2", "nvidia.com/gpu": "1"}},
}
TEMPLATE = {"spec": {"containers": [CONTAINER]}}


class User:
    """Of Kubernetes' own client, with a RayJob called `slice`."""

    def __init__(self, kube: Kube) -> None:
        api = config.new_client_from_config_dict(kube.kubeconfig())
        self.ray, self.core, self.kube = client.CustomObjectsApi(api), client.CoreV1Api(api), kube

    def submit(self, workers: int = 0, **spec: Any) -> None:
        group = {"groupName": "gpu", "replicas": workers, "minReplicas": workers, "maxReplicas": workers}
        cluster = {
            "rayVersion": "2.60.0",
            "authOptions": {"mode": "token"},
            "headGroupSpec": {"rayStartParams": {"num-gpus": "0"}, "template": TEMPLATE},
            "workerGroupSpecs": [
                {**group, "rayStartParams": {}, "template": TEMPLATE},
            ],
        }
        body = {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": "slice"},
            "spec": {"submissionMode": "InteractiveMode", "rayClusterSpec": cluster, **spec},
        }
        self.ray.create_namespaced_custom_object(*RAY, body)

    def patch(self, **spec: Any) -> None:
        self.ray.patch_namespaced_custom_object(*RAY, "slice", {"spec": spec})

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.ray.get_namespaced_custom_object(*RAY, "slice").get("status", {})
        return status

    def wait_for(self, state: str, seconds: float = 20) -> dict[str, Any]:
        try:
            wait_for(lambda: self.status.get("jobDeploymentStatus") == state, seconds)
        except AssertionError:
            raise AssertionError(f"{state} did not come: {self.status}") from None
        return self.status

    def cluster(self) -> dict[str, Any]:
        (cluster,) = self.kube.objects("rayclusters")
        return cluster

    def pods(self, group: str) -> list[Any]:
        return self.core.list_namespaced_pod("ml", label_selector=f"ray.io/group={group}").items

    def token(self) -> str:
        secret = self.core.read_namespaced_secret(self.status["rayClusterName"], "ml")
        return base64.b64decode(secret.data["auth_token"]).decode()

    def reasons(self, kind: str) -> dict[str, str]:
        events = self.core.list_namespaced_event("ml", field_selector=f"involvedObject.kind={kind}").items
        return {event.reason: event.message for event in events}


@pytest.fixture
def kube() -> Iterator[Kube]:
    with kube_server() as kube:
        yield kube


@pytest.fixture
def heads() -> FakeHeads:
    return FakeHeads()


@pytest.fixture
def operator(kube: Kube, heads: FakeHeads) -> Iterator[RayOperator]:
    with RayOperator(kube, heads) as operator:
        yield operator


@pytest.fixture
def user(kube: Kube, operator: RayOperator) -> User:
    return User(kube)


def run(user: User, heads: FakeHeads, submission_id: str = "one") -> dict[str, Any]:
    """Submits a Ray job and tells KubeRay of it. Returns the job."""
    status = user.wait_for("Waiting")
    headers = {"Authorization": f"Bearer {user.token()}"}
    sent = {"submission_id": submission_id, "metadata": {}, "entrypoint": "true"}
    httpx.post(f"http://{status['dashboardURL']}/api/jobs/", json=sent, headers=headers).raise_for_status()
    user.patch(jobId=submission_id)
    user.wait_for("Running")
    job = heads.server.job(submission_id)
    assert job is not None
    return job


@pytest.mark.slow
def test_job_runs_and_its_cluster_is_deleted_a_while_after(
    user: User, kube: Kube, heads: FakeHeads, operator: RayOperator
) -> None:
    user.submit(workers=2, shutdownAfterJobFinishes=True, ttlSecondsAfterFinished=600)
    job = run(user, heads)
    cluster = user.cluster()
    assert cluster["status"]["state"] == "ready"
    assert cluster["status"]["readyWorkerReplicas"] == 2
    assert cluster["metadata"]["labels"]["ray.io/originated-from-cr-name"] == "slice"
    assert [pod.status.phase for pod in user.pods("headgroup") + user.pods("gpu")] == ["Running"] * 3
    job["status"] = "SUCCEEDED"
    status = user.wait_for("Complete")
    assert status["jobStatus"] == "SUCCEEDED"
    assert status["succeeded"] == 1
    assert kube.objects("rayclusters")
    kube.store.pass_time(601)
    wait_for(lambda: operator.leftovers() == ["rayjobs/slice", "services/slice-head-svc"], 10)
    user.ray.delete_namespaced_custom_object(*RAY, "slice")
    wait_for(lambda: operator.leftovers() == [], 10)


def test_failed_job(user: User, heads: FakeHeads) -> None:
    user.submit()
    run(user, heads).update(status="FAILED", message="boom")
    status = user.wait_for("Failed")
    assert (status["reason"], status["message"], status["failed"]) == ("AppFailed", "boom", 1)


def test_job_that_ray_does_not_know_is_waited_for(user: User, kube: Kube) -> None:
    user.submit()
    user.wait_for("Waiting")
    user.patch(jobId="never")
    assert user.wait_for("Running")["jobId"] == "never"
    kube.store.pass_time(1000)
    assert "jobStatus" not in user.status


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("preRunningDeadlineSeconds", "PreRunningDeadlineExceeded"),
        ("activeDeadlineSeconds", "DeadlineExceeded"),
    ],
)
def test_deadline_of_a_job_whose_pods_do_not_start(
    user: User, kube: Kube, operator: RayOperator, field: str, reason: str
) -> None:
    operator.hold_pods("headgroup", "Unschedulable")
    user.submit(**{field: 60})
    user.wait_for("Initializing")
    kube.store.pass_time(61)
    assert user.wait_for("Failed")["reason"] == reason


def test_active_deadline_does_not_count_while_a_submission_is_awaited(
    user: User, kube: Kube, heads: FakeHeads
) -> None:
    user.submit(activeDeadlineSeconds=60)
    user.wait_for("Waiting")
    kube.store.pass_time(61)
    user.patch(jobId="one")
    assert user.wait_for("Failed")["reason"] == "DeadlineExceeded"


def test_pre_running_deadline_of_a_job_that_nobody_submits(user: User, kube: Kube) -> None:
    user.submit(preRunningDeadlineSeconds=60)
    user.wait_for("Waiting")
    kube.store.pass_time(61)
    assert user.wait_for("Failed")["reason"] == "PreRunningDeadlineExceeded"


def test_restarted_operator_goes_on(user: User, operator: RayOperator, heads: FakeHeads) -> None:
    operator.stop()
    user.submit()
    operator.start()
    user.wait_for("Waiting")
    operator.stop()
    user.patch(jobId="one")
    operator.start()
    user.wait_for("Running")
    assert len(user.kube.objects("rayclusters")) == 1


def test_suspended_job_has_no_cluster_until_it_goes_on(user: User, heads: FakeHeads) -> None:
    user.submit(suspend=True, shutdownAfterJobFinishes=True)
    user.wait_for("Suspended")
    assert user.kube.objects("rayclusters") == []
    user.patch(suspend=False)
    user.wait_for("Waiting")


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("a" * 48, {}, "RayJob name should be no more than 47 characters"),
        ("1st", {}, "RayJob name should be a valid DNS1035 label"),
        ("slice", {"backoffLimit": 1}, "BackoffLimit is incompatible with InteractiveMode"),
        ("slice", {"ttlSecondsAfterFinished": 1}, "shutdownAfterJobFinishes set to false cannot have TTL"),
        ("slice", {"suspend": True}, "shutdownAfterJobFinishes set to false is not allowed to be suspended"),
    ],
)
def test_what_the_operator_refuses(
    user: User, kube: Kube, name: str, spec: dict[str, Any], message: str
) -> None:
    cluster = {"headGroupSpec": {"template": TEMPLATE}}
    spec = {"submissionMode": "InteractiveMode", "rayClusterSpec": cluster, **spec}
    body = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name}, "spec": spec}
    user.ray.create_namespaced_custom_object(*RAY, body)
    wait_for(lambda: kube.objects("rayjobs")[0].get("status"), 10)
    status = kube.objects("rayjobs")[0]["status"]
    assert status["jobDeploymentStatus"] == "ValidationFailed"
    assert message in status["message"]


def test_pods_that_no_node_has_room_for(user: User, operator: RayOperator) -> None:
    operator.hold_pods("gpu", "Unschedulable")
    user.submit(workers=1)
    wait_for(lambda: "FailedScheduling" in user.reasons("Pod"), 10)
    (pod,) = user.pods("gpu")
    (condition,) = pod.status.conditions
    assert pod.status.phase == "Pending"
    assert (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unschedulable")
    assert condition.message.startswith("0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preempt")
    operator.release_pods()
    user.wait_for("Waiting")


def test_image_that_cannot_be_pulled(user: User, operator: RayOperator) -> None:
    operator.hold_pods("headgroup", "ImagePullBackOff")
    user.submit()
    wait_for(lambda: "BackOff" in user.reasons("Pod"), 10)
    waiting = user.pods("headgroup")[0].status.container_statuses[0].state.waiting
    assert waiting.reason == "ImagePullBackOff"
    assert 'pulling image "rayproject/ray:2.60.0"' in waiting.message
    conditions = {c["type"]: c for c in user.cluster()["status"]["conditions"]}
    assert conditions["HeadPodReady"]["reason"] == "ImagePullBackOff"


@pytest.mark.parametrize(("group", "what"), [("headgroup", "Head"), ("gpu", "Worker")])
def test_pods_that_a_quota_refuses(user: User, operator: RayOperator, group: str, what: str) -> None:
    operator.hold_pods(group, "FailedCreate")
    user.submit(workers=1)
    wait_for(lambda: f"FailedToCreate{what}Pod" in user.reasons("RayCluster"), 10)
    assert "exceeded quota: gpu-quota" in user.reasons("RayCluster")[f"FailedToCreate{what}Pod"]
    assert user.pods(group) == []
    wait_for(lambda: "ReplicaFailure" in {c["type"] for c in user.cluster()["status"]["conditions"]}, 10)
    operator.release_pods()
    user.wait_for("Waiting")


@pytest.mark.slow
def test_evicted_pods_are_made_anew(user: User, operator: RayOperator, heads: FakeHeads) -> None:
    user.submit(workers=1)
    run(user, heads)
    for group in ("gpu", "headgroup"):
        (old,) = user.pods(group)
        operator.kill_pod(old.metadata.name)
        wait_for(
            lambda group=group, old=old: [
                pod
                for pod in user.pods(group)
                if pod.status.phase == "Running" and pod.metadata.uid != old.metadata.uid
            ],
            10,
        )
    assert heads.server.jobs == []
    assert user.status["jobDeploymentStatus"] == "Running"


def test_container_without_memory_restarts_in_its_pod(
    user: User, operator: RayOperator, heads: FakeHeads
) -> None:
    user.submit()
    run(user, heads)
    (pod,) = user.pods("headgroup")
    operator.kill_pod(pod.metadata.name, "OOMKilled")
    wait_for(lambda: user.pods("headgroup")[0].status.container_statuses[0].ready, 10)
    (container,) = user.pods("headgroup")[0].status.container_statuses
    assert container.restart_count == 1
    assert container.last_state.terminated.reason == "OOMKilled"
    assert heads.server.jobs == []


def test_pods_log_can_be_read(user: User, heads: FakeHeads) -> None:
    user.submit()
    user.wait_for("Waiting")
    (pod,) = user.pods("headgroup")
    heads.logs[pod.metadata.uid] = "started\n"
    answer = user.core.read_namespaced_pod_log(pod.metadata.name, "ml", _preload_content=False)
    assert answer.data == b"started\n"


def test_drained_node_takes_its_pod_with_it(user: User, operator: RayOperator) -> None:
    user.submit(workers=1)
    user.wait_for("Waiting")
    (old,) = user.pods("gpu")
    operator.drain_node(old.metadata.name)
    wait_for(lambda: [p for p in user.pods("gpu") if p.metadata.uid != old.metadata.uid], 10)


@pytest.mark.slow
def test_deleted_job_is_stopped_and_leaves_nothing(
    user: User, operator: RayOperator, heads: FakeHeads
) -> None:
    user.submit(workers=1)
    job = run(user, heads)
    user.ray.delete_namespaced_custom_object(*RAY, "slice")
    wait_for(lambda: operator.leftovers() == [], 10)
    assert job["status"] == "STOPPED"


@pytest.mark.slow
def test_real_ray_runs_a_job_and_leaves_nothing(kube: Kube) -> None:
    from ray.job_submission import JobSubmissionClient

    heads = RealHeads()
    with RayOperator(kube, heads) as operator:
        user = User(kube)
        user.submit(workers=1, shutdownAfterJobFinishes=True)
        status = user.wait_for("Waiting", 180)
        headers = {"Authorization": f"Bearer {user.token()}"}
        ray = JobSubmissionClient(f"http://{status['dashboardURL']}", headers=headers)
        script = "import ray; ray.init(); assert len([n for n in ray.nodes() if n['Alive']]) == 2"
        ray.submit_job(submission_id="one", entrypoint=f'python -c "{script}"')
        user.patch(jobId="one")
        assert user.wait_for("Complete", 120)["jobStatus"] == "SUCCEEDED"
        wait_for(lambda: operator.leftovers() == ["rayjobs/slice", "services/slice-head-svc"], 60)
    assert heads.living() == []
