"""The connection against a real Ray head with token auth, behind real TLS and through a real proxy; and what
real tasks log of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.support.certificates import Authority
from tests.support.paths import ROOT
from tests.support.ray_connections import token_file
from tests.support.slices import STUB
from tests.support.wires import http_proxy, tls_front


@pytest.fixture(autouse=True)
def _no_other_try_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_api, "_BACKOFF", ())
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def front(ray_head: LocalHead, authority: Authority) -> Iterator[str]:
    with tls_front(ray_head.address, authority.issue("server")) as address:
        yield address


def hook_to(monkeypatch: pytest.MonkeyPatch, host: str, token: str | None = None, **extra: Any) -> RayHook:
    monkeypatch.setenv(
        "AIRFLOW_CONN_REAL", json.dumps({"conn_type": "ray", "host": host, "password": token, "extra": extra})
    )
    return RayHook("real")


def version_by_both(hook: RayHook) -> set[str]:
    return {
        hook.call(jobs_api.get_version()),
        asyncio.run(RayHook(hook.ray_conn_id).acall(jobs_api.get_version())),
    }


def test_right_ca_is_trusted_and_a_wrong_one_is_not(
    ray_head: LocalHead, front: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = hook_to(monkeypatch, front, ray_head.token, ca_file=str(authority.ca_file))
    assert version_by_both(hook) == {ray_head.ray_version}
    usable, says = hook.test_connection()
    assert usable, says
    assert says.startswith(f"Ray {ray_head.ray_version} at {front}: 1 node, {ray_head.num_cpus} logical CPUs")
    assert "The token of the password is accepted." in says
    assert "No GPU" in says
    assert "fewer" not in says

    other = str(Authority(tmp_path, "other").ca_file)
    for extra in ({"ca_file": other}, {}):
        hook = hook_to(monkeypatch, front, ray_head.token, **extra)
        with pytest.raises(RayConnectionError, match="the certificate is not valid"):
            hook.call(jobs_api.get_version())
        usable, says = hook.test_connection()
        assert not usable
        assert "ca_file" in says
    assert (
        "http:// instead of https://"
        in (hook_to(monkeypatch, ray_head.address.replace("http:", "https:")).test_connection()[1])
    )


def test_client_certificate_is_shown(
    ray_head: LocalHead, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = authority.issue("client")
    key = tmp_path / "key.pem"
    pem = client.read_text()
    key.write_text(pem[pem.index("-----BEGIN PRIVATE") :])
    with tls_front(ray_head.address, authority.issue("server"), authority.ca_file) as front:
        for extra in ({"client_cert": str(client)}, {"client_cert": str(client), "client_key": str(key)}):
            hook = hook_to(monkeypatch, front, ray_head.token, ca_file=str(authority.ca_file), **extra)
            assert version_by_both(hook) == {ray_head.ray_version}
        hook = hook_to(monkeypatch, front, ray_head.token, verify=False, client_cert=str(client))
        assert version_by_both(hook) == {ray_head.ray_version}
        hook = hook_to(monkeypatch, front, ray_head.token, ca_file=str(authority.ca_file))
        with pytest.raises(RayUnreachableError, match="CERTIFICATE_REQUIRED"):
            hook.call(jobs_api.get_version())


def test_proxy_is_used_with_its_credentials_and_before_those_of_the_environment(
    ray_head: LocalHead, front: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with http_proxy("me:p@ss/word") as (proxy, passed):
        right = f"http://me:p%40ss%2Fword@{proxy}"
        ca = {"ca_file": str(authority.ca_file)}
        for host, line in ((ray_head.address, f"GET {ray_head.address}/api"), (front, "CONNECT 127.0.0.1:")):
            passed.clear()
            hook = hook_to(monkeypatch, host, ray_head.token, proxy=right, **ca)
            assert version_by_both(hook) == {ray_head.ray_version}
            assert hook.test_connection()[0]
            assert len(passed) >= 3
            assert all(p.startswith(line) for p in passed)

            passed.clear()
            hook = hook_to(monkeypatch, host, ray_head.token, proxy=f"http://me:bad-pw-1@{proxy}", **ca)
            usable, says = hook.test_connection()
            assert not usable
            assert "proxy" in says
            assert "407" in says
            assert "bad-pw-1" not in says
            assert passed == []
            assert "ConnectError" in hook_to(monkeypatch, host, ray_head.token, **ca).test_connection()[1]

    with http_proxy() as (proxy, passed):
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy}")
        assert version_by_both(hook_to(monkeypatch, ray_head.address, ray_head.token)) == {
            ray_head.ray_version
        }
        assert len(passed) == 2


def test_wrong_and_missing_tokens_are_told_apart(
    ray_head: LocalHead, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert hook_to(monkeypatch, ray_head.address, "0" * 32).test_connection() == (
        False,
        f"{ray_head.address}: the cluster refuses the token of the password (HTTP 403): write the right one",
    )
    usable, says = hook_to(monkeypatch, ray_head.address).test_connection()
    assert (usable, "the cluster asks for a token (HTTP 401) and there is none" in says) == (False, True)
    token_file(monkeypatch, tmp_path / "t", "stale")
    usable, says = hook_to(monkeypatch, ray_head.address, auth_file=f"{tmp_path}/t").test_connection()
    assert (usable, f"refuses the token of auth_file '{tmp_path}/t'" in says) == (False, True)
    monkeypatch.setenv("RAY_AUTH_TOKEN", f" {ray_head.token}\n")
    usable, says = hook_to(monkeypatch, ray_head.address).test_connection()
    assert (usable, "The token of RAY_AUTH_TOKEN of the environment is accepted." in says) == (True, True)


def test_rotated_token_file_is_picked_up_by_the_same_hook_and_client(
    ray_head: LocalHead, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = token_file(monkeypatch, tmp_path / "token", "yesterday's")
    hook = hook_to(monkeypatch, ray_head.address, auth_file=str(file))
    with pytest.raises(RayConnectionError, match="refuses the token"):
        hook.call(jobs_api.get_version())
    with hook.get_conn() as client:
        assert client.get("/api/version").status_code == 403
        file.write_text(f"{ray_head.token}\n")
        assert client.get("/api/version").status_code == 200
    assert hook.call(jobs_api.get_version()) == ray_head.ray_version
    assert asyncio.run(hook.acall(jobs_api.get_version())) == ray_head.ray_version
    file.write_text("")
    with pytest.raises(RayConnectionError, match=f"connection 'real': auth_file '{file}' is empty"):
        asyncio.run(hook.acall(jobs_api.get_version()))


def test_ray_takes_the_token_beside_the_authorization_that_a_proxy_removes(
    ray_head: LocalHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = hook_to(monkeypatch, ray_head.address, ray_head.token, headers={"Authorization": "Basic eDp5"})
    with hook.get_conn() as client:
        request = client.build_request("GET", "/api/version")
        assert client.send(request).status_code == 403  # nobody removed it
        sent = dict(request.headers)
        assert sent.pop("authorization") == "Basic eDp5"
        assert client.get("/api/version", auth=None, headers={"Authorization": ""}).status_code == 401
        with_token = {"X-Ray-Authorization": sent["x-ray-authorization"], "Authorization": ""}
        assert client.get("/api/version", auth=None, headers=with_token).status_code == 200


def test_embedded_head_is_tested_as_it_is(ray_head: LocalHead) -> None:
    usable, says = RayHook("ray_default").test_connection()
    assert usable
    assert says.startswith("Embedded head on ")
    assert f"Ray {ray_head.ray_version} at {ray_head.address}: 1 node" in says


SECRETS = {
    "token": "sesame-open-0", "header": "hdr-secret-1", "bearer": "bearer-secret-2",
    "proxy_user": "proxyuser3", "proxy_password": "proxy@secret/4", "nested": "nested-secret-5",
    "rotated": "rotated-secret-6", "host": "host-secret-7",
}  # fmt: skip

DAG = """
import logging
from airflow.sdk import DAG, task
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

