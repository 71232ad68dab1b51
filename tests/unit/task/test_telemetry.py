"""What reaches a real StatsD server and OpenTelemetry's own exporter."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk.observability.metrics import stats_utils
from airflow.sdk.observability.stats import Stats
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from statsd import StatsClient

from airflow_provider_raydatallm.contract.result.report import (
    Cost,
    Counts,
    Report,
    Seconds,
    Throughput,
    Tokens,
)
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict
from airflow_provider_raydatallm.task import telemetry


def result_of(outcome: Any = "published") -> dict[str, Any]:
    report = Report(
        outcome=outcome, slice_key="2026-01-31", output_path="/out/ds=2026-01-31", published_version=1,
        fingerprint="f", counts=Counts(planned=10, succeeded=9, quarantined=1), tokens=Tokens(input=80),
        seconds=Seconds(engine_start=20, inference=5.5, publish=0.25), throughput=Throughput(rows_per_s=2),
        cost=Cost.of(3600.0, 2.5, rows=10, tokens=80),
        gates=tuple(GateVerdict(of="rows", value=9, min=1, verdict="passed") for _ in range(2)),
    )  # fmt: skip
    return report.to_xcom(report_path=None, ray_job_id="job-1", dashboard_url=None, queued=4.0, total=31.0)


def record(outcome: Any = "published") -> None:
    telemetry.record(result_of(outcome), dag_id="d", task_id="t", task_start=1000.0)


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.getsockname()[1]))
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
        Stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)
        yield server
        Stats.initialize(factory=NoStatsLogger, export_legacy_names=False)


def packets(server: socket.socket) -> set[str]:
    StatsClient(*server.getsockname()).incr("end")
    received: list[str] = []
    while not received or not received[-1].startswith("end"):
        received.append(server.recv(1000).decode())
    return set(received[:-1])


def test_statistics_of_a_slice_reach_statsd(statsd: socket.socket) -> None:
    record()
    assert {
        "airflow.ray_llm.slices,dag_id=d,task_id=t,outcome=published:1|c",
        "airflow.ray_llm.counts.succeeded,dag_id=d,task_id=t:9|g",
        "airflow.ray_llm.counts.quarantined,dag_id=d,task_id=t:1|g",
        "airflow.ray_llm.tokens.input,dag_id=d,task_id=t:80|g",
        "airflow.ray_llm.gates.passed,dag_id=d,task_id=t:2|c",
        "airflow.ray_llm.rows_per_s,dag_id=d,task_id=t:2.0|g",
        "airflow.ray_llm.cost,dag_id=d,task_id=t:2.5|g",
        "airflow.ray_llm.seconds.inference,dag_id=d,task_id=t:5500.000000|ms",
    } <= packets(statsd)


def test_slice_that_was_published_already_counts_no_rows_again(statsd: socket.socket) -> None:
    record("unchanged")
    assert packets(statsd) == {"airflow.ray_llm.slices,dag_id=d,task_id=t,outcome=unchanged:1|c"}


def test_phases_are_spans_below_the_tasks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    assert telemetry.trace_context() == {}
    with provider.get_tracer("airflow").start_as_current_span("worker.t") as task:
        record()
        assert (
            telemetry.trace_context()["traceparent"].split("-")[1]
            == f"{task.get_span_context().trace_id:032x}"
        )
    *phases, _ = exporter.get_finished_spans()
    assert [(s.name, s.start_time / 1e9, s.end_time / 1e9) for s in phases] == [
        ("ray_llm.queued", 1000.0, 1004.0), ("ray_llm.engine_start", 1004.0, 1024.0),
        ("ray_llm.inference", 1024.0, 1029.5), ("ray_llm.publish", 1029.5, 1029.75),
    ]  # fmt: skip
    assert {s.parent.span_id for s in phases} == {task.get_span_context().span_id}
    assert dict(phases[0].attributes) == {"ray_llm.slice_key": "2026-01-31", "ray_llm.job": "job-1"}


def test_no_failure_of_the_statistics_fails_the_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("no such host")

    monkeypatch.setattr(Stats, "incr", lambda *a, **k: fail())
    record()
    assert "statistics lack this slice: OSError: no such host" in caplog.text
