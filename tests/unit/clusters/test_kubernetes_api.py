"""How Kubernetes is reached by its connection, and a cluster through it."""

from __future__ import annotations

import base64
import json
import logging
import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from airflow.sdk._shared.secrets_masker import secrets_masker

from airflow_provider_raydatallm.clusters.base import Access
from airflow_provider_raydatallm.clusters.kuberay import watch
from airflow_provider_raydatallm.clusters.kuberay.api import KubernetesApi
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.connection import RaySettings
from airflow_provider_raydatallm.hooks.http_clients import client_options
from tests.support.http_server import tls_server
from tests.support.kube.server import Kube
from tests.support.kube.tasks import World, eventually, set_kubernetes


def test_cluster_is_reached_by_the_api_server_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which asks who calls: its token is Kubernetes', and the cluster's goes with it."""
    tracker = world.tracker("a", address="kubernetes")
    job = world.submit(tracker)
    reached = [(verb, name) for verb, plural, name in world.kube.calls if plural == "services/proxy"]
    service = f"{world.job['status']['rayClusterName']}-head-svc"
    assert {name for _, name in reached} == {service}
    assert {"get", "create"} <= {verb for verb, _ in reached}
    assert world.head.token
    world.kube.token = "rotated"
    set_kubernetes(world.kube, monkeypatch)
    with pytest.raises(RayUnreachableError, match="401"):
        tracker.hook.call(jobs_api.get_status(job.submission_id))
    tracker.hook.reread()
    assert tracker.hook.call(jobs_api.get_status(job.submission_id)) is not None
    for status, words in ((403, "cannot get resource services/proxy"), (404, "service not found")):
        world.kube.fail("get", "services/proxy", status, message=words)
        with pytest.raises(RayUnreachableError, match=words):  # which says nothing of the job
            tracker.hook.call(jobs_api.get_status(job.submission_id))
    tracker.conclude({"outcome": "published"})
    eventually(world.nothing_is_left)


def test_way_through_kubernetes_is_that_of_its_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = world.kube.kubeconfig()
    settings["clusters"][0]["cluster"] = {
        "server": "https://kube:6443",
        "certificate-authority-data": base64.b64encode(b"ca").decode(),
    }
    files = {"client-certificate-data": b"cert", "client-key-data": b"key"}
    settings["users"][0]["user"] = {
        name: base64.b64encode(content).decode() for name, content in files.items()
    }
    connection = {"conn_type": "kubernetes", "extra": {"kube_config": settings, "disable_verify_ssl": True}}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("NO_PROXY", "example.com")
    monkeypatch.setenv("HTTPS_PROXY", "http://squid:3128")
    address, gateway = KubernetesApi("kubernetes_default", "ml").way_to("s", 8265)
    assert address == "https://kube:6443/api/v1/namespaces/ml/services/s:8265/proxy"
    paths = (gateway.ca_file, gateway.client_cert, gateway.client_key)
    assert [Path(str(path)).read_bytes() for path in paths] == [b"ca", b"cert", b"key"]
    assert (gateway.headers, gateway.verify, gateway.proxy) == ({}, False, "http://squid:3128")


def test_cluster_has_its_token_where_kubernetes_knows_who_calls_by_a_certificate(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.kube.token = None
    set_kubernetes(world.kube, monkeypatch)
    tracker = world.tracker("a", address="kubernetes")
    assert world.submit(tracker).submission_id
    assert world.head.token
    tracker.conclude({"outcome": "published"})
    eventually(world.nothing_is_left)


def test_who_may_not_pass_the_api_server_is_told_the_right(world: World) -> None:
    world.wait_for_cluster(tracker := world.tracker("a", address="kubernetes"))
    world.kube.fail("*", "services/proxy", 403, message='cannot get resource "services/proxy"', times=9)
    with pytest.raises(RayUnreachableError, match="the right to services/proxy that docs/how-to/cluster-per"):
        tracker.hook.call(jobs_api.get_status("day"))


def test_program_that_says_a_token_is_run_once_a_minute(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may take seconds, and Airflow's masker longer with each secret that the process ever knew."""
    program, runs = tmp_path / "login", tmp_path / "runs"
    says = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": world.kube.token, "expirationTimestamp": "2099-01-01T00:00:00Z"},
    }
    program.write_text(f"#!/bin/sh\necho run >> {runs}\necho {shlex.quote(json.dumps(says))}\n")
    program.chmod(0o700)
    settings = world.kube.kubeconfig()
    login = {"apiVersion": says["apiVersion"], "command": str(program), "interactiveMode": "Never"}
    settings["users"][0]["user"] = {"exec": login}
    connect(monkeypatch, settings)
    tracker = world.tracker("a", address="kubernetes")
    job = world.submit(tracker)
    known = len(secrets_masker._secrets_masker().patterns)
    for _ in range(5):
        tracker.hook.reread()
        tracker.hook.call(jobs_api.get_status(job.submission_id))
    assert len(runs.read_text().splitlines()) == 1
    assert len(secrets_masker._secrets_masker().patterns) == known
    tracker.conclude({"outcome": "published"})


