"""A run's figures in Prometheus, through Ray's metrics agent on each node.

All of them are gauges, even those that only grow (`rate()` works on them): Ray drops a gauge that was not set
for 20 s, so a run's series end with it, but keeps a counter's series as long as the node lives. So there are
never more series than active runs, however long the backfill. Ray exports the nodes' usage itself.

The port is Ray's, and whoever reaches a node reads it without a token: numbers, the table's address and the
slice's key are all that is there.
"""

from __future__ import annotations

import functools
import string
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.contract.result.counters import COUNTERS
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob

#: Ray's prefix of the names.
NAMESPACE = "ray"
TAGS = ("table", "slice")
#: Name and description of the metric by figure of `Meter.progress`. Dashboards and alerts depend on the
#: names, so they stay.
METRICS = {
    "planned": ("llm_rows_planned", "Rows of the slice"),
    "rows": ("llm_rows_finished", "Rows that are answered or have failed, including earlier runs"),
    "failed": ("llm_rows_failed", "Rows that have failed, including those that will be retried"),
    "invalid_output": ("llm_rows_invalid", "Those of them whose answers lack their shape"),
    **{c.name: (c.metric, f"{c.help}, in this run") for c in COUNTERS if c.metric is not None},
    "recent_rows_per_s": ("llm_rows_per_second", "Rows a second in the last 5 minutes"),
    "recent_tokens_per_s": ("llm_tokens_per_second", "Tokens a second, in and out, in the last 5 minutes"),
    "eta_s": ("llm_eta_seconds", "Seconds until all rows are answered, at that rate"),
    "queued_s": ("llm_queued_seconds", "Seconds that the run waited for room on the cluster"),
    "engine_start_s": ("llm_engine_start_seconds", "Seconds from admission to the engine's first request"),
    "first_row_s": ("llm_first_row_seconds", "Seconds from the run's start to its first finished rows"),
    "cost": ("llm_cost", "What the slice's GPUs have cost, all tries together, where their price is known"),
    "workers": ("llm_workers", "Engine workers that have answered"),
    "busy": ("llm_workers_busy_ratio", "Share of time in which a worker had requests, mean"),
    "flops_share": ("llm_flops_percent", "Percent of what the workers' GPUs compute at most"),
    "bandwidth_share": ("llm_bandwidth_percent", "Percent of the bandwidth of the workers' GPUs' memory"),
    "least_busy": ("llm_least_busy_worker_ratio", "The same, of the least busy worker"),
}


def export(job: SliceJob, figures: Mapping[str, Any]) -> None:
    """Sets the gauges of known figures, if this process is connected to a cluster. Ray drops them unless this
    is called every few seconds."""
    if "ray" not in sys.modules:
        return
    import ray

    if not ray.is_initialized():
        return
    tags = tags_of(job)
    for figure, gauge in _gauges().items():
        if (value := figures.get(figure)) is not None:
            gauge.set(value, tags)


def tags_of(job: SliceJob) -> dict[str, str]:
    tags = {"table": job.output_path, "slice": job.slice_key}
    # Ray takes ASCII.
    return {name: quote(plain_text(value), safe=string.printable) for name, value in tags.items()}


@functools.cache
def _gauges() -> dict[str, Any]:
    from ray.util.metrics import Gauge

    return {figure: Gauge(name, what, TAGS) for figure, (name, what) in METRICS.items()}
