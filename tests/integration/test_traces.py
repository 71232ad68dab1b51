"""One run of a task, as a real collector and a real StatsD server see it: from Airflow's task process, and
from the job on the cluster."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from tests.support.http_server import Request, http_server
from tests.support.paths import ROOT
from tests.support.slices import STUB

DAG = """
from airflow.sdk import DAG
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

with DAG("traced", schedule=None):
    RayLLMBatchOperator(
        task_id="ask", slice_key="2026-01-31", input_path="{place}/in.parquet", output_path="{place}/out",
        prompt="Who is {{name}}?", **{stub},
        runtime_env={{"env_vars": {{"OTEL_EXPORTER_OTLP_ENDPOINT": "{collector}"}}}},
    )
"""


class Collector:
    """Spans by name: their trace, id, parent and service."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[str, str, str, str]] = {}

    def take(self, request: Request) -> tuple[int, Any]:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        if request.path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = {a.key: a.value.string_value for a in group.resource.attributes}["service.name"]
                for span in (span for scope in group.scope_spans for span in scope.spans):
                    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                    self.spans[span.name] = (*ids, service)
        return 200, b""


@pytest.mark.long
def test_run_is_one_trace_across_airflow_and_the_cluster_and_its_figures_reach_statsd(
    ray_head: LocalHead, empty_database: Path, tmp_path: Path
) -> None:
    home, collector, packets = tmp_path / "home", Collector(), []
    (home / "dags").mkdir(parents=True)
    shutil.copy(empty_database, home / "airflow.db")
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(30)]}), tmp_path / "in.parquet")
    with http_server(collector.take) as address, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.bind(("127.0.0.1", 0))

        def listen() -> None:
            while packet := statsd.recv(2000):
                packets.append(packet.decode())

        threading.Thread(target=listen, daemon=True).start()
        (home / "dags" / "traced.py").write_text(
            DAG.format(place=tmp_path, collector=address, stub=STUB), encoding="utf-8"
        )
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.airflow_worker", "traced"], cwd=ROOT,
            env={
                **os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": str(ROOT),
                "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
                "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
                "AIRFLOW__TRACES__OTEL_ON": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": address,
                "OTEL_TRACES_EXPORTER": "otlp_proto_http", "OTEL_SERVICE_NAME": "airflow",
                "AIRFLOW__METRICS__STATSD_ON": "True", "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
                "AIRFLOW__METRICS__STATSD_PORT": str(statsd.getsockname()[1]),
            },
            capture_output=True, text=True,
        )  # fmt: skip
        statsd.sendto(b"", statsd.getsockname())
    log = (home / "logs" / "ask.log").read_text()
    assert done.returncode == 0, done.stderr[-5000:]
    assert "published: 30 rows" in log, log[-3000:]

    spans = collector.spans
    job, task = spans["ray_llm.job"], spans["worker.ask"]
    assert (task[3], job[3]) == ("airflow", "ray-llm")
    assert job[2] == task[1]
    steps = {name for name, span in spans.items() if span[2] == job[1]}
    assert steps == {
        f"ray_llm.job.{step}" for step in ("plan", "check", "engine_start", "inference", "publish")
    }
    ours = {name: span for name, span in spans.items() if name.startswith("ray_llm.")}
    assert {span[0] for span in ours.values()} == {task[0]}
    phases = {f"ray_llm.{phase}" for phase in ("queued", "engine_start", "inference", "publish")}
    assert {name for name, span in ours.items() if span[2] == task[1]} == phases | {"ray_llm.job"}

    names = {match[1] for packet in packets if (match := re.match(r"airflow\.(ray_llm\.[\w.]+)", packet))}
    documented = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert names >= {
        "ray_llm.slices", "ray_llm.counts.planned", "ray_llm.counts.succeeded", "ray_llm.rows_per_s",
        "ray_llm.tokens.input", *(f"ray_llm.seconds.{p.rpartition('.')[2]}" for p in phases),
    }  # fmt: skip
    assert all(name.rpartition(".")[0] in documented for name in names)
