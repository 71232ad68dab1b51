from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.connection import RaySettings
from airflow_provider_raydatallm.hooks.ray import RayHook


def connection(**fields: Any) -> Connection:
    return Connection(conn_id="c", **{"conn_type": "ray", "host": "ray-head", **fields})


def settings_of(**fields: Any) -> RaySettings:
    return RaySettings.from_connection(connection(**fields))


def token_file(monkeypatch: pytest.MonkeyPatch, path: Path, content: str) -> Path:
    """A token file as connections may name it."""
    monkeypatch.setenv("AIRFLOW__RAY_LLM__TOKEN_FOLDER", str(path.parent))
    path.touch(mode=0o600)
    path.write_text(content)
    return path


def with_extra(**extra: Any) -> dict[str, Any]:
    return {"extra": json.dumps(extra)}


def hook_to(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> RayHook:
    """A hook of the connection `tls`, which sends each request once."""
    monkeypatch.setattr(jobs_api, "_BACKOFF", ())
    monkeypatch.setenv("AIRFLOW_CONN_TLS", json.dumps({"conn_type": "ray", **fields}))
    return RayHook("tls")
