"""Three years of daily slices of ten tasks, and as many in an asset's store that Airflow has cleaned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker

from tests.support.slice_index import write_years

TASKS, DAYS = 10, 1100
#: A page of a busy machine may take long; one that asks the database for each slice takes minutes.
LIMIT_S = 20.0


@pytest.fixture(scope="module", autouse=True)
def years(database: sessionmaker[Session]) -> None:
    with database() as session:
        write_years(session, "customers", TASKS, DAYS)


@pytest.fixture
def statements(database: sessionmaker[Session]) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    engine = database.kw["bind"]
    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "most"), [
    ("tasks", 6 + 7 * TASKS), ("dags/customers/tasks/task_07/slices?limit=400", 8),
    ("dags/customers/tasks/task_07/slices?limit=400&offset=1000", 8),
    ("dags/customers/tasks/task_07/runs/manual__2025-01-01/-1", 9),
])  # fmt: skip
def test_lists_are_answered_at_once_however_many_slices_there_are(
    client_of: Callable[[str], TestClient], statements: list[str], path: str, most: int
) -> None:
    client = client_of("ann")
    client.get(f"/ray-llm/api/{path}")
    statements.clear()
    began = time.perf_counter()
    answer = client.get(f"/ray-llm/api/{path}")
    seconds = time.perf_counter() - began
    print(f"{path}: {1000 * seconds:.0f} ms, {len(answer.content):,} bytes, {len(statements)} statements")
    assert answer.status_code == 200
    assert len(statements) <= most
    assert seconds < LIMIT_S
