"""The figures of a run in Prometheus, through the metrics agent that Ray has on each node.

All of them are gauges, also what only grows (`rate()` does not mind): Ray forgets a gauge that was not set
for 20 s, so that the figures of a run end with it, and keeps each series of a counter for as long as the node
lives. There are never more series than runs at work, however long the backfill. What nodes do (GPUs, CPUs,
memory) Ray exports by itself.
"""

from __future__ import annotations

import functools
import string
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from airflow_provider_raydatallm.contract.spec import SliceJob

#: Ray puts this before the names.
NAMESPACE = "ray"
TAGS = ("table", "slice")
#: By figure of `Meter.progress`: the metric's name and what it is. People build dashboards and alerts on the
#: names, so that they stay.
METRICS = {
    "planned": ("llm_rows_planned", "Rows of the slice"),
    "rows": ("llm_rows_finished", "Rows that are answered or have failed, those of earlier runs among them"),
    "failed": ("llm_rows_failed", "Rows that have failed, those that will be tried again among them"),
    "truncated": ("llm_rows_truncated", "Rows of this run whose answer max_tokens cut"),
    "cached": ("llm_rows_cached", "Rows of this run whose answer another slice got (answer_cache)"),
    "input_tokens": ("llm_input_tokens", "Prompt tokens of this run's rows"),
    "output_tokens": ("llm_output_tokens", "Tokens of this run's answers"),
    "cached_tokens": ("llm_cached_tokens", "Prompt tokens of this run that the engine's cache had"),
    "recent_rows_per_s": ("llm_rows_per_second", "Rows a second in the last 5 minutes"),
    "recent_tokens_per_s": ("llm_tokens_per_second", "Tokens a second, in and out, in the last 5 minutes"),
    "eta_s": ("llm_eta_seconds", "Seconds until all rows are answered, at that rate"),
    "queued_s": ("llm_queued_seconds", "Seconds for which the run waited for room on the cluster"),
    "engine_start_s": ("llm_engine_start_seconds", "Seconds from then to the first request in the engine"),
    "first_row_s": ("llm_first_row_seconds", "Seconds from the run's beginning to its first finished rows"),
    "workers": ("llm_workers", "Workers of the engine that have answered"),
    "busy": ("llm_workers_busy_ratio", "Share of the time in which a worker had a request, of all workers"),
    "least_busy": ("llm_least_busy_worker_ratio", "The same, of the worker that had the least to do"),
}


def export(job: SliceJob, figures: Mapping[str, Any]) -> None:
    """Set the figures that are known, if this process is connected to a cluster. To be called every few
    seconds, or Ray forgets them."""
    if "ray" not in sys.modules:
        return
    import ray

    if not ray.is_initialized():
        return
    tags = {"table": job.output_path, "slice": job.slice_key}
    tags = {name: quote(value, safe=string.printable) for name, value in tags.items()}  # Ray takes ASCII only
    for figure, gauge in _gauges().items():
        if (value := figures.get(figure)) is not None:
            gauge.set(value, tags)


@functools.cache
def _gauges() -> dict[str, Any]:
    from ray.util.metrics import Gauge

    return {figure: Gauge(name, what, TAGS) for figure, (name, what) in METRICS.items()}
