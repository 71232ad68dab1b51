"""The hook against a real Ray head with token auth."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.support.waiting import wait_for


def hook_with(monkeypatch: pytest.MonkeyPatch, host: str, token: str | None) -> RayHook:
    monkeypatch.setenv(
        "AIRFLOW_CONN_REMOTE", json.dumps({"conn_type": "ray", "host": host, "password": token})
    )
    return RayHook("remote")


def test_right_token_is_taken_by_both_kinds_of_call(
    ray_head: LocalHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = hook_with(monkeypatch, ray_head.address, ray_head.token)
    assert hook.call(jobs_api.get_version()) == ray_head.ray_version
    found = asyncio.run(
        hook_with(monkeypatch, ray_head.address, ray_head.token).acall(jobs_api.get_resources())
    )
    assert (found.nodes, found.cpus, found.gpus) == (1, ray_head.num_cpus, 0)


@pytest.mark.parametrize("token", [None, "0" * 32])
def test_wrong_token_says_so(ray_head: LocalHead, monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    with pytest.raises(RayConnectionError, match="refuses the token"):
        hook_with(monkeypatch, ray_head.address, token).call(jobs_api.get_version())


def test_unreachable_cluster_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_api, "_BACKOFF", (0.1,))
    with pytest.raises(RayUnreachableError, match="/api/version failed 2 times: ConnectError"):
        hook_with(monkeypatch, "http://127.0.0.1:9", None).call(jobs_api.get_version())


def test_local_connection_joins_the_running_head(ray_head: LocalHead) -> None:
    hook = RayHook("ray_default")
    assert hook.settings.address == ray_head.address
    assert os.environ["AIRFLOW_CONN_RAY_DEFAULT"] == "ray://local"
    assert hook.call(jobs_api.get_status("nobody-submitted-this")) is None


@pytest.mark.long
def test_job_is_submitted_once_under_its_id_and_can_be_stopped(ray_head: LocalHead) -> None:
    hook = RayHook("ray_default")
    job = {"submission_id": "one-id", "entrypoint": "sleep 600", "runtime_env": {}, "metadata": {"k": "v"}}
    assert hook.call(jobs_api.submit(**job)) == hook.call(jobs_api.submit(**job)) == "one-id"
    assert hook.call(jobs_api.stop("one-id")) is True
    wait_for(lambda: hook.call(jobs_api.get_status("one-id")).status == "STOPPED")
    assert hook.call(jobs_api.stop("never-was")) is False
