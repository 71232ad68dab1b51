"""What a run would do, before it is started: `processor plan`."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.engines.vllm.token_lengths import sample_token_lengths
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.sizing.checks import Finding
from airflow_provider_raydatallm.processor.sizing.cluster_probe import preflight_findings, probe_cluster
from airflow_provider_raydatallm.processor.sizing.facts import (
    ClusterFacts,
    EnginePlan,
    PastThroughput,
    SizingInputs,
    TokenLengthSample,
)
from airflow_provider_raydatallm.processor.sizing.model_config import (
    ModelConfig,
    read_model_config,
    row_length,
)
from airflow_provider_raydatallm.processor.sizing.sizes import TaskSpread, is_saturated, spread_tasks
from airflow_provider_raydatallm.processor.slice_run import inspect_slice
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.past_speed import newest_throughput
from airflow_provider_raydatallm.processor.version_build import VersionBuild


@dataclass(frozen=True)
class RunPlan:
    """The whole plan of a run: rows, bytes, seconds; None is not known."""

    job: SliceJob
    cluster: ClusterFacts | None
    #: None when there is nothing to do.
    plan: Plan | None = None
    rows: int = 0  # that are left to answer
    engine: EnginePlan | None = None
    spread: TaskSpread | None = None
    model: ModelConfig | None = None
    past_throughput: PastThroughput | None = None
    findings: Sequence[Finding] = ()

    @property
    def seconds(self) -> float | None:
        """From the engine's start to the last answer, with as many workers as may be."""
        sizes = self.engine and self.engine.sizes
        if self.past_throughput is None or not sizes:
            return None
        return self.past_throughput.engine_start + self.rows / (
            self.past_throughput.rows_per_s * sizes.workers[1]
        )


