"""The Kubernetes API of tests, as Kubernetes' own client sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client import ApiException

from tests.support.kube.server import Kube, kube_server
from tests.support.waiting import in_thread, wait_for

RAY = ("ray.io", "v1", "ml", "rayjobs")


@pytest.fixture
def kube() -> Iterator[Kube]:
    with kube_server() as kube:
        yield kube


@pytest.fixture
def api(kube: Kube) -> client.ApiClient:
    return config.new_client_from_config_dict(kube.kubeconfig())


@pytest.fixture
def ray(api: client.ApiClient) -> client.CustomObjectsApi:
    return client.CustomObjectsApi(api)


@pytest.fixture
def core(api: client.ApiClient) -> client.CoreV1Api:
    return client.CoreV1Api(api)


def ray_job(name: str = "slice", spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "ray", "image": "rayproject/ray:2.60.0"}]}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, **metadata},
        "spec": {"rayClusterSpec": {"headGroupSpec": {"template": template}}, **(spec or {})},
    }


def test_object_is_created_read_changed_and_deleted(ray: client.CustomObjectsApi) -> None:
    made = ray.create_namespaced_custom_object(*RAY, ray_job())
    made["spec"]["jobId"] = "one"
    changed = ray.replace_namespaced_custom_object(*RAY, "slice", made)
    assert changed["metadata"]["generation"] == 2
    patch = [{"op": "replace", "path": "/spec/jobId", "value": "two"}]
    json_patch = "application/json-patch+json"
    ray.patch_namespaced_custom_object(*RAY, "slice", patch, _content_type=json_patch)
    assert ray.get_namespaced_custom_object(*RAY, "slice")["spec"]["jobId"] == "two"
    ray.patch_namespaced_custom_object(*RAY, "slice", {"spec": {"jobId": None}})
    assert "jobId" not in ray.get_namespaced_custom_object(*RAY, "slice")["spec"]
    ray.delete_namespaced_custom_object(*RAY, "slice")
    assert ray.list_namespaced_custom_object(*RAY)["items"] == []


def test_generated_names_differ(ray: client.CustomObjectsApi) -> None:
    body = ray_job()
    body["metadata"] = {"generateName": "slice-"}
    names = {ray.create_namespaced_custom_object(*RAY, body)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("slice-") and len(name) == 11 for name in names)


@pytest.mark.parametrize(
    ("body", "code", "reason", "message"),
    [
        (ray_job("taken"), 409, "AlreadyExists", 'rayjobs.ray.io "taken" already exists'),
        (ray_job("Slice_1"), 422, "Invalid", "a lowercase RFC 1123 subdomain must consist of"),
        (ray_job("a" * 254), 422, "Invalid", "must be no more than 253 bytes"),
        (ray_job(labels={"run": "manual__2026+00:00"}), 422, "Invalid", "a valid label must be"),
        (ray_job(labels={"run": "a" * 64}), 422, "Invalid", "must be no more than 63 bytes"),
        ({**ray_job(), "kind": "RayCluster"}, 400, "BadRequest", "does not match the expected kind (RayJob)"),
        (
            ray_job(spec={"preRunningDeadlineSeconds": 0}),
            422,
            "Invalid",
            "should be greater than or equal to 1",
        ),
        (ray_job(spec={"ttlSecondsAfterFinished": "9"}), 422, "Invalid", 'must be of type integer: "string"'),
        (ray_job(spec={"jobId": None}), 422, "Invalid", 'must be of type string: "null"'),
        (ray_job(spec={"rayClusterSpec": {}}), 422, "Invalid", "headGroupSpec: Required value"),
    ],
)
def test_what_is_refused(
    ray: client.CustomObjectsApi, body: dict[str, Any], code: int, reason: str, message: str
) -> None:
    ray.create_namespaced_custom_object(*RAY, ray_job("taken"))
    with pytest.raises(ApiException) as caught:
        ray.create_namespaced_custom_object(*RAY, body)
    assert caught.value.status == code
    assert f'"reason": "{reason}"' in caught.value.body
    assert message in caught.value.body.replace('\\"', '"')


def test_namespace_that_is_missing(ray: client.CustomObjectsApi) -> None:
    with pytest.raises(ApiException, match=r'namespaces \\"x\\" not found'):
        ray.create_namespaced_custom_object("ray.io", "v1", "x", "rayjobs", ray_job())


def test_unknown_fields_are_dropped_and_defaults_added(ray: client.CustomObjectsApi) -> None:
    made = ray.create_namespaced_custom_object(*RAY, ray_job(spec={"preRuningDeadline": 9}))
    assert "preRuningDeadline" not in made["spec"]
    assert made["spec"]["submissionMode"] == "K8sJobMode"
    assert made["spec"]["ttlSecondsAfterFinished"] == 0


def test_older_kuberay_does_not_know_newer_fields() -> None:
    body = ray_job(spec={"preRunningDeadlineSeconds": 600})
    body["spec"]["rayClusterSpec"]["authOptions"] = {"mode": "token", "secretName": "own"}
    with kube_server(kuberay="1.5") as kube:
        ray = client.CustomObjectsApi(config.new_client_from_config_dict(kube.kubeconfig()))
        made = ray.create_namespaced_custom_object(*RAY, body)
    assert "preRunningDeadlineSeconds" not in made["spec"]
    assert made["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}


def test_unknown_fields_are_refused_if_asked(kube: Kube, ray: client.CustomObjectsApi) -> None:
    body = ray_job(spec={"preRuningDeadline": 9})
    with pytest.raises(ApiException, match=r"strict decoding error: unknown field .*spec\.preRuningDeadline"):
        ray.create_namespaced_custom_object(*RAY, body, field_validation="Strict")
    ray.create_namespaced_custom_object(*RAY, body, dry_run="All")
    assert kube.objects("rayjobs") == []


def test_kuberay_that_is_not_installed() -> None:
    with kube_server(kuberay="") as kube:
        ray = client.CustomObjectsApi(config.new_client_from_config_dict(kube.kubeconfig()))
        with pytest.raises(ApiException, match="404 page not found"):
            ray.create_namespaced_custom_object(*RAY, ray_job())


def test_older_version_of_an_object_cannot_replace_it(ray: client.CustomObjectsApi) -> None:
    first = ray.create_namespaced_custom_object(*RAY, ray_job())
    ray.replace_namespaced_custom_object(*RAY, "slice", {**first, "spec": {**first["spec"], "jobId": "x"}})
    with pytest.raises(ApiException, match="the object has been modified"):
        ray.replace_namespaced_custom_object(*RAY, "slice", first)


def test_status_and_spec_are_written_apart(ray: client.CustomObjectsApi) -> None:
    made = ray.create_namespaced_custom_object(*RAY, {**ray_job(), "status": {"message": "ignored"}})
    assert "status" not in made
    made["status"], made["spec"]["jobId"] = {"message": "read"}, "ignored"
    made = ray.replace_namespaced_custom_object_status(*RAY, "slice", made)
    assert made["status"] == {"message": "read"}
    assert "jobId" not in made["spec"]


def test_lists_select_by_labels_and_fields(ray: client.CustomObjectsApi, core: client.CoreV1Api) -> None:
    for name, labels in {"a": {"dag": "x", "try": "1"}, "b": {"dag": "x", "try": "2"}, "c": {}}.items():
        ray.create_namespaced_custom_object(*RAY, ray_job(name, labels=labels))

    def names(selector: str) -> str:
        found = ray.list_namespaced_custom_object(*RAY, label_selector=selector)["items"]
        return "".join(item["metadata"]["name"] for item in found)

    assert names("dag=x,try!=1") == "b"
    assert names("try in (1, 2),dag==x") == "ab"
    assert names("dag notin (x)") == "c"
    assert names("dag") == "ab"
    assert names("!dag") == "c"
    about = client.V1ObjectReference(kind="RayJob", name="a", namespace="ml", uid="1")
    for name, reason in (("e1", "First"), ("e2", "Second")):
        event = client.CoreV1Event(
            metadata=client.V1ObjectMeta(name=name), involved_object=about, reason=reason
        )
        core.create_namespaced_event("ml", event)
        about = client.V1ObjectReference(kind="RayJob", name="b", namespace="ml", uid="2")
    found = core.list_namespaced_event(
        "ml", field_selector="involvedObject.name=a,involvedObject.kind=RayJob"
    )
    assert [event.reason for event in found.items] == ["First"]


@pytest.mark.slow
def test_watch_tells_every_change_since_a_version(kube: Kube, ray: client.CustomObjectsApi) -> None:
    version = ray.list_namespaced_custom_object(*RAY)["metadata"]["resourceVersion"]
    made = ray.create_namespaced_custom_object(*RAY, ray_job(labels={"of": "me"}))
    ray.create_namespaced_custom_object(*RAY, ray_job("other"))
    made["metadata"]["labels"] = {"of": "nobody"}
    ray.replace_namespaced_custom_object(*RAY, "slice", made)
    events = watch.Watch().stream(
        ray.list_namespaced_custom_object,
        *RAY,
        resource_version=version,
        timeout_seconds=1,
        label_selector="of=me",
    )
    assert [event["type"] for event in events] == ["ADDED", "DELETED"]
    assert kube.calls.count(("watch", "rayjobs", "")) == 1


def test_watch_of_a_version_that_is_too_old(kube: Kube, ray: client.CustomObjectsApi) -> None:
    version = ray.list_namespaced_custom_object(*RAY)["metadata"]["resourceVersion"]
    kube.store.forget_history()
    with pytest.raises(ApiException) as caught:
        list(
            watch.Watch().stream(
                ray.list_namespaced_custom_object, *RAY, resource_version=version, timeout_seconds=1
            )
        )
    assert caught.value.status == 410


def test_running_watches_can_be_cut(kube: Kube, ray: client.CustomObjectsApi) -> None:
    ray.create_namespaced_custom_object(*RAY, ray_job())
    heard: list[Any] = []
    stream = watch.Watch().stream(ray.list_namespaced_custom_object, *RAY, timeout_seconds=60)
    reader = in_thread(lambda: heard.extend(event["type"] for event in stream), [])
    wait_for(lambda: heard == ["ADDED"], 10)
    kube.cut_watches()
    reader.join(10)
    assert not reader.is_alive()


def test_finalizer_holds_an_object_that_is_deleted(kube: Kube, ray: client.CustomObjectsApi) -> None:
    ray.create_namespaced_custom_object(*RAY, ray_job(finalizers=["ray.io/rayjob-finalizer"]))
    ray.delete_namespaced_custom_object(*RAY, "slice")
    held = ray.get_namespaced_custom_object(*RAY, "slice")
    assert held["metadata"]["deletionTimestamp"]
    with pytest.raises(ApiException, match="object is being deleted"):
        ray.create_namespaced_custom_object(*RAY, ray_job())
    held["metadata"]["finalizers"] = []
    ray.replace_namespaced_custom_object(*RAY, "slice", held)
    assert kube.objects("rayjobs") == []


def test_deletion_spares_another_object_of_the_same_name(ray: client.CustomObjectsApi) -> None:
    ray.create_namespaced_custom_object(*RAY, ray_job())
    options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
    with pytest.raises(ApiException, match="Precondition failed: UID in precondition: another") as caught:
        ray.delete_namespaced_custom_object(*RAY, "slice", body=options)
    assert caught.value.status == 409


@pytest.mark.parametrize("propagation", ["Background", "Foreground", "Orphan"])
def test_what_an_object_owns_goes_with_it(
    kube: Kube, ray: client.CustomObjectsApi, core: client.CoreV1Api, propagation: str
) -> None:
    uid = ray.create_namespaced_custom_object(*RAY, ray_job())["metadata"]["uid"]
    owner = client.V1OwnerReference(
        api_version="ray.io/v1", kind="RayJob", name="slice", uid=uid, block_owner_deletion=True
    )
    metadata = client.V1ObjectMeta(name="token", owner_references=[owner])
    core.create_namespaced_secret("ml", client.V1Secret(metadata=metadata, string_data={"key": "value"}))
    assert core.read_namespaced_secret("token", "ml").data == {"key": "dmFsdWU="}
    ray.delete_namespaced_custom_object(*RAY, "slice", propagation_policy=propagation)
    wait_for(lambda: not kube.objects("rayjobs"), 5)
    if propagation == "Orphan":
        assert core.read_namespaced_secret("token", "ml").metadata.owner_references is None
    else:
        wait_for(lambda: not kube.objects("secrets"), 5)


def test_wrong_token(kube: Kube) -> None:
    settings = kube.kubeconfig()
    settings["users"][0]["user"]["token"] = "wrong"
    core = client.CoreV1Api(config.new_client_from_config_dict(settings))
    with pytest.raises(ApiException) as caught:
        core.list_namespaced_pod("ml")
    assert caught.value.status == 401


def test_faults_happen_as_often_as_asked(kube: Kube, ray: client.CustomObjectsApi) -> None:
    kube.fail("create", "rayjobs", 429, times=2, retry_after=7)
    for _ in range(2):
        with pytest.raises(ApiException) as caught:
            ray.create_namespaced_custom_object(*RAY, ray_job())
        assert caught.value.headers["Retry-After"] == "7"
    ray.create_namespaced_custom_object(*RAY, ray_job())
    assert kube.calls == [("create", "rayjobs", "slice")] * 3


def test_answer_can_be_lost_after_the_work_is_done(kube: Kube, ray: client.CustomObjectsApi) -> None:
    ray.api_client.configuration.retries = 0
    ray = client.CustomObjectsApi(client.ApiClient(ray.api_client.configuration))
    kube.lose_answers("create", "rayjobs")
    with pytest.raises(Exception, match="Connection"):
        ray.create_namespaced_custom_object(*RAY, ray_job())
    assert len(kube.objects("rayjobs")) == 1


def test_api_goes_away_and_comes_back(kube: Kube, api: client.ApiClient) -> None:
    api.configuration.retries = 0
    core = client.CoreV1Api(client.ApiClient(api.configuration))
    core.list_namespaced_pod("ml")
    with kube.away(), pytest.raises(Exception, match="refused"):
        core.list_namespaced_pod("ml")
    assert core.list_namespaced_pod("ml").items == []


@pytest.mark.slow
def test_hook_of_airflow_can_use_it(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = pytest.importorskip("airflow.providers.cncf.kubernetes.hooks.kubernetes")
    from airflow.sdk import Connection

    extra = {"kube_config": kube.kubeconfig("ml")}
    made = Connection(conn_id="kube", conn_type="kubernetes", extra=json.dumps(extra))
    monkeypatch.setattr(hooks.KubernetesHook, "get_connection", lambda self, conn_id: made)
    hook = hooks.KubernetesHook(conn_id="kube")
    assert hook.core_v1_client.list_namespaced_pod("ml").items == []
    created = hook.create_custom_object("ray.io", "v1", "rayjobs", ray_job(), "ml")
    assert created["metadata"]["uid"]
