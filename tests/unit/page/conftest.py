"""The page's app as Airflow's API server mounts it, over a database of its own, and users who may read some
DAGs only."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow import settings
from airflow.api_fastapi.app import _AuthManagerState
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models import import_all_models
from airflow.models.base import Base
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from airflow_provider_raydatallm.page.app import build_app
from tests.support.postgres import Postgres

#: What each user may read.
DAGS = {"ann": {"mails", "customers"}, "bob": {"photos"}}


class PerDagAuthManager(SimpleAuthManager):
    """Users who may read their own DAGs, and entities of them; `carl` may read DAGs and no XComs."""

    def is_authorized_dag(
        self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None
    ) -> bool:
        if user.get_id() == "carl":
            return access_entity is None or access_entity.value != "XCOM"
        dag_id = details.id if details is not None else None
        return method == "GET" and dag_id in DAGS.get(user.get_id(), set())


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sessionmaker[Session]]:
    """An Airflow database that `settings` names, as long as the tests of a file run on that kind of it."""
    if request.param == "sqlite":
        path: Path = tmp_path_factory.mktemp("airflow") / "page.db"
        engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False})
    else:
        postgres: Postgres = request.getfixturevalue("postgres")
        name = f"page_{uuid.uuid4().hex[:8]}"
        postgres.query(f"CREATE DATABASE {name}")
        engine = create_engine(postgres.url.replace("/postgres?", f"/{name}?"))
    import_all_models()
    Base.metadata.create_all(engine)
    makers = sessionmaker(engine, expire_on_commit=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "engine", engine)
        patch.setattr(settings, "NonScopedSession", makers, raising=False)
        patch.setattr(settings, "Session", scoped_session(makers), raising=False)
        yield makers
    engine.dispose()


@pytest.fixture(scope="module")
def client_of(database: sessionmaker[Session]) -> Iterator[Callable[[str | None], TestClient]]:
    """Returns the client of a user who is logged in; of nobody for None."""
    manager = PerDagAuthManager()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_AuthManagerState, "instance", manager)
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)
        server = FastAPI()
        server.mount("/ray-llm", build_app())

        def client(user: str | None) -> TestClient:
            headers = {}
            if user is not None:
                token = manager.generate_jwt(SimpleAuthManagerUser(username=user, role="viewer"))
                headers["Authorization"] = f"Bearer {token}"
            return TestClient(server, base_url="http://test", headers=headers)

        yield client
