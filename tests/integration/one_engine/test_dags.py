"""The example DAGs by real Airflow; the daily one on real Ray and real vLLM."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.task.slice_entry import INDEX_KEY, SliceEntry
from demo.customers import industry_of, write_customers
from demo.spec import spec_of
from tests.support.endpoint import completion, endpoint
from tests.support.paths import ROOT
from tests.support.smtp_server import mail_server

#: A first run's task log has no other line.
_OURS = re.compile(
    "Slice 2026-|Submitted Ray job |Its dashboard asks for a token|planning the slice|checking the cluster|::"
    "|(?:rows|engine|workers|resources|expected) |queued: |starting the engine|answering: |publishing"
    "|published: 600 rows in |Before the first row: "
)

AIRFLOW = str(Path(sys.executable).parent / "airflow")


def test_dag_bag_takes_every_example() -> None:
    bag = DagBag(ROOT / "dags")
    assert bag.import_errors == {}
    assert set(bag.dags) == {p.stem for p in (ROOT / "dags").glob("*.py")}
    assert "slice" in bag.dags["customers_form"].params


def test_examples_resolve_their_slices() -> None:
    bag = DagBag(ROOT / "dags")

    def key(dag_id: str, **context: Any) -> str:
        dag = bag.dags[dag_id]
        if dag_id == "customers_form":
            dag.tasks[0].source = None  # a template that nobody renders here
        given = {"dag": dag, "dag_run": SimpleNamespace(run_type="scheduled", conf={}), "params": {}}
        return dag.tasks[0].slice_job({**given, **context})[0].slice_key  # type: ignore[union-attr]

    midnight = dt.datetime(2026, 1, 30, 23, tzinfo=dt.UTC)
    assert key("customers_daily", data_interval_start=midnight) == "2026-01-30"
    assert key("customers_hourly", data_interval_start=midnight) == "2026-01-31T00+0100"
    key_and_date = {"partition_key": "2026-01-30", "partition_date": midnight - dt.timedelta(days=1)}
    partition = SimpleNamespace(run_type="scheduled", conf={}, **key_and_date)
    assert key("customers_partitioned", dag_run=partition) == "2026-01-30"
    conf = {"slice": "2026-02-01"}
    by_hand = SimpleNamespace(run_type="manual", conf=conf)
    assert key("customers_form", params=conf, dag_run=by_hand, logical_date=midnight) == "2026-02-01"
    with pytest.raises(RayLLMInputError, match="partitioned DAG has no partition_key"):
        key("customers_partitioned", logical_date=midnight)


def xcom(database: Path, dag_id: str, key: str = "return_value") -> list[Any]:
    """Returns what Airflow's database has, the latest last."""
    with sqlite3.connect(database) as connection:
        found = connection.execute(
            "select value from xcom where dag_id = ? and key = ? order by timestamp", (dag_id, key)
        ).fetchall()
    values = [json.loads(text) for (text,) in found]
    # Airflow 3.2 keeps a text of what it has as JSON.
    return [json.loads(v) if isinstance(v, str) and v[0] in '{["' else v for v in values]


