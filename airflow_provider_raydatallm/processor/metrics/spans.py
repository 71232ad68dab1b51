"""Sends a run's steps as OpenTelemetry spans, in the trace of the task that submitted the job.

Only where OpenTelemetry is configured on the cluster: by a tracer provider that this process has already, or
by OpenTelemetry's standard variables and an installed exporter. No failure here fails the run, or holds its
end for longer than `_FLUSH_SECONDS`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.processor.ray_runtime.own_task import own_job, own_metadata

logger = logging.getLogger(__name__)

_EXPORTER = "OTEL_TRACES_EXPORTER"
_CONFIGURED = (_EXPORTER, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_FLUSH_SECONDS = 3.0
#: The spans of a progress's steps, of those that have one.
_SPANS = {
    "plan": "plan",
    "check": "check",
    "attach": "attach",
    "queued": "queue",
    "start": "engine_start",
    "answer": "inference",
    "publish": "publish",
}


class RunSpans:
    """The span `ray_llm.job` and below it one for each step, which begins when the step before it ends.

    :param tracer: None where nothing is configured; then this does nothing.
    :param parent: context of the task's span.
    """

    def __init__(self, tracer: Any = None, parent: Any = None) -> None:
        self._tracer, self._parent = tracer, parent
        self._root: Any = None
        self._step: Any = None
        self._name: str | None = None

    def begin(self, slice_key: str) -> None:
        if self._tracer is not None:
            job = own_job() or ""
            attributes = {"ray_llm.slice_key": slice_key, "ray_llm.job": job}
            self._root = self._tracer.start_span("ray_llm.job", self._parent, attributes=attributes)

    def enter(self, step: str) -> None:
        """:param step: of a progress."""
        name = _SPANS.get(step)
        if self._root is None or name is None or name == self._name:
            return
        from opentelemetry.trace import set_span_in_context

        self._end_step()
        self._name = name
        self._step = self._tracer.start_span(f"ray_llm.job.{name}", set_span_in_context(self._root))

    def succeed(self, report: Report) -> None:
        if self._root is not None:
            figures = {"ray_llm.outcome": report.outcome, "ray_llm.rows": report.counts.succeeded}
            self._root.set_attributes(figures)
            self._end()

    def fail(self, error: BaseException) -> None:
        """:param error: its text, which may quote rows, is left out."""
        if self._root is not None:
            from opentelemetry.trace import Status, StatusCode

            for span in filter(None, (self._step, self._root)):
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            self._end()

    def _end(self) -> None:
        self._end_step()
        self._root.end()
        self._root = None

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.end()
            self._step = None


@contextlib.contextmanager
def run_spans() -> Iterator[RunSpans]:
    """Yields the spans of this process's run, and sends what is left of them at the end."""
    try:
        provider, is_own = _provider()
        spans = RunSpans() if provider is None else RunSpans(provider.get_tracer(__name__), _parent())
    except Exception as e:
        logger.warning("no spans are sent: %s: %s", type(e).__name__, e)
        provider, is_own, spans = None, False, RunSpans()
    try:
        yield spans
    except BaseException as e:
        spans.fail(e)
        raise
    finally:
        if provider is not None:
            sender = threading.Thread(
                target=provider.shutdown if is_own else provider.force_flush, daemon=True
            )
            sender.start()
            sender.join(_FLUSH_SECONDS)


def _provider() -> tuple[Any, bool]:
    """Returns the tracer provider, if there is one, and whether it was made here.

    :raises ImportError, LookupError: when a collector is configured, and a package is missing that it needs.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get(_EXPORTER) == "none":
        return None, False
    is_configured = any(map(os.environ.get, _CONFIGURED))
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError:
        if is_configured:
            raise
        return None, False
    if isinstance(provider := trace.get_tracer_provider(), TracerProvider):
        return provider, False
    if not is_configured:
        return None, False
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = Resource({"service.name": os.environ.get("OTEL_SERVICE_NAME", "ray-llm")})
    provider = TracerProvider(resource=Resource.create().merge(named))
    provider.add_span_processor(BatchSpanProcessor(_exporter()))
    return provider, True


def _exporter() -> Any:
    """:raises LookupError: when no package has the one that the environment names."""
    name = os.environ.get(_EXPORTER, "otlp")
    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http")
        name = f"otlp_proto_{protocol.partition('/')[0]}"
    found = next(iter(entry_points(group="opentelemetry_traces_exporter", name=name)), None)
    if found is None:
        package = f"opentelemetry-exporter-{name.replace('_', '-')}"
        raise LookupError(f"no package has the exporter {name!r}: install {package} on the cluster's nodes")
    return found.load()()


def _parent() -> Any:
    """Returns the context of the span of the task that submitted this job."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(own_metadata())
