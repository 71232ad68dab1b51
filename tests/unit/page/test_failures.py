"""Why tries failed, by Airflow's database alone, and what of it a setting hides."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.xcom import XComModel
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization, LazyDeserializedDAG
from fastapi.testclient import TestClient
from sqlalchemy import insert, select
from sqlalchemy import text as sql
from sqlalchemy.orm import Session, sessionmaker

from airflow_provider_raydatallm.contract.log.progress_text import progress_text
from airflow_provider_raydatallm.contract.result.failure import Failure, Place
from airflow_provider_raydatallm.contract.slice_paths import slice_paths
from airflow_provider_raydatallm.page import routes, storage
from airflow_provider_raydatallm.page.answers import SliceLine, State
from airflow_provider_raydatallm.page.index import RunOfSlice
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.tables import slice_view
from airflow_provider_raydatallm.processor.tables.slice_view import SliceView
from airflow_provider_raydatallm.task.job.cancel import OWNER_KEY
from airflow_provider_raydatallm.task.slice_entry import SliceEntry
from tests.support.slice_index import BEGIN, Run, write_dag, write_runs

ClientOf = Callable[[str | None], TestClient]
DAY = dt.timedelta(days=1)
BAD_ROW = Failure(
    "input", "the value of a column is no number", advice=("Fix the file", "Run it again"),
    code="too_many_failed", place=Place(file="s3://in/a.csv", row=7, column="age"), row_texts=("'young'",),
    cause="ArrowInvalid: 'young'", counts={"planned": 195, "finished": 65},
    log=("young was read",), frames=("at f.py:1 in f: int('young')",),
)  # fmt: skip
OF_OTHERS = Failure("transient", "KeyError: 'young'", cause="KeyError: 'young'\nmore")
TASK = "dags/customers/tasks/why"


@pytest.fixture(scope="module", autouse=True)
def runs(database: sessionmaker[Session]) -> None:
    with database() as session:
        write_runs(session, "customers", "why", [
            Run(f"k-{state}", state, f"{state}", entry=None, at=BEGIN + i * DAY, failure=BAD_ROW.to_json())
            for i, state in enumerate(("failed", "up_for_retry", "running", None, "success"))
        ])  # fmt: skip
        write_runs(session, "customers", "why", [
            Run("k-killed", "failed", run_id="killed", entry=None, at=BEGIN - DAY),
            Run("k", "failed", "others", entry=None, at=BEGIN - 2 * DAY, failure=OF_OTHERS.to_json()),
        ])  # fmt: skip


def get(client: TestClient, path: str) -> Any:
    answer = client.get(f"/ray-llm/api/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def failures(client: TestClient, path: str = f"{TASK}/slices") -> dict[str, Any]:
    return {line["run_id"]: line["failure"] for line in get(client, path)["slices"]}


def test_failed_run_says_why_and_so_does_one_that_is_tried_again(client_of: ClientOf) -> None:
    found = failures(client_of("ann"))
    assert {run for run, failure in found.items() if failure} == {"failed", "up_for_retry", "others"}
    assert found["failed"] == found["up_for_retry"]
    assert found["failed"]["sentence"] == BAD_ROW.sentence
    assert found["failed"]["advice"][:2] == list(BAD_ROW.advice)
    assert found["failed"]["code"] == "too_many_failed"
    assert found["failed"]["place"] == {"file": "s3://in/a.csv", "row": 7, "column": "age"}
    assert found["failed"]["counts"] == {"planned": 195, "finished": 65}
    assert get(client_of("ann"), f"{TASK}/runs/killed/-1")["failure"] is None


def test_nothing_that_may_quote_a_row_is_answered_unless_a_setting_allows_it(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of("ann")
    paths = [f"{TASK}/slices", *(f"{TASK}/runs/{run}/-1" for run in ("failed", "others"))]
    for path in paths:
        assert "young" not in json.dumps(get(client, path)), path
    assert failures(client)["others"]["sentence"] == "KeyError"
    assert "show_samples" in failures(client)["others"]["advice"][-1]
    monkeypatch.setenv("AIRFLOW__RAY_LLM__SHOW_SAMPLES", "true")
    assert failures(client)["failed"]["row_texts"] == ["'young'"]
    assert failures(client)["others"]["sentence"] == "KeyError: 'young'"
    story = get(client, paths[1])["failure"]
    assert (story["cause"], story["log"]) == (BAD_ROW.cause, list(BAD_ROW.log))
    assert (story["frames"], story["advice"]) == (list(BAD_ROW.frames), list(BAD_ROW.advice))


def test_runs_that_failed_before_their_slice_say_why_whoever_started_them(
    client_of: ClientOf, database: sessionmaker[Session]
) -> None:
    wrong = Failure("input", "the connection is wrong").to_json()
    with database() as session:
        write_runs(session, "mails", "early", [
            Run("a", run_id="mapped", map_index=0),
            Run("", "failed", run_id="mapped", map_index=1, has_slice=False, failure=wrong),
            Run("", "failed", run_id="by-hand", has_slice=False, failure=wrong),
            Run("", "up_for_retry", run_id="again", has_slice=False, failure=wrong),
            Run("", "failed", run_id="killed", has_slice=False),
            Run("", "running", run_id="runs", has_slice=False, failure=wrong),
        ])  # fmt: skip
    found = get(client_of("ann"), "dags/mails/tasks/early/slices")["without_slice"]
    assert [(run["run_id"], run["map_index"], run["state"]) for run in found] == [
        ("killed", -1, "failed"), ("again", -1, "queued"), ("by-hand", -1, "failed"), ("mapped", 1, "failed"),
    ]  # fmt: skip
    assert found[0].pop("failure") is None
    assert {run["failure"]["sentence"] for run in found[1:]} == {"the connection is wrong"}
    assert all(run["started"] and run["ended"] for run in found)


#: What a newer version, or somebody, may have written.
RECORDS = {
    "markup": json.dumps({"kind": "input", "sentence": "<img src=x onerror=alert(1)>\u001b[31m\u202e"}),
    "new kind": json.dumps({"kind": "of-2030", "sentence": {"new": 1}, "place": [], "counts": {"x": 9**400}}),
    "huge": json.dumps({"kind": "input", "sentence": "x" * 60_000, "advice": ["y" * 1000] * 30}),
    "too huge": json.dumps({"kind": "input", "sentence": "x" * 200_000}),
    "deep": json.dumps("[" * 9_000),
    "list": "[[]]",
    "half": '{"kind":"input","sentence":"\\ud800","place":{"file":"\\ud800","row":-5}}',
    "null": "null",
    "no JSON": "xxxx{",
    "nothing": "",
}  # fmt: skip
NO_JSONB = {"half", "no JSON", "nothing"}


@pytest.mark.parametrize("trouble", RECORDS)
def test_record_that_is_strange_is_bounded_text_or_unknown(
    client_of: ClientOf, database: sessionmaker[Session], trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.kw["bind"].dialect.name == "postgresql" and trouble in NO_JSONB:
        pytest.skip("PostgreSQL does not take it")
    monkeypatch.setenv("AIRFLOW__RAY_LLM__SHOW_SAMPLES", "true")
    task = f"odd {trouble}"
    with database() as session:
        write_runs(session, "mails", task, [Run("k", "failed", run_id=task, entry=None, failure={})])
        session.execute(
            sql("UPDATE xcom SET value = :text WHERE key = 'ray_llm_failure' AND run_id = :run"),
            {"text": RECORDS[trouble], "run": task},
        )
        session.commit()
    line = get(client_of("ann"), f"dags/mails/tasks/{task}/slices")["slices"][0]["failure"]
    story = get(client_of("ann"), f"dags/mails/tasks/{task}/runs/{task}/-1")["failure"]
    assert line["sentence"] == story["sentence"]
    assert 0 < len(line["sentence"]) <= 2000
    assert not {"\x1b", "\u202e", "\ud800"} & set(line["sentence"])


def stored(state: State, monkeypatch: pytest.MonkeyPatch, progress: dict[str, Any]) -> storage.Stored:
    class View(SliceView):
        def versions(self) -> list[Any]:
            return []

        def progress(self) -> dict[str, Any]:
            return dict(progress)

    monkeypatch.setattr(slice_view, "SliceView", View)
    paths = slice_paths("/lake/progress/ds=1")
    line = SliceLine(slice_key="1", table=paths.table, run_id="r", state=state)
    run = RunOfSlice(SliceEntry(slice_key="1", paths=asdict(paths)), line)
    return storage.read_stored(run, {"dag_id": "customers", "task_id": "infer"})


START = {"step": "start", "rows": 0, "planned": 195, "elapsed_s": 75.0, "queued_s": 5.0, "workers": 2}


def test_running_slice_says_its_phase_in_the_words_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress = stored("running", monkeypatch, START).progress
    assert progress is not None
    assert progress.phase == progress_text(START) == "starting the engine: for 70 s"
    # Of the run before: this one has not come to its first step.
    failed = {**START, "step": "failed", "failure": BAD_ROW.to_json()}
    assert stored("running", monkeypatch, failed).progress is None


def test_nothing_live_is_told_of_a_run_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    for step in ("answer", "failed"):
        assert stored("failed", monkeypatch, {**START, "step": step}).progress is None


JOB = "customers-why-1"
LOST = Failure(
    "engine", "the node died", advice=("A retry continues",), counts={"planned": 195, "finished": 65},
    cause="NodeDiedError: young",
)  # fmt: skip


@pytest.fixture
def lost(database: sessionmaker[Session], tmp_path: Path) -> Callable[..., str]:
    """Writes a run whose job left its reason in the table's metadata, and whose task died before it could
    tell Airflow; returns its route."""

    def write(
        run_id: str, state: str = "failed", owner: Any = None, job: str = JOB, task: Any = "why"
    ) -> str:
        paths = slice_paths(str(tmp_path / run_id / "ds=1"))
        with database() as session:
            write_runs(
                session, "customers", "why",
                [Run("1", state, run_id, entry=None, paths=asdict(paths))],
            )  # fmt: skip
            number = session.scalar(select(DagRun.id).where(DagRun.run_id == run_id))
            session.execute(insert(XComModel.__table__), [
                {"dag_run_id": number, "task_id": "why", "map_index": -1, "key": OWNER_KEY,
                 "dag_id": "customers", "run_id": run_id, "timestamp": BEGIN,
                 "value": owner or {"submission_id": JOB, "try_number": 1}}
            ])  # fmt: skip
            session.commit()
        of_task = {"dag_id": "customers", "task_id": task}
        left = {"step": "failed", "task": of_task, "job": job, "failure": LOST.to_json()}
        Store(paths.metadata).put_json("progress.json", left)
        return f"{TASK}/runs/{run_id}/-1/reason"

    return write


def test_reason_that_only_the_table_has_is_told(client_of: ClientOf, lost: Callable[..., str]) -> None:
    found = get(client_of("ann"), lost("lost"))
    assert found["failure"]["sentence"] == LOST.sentence
    assert found["failure"]["counts"] == LOST.counts
    assert "young" not in json.dumps(found)
    assert (found["is_marked"], found["marked_by"]) == (False, None)


@pytest.mark.parametrize("other", [
    {"state": "running"}, {"state": "upstream_failed"}, {"job": "another"}, {"task": "other"},
    {"owner": {"submission_id": JOB, "try_number": 2}}, {"owner": "no record"},
], ids=str)  # fmt: skip
def test_reason_of_another_try_is_nobody_s(
    client_of: ClientOf, lost: Callable[..., str], other: dict[str, Any]
) -> None:
    found = get(client_of("ann"), lost(f"other {other}", **other))
    assert found == {"failure": None, "is_marked": False, "marked_by": None}


@pytest.mark.parametrize(("event", "extra", "is_mark"), [
    ("patch_task_instance", {"new_state": "failed"}, True),
    ("patch_dag_run", {"state": "failed"}, True),
    ("patch_task_instance", {"new_state": "success", "note": "failed"}, False),
    ("patch_task_instance", {"new_state": "failed", "map_index": "3"}, False),
    ("post_clear_task_instances", {"new_state": "failed"}, False),
])  # fmt: skip
def test_mark_by_hand_names_who_made_it(
    client_of: ClientOf,
    lost: Callable[..., str],
    database: sessionmaker[Session],
    event: str,
    extra: dict[str, Any],
    is_mark: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_id = f"marked {event} {extra}"
    path = lost(run_id)
    task_id = "why" if event != "patch_dag_run" else None
    log = {"dag_id": "customers", "task_id": task_id, "run_id": run_id, "event": event, "owner": "eve"}
    with database() as session:
        session.execute(insert(Log.__table__), [{**log, "extra": json.dumps(extra), "dttm": BEGIN + DAY}])
        session.commit()
    found = get(client_of("ann"), path)
    assert (found["is_marked"], found["marked_by"]) == (is_mark, "eve" if is_mark else None)
    assert found["failure"]["counts"]["finished"] == 65
    monkeypatch.setattr(routes, "may_read_audit_log", lambda user, dag_id: False)
    found = get(client_of("ann"), path)
    assert (found["is_marked"], found["marked_by"]) == (is_mark, None)


def test_mark_is_also_told_where_the_task_only_knows_that_it_was_stopped(
    client_of: ClientOf, database: sessionmaker[Session]
) -> None:
    stopped = Failure("stopped", "Airflow stopped the task").to_json()
    extra = json.dumps({"new_state": "failed"})
    log = {"dag_id": "customers", "task_id": "why", "event": "patch_task_instance", "owner": "eve"}
    with database() as session:
        for run_id, failure in (("stopped", stopped), ("broken", BAD_ROW.to_json())):
            write_runs(session, "customers", "why", [Run("s", "failed", run_id, entry=None, failure=failure)])
            marked = {**log, "run_id": run_id, "extra": extra, "dttm": BEGIN + DAY}
            session.execute(insert(Log.__table__), [marked])
        session.commit()
    found = {run: get(client_of("ann"), f"{TASK}/runs/{run}/-1/reason") for run in ("stopped", "broken")}
    assert {run: reason["marked_by"] for run, reason in found.items()} == {"stopped": "eve", "broken": None}


def test_task_that_did_not_run_names_the_tasks_that_failed_before_it(
    client_of: ClientOf, database: sessionmaker[Session]
) -> None:
    with database() as session:
        with DAG("mails", schedule=None, start_date=BEGIN) as dag:
            fetch, check, ask = (EmptyOperator(task_id=name) for name in ("fetch", "check", "ask"))
            fetch >> check >> ask
            EmptyOperator(task_id="beside")
        version = write_dag(session, "mails")
        row = SerializedDagModel(LazyDeserializedDAG(data=DagSerialization.to_dict(dag)))
        row.dag_version_id = version
        session.add(row)
        for task, state in (("fetch", "failed"), ("check", "upstream_failed"), ("beside", "failed")):
            write_runs(session, "mails", task, [Run("", state, run_id="chain", has_slice=False)])
        write_runs(session, "mails", "ask", [
            Run("", "upstream_failed", run_id="chain", has_slice=False),
            Run("k", "upstream_failed", run_id="cleared", entry=None),
            Run("", "failed", run_id="own", has_slice=False),
        ])  # fmt: skip
    client, task = client_of("ann"), "dags/mails/tasks/ask"
    by_fetch = [{"task_id": "fetch", "map_index": -1}]
    page = get(client, f"{task}/slices")
    upstream = {run["run_id"]: run["upstream"] for run in page["without_slice"]}
    assert upstream == {"own": None, "chain": by_fetch}
    assert [line["upstream"] for line in page["slices"]] == [[]]
    assert get(client, f"{task}/runs/chain/-1/task")["line"]["upstream"] == by_fetch
    assert client.get(f"/ray-llm/api/{task}/runs/chain/-1").status_code == 404
    assert client.get(f"/ray-llm/api/{task}/runs/cleared/-1/task").status_code == 404
    assert get(client, f"{task}/runs/cleared/-1")["line"]["upstream"] == []
    assert client_of("bob").get(f"/ray-llm/api/{task}/runs/chain/-1/task").status_code == 403
