"""A run's plan in five lines for people: rows, engine, workers, resources, expected time. Pure."""

from __future__ import annotations

from airflow_provider_raydatallm.contract.log.progress_text import rate_text
from airflow_provider_raydatallm.processor.sizing.facts import (
    ClusterFacts,
    EnginePlan,
    PastThroughput,
    Sizes,
)

#: Name and text.
Line = tuple[str, str]


def plan_lines(
    *,
    rows: int,
    missing_rows: int,
    files: int,
    engine: EnginePlan,
    cluster: ClusterFacts | None,
    past: PastThroughput | None,
) -> list[Line]:
    finished = rows - missing_rows
    lines = [
        ("rows", f"{rows:,} in {files:,} file(s)" + (f", {finished:,} are finished" if finished else "")),
        ("engine", f"{engine.name}, {engine.model_source}"),
    ]
    if engine.sizes is not None:
        in_flight = f"{engine.sizes.rows_in_flight:,} rows in each at once"
        lines.append(("workers", f"{workers_text(engine.sizes)}, {in_flight}"))
    needs = f"needs {_amounts(engine.resources.cpus, engine.resources.gpus)} at once"
    if cluster is not None:
        has = cluster.resources
        needs += f", the cluster has {_amounts(has.get('CPU', 0), has.get('GPU', 0))}"
    lines.append(("resources", needs))
    lines.append(("expected", expected_text(missing_rows, engine.sizes, past)))
    return lines


def workers_text(sizes: Sizes) -> str:
    return _range(sizes.workers) + (f" ({_range(sizes.gpus)} GPUs)" if sizes.gpus[1] else "")


def expected_seconds(rows: int, sizes: Sizes | None, past: PastThroughput | None) -> float | None:
    """From the engine's start to the last answer, with the maximum number of workers."""
    if past is None or not sizes:
        return None
    return past.engine_start + rows / (past.rows_per_s * sizes.workers[1])


def expected_text(rows: int, sizes: Sizes | None, past: PastThroughput | None) -> str:
    seconds = expected_seconds(rows, sizes, past)
    if past is None or seconds is None:
        return "unknown: no published slice of this table has the same fingerprint"
    rate = rows / (seconds - past.engine_start)
    start = f"{seconds:,.0f} s: {past.engine_start:,.0f} s to start"
    return f"{start}, then {rate_text(rate, 'rows/s')}, by slice {past.slice_key}"


def _amounts(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPUs and {gpus:g} GPUs"


def _range(amount: tuple[int, int]) -> str:
    return f"{amount[0]}" if amount[0] == amount[1] else f"{amount[0]} to {amount[1]}"
