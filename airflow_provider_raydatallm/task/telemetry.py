"""What a finished slice adds to Airflow's own statistics and traces: to StatsD or OpenTelemetry, wherever
Airflow's `[metrics]` and `[traces]` send them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from airflow.sdk.observability.stats import Stats
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

log = logging.getLogger(__name__)

#: In the order in which a run passes them, as `seconds` in the task's result has them.
_PHASES = ("queued", "engine_start", "inference", "publish")
_NANOSECONDS = 1_000_000_000


def record(result: dict[str, Any], *, dag_id: str, task_id: str, task_start: float) -> None:
    """Sends a task's result: counters and times of its run, and a span for each phase below the task's own.
    No failure here fails the task.

    :param task_start: epoch seconds.
    """
    tags = {"dag_id": dag_id, "task_id": task_id}
    try:
        Stats.incr("ray_llm.slices", tags={**tags, "outcome": result["outcome"]})
        if result["outcome"] == "published":  # else the run that did the work has told already
            _send_figures(result, tags)
            _add_spans(result, task_start)
    except Exception as e:
        log.warning("Airflow's statistics lack this slice: %s: %s", type(e).__name__, e)


def _send_figures(result: dict[str, Any], tags: dict[str, str]) -> None:
    for section in ("counts", "tokens"):
        for name, value in result[section].items():
            if value is not None:
                Stats.gauge(f"ray_llm.{section}.{name}", value, tags=tags)
    for verdict, gates in Counter(gate["verdict"] for gate in result.get("gates") or ()).items():
        Stats.incr(f"ray_llm.gates.{verdict}", gates, tags=tags)
    if (rate := result["throughput"]["rows_per_s"]) is not None:
        Stats.gauge("ray_llm.rows_per_s", rate, tags=tags)
    if (cost := result.get("cost")) is not None:
        Stats.gauge("ray_llm.cost", cost["total"], tags=tags)
    for phase, seconds in _phases(result):
        Stats.timing(f"ray_llm.seconds.{phase}", timedelta(seconds=seconds), tags=tags)


def trace_context() -> dict[str, str]:
    """Returns the W3C `traceparent` of the task's span, for what runs elsewhere; {} without a trace."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


def _phases(result: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for phase in _PHASES:
        if (seconds := result["seconds"].get(phase)) is not None:
            yield phase, seconds


def _add_spans(result: dict[str, Any], task_start: float) -> None:
    """The phases follow each other: the report has how long each took, by the cluster's clock."""
    tracer = trace.get_tracer(__name__)
    start = int(task_start * _NANOSECONDS)
    for phase, seconds in _phases(result):
        end = start + int(seconds * _NANOSECONDS)
        attributes = {"ray_llm.slice_key": result["slice_key"], "ray_llm.job": result["ray_job_id"] or ""}
        span = tracer.start_span(f"ray_llm.{phase}", start_time=start, attributes=attributes)
        span.end(end)
        start = end
