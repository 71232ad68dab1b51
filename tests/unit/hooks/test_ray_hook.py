"""`RayHook`, with a real TLS server behind it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import NamedTemporaryFile

import certifi
import httpx  # noqa: F401  # before the tests become another user
import pytest
from airflow.providers_manager import ProvidersManager
from cryptography.hazmat.primitives import serialization

from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayConnectionNotFoundError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.connection import EXTRAS, RaySettings
from airflow_provider_raydatallm.hooks.http_clients import client_options
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.support.certificates import Authority
from tests.support.http_server import TlsServer
from tests.support.ray_connections import connection, hook_to, with_extra
from tests.support.serving import serving


def test_unknown_connection_is_an_error_and_never_a_silent_local_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RayConnectionNotFoundError, match="'nobody_made_this'"):
        _ = RayHook("nobody_made_this").settings
    monkeypatch.setenv("AIRFLOW_CONN_TLS", json.dumps({"conn_type": "ray", "host": "h", "port": "x"}))
    with pytest.raises(RayConnectionError, match="AIRFLOW_CONN_TLS"):
        _ = RayHook("tls").settings


@pytest.mark.parametrize(
    "uri", ["ray://[::1]:{}", "ray://http://[::1]:{}", "ray://http%3A%2F%2F%5B%3A%3A1%5D%3A{}"]
)
def test_ipv6_address_may_be_written_as_a_uri(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6

    class Ray(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"ray_version": "2.60.0"}')

        def log_message(self, *args: object) -> None: ...

    try:
        server = Server(("::1", 0), Ray)
    except OSError as e:
        pytest.skip(f"this machine has no IPv6: {e}")
    with serving(server):
        monkeypatch.setenv("AIRFLOW_CONN_TLS", uri.format(server.server_port))
        assert RayHook("tls").settings.address == f"http://[::1]:{server.server_port}"
        assert RayHook("tls").call(jobs_api.get_version()) == "2.60.0"


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


def test_tls_is_verified_and_a_ca_file_makes_it_trusted(
    tls: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = hook_to(monkeypatch, host=tls.address)
    for call in (hook.call, lambda flow: asyncio.run(hook.acall(flow))):
        with pytest.raises(RayConnectionError, match=r"^connection 'tls' .*certificate") as error:
            call(jobs_api.get_version())
        assert "ca_file" in error.value.failure.advice[0]
    assert tls.headers == []
    trusted = hook_to(monkeypatch, host=tls.address, extra={"ca_file": str(tls.ca_file)})
    assert trusted.call(jobs_api.get_version()) == "2.60.0"
    unverified = hook_to(monkeypatch, host=tls.address, extra={"verify": False})
    assert unverified.call(jobs_api.get_version()) == "2.60.0"


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("missing", "no such file"), ("folder", "it is a folder"), ("unreadable", r"\(id \d+\) may not read"),
        ("text", "no line -----BEGIN CERTIFICATE-----"), ("empty", "no line -----BEGIN CERTIFICATE-----"),
        ("DER", "no line -----BEGIN CERTIFICATE-----"), ("damaged", "OpenSSL refuses the content"),
    ],
)  # fmt: skip
def test_certificate_file_that_cannot_be_used_is_named_with_what_is_wrong_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, fault: str
) -> None:
    file, pem = tmp_path / "file.pem", Authority(tmp_path).ca_file.read_text()
    contents = {
        "unreadable": pem, "text": "no certificate", "empty": "", "DER": "0\x82\x01",
        "damaged": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    }  # fmt: skip
    if kind == "folder":
        file.mkdir()
    elif kind in contents:
        file.write_text(contents[kind])
    for name in ("ca_file", "client_cert"):
        settings = hook_to(monkeypatch, host="https://h", extra={name: str(file)}).settings
        unreadable = _unreadable(file) if kind == "unreadable" else nullcontext()
        message = f"'tls': {name} '{file}' cannot be used: .*{fault}"
        with unreadable, pytest.raises(RayConnectionError, match=message):
            client_options(settings)


@contextmanager
def _unreadable(file: Path) -> Iterator[None]:
    user = os.geteuid()
    file.chmod(0)
    with NamedTemporaryFile() as public, pytest.MonkeyPatch.context() as patch:
        # Of a checkout that only its owner may enter, another user reads no file.
        public.write(Path(certifi.where()).read_bytes())
        public.flush()
        os.chmod(public.name, 0o644)
        patch.setattr(certifi, "where", lambda: public.name)
        if user == 0:  # who may read everything
            os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(user)


def test_cluster_that_is_away_is_named_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = hook_to(monkeypatch, host="http://127.0.0.1:9")
    away = (
        r"^connection 'tls' \(http://127.0.0.1:9\): GET /api/\S+ failed \d times: ConnectError: .*dashboard"
    )
    for call in (hook.call, lambda flow: asyncio.run(hook.acall(flow))):
        with pytest.raises(RayUnreachableError, match=away):
            call(jobs_api.list_jobs())


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
    with pytest.raises(RayConnectionError, match=f"client_key '{locked}' cannot be used: .* no passphrase"):
        client_options(settings)