@pytest.mark.parametrize("address", [None, "kubernetes"])
def test_log_shows_no_token_at_any_level(
    world: World, caplog: pytest.LogCaptureFixture, address: str | None
) -> None:
    caplog.set_level(logging.DEBUG)
    tracker = world.tracker("a", **({"address": address} if address else {}))
    job = world.submit(tracker)
    tracker.hook.call(jobs_api.get_status(job.submission_id))
    assert "response body" in caplog.text
    for token in (world.head.token, world.kube.token):
        assert token not in caplog.text
        assert base64.b64encode(str(token).encode()).decode() not in caplog.text


def test_certificate_may_have_the_name_that_the_connection_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with tls_server(tmp_path, host="kubernetes") as server:
        trusted = base64.b64encode(server.ca_file.read_bytes()).decode()
        cluster = {"server": server.address, "certificate-authority-data": trusted}
        api = connect(monkeypatch, kubeconfig({**cluster, "tls-server-name": "kubernetes"}))
        address, gateway = api.way_to("s", 8265)
        settings = RaySettings("kuberay").for_cluster(Access(address, "token", gateway, is_passing=True))
        with httpx.Client(**client_options(settings)) as client:
            assert client.get("api/version").json() == {"ray_version": "2.60.0"}


def test_certificate_that_nobody_vouches_for_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with tls_server(tmp_path) as server:
        api = connect(monkeypatch, kubeconfig({"server": server.address}))
        with pytest.raises(
            RayUnreachableError, match=r"cannot be reached: SSLError.*CERTIFICATE_VERIFY_FAILED"
        ):
            api.find("a=b")


def test_credentials_that_are_refused_may_come_back(world: World) -> None:
    """A program that says a token may have failed."""
    api = KubernetesApi("kubernetes_default", "ml")
    world.kube.fail("list", "rayjobs", 401)
    with pytest.raises(RayUnreachableError, match=r"Is the token of connection .kubernetes_default. valid\?"):
        api.find("a=b")
    assert api.find("a=b")[0] == []


def test_watch_goes_on_with_the_credentials_of_now(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_FIRST_PAUSE_S", 0.05)
    world.wait_for_cluster(world.tracker("before"))
    world.kube.token = "rotated"
    set_kubernetes(world.kube, monkeypatch)
    world.kube.cut_watches()
    world.wait_for_cluster(world.tracker("after"))


def test_page_in_place_of_the_api_server_may_pass(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(kube: Kube, request: web.Request) -> web.Response:
        return web.Response(text="<html>login</html>", content_type="text/html")

    monkeypatch.setattr(Kube, "_answer", answer)
    with pytest.raises(RayUnreachableError, match="something else than the API server answers"):
        KubernetesApi("kubernetes_default", "ml").find("a=b")


def test_connection_to_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", "postgres://user@host/db")
    with pytest.raises(RayConnectionError, match="connection 'tables' is of type 'postgres'"):
        KubernetesApi("tables", "ml").find("a=b")


def kubeconfig(cluster: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": {"token": "kube-token"}}],
    }


def connect(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> KubernetesApi:
    connection = {"conn_type": "kubernetes", "extra": {"kube_config": settings}}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(connection))
    return KubernetesApi("kubernetes_default", "ml")
