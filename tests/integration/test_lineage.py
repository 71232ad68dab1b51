"""What real Airflow and the real OpenLineage listener make of a task's end: rows of `asset_event`, and a file
of OpenLineage events. The tasks are in `outlet_dags/`."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.api.datamodels._generated import AssetReferenceAssetEventDagRun
from airflow.sdk.execution_time.comms import AssetEventDagRunReferenceResult
from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor

from airflow_provider_raydatallm.processor.slice_run import run_slice
from tests.support.in_process import InProcess, job_of
from tests.support.paths import ROOT

#: `airflow dags test` makes no run with a partition key, so this does what it does for a run that has one.
PARTITIONED_RUN = """
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import timezone
from airflow.sdk.definitions.dag import _run_task
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType, DagRunType

dag = DagBag("tests/integration/outlet_dags").dags["by_partition"]
stored = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
with create_session() as session:
    run = stored.create_dagrun(
        run_id="p", run_after=timezone.utcnow(), run_type=DagRunType.MANUAL, state="running",
        triggered_by=DagRunTriggeredByType.TEST, partition_key="2026-01-01", session=session,
    )
    tis = run.get_task_instances(session=session)
for ti in tis:
    _run_task(ti=ti, task=dag.get_task(ti.task_id))
"""


class Told(NamedTuple):
    database: Path
    lineage: list[dict[str, Any]]

    def events(self, task: str, dag: str = "outlets") -> list[tuple[str, str | None, dict[str, Any]]]:
        """Asset, partition and extra of each event."""
        with sqlite3.connect(self.database) as connection:
            rows = connection.execute(
                "select a.name, e.partition_key, e.extra from asset_event e "
                "join asset a on a.id = e.asset_id "
                "where e.source_dag_id = ? and e.source_task_id = ? order by a.name",
                (dag, task),
            ).fetchall()
        return [(name, partition, json.loads(extra)) for name, partition, extra in rows]

    def queued(self) -> set[tuple[str, str]]:
        """DAGs that are to run, and the assets that say so."""
        with sqlite3.connect(self.database) as connection:
            return set(
                connection.execute(
                    "select q.target_dag_id, a.name from asset_dag_run_queue q "
                    "join asset a on a.id = q.asset_id"
                )
            )

    def states(self) -> dict[str, str]:
        with sqlite3.connect(self.database) as connection:
            return dict(
                connection.execute("select task_id, state from task_instance where dag_id = 'outlets'")
            )

    def last(self, task: str) -> dict[str, Any]:
        return [e for e in self.lineage if e["job"]["name"] == f"outlets.{task}"][-1]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Told:
    home = tmp_path_factory.mktemp("airflow")
    events = home / "lineage.jsonl"
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "tests" / "integration" / "outlet_dags"),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "false",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
            {"type": "file", "log_file_path": str(events), "append": True}
        ),
    }  # fmt: skip

    def run(*command: str) -> str:
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        return done.stdout + done.stderr

    airflow = str(Path(sys.executable).parent / "airflow")
    shutil.copy(empty_database, home / "airflow.db")
    run(airflow, "dags", "reserialize")
    output = run(airflow, "dags", "test", "outlets") + run(sys.executable, "-c", PARTITIONED_RUN)
    assert events.is_file(), output[-5000:]
    return Told(home / "airflow.db", [json.loads(line) for line in events.read_text().splitlines()])


def test_event_carries_the_figures_to_every_asset(told: Told) -> None:
    (one, two) = told.events("published")
    assert [one[:2], two[:2]] == [("one", None), ("s3://lake/two", None)]
    assert one[2] == two[2]
    assert one[2] == {
        "outcome": "published", "slice_key": "2026-01-31", "output_path": "s3://lake/enriched/ds=2026-01-31",
        "published_version": None, "fingerprint": one[2]["fingerprint"], "ray_job_id": "ray-1",
        "counts": {"planned": 10, "succeeded": 9, "quarantined": 1}, "trial": None, "gates": [],
    }  # fmt: skip


def test_event_of_an_unchanged_slice_says_so(told: Told) -> None:
    ((name, partition, extra),) = told.events("unchanged")
    assert (name, partition, extra["outcome"], extra["ray_job_id"]) == ("one", None, "unchanged", None)


def test_skipped_and_failed_tasks_emit_no_event(told: Told) -> None:
    assert (told.states()["skipped"], told.states()["failed"]) == ("skipped", "failed")
    assert told.events("skipped") == told.events("failed") == []


def test_deferred_task_emits_its_event_when_it_resumed(told: Told) -> None:
    ((name, _, extra),) = told.events("deferred")
    assert (name, extra["outcome"]) == ("one", "published")


def test_partition_is_the_runs_or_none_unless_it_is_asked_for(told: Told) -> None:
    assert [e[:2] for e in told.events("keyed")] == [("one", "2026-01-31")]
    # The API server puts a run's own key on its events, and nothing else is put there.
    assert [e[:2] for e in told.events("published", "by_partition")] == [
        ("enriched", "2026-01-01"),
        ("one", "2026-01-01"),
    ]
    assert [e[:2] for e in told.events("keyed", "by_partition")] == [("one", "2026-01-01")]


def test_alias_gets_the_asset_of_the_output_table(told: Told) -> None:
    ((declared, _, extra),) = told.events("aliased")
    assert (declared, extra["outcome"]) == ("enriched", "published")
    ((made, _, _),) = told.events("aliased_new")
    assert made == "file:///new"


def test_reference_is_resolved_and_one_to_nothing_fails_no_task(told: Told) -> None:
    assert told.states()["referred"] == "success"
    assert [(name, e["outcome"]) for name, _, e in told.events("referred")] == [("one", "published")]


def test_unpartitioned_events_start_the_dags_scheduled_by_the_asset(told: Told) -> None:
    assert told.queued() == {("consumer", "one"), ("consumer", "enriched")}


def test_lineage_names_both_tables_and_the_slice(told: Told) -> None:
    event = told.last("published")
    (read,), (written,) = event["inputs"], event["outputs"]
    assert event["eventType"] == "COMPLETE"
    assert (read["namespace"], read["name"]) == ("s3://lake", "customers")
    assert (written["namespace"], written["name"]) == ("s3://lake", "enriched")
    partitions = [{"dimensions": {"ds": "2026-01-31"}}]
    assert read["inputFacets"]["subset"]["inputCondition"]["partitions"] == partitions
    assert written["outputFacets"]["subset"]["outputCondition"]["partitions"] == partitions
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 10
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 9


@pytest.mark.parametrize("task", ["published", "deferred", "plain"])
def test_lineage_tells_model_figures_and_job(told: Told, task: str) -> None:
    facet = told.last(task)["run"]["facets"]["rayDataLLM_slice"]
    assert {k: v for k, v in facet.items() if k[0] != "_" and k != "fingerprint"} == {
        "sliceKey": "2026-01-31",
        "model": "tiny",
        "engine": "vllm",
        "outcome": "published",
        "counts": {"planned": 10, "succeeded": 9, "quarantined": 1},
        "tokens": {"input": 100, "output": 20},  # numbers, which no name of theirs has masked
        "rayJobId": "ray-1",
        "reportPath": "s3://lake/enriched.ray_llm/ds=2026-01-31/reports/report-000001.json",
        "quarantinePath": "s3://lake/enriched.quarantine/ds=2026-01-31",
    }


@pytest.mark.parametrize(("task", "outcome"), [("unchanged", "unchanged"), ("skipped", None)])
def test_lineage_of_a_run_that_wrote_nothing_has_no_statistics(
    told: Told, task: str, outcome: str | None
) -> None:
    event = told.last(task)
    assert event["eventType"] == "COMPLETE"
    assert [set(d["outputFacets"]) for d in event["outputs"]] == [{"subset"}]
    assert event["run"]["facets"]["rayDataLLM_slice"].get("outcome") == outcome


def test_lineage_of_a_failed_run_has_its_error_and_its_job(told: Told) -> None:
    event = told.last("failed")
    facets = event["run"]["facets"]
    assert event["eventType"] == "FAIL"
    assert facets["errorMessage"]["message"] == "the engine died"
    assert facets["rayDataLLM_slice"]["rayJobId"] == "ray-1"
    assert [d["name"] for d in event["inputs"] + event["outputs"]] == ["customers", "enriched"]


def test_lineage_is_told_at_the_start_already(told: Told) -> None:
    starts = [e for e in told.lineage if e["job"]["name"] == "outlets.deferred" and e["eventType"] == "START"]
    assert len(starts) == 2  # the second when it resumed; of one run for OpenLineage
    assert len({e["run"]["runId"] for e in starts}) == 1
    assert [d["name"] for d in starts[0]["inputs"] + starts[0]["outputs"]] == ["customers", "enriched"]


def test_example_consumer_counts_the_slices_that_were_published(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["ann", "bob"]}), tmp_path / "in.parquet")
    job = job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out", output_column="industry")
    report = run_slice(job, lambda progress: None, InProcess())
    asset = AssetReferenceAssetEventDagRun(name="customers_enriched", uri="customers_enriched", extra={})
    events = TriggeringAssetEventsAccessor.build(
        AssetEventDagRunReferenceResult(
            asset=asset,
            extra={"output_path": path, "outcome": outcome},
            source_task_id="t",
            source_dag_id="d",
            source_run_id="r",
            source_map_index=-1,
            source_aliases=[],
            timestamp=dt.datetime.now(dt.UTC),
        )
        for path, outcome in [(report.output_path, "published"), ("/not/looked/at", "unchanged")]
    )
    dag = DagBag(ROOT / "dags").dags["customers_by_industry"]
    counted = dag.get_task("count").python_callable(triggering_asset_events=events)
    assert counted == {report.output_path: {"ann": 1, "bob": 1}}
