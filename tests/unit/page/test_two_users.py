"""Who may not read a DAG learns nothing of it by any route: neither what it has, nor that there is one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from airflow.models.dag import DagModel
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker
from starlette.routing import Mount, Route

from airflow_provider_raydatallm.page.access import MAY_READ_SLICES
from airflow_provider_raydatallm.page.app import build_app
from tests.support.slice_index import BEGIN, Run, figures, keep_runs, write_dag, write_runs
from tests.unit.page.conftest import DAGS, PerDagAuthManager

ClientOf = Callable[[str | None], TestClient]
#: Ann may read customers and mails, Bob photos; Carl reads every DAG, and no XCom; nobody is not logged in.
NOBODY, ANN, BOB, CARL = None, "ann", "bob", "carl"
#: Routes of no DAG: what they answer is the same for all, or only what the user may read.
OF_NO_DAG = {"/api/settings", "/api/tasks", "/openapi.json", "/static"}
VALUES = {
    "dag_id": "customers",
    "task_id": "secret_task",
    "run_id": "run",
    "map_index": "-1",
    "kind": "published",
}
#: What a user without permission would learn.
SECRETS = ("customers", "secret_task", "secret-key", "secret name", "s3://secret", "mails")


@pytest.fixture(scope="module", autouse=True)
def slices(database: sessionmaker[Session]) -> None:
    paths = {name: f"s3://secret/{name}" for name in ("table", "metadata", "staging", "quarantine")}
    with database() as session:
        runs = [Run("secret-key", run_id="run", entry=figures(600, labels={"secret name": 3}), paths=paths)]
        write_runs(session, "customers", "secret_task", runs)
        write_runs(session, "mails", "label", [Run(f"k{i}") for i in range(30)])
        write_runs(session, "photos", "caption", [Run("2026-01-01", run_id="run")])
        # An asset that two DAGs update.
        old = [Run("secret-key", run_id="gone", at=BEGIN - dt.timedelta(1))]
        keep_runs(session, "customers", "secret_task", old, "shared")
        dag = session.get(DagModel, "customers")
        assert dag is not None
        dag._dag_display_property_value = "secret name"
        session.commit()


def routes() -> Iterator[Any]:
    """All routes of the app, as it knows them itself: also those that its documentation leaves out."""
    yield from build_app().routes


def addresses(**values: str) -> list[str]:
    """Of the routes of a DAG."""
    paths = [route.path for route in routes() if "{dag_id}" in route.path]
    assert len(paths) >= 4
    return [path.format(**{**VALUES, **values}) for path in paths]


@pytest.mark.slow
def test_every_route_asks_for_the_permissions_of_its_dag_or_is_known_to_be_of_none() -> None:
    for route in routes():
        if "{dag_id}" in route.path:
            assert isinstance(route, APIRoute), route.path
            asked = [dependency.dependency for dependency in route.dependencies]
            assert {d.dependency for d in MAY_READ_SLICES} <= set(asked), route.path
            assert route.methods == {"GET"}, route.path
        else:
            assert route.path in OF_NO_DAG, f"{route.path}: whose is it, and who may ask?"
            assert isinstance(route, (APIRoute, Route, Mount))


@pytest.mark.parametrize(("user", "status"), [(NOBODY, 401), (BOB, 403), (CARL, 403)])
def test_no_route_of_a_dag_answers_who_may_not_read_it(
    client_of: ClientOf, user: str | None, status: int
) -> None:
    for address in addresses():
        # The path counts, whatever else names another DAG.
        for query in ({}, {"dag_id": "photos"}, {"limit": "1", "offset": "0"}):
            answer = client_of(user).get(f"/ray-llm{address}", params=query)
            assert answer.status_code == status, address
            assert not [secret for secret in SECRETS if secret in answer.text], address


@pytest.mark.parametrize("user", [NOBODY, BOB, CARL])
def test_dag_that_may_not_be_read_looks_like_one_that_is_not_there(
    client_of: ClientOf, user: str | None
) -> None:
    for there, absent in zip(addresses(), addresses(dag_id="no_such_dag"), strict=True):
        one, other = (client_of(user).get(f"/ray-llm{address}") for address in (there, absent))
        assert (one.status_code, one.text) == (other.status_code, other.text)
        unknown_run = there.replace("/runs/run/", "/runs/none/")
        assert client_of(user).get(f"/ray-llm{unknown_run}").text == one.text


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(client_of: ClientOf, method: str) -> None:
    for address in [*addresses(), "/api/tasks", "/api/settings"]:
        assert client_of(ANN).request(method, f"/ray-llm{address}").status_code == 405


def test_tasks_are_those_of_dags_that_the_user_may_read(client_of: ClientOf) -> None:
    def tasks(user: str, **page: int) -> tuple[list[str], int]:
        answer = client_of(user).get("/ray-llm/api/tasks", params=page)
        assert user != BOB or not [secret for secret in SECRETS if secret in answer.text]
        body = answer.json()
        return [f"{t['dag_id']}.{t['task_id']}" for t in body["tasks"]], body["total"]

    assert tasks(ANN) == (["customers.secret_task", "mails.label"], 2)
    assert tasks(BOB) == (["photos.caption"], 1)
    # No page has a hole where another's task would stand.
    assert tasks(BOB, offset=1, limit=1) == ([], 1)
    assert tasks(ANN, offset=1, limit=1) == (["mails.label"], 2)
    assert tasks(CARL) == ([], 0)
    assert client_of(NOBODY).get("/ray-llm/api/tasks").status_code == 401


def test_work_does_not_grow_with_what_the_user_may_not_read(
    client_of: ClientOf, database: sessionmaker[Session]
) -> None:
    """Else the time that an answer takes would tell how much there is."""
    statements: list[tuple[str, str]] = []

    def note(connection: Any, cursor: Any, statement: str, values: Any, *rest: Any) -> None:
        if "xcom" in statement or "asset_state_store" in statement:
            statements.append((statement, str(values)))

    def ask() -> list[tuple[str, str]]:
        statements.clear()
        assert client_of(BOB).get("/ray-llm/api/tasks").status_code == 200
        return list(statements)

    engine = database.kw["bind"]
    event.listen(engine, "before_cursor_execute", note)
    try:
        before = ask()
        with database() as session:
            for i in range(5):
                write_runs(session, "mails", f"more_{i}", [Run(f"k{j}") for j in range(20)])
        after = ask()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert before == after
    assert before
    assert not [values for _, values in before if any(secret in values for secret in SECRETS)]


def test_auth_manager_is_asked_at_once_and_of_dags_with_slices_only(
    client_of: ClientOf, database: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some ask a server for each answer."""
    asked: list[set[str]] = []
    answer = PerDagAuthManager.batch_is_authorized_dag

    def note(manager: Any, requests: Any, *, user: Any) -> bool:
        asked.append({request["details"].id for request in requests})
        return answer(manager, requests, user=user)

    monkeypatch.setattr(PerDagAuthManager, "batch_is_authorized_dag", note)
    plain = {f"plain_{i}" for i in range(20)}
    with database() as session:
        for dag_id in plain:
            write_dag(session, dag_id)
        session.commit()
    monkeypatch.setitem(DAGS, ANN, DAGS[ANN] | plain)
    tasks = client_of(ANN).get("/ray-llm/api/tasks").json()["tasks"]
    assert {task["dag_id"] for task in tasks} == {"customers", "mails"}
    assert asked == [{"customers", "mails"}]
    asked.clear()
    assert client_of(CARL).get("/ray-llm/api/tasks").json()["tasks"] == []
    assert {"customers"} in asked  # each by itself, where the answer is not the same for all


def test_what_is_open_to_all_names_no_dag(client_of: ClientOf) -> None:
    for path in ("openapi.json", "static/ray_llm.js", "static/icon.svg"):
        answer = client_of(NOBODY).get(f"/ray-llm/{path}")
        assert answer.status_code == 200
        assert not [secret for secret in SECRETS if f'"{secret}"' in answer.text], path
    for path in (
        "docs",
        "redoc",
        "static/",
        "static/../app.py",
        "static/%2e%2e/app.py",
        "static/..%2fapp.py",
    ):
        assert client_of(NOBODY).get(f"/ray-llm/{path}").status_code == 404, path
