"""The spans of a run: by OpenTelemetry's own exporter in memory. `tests/integration/test_traces.py` has them
sent to a collector."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor import slice_run
from airflow_provider_raydatallm.processor.__main__ import main
from airflow_provider_raydatallm.processor.metrics import spans as spans_module
from airflow_provider_raydatallm.processor.metrics.spans import run_spans
from airflow_provider_raydatallm.processor.ray_runtime import own_phase
from tests.support.http_server import Request, http_server
from tests.support.in_process import InProcess, job_of

TASK = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def _no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Of a process that has a tracer provider already, in a job that a task with a span submitted."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    metadata = {"traceparent": TASK, "job_submission_id": "job-1", "dag_id": "d", "task_id": "t"}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"metadata": metadata}))
    monkeypatch.setattr(own_phase, "say_admitted", lambda: None)  # there is no such job on a cluster
    return exporter


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(slice_run, "RayCluster", InProcess)
    pq.write_table(pa.table({"name": ["Jane"] * 30}), tmp_path / "in.parquet")
    job = job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out")
    (tmp_path / "spec.json").write_text(job.model_dump_json(exclude_defaults=True))
    return tmp_path / "spec.json"


def test_each_step_of_a_run_is_a_span_in_the_tasks_trace(exporter: InMemorySpanExporter, spec: Path) -> None:
    assert main(["run", str(spec)]) == 0
    *steps, root = exporter.get_finished_spans()
    assert [s.name.rpartition(".")[2] for s in steps] == [
        "plan", "check", "engine_start", "inference", "publish",
    ]  # fmt: skip
    assert root.name == "ray_llm.job"
    assert f"{root.context.trace_id:032x}" == TASK.split("-")[1]
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == TASK.split("-")[2]
    assert {s.parent and s.parent.span_id for s in steps} == {root.context.span_id}
    assert dict(root.attributes or {}) == {
        "ray_llm.slice_key": "2026-01-31", "ray_llm.job": "job-1", "ray_llm.outcome": "published",
        "ray_llm.rows": 30,
    }  # fmt: skip
    ends = [s.end_time for s in steps]
    assert [s.start_time for s in steps[1:]] >= ends[:-1]


def test_failed_run_names_the_class_of_its_error_only(
    exporter: InMemorySpanExporter, spec: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    def fail(batch: pa.Table) -> None:
        raise SliceError("row 7: Jane", kind="transient")

    monkeypatch.setattr(slice_run, "RayCluster", lambda: InProcess(before_batch=fail))
    assert main(["run", str(spec)]) == 1
    *_, step, root = exporter.get_finished_spans()
    assert step.name == "ray_llm.job.engine_start"
    assert [(s.status.is_ok, s.status.description) for s in (step, root)] == [(False, "SliceError")] * 2
    assert all("Jane" not in s.to_json() for s in exporter.get_finished_spans())


def test_without_a_collector_nothing_is_sent_or_imported(spec: Path, capfd: Any) -> None:
    assert main(["run", str(spec)]) == 0
    with run_spans() as spans:
        spans.begin("k")
        spans.enter("plan")
    assert "span" not in capfd.readouterr().err


def test_collector_that_is_away_or_hangs_does_not_hold_the_run(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans_module, "_FLUSH_SECONDS", 0.2)

    run_ended = threading.Event()

    def hang(request: Request) -> tuple[int, Any]:
        run_ended.wait(120)
        return 200, b""

    with http_server(hang) as address:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
        began = time.monotonic()
        with run_spans() as spans:
            spans.begin("k")
            spans.enter("plan")
            spans.fail(ValueError())
        waited_s = time.monotonic() - began
        run_ended.set()
        assert waited_s < 30


def test_missing_exporter_is_said_and_does_not_fail_the_run(
    spec: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")

    monkeypatch.setattr(spans_module, "entry_points", lambda **_: ())
    with run_spans() as spans:
        spans.begin("k")
    assert "no package has the exporter 'otlp_proto_http': install opentelemetry-exporter-" in caplog.text


@pytest.mark.parametrize(("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
def test_opentelemetrys_own_switches_count(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with run_spans() as spans:
        spans.begin("k")
    assert exporter.get_finished_spans() == ()
