"""The connection of type `ray`, and a real TLS server behind it."""

from __future__ import annotations

import asyncio
import datetime as dt
import http.server
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook, RaySettings


def connection(**given: Any) -> Connection:
    return Connection(conn_id="c", **{"conn_type": "ray", "host": "ray-head", **given})


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({"host": "http://h:8265/"}, "http://h:8265"),
        ({"host": "https://h/ray"}, "https://h/ray"),
        ({"host": "h", "port": 8265}, "http://h:8265"),
        ({"host": "https://h/ray", "port": 8443}, "https://h:8443/ray"),
        ({"host": "h", "schema": "https"}, "https://h"),
        ({"host": "local"}, "local"),
    ],
)
def test_address_forms(given: dict[str, Any], address: str) -> None:
    assert RaySettings.of(connection(**given)).address == address


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"host": None}, "has no host"),
        ({"host": "ray://head:10001"}, "http://head:8265"),
        ({"host": "ftp://x"}, "no Jobs address"),
        ({"conn_type": "http"}, "not 'ray'"),
        ({"extra": json.dumps({"verfy": False})}, "verfy"),
        ({"extra": json.dumps({"verify": "no"})}, "verify must be true or false"),
        ({"extra": json.dumps({"headers": "x"})}, "headers"),
    ],
)
def test_connection_that_cannot_work_says_what_to_write(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RayConnectionError, match=says):
        RaySettings.of(connection(**given))


def test_secrets_are_not_shown() -> None:
    settings = RaySettings.of(
        connection(password="sesame", extra=json.dumps({"headers": {"X-Key": "s3cret"}}))
    )
    assert settings.token == "sesame"
    assert "sesame" not in repr(settings)
    assert "s3cret" not in repr(settings)


def test_unknown_connection_is_an_error_and_never_a_silent_local_ray() -> None:
    with pytest.raises(RayConnectionError, match="no connection 'nobody_made_this'"):
        _ = RayHook("nobody_made_this").settings


def test_airflow_discovers_the_provider() -> None:
    manager = ProvidersManager()
    assert "airflow-provider-raydatallm" in manager.providers
    hook = manager.hooks["ray"]
    assert hook is not None
    assert hook.hook_class_name.endswith("RayHook")
    assert {k for k in manager.connection_form_widgets if k.startswith("extra__ray__")} == {
        "extra__ray__verify", "extra__ray__ca_file", "extra__ray__headers", "extra__ray__dashboard_url",
    }  # fmt: skip
    assert manager.field_behaviours["ray"]["relabeling"]["password"] == "Token"
    assert "airflow_provider_raydatallm.links.ray.RayJobLink" in manager.extra_links_class_names


class TlsServer:
    """Answers /api/version over TLS and remembers the headers it got."""

    def __init__(self, folder: Path) -> None:
        self.headers: list[dict[str, str]] = []
        self.ca_file = folder / "ca.pem"
        _write_certificate(self.ca_file, folder / "key.pem")
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
        context.load_cert_chain(self.ca_file, folder / "key.pem")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.address = f"https://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def _write_certificate(certificate: Path, key: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[TlsServer]:
    server = TlsServer(tmp_path)
    yield server
    server.server.shutdown()


def hook_to(monkeypatch: pytest.MonkeyPatch, **given: Any) -> RayHook:
    monkeypatch.setattr(jobs_api, "_BACKOFF", ())
    monkeypatch.setenv("AIRFLOW_CONN_TLS", json.dumps({"conn_type": "ray", **given}))
    return RayHook("tls")


def test_tls_is_verified_and_a_ca_file_makes_it_trusted(
    tls: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RayUnreachableError, match="certificate"):
        hook_to(monkeypatch, host=tls.address).call(jobs_api.version())
    assert tls.headers == []
    trusted = hook_to(monkeypatch, host=tls.address, extra={"ca_file": str(tls.ca_file)})
    assert trusted.call(jobs_api.version()) == "2.60.0"
    unverified = hook_to(monkeypatch, host=tls.address, extra={"verify": False})
    assert unverified.call(jobs_api.version()) == "2.60.0"
    with pytest.raises(RayConnectionError, match="ca_file '/nowhere'"):
        hook_to(monkeypatch, host=tls.address, extra={"ca_file": "/nowhere"}).call(jobs_api.version())


def test_token_and_headers_are_sent_by_both_kinds_of_call(
    tls: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        "host": tls.address, "password": "sesame",
        "extra": {"ca_file": str(tls.ca_file), "headers": {"X-Team": "data"}},
    }  # fmt: skip
    assert hook_to(monkeypatch, **given).call(jobs_api.version()) == "2.60.0"
    assert asyncio.run(hook_to(monkeypatch, **given).acall(jobs_api.version())) == "2.60.0"
    assert [(h["authorization"], h["x-team"]) for h in tls.headers] == [("Bearer sesame", "data")] * 2