jobs_api._BACKOFF = ()
PLACE = {place!r}
logging.getLogger("httpx").setLevel("DEBUG")
logging.getLogger("httpcore").setLevel("DEBUG")

with DAG("leaks", schedule=None):
    for name in ("right", "unreachable", "wrong_token", "wrong_ca", "wrong_proxy", "nested", "host", "file"):
        RayLLMBatchOperator(
            task_id=name, ray_conn_id=name, slice_key=name, input_path=PLACE + "/in.parquet",
            output_path=PLACE + "/out", prompt="Who is {{name}}?", limits={{"reconnect": 1}}, **{stub!r},
        )

    @task
    def prints_all():
        log = logging.getLogger(__name__)
        hook = RayHook("right")
        settings = hook.settings
        print(settings, settings.token, settings.proxy, dict(settings.headers), vars(settings))
        log.info("%r %s", settings, vars(settings), extra={{"settings": vars(settings)}})
        with hook.get_conn() as client:
            answer = client.get("/api/version")
            print(answer.request.headers.raw, client._mounts, vars(client))
        print(RayHook("file").test_connection(), RayHook("nested").test_connection())
        file_hook = RayHook("file")
        with file_hook.get_conn() as client:
            print(client.get("/api/version").request.headers.raw)
        try:
            raise ValueError(f"cannot: {{settings.token!r}} {{settings.headers}}")
        except ValueError as e:
            raise RuntimeError(settings.proxy) from e

    prints_all()
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> dict[str, str]:
    """The environment of an Airflow of its own, with its database made."""
    home = tmp_path_factory.mktemp("airflow")
    environment = {
        **os.environ, "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__API_AUTH__JWT_SECRET": "of-the-api-server",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    shutil.copy(empty_database, home / "airflow.db")
    return environment


def test_task_logs_show_no_secret_whatever_goes_wrong(
    ray_head: LocalHead, front: str, authority: Authority, tmp_path: Path, airflow: dict[str, str]
) -> None:
    home = Path(airflow["AIRFLOW_HOME"])
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    (home / "dags").mkdir()
    (home / "dags" / "leaks.py").write_text(DAG.format(place=str(tmp_path), stub=STUB))
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text(SECRETS["rotated"])
    other = Authority(tmp_path, "other").ca_file
    user = f"{SECRETS['proxy_user']}:{SECRETS['proxy_password'].replace('@', '%40').replace('/', '%2F')}"
    with http_proxy(f"{SECRETS['proxy_user']}:{SECRETS['proxy_password']}") as (proxy, passed):
        extra = {
            "ca_file": str(authority.ca_file),
            "proxy": f"http://{user}@{proxy}",
            "headers": {"X-Key": SECRETS["header"], "X-Authorization": f"Bearer {SECRETS['bearer']}"},
        }
        right = {"conn_type": "ray", "host": front, "password": ray_head.token, "extra": extra}
        connections = {
            "right": right,
            "unreachable": {**right, "host": "http://127.0.0.1:9", "password": SECRETS["token"]},
            "wrong_token": {**right, "password": SECRETS["token"]},
            "wrong_ca": {**right, "extra": {**extra, "ca_file": str(other)}},
            "wrong_proxy": {**right, "extra": {**extra, "proxy": f"http://{user}x@{proxy}"}},
            "nested": {**right, "extra": {**extra, "headers": {"X": [{"a": [SECRETS["nested"]]}]}}},
            "host": {**right, "host": f"https://me:{SECRETS['host']}@127.0.0.1:1"},
            "file": {**right, "password": None, "extra": {**extra, "auth_file": f"{tmp_path}/token"}},
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.airflow_worker", "leaks"], cwd=ROOT,
            env={
                **airflow, "AIRFLOW__LOGGING__LOGGING_LEVEL": "DEBUG",
                "AIRFLOW__RAY_LLM__TOKEN_FOLDER": str(tmp_path),
                **{f"AIRFLOW_CONN_{k.upper()}": json.dumps(v) for k, v in connections.items()},
            },
            capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    logs = {path.stem: path.read_text() for path in (home / "logs").glob("*.log")}
    assert set(logs) == {*connections, "prints_all"}
    # The tasks got as far as they should, and said what was wrong.
    for name, said in {
        "right": "published", "unreachable": "failed 1 times", "wrong_token": "refuses the token",
        "wrong_ca": "the certificate is not valid", "wrong_proxy": "407", "nested": "the value of 'X'",
        "host": "holds a user or a password", "file": "refuses the token", "prints_all": "***",
    }.items():  # fmt: skip
        assert said in logs[name], logs[name][-3000:]
    assert (tmp_path / "out" / "ds=right" / "_SUCCESS").exists()
    assert len(passed) > 5

    shown = {ray_head.token, *SECRETS.values(), user, f"{SECRETS['proxy_password']}x"}
    shown |= {s.replace("@", "%40").replace("/", "%2F") for s in SECRETS.values()}
    for where, text in {**logs, "stdout": done.stdout, "stderr": done.stderr}.items():
        for secret in shown:
            assert secret not in text, (where, text[max(0, text.index(secret) - 300) :][:400])


API = """
import json, sys
from fastapi.testclient import TestClient
from airflow.api_fastapi.app import create_app
with TestClient(create_app(apps="all"), base_url="http://testserver") as client:
    headers = {"Authorization": "Bearer " + client.get("/auth/token").json()["access_token"]}
    for body in json.load(sys.stdin):
        answer = client.post("/api/v2/connections/test", json=body, headers=headers)
        print("ANSWER", json.dumps(answer.json()))
"""


def test_button_of_the_api_server_tests_a_connection(
    ray_head: LocalHead, front: str, authority: Authority, airflow: dict[str, str]
) -> None:
    body = {
        "connection_id": "tried", "conn_type": "ray", "host": front, "password": ray_head.token,
        "extra": json.dumps({"ca_file": str(authority.ca_file), "headers": {"X-Key": "hdr-secret-1"}}),
    }  # fmt: skip
    enabled = {
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "true",
    }
    done = subprocess.run(
        [sys.executable, "-c", API], env={**airflow, **enabled},
        input=json.dumps([body, {**body, "password": "sesame-open-0"}, {**body, "host": "ftp://x"}]),
        capture_output=True, text=True,
    )  # fmt: skip
    answers = [json.loads(x.removeprefix("ANSWER ")) for x in done.stdout.splitlines() if "ANSWER" in x]
    assert [a["status"] for a in answers] == [True, False, False], done.stderr[-3000:]
    assert answers[0]["message"].startswith(f"Ray {ray_head.ray_version} at {front}: 1 node")
    assert "refuses the token of the password" in answers[1]["message"]
    assert "host 'ftp://x' is not a web address" in answers[2]["message"]
    for secret in (ray_head.token, "sesame-open-0", "hdr-secret-1"):
        assert secret not in done.stdout + done.stderr
