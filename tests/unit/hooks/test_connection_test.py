"""The button "Test" of a connection."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.hooks.connection import RaySettings
from airflow_provider_raydatallm.hooks.connection_test import run_connection_test
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.support.http_server import Request, http_server
from tests.support.ray_connections import connection, hook_to


def test_connection_test_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RayHook("nobody_made_this").test_connection()[0] is False
    # As a worker tests a connection that nothing has stored yet.
    assert "Connection refused" in connection(host="http://127.0.0.1:9").test_connection()[1]
    usable, says = hook_to(monkeypatch, host="ftp://x").test_connection()
    assert (usable, "host 'ftp://x' is not a web address" in says) == (False, True)
    usable, says = hook_to(monkeypatch, host="http://127.0.0.1:9").test_connection()
    assert (usable, says) == (
        False, "http://127.0.0.1:9 cannot be reached: ConnectError: [Errno 111] Connection refused",
    )  # fmt: skip
    usable, says = hook_to(monkeypatch, host="http://h", extra={"auth_file": "/nowhere"}).test_connection()
    assert (usable, "auth_file '/nowhere' is not in" in says) == (False, True)


@pytest.mark.slow
def test_connection_test_ends_in_time() -> None:
    """Also with a server that goes on answering, a byte at a time."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x")
            await asyncio.sleep(0.05)

    async def tested() -> tuple[tuple[bool, str], float]:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        settings = RaySettings.from_connection(connection(host=f"http://127.0.0.1:{port}"))
        started = time.monotonic()
        said = await asyncio.to_thread(run_connection_test, settings, 1.0)
        return said, time.monotonic() - started

    (usable, says), took = asyncio.run(tested())
    assert (usable, "did not answer within 1 seconds" in says) == (False, True)
    assert took < 40  # which the server would take


@pytest.mark.slow
def test_connection_test_says_what_a_cluster_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "/api/version": {"ray_version": "2.60.0"},
        "/api/v0/nodes": {"data": {"result": {"result": [
            {"state": "ALIVE", "resources_total": {"CPU": 4, "GPU": 2, "accelerator_type:L4": 1}},
            {"state": "DEAD", "resources_total": {"CPU": 64}},
        ]}}},
    }  # fmt: skip

    missing = ["Job airflow-connection-test does not exist"]

    def respond(request: Request) -> tuple[int, Any]:
        answer = answers.get(request.path.partition("?")[0])
        return (200, answer) if answer else (404, missing[0])

    with http_server(respond) as address:
        hook = hook_to(monkeypatch, host=address, password="needless")
        usable, says = hook.test_connection()
        assert usable, says
        assert f"Ray 2.60.0 at {address}: 1 node, 4 logical CPUs, 2 GPUs (2 L4)." in says
        assert "token authentication is off" in says
        assert "fewer than 8 logical CPUs" in says
        assert "No GPU" not in says
        answers["/api/v0/nodes"]["data"]["result"]["result"][0]["resources_total"] = {"CPU": 8}
        assert "No GPU" in hook.test_connection()[1]
        assert "fewer than" not in hook.test_connection()[1]
        missing[0] = "404: Not Found"  # a dashboard without the Jobs API
        usable, says = hook.test_connection()
        assert (usable, "/api/jobs/airflow-connection-test: HTTP 404" in says) == (False, True)
        answers["/api/version"] = {"ray_version": "2.40.0"}
        usable, says = hook.test_connection()
        assert (usable, says.startswith(f"{address}: "), "2.40.0" in says) == (False, True, True)
        answers["/api/version"] = None
        assert "no Ray Jobs API there" in hook.test_connection()[1]


@pytest.mark.slow
def test_connection_test_needs_no_ray_and_starts_nothing(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "class NoRay:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] == 'ray':\n"
        "            raise ModuleNotFoundError(f'no {name} here', name=name)\n"
        "sys.meta_path.insert(0, NoRay())\n"
        "from airflow_provider_raydatallm.hooks.ray import RayHook\n"
        "for name in ('remote', 'embedded'):\n"
        "    print(RayHook(name).test_connection())\n"
        "assert 'ray' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ, "AIRFLOW_CONN_REMOTE": '{"conn_type": "ray", "host": "http://127.0.0.1:9"}',
            "AIRFLOW_CONN_EMBEDDED": "ray://local", "AIRFLOW_RAY_LLM_LOCAL_DIR": str(tmp_path / "head"),
        },
        capture_output=True, text=True,
    )  # fmt: skip
    remote, embedded = done.stdout.splitlines()[-2:]
    assert "Connection refused" in remote
    assert "No embedded head runs" in embedded
    assert not (tmp_path / "head").exists()