def run_dag(dag_id: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [AIRFLOW, "dags", "test", dag_id, *arguments], env={**os.environ, **environment}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout + done.stderr


@pytest.fixture
def demo_environment(ray_head: LocalHead, tiny_model: Path, tmp_path: Path) -> dict[str, str]:
    """Of the examples: two days of 600 customers each, and where their industries go."""
    write_customers(tmp_path / "customers", ["2026-01-01", "2026-01-02"], 1200)
    return {
        "RAY_LLM_DEMO_INPUT": str(tmp_path / "customers"),
        "RAY_LLM_DEMO_OUTPUT": str(tmp_path / "out"),
        "RAY_LLM_DEMO_MODEL": str(tiny_model),
    }


def test_daily_dag_publishes_its_day_with_a_real_model(
    demo_environment: dict[str, str], tiny_model: Path, airflow_database: Path, tmp_path: Path
) -> None:
    elsewhere = {
        "AIRFLOW__CORE__XCOM_BACKEND": "airflow.providers.common.io.xcom.backend.XComObjectStorageBackend",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH": f"file://{tmp_path}/xcoms",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD": "0",
    }
    # Made at the end of its day.
    said = run_dag("customers_daily", "2026-01-02", **demo_environment, **elsewhere)
    lines = re.findall(r"\[info +\] (.*?) +\[airflow\.task\.operators", said)
    assert [line for line in lines if not _OURS.match(line)] == []
    plan = lines[lines.index("::group::Plan") + 1 : lines.index("::endgroup::")]
    assert [line.split()[0] for line in plan] == ["rows", "engine", "workers", "resources", "expected"]
    assert len(lines) < 25
    assert "\x1b" not in "".join(lines)
    # `dags test` was given the day that makes the run, and its run is kept as that day's.
    warnings = re.findall(r"\[warning +\] (.*?) +\[airflow\.task\.operators", said)
    assert [line.split(",")[0] for line in warnings] == [
        "The slice is 2026-01-01", "Airflow keeps this run",
    ]  # fmt: skip
    assert len(lines) + len(warnings) == said.count("[airflow.task.operators")

    folder = tmp_path / "out" / "ds=2026-01-01"
    rows = pq.read_table(folder, partitioning=None).to_pylist()
    source = pd.read_csv(
        tmp_path / "customers" / "ds=2026-01-01" / "customers.csv", dtype=str, keep_default_na=False
    )
    assert [{k: v for k, v in r.items() if k != "industry"} for r in rows] == source.to_dict("records")
    assert pd.read_parquet(folder).drop(columns=["ds"], errors="ignore").to_dict("records") == rows
    right = sum(industry_of(r["Company"]) == r["industry"] for r in rows) / len(rows)
    assert right >= 0.95

    # The XCom backend has the result, and Airflow's database what its servers and the page read.
    (address,) = xcom(airflow_database, "customers_daily")
    result = json.loads(Path(address.removeprefix("file://")).read_text())
    (written,) = xcom(airflow_database, "customers_daily", INDEX_KEY)
    entry = SliceEntry.parse(written)
    assert entry is not None
    assert entry.counts == result["counts"]
    report = json.loads(Path(result["report_path"]).read_text())
    assert report["counts"]["planned"] == report["counts"]["succeeded"] == 600
    assert report["tokens"]["input"] > 600 * 10
    assert 0 <= report["tokens"]["cached"] < report["tokens"]["input"]
    assert (report["counts"]["truncated"], report["balance"]) == (0, {"workers": 1, "max_over_mean": 1.0})
    if report["seconds"]["inference"] > 2:  # each half second is a sample: a warm engine may need less
        assert 0 < report["utilisation"]["cpu_mean"] <= 100
        assert 0 < report["utilisation"]["memory_max"] <= 100
        assert max(busy or 0 for busy in report["history"]["cpu_busy"]) > 0
    assert sum(report["history"]["rows"]) == sum(worker["rows"] for worker in report["per_worker"]) == 600
    assert {"history", "per_worker"} & result.keys() == set()
    asked = spec_of("2026-01-01", tmp_path).model_copy(update={"model_source": str(tiny_model)})
    assert report["fingerprint"] == fingerprint(asked)  # what the demo writes for `plan` is what it runs
    assert (
        0
        < report["throughput"]["rows_per_s"]
        == pytest.approx(600 / report["seconds"]["inference"], rel=0.01)
    )
    for name, value in report.items():
        if name == "seconds":
            assert {k: result["seconds"][k] for k in value} == value
        elif name not in ("version", "history", "per_worker"):
            assert result[name] == value, name
    assert set(result) - set(report) == {"ray_job_id", "dashboard_url", "report_path", "gpus_held"}
    assert set(result["seconds"]) - set(report["seconds"]) == {"queued", "total"}


@pytest.mark.long
def test_form_actions_and_mapped_tasks_of_the_examples_work(
    demo_environment: dict[str, str], airflow_database: Path, tmp_path: Path
) -> None:
    # The form's DAG, with a question of one's own and a few rows: Params are templates, and the output is a
    # trial.
    params = {"slice": "2026-01-02", "prompt": "Which industry is {Company} in?", "max_rows": 20}
    run_dag("customers_form", "-c", json.dumps(params), **demo_environment)
    # In a table of the person who triggered it.
    (file,) = (tmp_path / "out_form.trial").glob("*/ds=2026-01-02/*.parquet")
    trial = pq.read_table(file, partitioning=None).to_pylist()
    assert len(trial) == 20
    assert all(r["answer"] for r in trial)

    # As the page's actions start it: its Params are templates of other types, too.
    conf = {"slice": "2026-01-02", "force": True, "retry_quarantined": True, "max_quarantine": 1}
    run_dag("customers_operated", "-c", json.dumps(conf), **demo_environment)
    (operated,) = xcom(airflow_database, "customers_operated")
    assert (operated["outcome"], operated["slice_key"]) == ("published", "2026-01-02")
    assert sum(operated["labels"].values()) == operated["counts"]["succeeded"] == 600

    # A table made of another one, by hand.
    run_dag("customers_asset", "2026-01-02", **demo_environment)
    run_dag("customers_chained", "-c", json.dumps({"slice": "2026-01-01"}), **demo_environment)
    (chained,) = [r for r in xcom(airflow_database, "customers_chained") if isinstance(r, dict)]
    assert (chained["outcome"], chained["slice_key"]) == ("published", "2026-01-01")
    assert chained["counts"]["succeeded"] == 600

    # Mapped over slices: each task shows its slice.
    run_dag("customers_mapped", "-c", json.dumps({"slice": "2026-01-01"}), **demo_environment)
    (mapped,) = [r for r in xcom(airflow_database, "customers_mapped") if isinstance(r, dict)]
    assert (mapped["outcome"], mapped["slice_key"]) == ("published", "2026-01-01")
    with sqlite3.connect(airflow_database) as connection:
        shown = connection.execute(
            "select rendered_map_index from task_instance where dag_id = 'customers_mapped' and map_index "
            ">= 0"
        ).fetchall()
    assert shown == [("2026-01-01",)]


@pytest.mark.long
def test_endpoint_dag_has_an_endpoint_answer(
    ray_head: LocalHead, airflow_database: Path, tmp_path: Path
) -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return completion('{"answer": "Healthcare"}')

    write_customers(tmp_path / "customers", ["2026-01-01"], 600)
    with endpoint(respond) as served:
        run_dag(
            "customers_endpoint",
            "2026-01-02",
            RAY_LLM_DEMO_INPUT=str(tmp_path / "customers"),
            RAY_LLM_DEMO_OUTPUT=str(tmp_path / "out"),
            RAY_LLM_EXAMPLE_ENDPOINT=served.url,
            AIRFLOW_CONN_LLM_ENDPOINT="http://:sk-of-the-endpoint@127.0.0.1",
        )
    table = pq.read_table(tmp_path / "out_by_endpoint" / "ds=2026-01-01", partitioning=None)
    assert table.column("industry").to_pylist() == ["Healthcare"] * 600
    assert {headers["Authorization"] for headers, _ in served.requests} == {"Bearer sk-of-the-endpoint"}


@pytest.mark.long
def test_on_duty_dag_mails_what_failed(ray_head: LocalHead, airflow_database: Path, tmp_path: Path) -> None:
    with mail_server() as mails:
        demo = {"INPUT": str(tmp_path / "nothing"), "OUTPUT": str(tmp_path / "out"), "MODEL": "m/m"}
        subprocess.run(
            [AIRFLOW, "dags", "test", "customers_on_duty", "2026-01-02"],
            env={
                **os.environ, **{f"RAY_LLM_DEMO_{name}": value for name, value in demo.items()},
                "AIRFLOW_CONN_SMTP_DEFAULT": mails.connection,
            },
            capture_output=True,
        )  # fmt: skip
    [mail] = mails.with_subject("customers_on_duty.infer_industry: slice 2026-01-01 failed")
    assert "RayLLMInputError. The DAG, the connection or the data is wrong" in mail
    assert re.search('<a href="http[^"]+/plugin/ray-llm/dags/customers_on_duty/[^"]+">Slice</a>', mail)
    assert re.search('<a href="http[^"]+">Ray job</a>', mail)