def plan_run(job: SliceJob, cluster: ClusterFacts | None) -> RunPlan:
    """What a run of the job would do now. Reads the store; writes nothing, and starts nothing.

    :param cluster: None when there is none to check against.
    :raises SliceError: when the run would be refused for what it asks; what the cluster lacks is found, not
        raised.
    """
    store = Store(job.slice_path)
    making, _ = inspect_slice(job, store, versions.highest_commit(store), None, lambda progress: None)
    rows = making.load_state().rows_missing if making is not None else 0
    if making is None or making.inference is None or not rows:
        return RunPlan(job, cluster, making.plan if making is not None else None)
    engine = making.inference.engine
    pace = newest_throughput(job)
    engine.choose_sizes(SizingInputs(cluster, _lengths(making), pace))
    engine_plan = engine.plan
    sizes, spread = engine_plan.sizes, None
    if sizes is not None:
        blocks = math.ceil(rows / sizes.block_rows)
        spread = spread_tasks(rows, blocks, min(rows // blocks, sizes.batch_size), sizes.workers[1])
    return RunPlan(
        job,
        cluster,
        making.plan,
        rows,
        engine_plan,
        spread,
        read_model_config(job.model_source, engine_plan.engine_kwargs),
        pace,
        preflight_findings(engine_plan, rows, cluster),
    )


def _lengths(making: VersionBuild) -> TokenLengthSample | None:
    q = making.inference
    if q is None or not q.engine.needs_token_lengths(raised=False):
        return None
    try:
        return sample_token_lengths(making.job, making.plan, making.load_state().missing, q.builder)
    except (ImportError, SliceError):  # the tokenizer is elsewhere
        return None


def as_table(forecast: RunPlan, gpu_hour_price: float | None = None) -> str:
    """For people: a line for each thing that is known."""
    lines: list[tuple[str, str]] = [("slice", f"{forecast.job.slice_key} -> {forecast.job.slice_path}")]
    plan = forecast.plan
    if plan is None:
        return _columns([*lines, ("to do", "nothing: it is published, or there are no rows")])
    lines.append(("rows", f"{plan.rows:,} in {len(plan.units):,} unit(s) of {plan.files:,} file(s)"))
    finished = plan.rows - forecast.rows
    lines.append(("to answer", f"{forecast.rows:,}" + (f" ({finished:,} are finished)" if finished else "")))
    if forecast.engine is not None:
        lines += [
            *_engine_lines(forecast.engine, forecast),
            *_memory_lines(forecast),
            *_time_lines(forecast, gpu_hour_price),
        ]
    if forecast.cluster is None:
        lines.append(("cluster", "none can be reached from here: what it has is not checked"))
    lines += [(f.severity, str(f)) for f in forecast.findings] or [("checks", "nothing to say")]
    return _columns(lines)


def _engine_lines(engine: EnginePlan, forecast: RunPlan) -> Iterator[tuple[str, str]]:
    needs, sizes = engine.resources, engine.sizes
    yield "engine", f"{engine.name}, {engine.model_source}"
    yield "needs at once", f"{needs.cpus:g} CPUs, {needs.gpus:g} GPUs ({needs.breakdown})"
    if forecast.cluster is not None:
        there = forecast.cluster.resources
        yield "cluster has", f"{there.get('CPU', 0):g} CPUs, {there.get('GPU', 0):g} GPUs"
    if sizes is not None and forecast.spread is not None:
        yield "workers", _range(sizes.workers) + (f" ({_range(sizes.gpus)} GPUs)" if sizes.gpus[1] else "")
        tasks, each = forecast.spread.tasks, forecast.spread.tasks_per_worker
        yield "batches", f"{tasks:,} of up to {sizes.batch_size} rows, {each:,} for each worker"
        saturated = is_saturated(sizes.batch_size, sizes.batches, sizes.max_num_seqs)
        flight, sign = sizes.batch_size * sizes.batches, ">=" if saturated else "<"
        yield (
            "in flight",
            (
                f"{sizes.batch_size} x {sizes.batches} = {flight:,} rows a worker {sign} "
                f"{sizes.max_num_seqs:,} that it runs at once"
            ),
        )


def _memory_lines(forecast: RunPlan) -> Iterator[tuple[str, str]]:
    shape = forecast.model
    if shape is None:
        yield "model", "its configuration is not on this machine: memory is not estimated"
        return
    yield "weights", "not known" if shape.weight_bytes is None else _bytes(shape.weight_bytes)
    length = row_length(forecast.engine.engine_kwargs if forecast.engine else {}, shape)
    token = shape.kv_bytes_per_token
    yield "cache", f"{_bytes(length * token)} for a row of max_model_len {length:,} ({_bytes(token)} a token)"


def _time_lines(forecast: RunPlan, gpu_hour_price: float | None) -> Iterator[tuple[str, str]]:
    pace, seconds = forecast.past_throughput, forecast.seconds
    if pace is None or seconds is None:
        yield "expected", "not known: no published slice of this table was answered in the same way"
        return
    rate = forecast.rows / (seconds - pace.engine_start)
    yield (
        "expected",
        (
            f"{seconds:,.0f} s: {pace.engine_start:,.0f} s to start, then {rate:,.0f} rows/s, by slice "
            f"{pace.slice_key}"
        ),
    )
    sizes = forecast.engine and forecast.engine.sizes
    if gpu_hour_price is not None and sizes and sizes.gpus[1]:
        cost = seconds / 3600 * sizes.gpus[1] * gpu_hour_price
        yield "cost", f"{cost:,.2f}: {sizes.gpus[1]} GPU(s) at {gpu_hour_price:g} an hour"


def as_json(forecast: RunPlan) -> dict[str, Any]:
    """The same for programs."""
    plan, engine, shape = forecast.plan, forecast.engine, forecast.model
    return {
        "slice_key": forecast.job.slice_key,
        "output_path": forecast.job.slice_path,
        "rows": plan.rows if plan is not None else 0,
        "units": len(plan.units) if plan is not None else 0,
        "to_answer": forecast.rows,
        "needs": asdict(engine.resources) if engine is not None else None,
        "sizes": asdict(engine.sizes) if engine is not None and engine.sizes is not None else None,
        "work": asdict(forecast.spread) if forecast.spread is not None else None,
        "weight_bytes": shape and shape.weight_bytes,
        "kv_bytes_per_token": shape and shape.kv_bytes_per_token,
        "seconds": forecast.seconds,
        "findings": [asdict(f) for f in forecast.findings],
    }


def reachable_cluster() -> ClusterFacts | None:
    """The facts of the cluster that this process can reach, if there is one."""
    import ray

    address = os.environ.get("RAY_ADDRESS") or _local_address()
    # Ray itself would try for minutes to reach a head that is gone.
    if not address or not _answers(address):
        return None
    try:
        ray.init(address=address, logging_level="error", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError):
        return None
    return probe_cluster()


def _local_address() -> str:
    """Where `ray start` on this machine left word of its head; empty when it did not."""
    folder = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray"
    try:
        return (folder / "ray_current_cluster").read_text().strip()
    except OSError:
        return ""


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
    except (OSError, ValueError):
        return False
    return True


def _range(amount: tuple[int, int]) -> str:
    return f"{amount[0]}" if amount[0] == amount[1] else f"{amount[0]} to {amount[1]}"


def _bytes(amount: float) -> str:
    for unit in ("B", "KB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.1f} GB"


def _columns(lines: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)
