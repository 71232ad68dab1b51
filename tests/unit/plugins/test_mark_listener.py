"""What Airflow's API server tells of task instances, and when the provider acts on it."""

from __future__ import annotations

import queue
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from airflow._shared.listeners.listener import ListenerManager
from airflow._shared.listeners.spec import taskinstance
from airflow._shared.plugins_manager import is_valid_plugin
from airflow.listeners.spec import dagrun
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from airflow_provider_raydatallm.plugins import marked_job
from airflow_provider_raydatallm.plugins.mark_listener import MarkListener
from airflow_provider_raydatallm.task.job.cancel import TaskAttempt
from tests.support.paths import ROOT

ATTEMPT = TaskAttempt("d", "t", "r", -1, 1)


class Base(DeclarativeBase):
    pass


class Row(Base):
    """A task instance, as far as the listener looks at it."""

    __tablename__ = "task_instance"
    dag_id: Mapped[str] = mapped_column(primary_key=True)
    task_id: Mapped[str]
    run_id: Mapped[str]
    map_index: Mapped[int]
    try_number: Mapped[int]


class Run(Base):
    """A run, as far as the listener looks at it."""

    __tablename__ = "dag_run"
    dag_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str]


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[TaskAttempt]:
    """Attempts whose jobs are to be stopped."""
    attempts: queue.Queue[TaskAttempt] = queue.Queue()

    async def stop(task: TaskAttempt) -> None:
        attempts.put(task)
        raise OSError("the database is away")

    monkeypatch.setattr(marked_job, "stop_marked_job", stop)
    return attempts


def tell(session: Session, state: str, previous_state: str | None) -> None:
    manager = ListenerManager()
    manager.add_hookspecs(taskinstance)
    manager.add_listener(MarkListener())
    ti = Row(dag_id="d", task_id="t", run_id="r", map_index=-1, try_number=1)
    session.add(ti)
    error: dict[str, Any] = {"error": "e"} if state == "failed" else {}
    hook = getattr(manager.hook, f"on_task_instance_{state}")
    hook(previous_state=previous_state, task_instance=ti, **error)


@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
def test_marked_task_has_its_job_stopped_once_the_mark_is_in_the_database(
    session: Session, marked: queue.Queue[TaskAttempt], state: str
) -> None:
    tell(session, state, None)
    with pytest.raises(queue.Empty):
        marked.get(timeout=0.05)
    session.commit()
    assert marked.get(timeout=10) == ATTEMPT
    session.commit()
    with pytest.raises(queue.Empty):
        marked.get(timeout=0.05)


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marked_run_has_the_jobs_of_its_tasks_stopped_once_the_mark_is_in_the_database(
    session: Session, marked: queue.Queue[TaskAttempt], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One waits for its next try: of it, Airflow tells no listener of tasks."""
    attempts = [ATTEMPT, replace(ATTEMPT, map_index=7, try_number=2)]
    of_runs = {("d", "r"): attempts}
    monkeypatch.setattr(marked_job, "unfinished_attempts", lambda *run: of_runs[run])
    manager = ListenerManager()
    manager.add_hookspecs(dagrun)
    manager.add_listener(MarkListener())
    run = Run(dag_id="d", run_id="r")
    session.add(run)
    getattr(manager.hook, f"on_dag_run_{state}")(dag_run=run, msg="set by a person")
    with pytest.raises(queue.Empty):
        marked.get(timeout=0.05)
    session.commit()
    assert [marked.get(timeout=10) for _ in attempts] == attempts


def test_task_that_ended_by_itself_and_mark_that_failed_stop_nothing(
    session: Session, marked: queue.Queue[TaskAttempt]
) -> None:
    tell(session, "failed", "running")
    session.commit()
    session.expunge_all()
    session.query(Row).delete()
    tell(session, "failed", None)
    session.rollback()
    session.close()
    with pytest.raises(queue.Empty):
        marked.get(timeout=0.05)


def test_mark_does_not_fail_with_the_listener() -> None:
    manager = ListenerManager()
    manager.add_hookspecs(taskinstance)
    manager.add_listener(MarkListener())
    manager.hook.on_task_instance_success(previous_state=None, task_instance=object())


def test_airflow_finds_the_plugin_and_has_listeners_in_the_api_server_only() -> None:
    """Where DAGs are parsed, any listener makes Airflow refuse tasks with `end_from_trigger`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    target = project["entry-points"]["airflow.plugins"]["ray_llm"]
    module, _, name = target.partition(":")
    plugin = getattr(import_module(module), name)
    assert is_valid_plugin(plugin)
    assert plugin.listeners == []
