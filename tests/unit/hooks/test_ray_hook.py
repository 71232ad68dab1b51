"""`RayHook`, with a real TLS server behind it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from airflow.providers_manager import ProvidersManager
from cryptography.hazmat.primitives import serialization

from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.connection import EXTRAS, RaySettings
from airflow_provider_raydatallm.hooks.http_clients import client_options
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.support.certificates import Authority
from tests.support.http_server import TlsServer
from tests.support.ray_connections import connection, hook_to, with_extra


def test_unknown_connection_is_an_error_and_never_a_silent_local_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RayConnectionError, match="no connection 'nobody_made_this'"):
        _ = RayHook("nobody_made_this").settings
    monkeypatch.setenv("AIRFLOW_CONN_TLS", json.dumps({"conn_type": "ray", "host": "h", "port": "x"}))
    with pytest.raises(RayConnectionError, match=r"AIRFLOW_CONN_TLS holds: .* number as its port"):
        _ = RayHook("tls").settings


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
        with pytest.raises(RayConnectionError, match=r"certificate is not valid .*: set .* ca_file to the"):
            call(jobs_api.get_version())
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
    with pytest.raises(RayConnectionError, match=f"client_key '{locked}' cannot be used"):
        client_options(settings)
