from __future__ import annotations

import datetime as dt
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.models.asset import AssetModel, TaskOutletAssetReference
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.xcom import XComModel
from airflow.sdk import DAG, Asset, AssetOrTimeSchedule, CronTriggerTimetable
from airflow.serialization.serialized_objects import DagSerialization, LazyDeserializedDAG
from airflow.timetables.events import EventsTimetable
from fastapi.testclient import TestClient
from sqlalchemy import delete, insert, select, update
from sqlalchemy import text as sql
from sqlalchemy.orm import Session, sessionmaker

from airflow_provider_raydatallm.contract.slice_paths import slice_paths
from airflow_provider_raydatallm.links.output import OutputLink
from airflow_provider_raydatallm.links.ray import RayJobLink
from airflow_provider_raydatallm.page import app, storage
from airflow_provider_raydatallm.page.answers import SliceLine, State
from airflow_provider_raydatallm.page.index import RunOfSlice, state_of
from airflow_provider_raydatallm.processor.tables import slice_view
from airflow_provider_raydatallm.processor.tables.slice_view import SliceView
from airflow_provider_raydatallm.task.slice_entry import SliceEntry
from tests.support.slice_index import BEGIN, Run, clean_runs, figures, keep_runs, write_dag, write_runs
from tests.support.waiting import wait_for
from tests.unit.page.conftest import DAGS

ClientOf = Callable[[str | None], TestClient]
NOBODY, ANN, BOB = None, "ann", "bob"
DAY = dt.timedelta(days=1)
#: PostgreSQL keeps no NUL, so none comes from there.
HOSTILE = "<img src=x onerror=alert(1)>\u202e&"


@pytest.fixture(scope="module", autouse=True)
def runs(database: sessionmaker[Session]) -> None:
    with database() as session:
        write_runs(session, "customers", "infer", [
            Run("2026-01-01", entry=figures(600)),
            Run("2026-01-02", entry=figures(600, 12), at=BEGIN + DAY),
            Run("2026-01-03", "failed", entry=None, at=BEGIN + 2 * DAY),
            Run("2026-01-04", "deferred", entry=None, at=BEGIN + 3 * DAY),
            Run("2026-01-05", None, entry=None, at=BEGIN + 4 * DAY),
            Run("2026-01-06", "skipped", entry=figures(0, outcome="empty"), at=BEGIN + 5 * DAY),
            Run("2026-01-01", run_id="again", entry=figures(600, version=2), at=BEGIN + 6 * DAY),
            # As Airflow calls the instances of a task that has another name now.
            Run("2026-01-07", "removed", at=BEGIN + 7 * DAY),
            # Its input is empty now, and what was published stays.
            Run("2026-01-08", "skipped", entry=figures(600, outcome="kept"), at=BEGIN + 8 * DAY),
        ])  # fmt: skip
        write_runs(session, "mails", "label", [
            Run("a", map_index=0, run_id="mapped"), Run(HOSTILE, map_index=1, run_id="mapped"),
        ])  # fmt: skip
        write_runs(session, "photos", "caption", [Run("2026-01-01")])


