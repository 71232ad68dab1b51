"""Airflow's own UI and REST API: no scheduler, no DAG processor, no Ray. What it shows, tests
write into its database (`slice_index`) and into folders."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow.models import import_all_models
from airflow.models.base import Base
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from airflow_provider_raydatallm.clusters.embedded.head import free_ports
from tests.support.paths import ROOT
from tests.support.waiting import wait_for


@dataclass(frozen=True)
class UiServer:
    """Everybody is an admin there, without logging in."""

    url: str
    database: sessionmaker[Session]


@contextmanager
def ui_server(
    home: Path, environment: Mapping[str, str] = {}, database: str | None = None
) -> Iterator[UiServer]:
    """
    :param environment: of the server, such as `AIRFLOW__RAY_LLM__SHOW_SAMPLES`.
    :param database: its address for SQLAlchemy; None: SQLite in `home`.
    """
    database = database or f"sqlite:///{home}/airflow.db"
    engine = create_engine(database)
    import_all_models()
    Base.metadata.create_all(engine)
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "RAY_"))}
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_API_APPS": "core",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "true",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-m", "uvicorn", "airflow.api_fastapi.main:app", "--port", str(port)]
    with (home / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, env={**kept, **settings, **environment}, stdout=log, stderr=log, cwd=home
        )
    try:
        wait_for(lambda: server.poll() is not None or _answers(url))
        assert server.poll() is None, (home / "server.log").read_text()[-4000:]
        yield UiServer(url, sessionmaker(engine, expire_on_commit=False))
    finally:
        server.terminate()
        server.wait()
        engine.dispose()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/v2/version", timeout=30) as answer:
            return answer.status == 200
    except OSError:
        return False
