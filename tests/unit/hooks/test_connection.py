"""The connection of type `ray`, and a real TLS server behind it."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import os
import ssl
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection
from airflow.sdk.log import redact
from cryptography.hazmat.primitives import serialization

from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.auth import Token, read_token
from airflow_provider_raydatallm.hooks.connection import EXTRAS, RaySettings
from airflow_provider_raydatallm.hooks.connection_test import run_connection_test
from airflow_provider_raydatallm.hooks.http_clients import client_options
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.support.certificates import Authority


def connection(**given: Any) -> Connection:
    return Connection(conn_id="c", **{"conn_type": "ray", "host": "ray-head", **given})


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({"host": "http://h:8265/"}, "http://h:8265"),
        ({"host": " https://h/ray "}, "https://h/ray"),
        ({"host": "h", "port": 8265}, "http://h:8265"),
        ({"host": "https://h/ray", "port": 8443}, "https://h:8443/ray"),
        ({"host": "http://[::1]", "port": 8265}, "http://[::1]:8265"),
        ({"host": "h", "schema": "https"}, "https://h"),
        ({"host": "local"}, "local"),
    ],
)
def test_address_forms(given: dict[str, Any], address: str) -> None:
    assert RaySettings.from_connection(connection(**given)).address == address


def with_extra(**extra: Any) -> dict[str, Any]:
    return {"extra": json.dumps(extra)}


@pytest.mark.parametrize(
    ("given", "field", "value", "instead"),
    [
        ({"host": None}, "host", "", "http://ray-head:8265"),
        ({"host": "ray://head:10001"}, "host", "ray://head:10001", "http://head:8265"),
        ({"host": "head", "schema": "ray"}, "host", "head", "http://head:8265"),
        ({"host": "ray://[x"}, "host", "ray://[x", "http://ray-head:8265"),
        ({"host": "http://[x"}, "host", "http://[x", "http://HOST:8265"),
        ({"host": "ftp://x"}, "host", "ftp://x", "http://HOST:8265"),
        ({"host": "http://"}, "host", "http:", "http://HOST:8265"),
        ({"host": "my head"}, "host", "my head", "http://HOST:8265"),
        ({"host": "http://h:eight"}, "host", "eight", "http://HOST:8265"),
        ({"host": "http://h:99999"}, "host", "h:99999", "http://HOST:8265"),
        ({"host": "http://h:8265/#/jobs"}, "host", "http://h:8265", "without what follows"),
        ({"port": 99999}, "port", "99999", "8265"),
        ({"port": "x"}, "port", "'x'", "8265"),
        ({"conn_type": "http"}, "type", "'http'", "write 'ray'"),
        ({"extra": "verify=false"}, "extra", "", "JSON object"),
        ({"extra": "[1]"}, "extra", "list", "JSON object"),
        (with_extra(verfy=False), "extra", "'verfy'", "verify"),
        (with_extra(verify="no"), "verify", "'no'", "true or false"),
        (with_extra(verify=0), "verify", "0", "true or false"),
        (with_extra(headers="x"), "headers", "str", "JSON object"),
        (with_extra(headers={"X-Count": 1}), "headers", "X-Count", "in quotes"),
        (with_extra(headers={"X Y": "a"}), "headers", "'X Y'", "letters"),
        (with_extra(headers={"X": "a\nb"}), "headers", "'X'", "line breaks"),
        (with_extra(ca_file="ca.pem"), "ca_file", "", "absolute path"),
        (with_extra(ca_file=1), "ca_file", "int", "text"),
        (with_extra(client_key="/key.pem"), "client_key", "", "certificate"),
        (with_extra(proxy="squid:3128"), "proxy", "'squid:3128'", "'http://squid:3128'"),
        (with_extra(proxy="socks5://squid:3128"), "proxy", "socks5://squid:3128", "http://HOST:PORT"),
        (with_extra(dashboard_url="javascript:alert(1)"), "dashboard_url", "javascript", "http://HOST:PORT"),
        ({"password": "Bearer abc"}, "password", "", "without 'Bearer'"),
        ({"password": "a", **with_extra(auth_file="/x")}, "auth_file", "", "keep one"),
    ],
)
def test_error_names_connection_field_and_value_and_what_to_write(
    given: dict[str, Any], field: str, value: str, instead: str
) -> None:
    with pytest.raises(RayConnectionError) as e:
        RaySettings.from_connection(connection(**given))
    assert "connection 'c'" in str(e.value)
    for part in (field, value, instead):
        assert part in str(e.value)


S = "s3kr1t"


@pytest.mark.parametrize(
    "given",
    [
        {"host": f"http://me:{S}@h:8265"},
        {"host": f"ray://me:{S}@h:10001"},
        {"host": f"ftp://me:{S}@h"},
        {"host": f"http://me:{S}@h:x"},
        {"host": f"http://h:8265/?token={S}"},
        {"password": f"Bearer {S}"},
        {"extra": f'{{"headers": "{S}'},
        {"extra": f'"{S}"'},
        with_extra(headers=[S]),
        with_extra(headers={"X": {"a": S}}),
        with_extra(headers={"X": S + "\n\u00e9"}),
        with_extra(proxy=f"me:{S}@squid:3128"),
        with_extra(proxy=f"http://me:{S}@squid:x"),
        with_extra(proxy=f"socks5://me:{S}@squid:1"),
        with_extra(proxy={"url": S}),
        with_extra(dashboard_url=f"http://me:{S}@h"),
        with_extra(auth_file=S),
        with_extra(client_cert="/c.pem", client_key=S),
        with_extra(conf={"a": [{"b": S}]}),
    ],
)
def test_error_shows_no_secret(given: dict[str, Any]) -> None:
    with pytest.raises(RayConnectionError) as e:
        RaySettings.from_connection(connection(**given))
    assert S not in "".join(traceback.format_exception(e.value))


def test_secrets_are_not_shown() -> None:
    settings = RaySettings.from_connection(
        connection(
            password="sesame", **with_extra(headers={"X-Key": "s3cret"}, proxy="http://me:pr0xy@squid:3128")
        )
    )
    assert settings.token == "sesame"
    for secret in ("sesame", "s3cret", "pr0xy"):
        assert secret not in repr(settings)


def test_secrets_are_masked_at_any_depth_and_in_every_form() -> None:
    deep: Any = "deep/secret one"
    for _ in range(50):
        deep = [{"a": deep}]
    with pytest.raises(RayConnectionError, match="unknown extra 'conf'"):
        RaySettings.from_connection(
            connection(
                password="pass'w\u00f6rd",
                **with_extra(
                    conf=deep,
                    text=json.dumps({"inner": "inner-secret"}),
                    headers={"Authorization": "Bearer bearer-secret", "X": "Basic bWU6YmFzaWMtc2VjcmV0"},
                    proxy="http://proxy-user:proxy%40secret@squid:3128",
                ),
            )
        )
    for shown in (
        "pass'w\u00f6rd", json.dumps("pass'w\u00f6rd"), quote("pass'w\u00f6rd"), "deep/secret one",
        quote("deep/secret one"), quote_plus("deep/secret one"), "inner-secret", "bearer-secret",
        "basic-secret", "bWU6YmFzaWMtc2VjcmV0", "proxy-user", "proxy@secret", "proxy%40secret",
        base64.b64encode(b"proxy-user:proxy@secret").decode(),
    ):  # fmt: skip
        assert redact(f"<{shown}>") in ("<***>", '<"***">'), shown


def test_unknown_connection_is_an_error_and_never_a_silent_local_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RayConnectionError, match="no connection 'nobody_made_this'"):
        _ = RayHook("nobody_made_this").settings
    monkeypatch.setenv("AIRFLOW_CONN_TLS", json.dumps({"conn_type": "ray", "host": "h", "port": "x"}))
    with pytest.raises(RayConnectionError, match=r"AIRFLOW_CONN_TLS holds: .* number as its port"):
        _ = RayHook("tls").settings


@pytest.mark.parametrize(
    "given",
    [
        {"host": "https://h/ray", "port": 8443, "password": "t@k/:x", **with_extra(verify=False)},
        {"host": "http://h:8265", **with_extra(headers={"A": "b"}, proxy="http://u:p@x:1")},
        {"host": "h", "port": 8265, "schema": "https", **with_extra(ca_file="/x", verify="true")},
        {"host": "local"},
    ],
)
def test_connection_survives_being_written_as_a_uri(given: dict[str, Any]) -> None:
    """As which Airflow hands a connection to a test of it."""
    made = connection(**given)
    assert RaySettings.from_connection(
        Connection.from_uri(made.get_uri(), conn_id="c")
    ) == RaySettings.from_connection(made)


def test_airflow_discovers_the_provider() -> None:
    manager = ProvidersManager()
    assert "airflow-provider-raydatallm" in manager.providers
    hook = manager.hooks["ray"]
    assert hook is not None
    assert hook.hook_class_name.endswith("RayHook")
    assert {k for k in manager.connection_form_widgets if k.startswith("extra__ray__")} == {
        f"extra__ray__{name}" for name in EXTRAS
    }
    assert manager.connection_form_widgets["extra__ray__proxy"].is_sensitive
    assert manager.field_behaviours["ray"]["relabeling"]["password"] == "Token"
    assert "airflow_provider_raydatallm.links.ray.RayJobLink" in manager.extra_links_class_names


def token_of(**given: Any) -> Token | None:
    return read_token(RaySettings.from_connection(connection(**given)))


def test_token_comes_from_the_connection_then_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert token_of() is None
    (tmp_path / "file").write_text(" of-path \n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "file"))
    assert token_of() == ("of-path", f"RAY_AUTH_TOKEN_PATH '{tmp_path}/file'")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-variable\n")
    assert token_of() == ("of-variable", "RAY_AUTH_TOKEN of the environment")
    (tmp_path / "mine").write_text("of-file\n")
    assert token_of(**with_extra(auth_file=f"{tmp_path}/mine")) == ("of-file", f"auth_file '{tmp_path}/mine'")
    assert token_of(password=" of-password\n") == ("of-password", "the password")
    assert token_of(**with_extra(headers={"authorization": "Basic eA=="})) is None
    head = RaySettings.from_connection(connection(host="local")).for_local_head(
        "http://127.0.0.1:1", "of-head"
    )
    assert read_token(head) == ("of-head", "the password")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("of-home")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert token_of() is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        ("\n ", "is empty"),
        ("two words", "is not a valid token"),
        ("a\nb", "is not a valid token"),
    ],
)
@pytest.mark.parametrize("by", ["auth_file", "RAY_AUTH_TOKEN_PATH"])
def test_token_file_that_cannot_work_is_named(
    by: str, content: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    if content is not None:
        path.write_text(content)
    extra = {"auth_file": str(path)} if by == "auth_file" else {}
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    with pytest.raises(RayConnectionError, match=f"{by} '{path}'.* {says}") as e:
        token_of(**with_extra(**extra))
    assert str(e.value).startswith("connection 'c': ")
    assert "two words" not in str(e.value)


class TlsServer:
    """Answers /api/version over TLS and remembers the headers it got."""

    def __init__(self, folder: Path) -> None:
        self.headers: list[dict[str, str]] = []
        authority = Authority(folder)
        self.ca_file = authority.ca_file
        seen = self.headers

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append({k.lower(): v for k, v in self.headers.items()})
                body = b'{"ray_version": "2.60.0"}'
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.issue("server"))
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.address = f"https://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[TlsServer]:
    server = TlsServer(tmp_path)
    yield server
    server.server.shutdown()


def hook_to(monkeypatch: pytest.MonkeyPatch, **given: Any) -> RayHook:
    monkeypatch.setattr(jobs_api, "_BACKOFF", ())
    monkeypatch.setenv("AIRFLOW_CONN_TLS", json.dumps({"conn_type": "ray", **given}))
    return RayHook("tls")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_tls_is_verified_and_a_ca_file_makes_it_trusted(
    tls: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RayUnreachableError, match="certificate"):
        hook_to(monkeypatch, host=tls.address).call(jobs_api.get_version())
    assert tls.headers == []
    trusted = hook_to(monkeypatch, host=tls.address, extra={"ca_file": str(tls.ca_file)})
    assert trusted.call(jobs_api.get_version()) == "2.60.0"
    unverified = hook_to(monkeypatch, host=tls.address, extra={"verify": False})
    assert unverified.call(jobs_api.get_version()) == "2.60.0"
    (tls.ca_file.parent / "no.pem").write_text("no certificate")
    for name in ("/nowhere.pem", "/", str(tls.ca_file.parent / "no.pem")):
        with pytest.raises(RayConnectionError, match=f"connection 'tls': ca_file '{name}' cannot be used"):
            hook_to(monkeypatch, host=tls.address, extra={"ca_file": name}).call(jobs_api.get_version())
        with pytest.raises(RayConnectionError, match=f"connection 'tls': client_cert '{name}' cannot be"):
            hook_to(monkeypatch, host=tls.address, extra={"client_cert": name}).call(jobs_api.get_version())


def test_key_with_a_passphrase_is_an_error_and_asks_nobody(tmp_path: Path) -> None:
    pem = Authority(tmp_path).issue("client")
    key = serialization.load_pem_private_key(pem.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    settings = RaySettings.from_connection(
        connection(**with_extra(client_cert=str(pem), client_key=str(locked)))
    )
    with pytest.raises(RayConnectionError, match=f"client_key '{locked}' cannot be used"):
        client_options(settings)


def test_token_and_headers_are_sent_by_both_kinds_of_call(
    tls: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        "host": tls.address, "password": "sesame",
        "extra": {"ca_file": str(tls.ca_file), "headers": {"X-Team": "data"}},
    }  # fmt: skip
    assert hook_to(monkeypatch, **given).call(jobs_api.get_version()) == "2.60.0"
    assert asyncio.run(hook_to(monkeypatch, **given).acall(jobs_api.get_version())) == "2.60.0"
    assert [(h["authorization"], h["x-team"]) for h in tls.headers] == [("Bearer sesame", "data")] * 2


def test_token_makes_room_for_the_authorization_of_a_proxy(
    tls: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"ca_file": str(tls.ca_file), "headers": {"authorization": "Basic eDp5"}}
    hook_to(monkeypatch, host=tls.address, password="sesame", extra=extra).call(jobs_api.get_version())
    assert tls.headers[0]["authorization"] == "Basic eDp5"
    assert tls.headers[0]["x-ray-authorization"] == "Bearer sesame"


def test_test_of_a_connection_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (usable, "auth_file '/nowhere' cannot be read" in says) == (False, True)


def test_test_of_a_connection_ends_in_time() -> None:
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


def test_test_of_a_connection_says_what_a_cluster_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "/api/version": {"ray_version": "2.60.0"},
        "/api/v0/nodes": {"data": {"result": {"result": [
            {"state": "ALIVE", "resources_total": {"CPU": 4, "GPU": 2, "accelerator_type:L4": 1}},
            {"state": "DEAD", "resources_total": {"CPU": 64}},
        ]}}},
    }  # fmt: skip

    missing = ["Job airflow-connection-test does not exist"]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            body = json.dumps(found or missing[0]).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
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
        assert hook.test_connection() == (
            False,
            f"{address}: the cluster runs Ray 2.40.0; this provider needs at least 2.58: upgrade the cluster",
        )
        answers["/api/version"] = None
        assert "no Ray Jobs API there" in hook.test_connection()[1]
        server.shutdown()


def test_test_of_a_connection_needs_no_ray_and_starts_nothing(tmp_path: Path) -> None:
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
            **os.environ,
            "AIRFLOW_CONN_REMOTE": '{"conn_type": "ray", "host": "http://127.0.0.1:9"}',
            "AIRFLOW_CONN_EMBEDDED": "ray://local",
            "AIRFLOW_RAY_LLM_LOCAL_DIR": str(tmp_path / "head"),
        },
        capture_output=True,
        text=True,
    )
    remote, embedded = done.stdout.splitlines()[-2:]
    assert "Connection refused" in remote
    assert "No embedded head runs" in embedded
    assert not (tmp_path / "head").exists()