def get(client: TestClient, path: str, **params: Any) -> Any:
    answer = client.get(f"/ray-llm/api/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


TASK = "dags/customers/tasks/infer"
RUN = f"{TASK}/runs/again/-1"


@pytest.mark.slow
def test_slices_have_the_state_that_airflow_knows(client_of: ClientOf) -> None:
    page = get(client_of(ANN), f"{TASK}/slices")
    assert [(s["slice_key"], s["state"]) for s in page["slices"]] == [
        ("2026-01-08", "published"), ("2026-01-07", "published"), ("2026-01-01", "published"),
        ("2026-01-06", "empty"),
        ("2026-01-05", "queued"), ("2026-01-04", "running"), ("2026-01-03", "failed"),
        ("2026-01-02", "quarantined"), ("2026-01-01", "published"),
    ]  # fmt: skip
    assert page["total"] == 9
    assert page["slices"][7]["counts"]["quarantined"] == 12
    rest = get(client_of(ANN), f"{TASK}/slices", offset=5, limit=10)
    assert rest["slices"] == page["slices"][5:]


@pytest.mark.parametrize(
    ("airflow", "shown"),
    [
        ("awaiting_input", "held"), ("deferred", "held"), ("running", "running"), ("failed", "failed"),
        ("success", "empty"),
    ],
)  # fmt: skip
def test_slice_that_waits_for_a_person_is_told_from_one_that_runs(airflow: str, shown: str) -> None:
    entry = SliceEntry.parse({"slice_key": "a", "paths": {}, "outcome": "held"})
    assert state_of(airflow, entry) == shown


def test_runs_that_have_not_come_to_their_slice_are_told(
    client_of: ClientOf, database: sessionmaker[Session]
) -> None:
    states = ("upstream_failed", "failed", None, "up_for_retry", "running", "skipped", "success", "removed")
    with database() as session:
        write_runs(session, "mails", "sort", [
            Run("2026-01-01", run_id="s0", date=BEGIN),
            Run("2026-01-02", "failed", run_id="s1", entry=None, date=BEGIN + DAY),
            *(Run("", state, run_id=f"s{i}", date=BEGIN + i * DAY, has_slice=False)
              for i, state in enumerate(states, 2)),
            Run("", "failed", run_id="by-hand", has_slice=False),
        ])  # fmt: skip
    page = get(client_of(ANN), "dags/mails/tasks/sort/slices", limit=1)
    assert [(run["run_id"], run["state"]) for run in page["without_slice"]] == [
        ("by-hand", "failed"), ("s7", "empty"), ("s6", "running"), ("s5", "queued"), ("s4", "queued"),
        ("s3", "failed"), ("s2", "failed"),
    ]  # fmt: skip
    assert page["without_slice"][1]["slice_key"] is None  # without the DAG, only the run knows
    assert get(client_of(ANN), "dags/mails/tasks/sort/slices", limit=1, offset=1)["without_slice"] == []


def test_run_names_the_other_runs_of_its_slice(client_of: ClientOf) -> None:
    run = get(client_of(ANN), RUN)
    assert run["line"]["published_version"] == 2
    assert [line["run_id"] for line in run["history"]] == ["again", "manual__2026-01-01"]
    assert [t["state"] for t in run["tries"]] == ["success"]


@pytest.mark.slow
def test_history_finds_runs_behind_thousands_of_other_slices(
    client_of: ClientOf, database: sessionmaker[Session]
) -> None:
    keys = ["2026-01-31/é%_", *(f"other-{i}" for i in range(2500))]
    with database() as session:
        for day in range(2):
            write_runs(session, "mails", "many", [
                Run(key, map_index=i, run_id=f"day-{day}", at=BEGIN + day * DAY) for i, key in enumerate(keys)
            ])  # fmt: skip
    history = get(client_of(ANN), "dags/mails/tasks/many/runs/day-0/0")["history"]
    assert [line["run_id"] for line in history] == ["day-1", "day-0"]


@pytest.mark.parametrize(("link", "field"), [(RayJobLink, "ray_job_url"), (OutputLink, "output_url")])
@pytest.mark.parametrize(("address", "shown"), [
    ("https://ray/#/jobs/1", "https://ray/#/jobs/1"), ("javascript:alert(1)", None),
    ("data:text/html,", None), ("//ray", None), ("http://[", None), (5, None), ("[" * 20_000, None),
])  # fmt: skip
def test_only_addresses_of_the_web_become_links(
    client_of: ClientOf,
    database: sessionmaker[Session],
    link: Any,
    field: str,
    address: Any,
    shown: str | None,
) -> None:
    of_run = (XComModel.run_id == "again", XComModel.dag_id == "customers")
    with database() as session:
        session.execute(delete(XComModel.__table__).where(*of_run, XComModel.key == link.xcom_key))
        dag_run = session.scalar(select(XComModel.dag_run_id).where(*of_run))
        session.execute(insert(XComModel.__table__).values(
            dag_run_id=dag_run, task_id="infer", map_index=-1, key=link.xcom_key, dag_id="customers",
            run_id="again", value=address, timestamp=BEGIN,
        ))  # fmt: skip
        session.commit()
    assert get(client_of(ANN), RUN)[field] == shown


def test_run_names_the_assets_of_its_task_that_the_user_may_read(
    client_of: ClientOf, database: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    with database() as session:
        assets = [
            AssetModel(name=n, uri=f"x://{n}", group="asset", extra={}) for n in ("open", "closed", "other")
        ]
        session.add_all(assets)
        session.flush()
        ids = {asset.name: asset.id for asset in assets}
        of_tasks = [("infer", "open"), ("infer", "closed"), ("another", "other")]
        session.add_all(
            TaskOutletAssetReference(asset_id=ids[name], dag_id="customers", task_id=task)
            for task, name in of_tasks
        )
        session.commit()

    def may_read(self: object, *, method: str, user: Any, details: Any = None) -> bool:
        return method == "GET" and user.get_id() == ANN and details.id != str(ids["closed"])

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_asset", may_read)
    assert get(client_of(ANN), RUN)["assets"] == [{"id": ids["open"], "name": "open"}]


def test_mapped_tasks_have_a_slice_each_whatever_it_is_called(client_of: ClientOf) -> None:
    run = get(client_of(ANN), "dags/mails/tasks/label/runs/mapped/1")
    assert run["line"]["slice_key"] == HOSTILE
    answer = client_of(ANN).get("/ray-llm/api/dags/mails/tasks/label/runs/mapped/1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_unknown_run_is_not_found(client_of: ClientOf) -> None:
    for path in (f"{TASK}/runs/none/-1", f"{TASK}/runs/again/7", f"{TASK}/runs/none/-1/stored"):
        assert client_of(ANN).get(f"/ray-llm/api/{path}").status_code == 404
    for index in (2**63, -2):
        assert client_of(ANN).get(f"/ray-llm/api/{TASK}/runs/again/{index}").status_code == 422


@pytest.mark.parametrize("path", [f"{TASK}/runs/a%00b/-1", "dags/customers/tasks/a%00b/slices"])
def test_name_that_no_database_can_hold_is_refused(client_of: ClientOf, path: str) -> None:
    assert client_of(ANN).get(f"/ray-llm/api/{path}").status_code == 422


@pytest.mark.parametrize("query", ["limit=0", "limit=5000", "offset=-1", "limit=x"])
def test_pages_have_a_limit(client_of: ClientOf, query: str) -> None:
    assert client_of(ANN).get(f"/ray-llm/api/{TASK}/slices?{query}").status_code == 422


def test_samples_are_off_unless_the_configuration_allows_them(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not get(client_of(BOB), "settings")["show_samples"]
    assert client_of(ANN).get(f"/ray-llm/api/{RUN}/samples/published").status_code == 403
    monkeypatch.setenv("AIRFLOW__RAY_LLM__SHOW_SAMPLES", "true")
    note = get(client_of(ANN), f"{RUN}/samples/published")["note"]
    assert "cannot read the slice's folder" in note  # its entry names none
    assert client_of(ANN).get(f"/ray-llm/api/{RUN}/samples/specs").status_code == 422


def test_settings_tell_a_price_only_where_one_is_set(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert get(client_of(BOB), "settings") == {
        "show_samples": False, "gpu_hour_price": None, "currency": "USD",
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW__RAY_LLM__GPU_HOUR_PRICE", "2.5")
    monkeypatch.setenv("AIRFLOW__RAY_LLM__CURRENCY", "EUR")
    assert get(client_of(BOB), "settings")["gpu_hour_price"] == 2.5
    for price in ("2,5", "nan", "inf", "-1"):
        monkeypatch.setenv("AIRFLOW__RAY_LLM__GPU_HOUR_PRICE", price)
        assert get(client_of(BOB), "settings")["gpu_hour_price"] is None


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Storage that answers nothing, as long as the test runs."""
    answers = threading.Event()

    class Stalled(SliceView):
        def versions(self) -> list[Any]:
            answers.wait(120)
            return []

        def sample(self, *asked: Any) -> Any:
            return [], self.versions()

    monkeypatch.setattr(storage, "_READ_SECONDS", 0.02)
    monkeypatch.setattr(slice_view, "SliceView", Stalled)
    yield
    answers.set()
    wait_for(lambda: not storage._reading, 30)


def note_of(table: str, dag_id: str = "customers", state: State = "published") -> str:
    paths = slice_paths(f"{table}/ds=1")
    line = SliceLine(slice_key="1", table=paths.table, run_id="r", state=state)
    run = RunOfSlice(SliceEntry(slice_key="1", paths=asdict(paths)), line)
    return str(storage.read_stored(run, {"dag_id": dag_id, "task_id": "infer"}).note)


@pytest.mark.slow
@pytest.mark.usefixtures("stalled")
def test_table_whose_storage_does_not_answer_stops_no_other() -> None:
    notes = [note_of("/lake/bad") for _ in range(storage._READERS_OF_TABLE + 1)]
    assert all("did not answer" in text for text in notes[:-1])
    assert "still waiting" in notes[-1]
    assert "did not answer" in note_of("/lake/other")
    more = [note_of(f"/lake/bad{i % 8}", f"dag{i % 8}") for i in range(storage._READERS)]
    assert "still waiting" in more[-1]
    assert threading.active_count() < storage._READERS + 20


@pytest.mark.usefixtures("stalled")
def test_dag_does_not_take_all_readers_however_it_writes_its_tables() -> None:
    notes = [note_of(f"/lake/{'./' * i}own{i % 3}") for i in range(storage._READERS)]
    assert ["still waiting" in note for note in notes].index(True) <= storage._READERS_OF_DAG
    assert "did not answer" in note_of("/lake/victim", "mails")


@pytest.mark.usefixtures("stalled")
def test_few_processes_decode_samples_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "read_stored", lambda *of: storage.read_sample(*of, "published"))
    notes = [note_of(f"/lake/{i}") for i in range(storage._SAMPLERS_OF_DAG + 1)]
    assert ["still waiting" in note for note in notes] == [False] * storage._SAMPLERS_OF_DAG + [True]
    others = [note_of(f"/lake/of-{i}", f"dag{i}") for i in range(storage._SAMPLERS)]
    assert "did not answer" in others[0]
    assert "still waiting" in others[-1]


@pytest.mark.usefixtures("stalled")
def test_readers_of_a_table_are_counted_under_all_of_its_addresses(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "link").symlink_to("table")
    addresses = [f"{tmp_path}/{name}" for name in ("table", "./table", "link", "link/.", "link/../table")]
    notes = [note_of(address, f"dag{i}") for i, address in enumerate(addresses)]
    assert ["still waiting" in note for note in notes] == [False] * storage._READERS_OF_TABLE + [True]


def test_stored_text_that_no_answer_can_hold_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(SliceView):
        def versions(self) -> list[Any]:
            return []

        def progress(self) -> dict[str, Any]:
            return {"step": "\ud800"}

    monkeypatch.setattr(slice_view, "SliceView", Half)
    assert "cannot read the slice's folder" in note_of("/lake/half", state="running")


def make_hole(path: Path) -> None:
    with open(path, "wb") as f:
        f.truncate(1 << 40)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), make_hole])
@pytest.mark.parametrize(
    "name", ["progress.json", "commits/commit-000001.json", "../_tasks", "../table.json"]
)
def test_file_that_never_ends_holds_no_reader(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    task = {"dag_id": "customers", "task_id": "infer"}
    paths = slice_paths(f"{tmp_path}/out/ds=1")
    path = Path(paths.metadata) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    line = SliceLine(slice_key="1", table=paths.table, run_id="r", state="running")
    run = RunOfSlice(SliceEntry(slice_key="1", paths=asdict(paths)), line)
    for ask in (storage.read_stored, lambda *of: storage.read_sample(*of, "published")):
        assert "did not answer" not in str(ask(run, task).note)
    wait_for(lambda: not storage._reading, 30)


def test_list_does_not_load_what_no_task_writes(client_of: ClientOf, database: sessionmaker[Session]) -> None:
    """People may edit XComs."""
    with database() as session:
        runs = [Run("right"), Run("long", at=BEGIN + DAY, entry=figures(labels={"x" * 200_000: 1}))]
        write_runs(session, "mails", "long", runs)
        keep_runs(session, "mails", "long", [Run("kept", run_id="gone", entry=runs[1].entry)], "long")
    page = get(client_of(ANN), "dags/mails/tasks/long/slices")
    assert ([s["slice_key"] for s in page["slices"]], page["unreadable"]) == (["right"], 2)
    assert client_of(ANN).get("/ray-llm/api/dags/mails/tasks/long/runs/manual__long/-1").status_code == 404


def test_entry_of_another_version_is_counted_and_not_guessed(
    client_of: ClientOf, database: sessionmaker[Session]
) -> None:
    values = {
        "new": {"format": 99, "slice_key": "new", "paths": {}}, "broken": [1, 2],
        "text": json.dumps({"format": 1, "slice_key": "text", "paths": {}}),
    }  # fmt: skip
    with database() as session:
        if session.get_bind().dialect.name == "sqlite":  # PostgreSQL takes no half a character
            values["half"] = {"format": 1, "slice_key": "half", "paths": {}, "model": "\ud800"}
        write_runs(session, "mails", "other", [Run("right"), *(Run(key, at=BEGIN + DAY) for key in values)])
        for key, value in values.items():
            session.execute(
                update(XComModel.__table__)
                .where(XComModel.run_id == f"manual__{key}", XComModel.task_id == "other")
                .values(value=value)
            )
        session.commit()
    page = get(client_of(ANN), "dags/mails/tasks/other/slices")
    assert {s["slice_key"] for s in page["slices"]} == {"right", "text"}
    assert (page["unreadable"], page["total"]) == (len(values) - 1, len(values) + 1)
    assert "mails.other" in [f"{t['dag_id']}.{t['task_id']}" for t in get(client_of(ANN), "tasks")["tasks"]]
    assert client_of(ANN).get("/ray-llm/api/dags/mails/tasks/other/runs/manual__new/-1").status_code == 404


#: A task can push those that PostgreSQL takes; SQLite takes whatever somebody writes into the database.
UNREADABLE = {
    "deep text": json.dumps("[" * 20_000),
    "deep text of objects": json.dumps('{"a":' * 15_000),
    "wrong types": '{"format":[],"slice_key":{},"paths":5,"labels":[{}]}',
    "no format": '{"format":1e999,"slice_key":"k","paths":{}}',
    "long number": '{"format":1,"slice_key":"k","paths":{},"counts":{"planned":1' + "0" * 5000 + "}}",
    "deep": '{"format":1,"slice_key":"k","paths":{},"x":' + "[" * 20_000 + "]" * 20_000 + "}",
    "not a number": '{"format":NaN,"slice_key":"k","paths":{},"counts":{"planned":Infinity}}',
    "no JSON": "xxxx{",
    "nothing": "",
}
NO_JSONB = {"deep", "not a number", "no JSON", "nothing", "no format"}


@pytest.mark.slow
@pytest.mark.parametrize("trouble", UNREADABLE)
def test_trouble_of_one_entry_is_that_entry_s(
    client_of: ClientOf, database: sessionmaker[Session], trouble: str
) -> None:
    """One task must not take the page from everybody who may see it."""
    if database.kw["bind"].dialect.name == "postgresql" and trouble in NO_JSONB:
        pytest.skip("PostgreSQL does not take it")
    dag, task = f"mails {trouble}", "trouble"
    with pytest.MonkeyPatch.context() as patch, database() as session:
        patch.setitem(DAGS, ANN, DAGS[ANN] | {dag})
        write_runs(session, dag, task, [Run("right"), Run("bad", at=BEGIN + DAY)])
        keep_runs(session, dag, task, [Run("kept", run_id="gone")], dag)
        for change in (
            "UPDATE xcom SET value = :text WHERE dag_id = :dag AND run_id = 'manual__bad'",
            "UPDATE asset_state_store SET value = :text WHERE last_updated_by_dag_id = :dag",
        ):
            session.execute(sql(change), {"text": UNREADABLE[trouble], "dag": dag})
        session.commit()
        client = client_of(ANN)
        last = {t["dag_id"]: t["last"] for t in get(client, "tasks", limit=100)["tasks"]}
        assert [mark["slice_key"] for mark in last[dag]] == ["right"]
        assert last["customers"]
        page = get(client, f"dags/{dag}/tasks/{task}/slices")
        assert ([s["slice_key"] for s in page["slices"]], page["unreadable"]) == (["right"], 2)
        assert len(get(client, f"dags/{dag}/tasks/{task}/runs/manual__right/-1")["history"]) == 1
        bad = f"/ray-llm/api/dags/{dag}/tasks/{task}/runs/manual__bad/-1"
        assert [client.get(f"{bad}{part}").status_code for part in ("", "/stored")] == [404, 404]


@pytest.mark.slow
def test_history_outlives_what_airflow_cleans_where_the_task_has_an_asset(
    client_of: ClientOf, database: sessionmaker[Session]
) -> None:
    runs = [Run(f"2025-01-{day:02}", run_id=f"r{day}", at=BEGIN + day * DAY) for day in range(1, 6)]
    path = "dags/mails/tasks/daily/slices"
    with database() as session:
        write_runs(session, "mails_daily", "other", [Run("x")])
        write_runs(session, "mails", "daily", runs)
        keep_runs(session, "mails", "daily", runs, "lake")
        before = get(client_of(ANN), path)
        assert (before["total"], {s["archived"] for s in before["slices"]}) == (5, {False})
        clean_runs(session, "mails")
        write_runs(session, "mails", "daily", [Run("2025-01-06", run_id="r6", at=BEGIN + 9 * DAY)])
    for limit in (10, 4, 1):  # pages cross from the one to the other
        pages = [get(client_of(ANN), path, offset=o, limit=limit)["slices"] for o in range(0, 6, limit)]
        lines = [line for page in pages for line in page]
        assert [line["slice_key"] for line in lines] == [f"2025-01-{day:02}" for day in range(6, 0, -1)]
        assert [line["archived"] for line in lines] == [False] + [True] * 5
        assert {line["state"] for line in lines} == {"published"}
    assert get(client_of(ANN), "dags/mails/tasks/daily/runs/r3/-1")["line"]["archived"]
    # `airflow db clean --tables xcom`, and a task that ran again and failed before it knew its slice.
    with database() as session:
        write_runs(session, "mails", "daily", [Run("2025-01-05", "failed", run_id="r5")])
        session.execute(delete(XComModel).where(XComModel.dag_id == "mails", XComModel.run_id == "r5"))
        session.commit()
    newest = get(client_of(ANN), path)["slices"][1]
    assert (newest["slice_key"], newest["state"], newest["archived"]) == ("2025-01-05", "failed", False)
    assert get(client_of(ANN), "dags/mails/tasks/daily/runs/r5/-1")["line"] == newest
    assert client_of(BOB).get(f"/ray-llm/api/{path}").status_code == 403
    # A run that fails leaves what is kept of the one that published.
    with database() as session:
        write_runs(session, "mails", "daily", [Run("2025-01-02", "failed", run_id="r7", entry=None)])
    history = get(client_of(ANN), "dags/mails/tasks/daily/runs/r7/-1")["history"]
    assert [(line["run_id"], line["archived"]) for line in history] == [("r7", False), ("r2", True)]


def test_timezone_is_that_of_the_schedule_as_the_database_has_it(
    client_of: ClientOf, database: sessionmaker[Session]
) -> None:
    in_taipei = CronTriggerTimetable("0 0 * * *", timezone="Asia/Taipei")
    in_seoul = EventsTimetable([pendulum.datetime(2026, 1, 1, tz="Asia/Seoul")])
    with database() as session:
        write_runs(session, "photos", "zone", [Run("2026-01-01", run_id="z", entry=figures(timezone="UTC"))])
        version = write_dag(session, "photos")
        for timetable, expected in ((in_taipei, "Asia/Taipei"), (in_seoul, "UTC")):
            dag = DAG("photos", schedule=AssetOrTimeSchedule(timetable=timetable, assets=[Asset("a")]))
            session.execute(delete(SerializedDagModel))
            row = SerializedDagModel(LazyDeserializedDAG(data=DagSerialization.to_dict(dag)))
            row.dag_version_id = version
            session.add(row)
            session.commit()
            lines = get(client_of(BOB), "dags/photos/tasks/zone/slices")["slices"]
            assert [line["timezone"] for line in lines] == [expected]
        session.execute(delete(SerializedDagModel))
        session.commit()


def test_only_the_bundle_is_kept_by_browsers(client_of: ClientOf, database: sessionmaker[Session]) -> None:
    """Not answers about a task that is called as the bundle's folder is, nor that a file is not there."""
    with database() as session:
        write_runs(session, "mails", "static", [Run("2026-01-01", run_id="static")])
    for path in ("api/dags/mails/tasks/static/slices", "static/none.js"):
        answer = client_of(ANN).get(f"/ray-llm/{path}")
        assert answer.headers["cache-control"] == "no-store", path


def test_bundle_is_served_with_its_type(client_of: ClientOf) -> None:
    answer = client_of(NOBODY).get("/ray-llm/static/ray_llm.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]
    assert (app._WWW / "ray_llm.js").read_text() == answer.text
