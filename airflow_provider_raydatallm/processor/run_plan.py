"""Plans a run without starting it (`processor plan`): rows, sizes, time, and what is wrong with it."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import joined
from airflow_provider_raydatallm.contract.result.report import Report, cost_of
from airflow_provider_raydatallm.contract.spec.gate import PROBES
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.earlier_answers import (
    NOTHING_EARLIER,
    EarlierAnswers,
    find_earlier,
)
from airflow_provider_raydatallm.processor.engines.feeding.token_lengths import (
    sample_rows,
    sample_token_lengths,
)
from airflow_provider_raydatallm.processor.input.own_folders import check_output_is_outside
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.metrics.past_speed import newest_throughput
from airflow_provider_raydatallm.processor.publish.quarantine_limits import check_quarantine
from airflow_provider_raydatallm.processor.sizing import facts, model_config, sizes
from airflow_provider_raydatallm.processor.sizing.checks import Finding, check_request, preflight_findings
from airflow_provider_raydatallm.processor.sizing.cluster_probe import probe_cluster
from airflow_provider_raydatallm.processor.sizing.plan_lines import (
    Line,
    expected_seconds,
    expected_text,
    workers_text,
)
from airflow_provider_raydatallm.processor.slice_run import inspect_slice
from airflow_provider_raydatallm.processor.store.checkpoint import CheckpointState
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.version_build import VersionBuild


@dataclass(frozen=True)
class RunPlan:
    """The plan of a run; None is unknown."""

    job: SliceJob
    cluster: facts.ClusterFacts | None
    #: None when there is nothing to do: what is published, or that there are no rows.
    plan: Plan | None = None
    report: Report | None = None
    missing_rows: int = 0
    earlier: EarlierAnswers = NOTHING_EARLIER
    #: What an earlier run staged of it, which the run judges anew and publishes as it is.
    staged: str | None = None
    #: Of rows of probes, by their names: how many there are, and how many of them are to be answered.
    probes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    engine: facts.EnginePlan | None = None
    spread: sizes.TaskSpread | None = None
    model: model_config.ModelConfig | None = None
    past_throughput: facts.PastThroughput | None = None
    findings: Sequence[Finding] = ()

    @property
    def seconds(self) -> float | None:
        """From the engine's start to the last answer, with the maximum number of workers."""
        chosen = self.engine.sizes if self.engine is not None else None
        return expected_seconds(self.missing_rows, chosen, self.past_throughput)

    def cost(self, gpu_hour_price: float | None) -> float | None:
        """What the GPUs cost in that time; None without a price, a known time or a GPU."""
        gpus = self.engine.sizes.gpus[1] if self.engine is not None and self.engine.sizes is not None else 0
        return cost_of(self.seconds * gpus, gpu_hour_price) if self.seconds is not None and gpus else None


def plan_run(job: SliceJob, cluster: facts.ClusterFacts | None) -> RunPlan:
    """Plans a run of the job as of now. Reads the store; writes nothing, and starts nothing.

    :param cluster: None when there is none to check against.
    :raises SliceError: when the run would be refused for its arguments or its input. What the cluster lacks
        is a finding instead.
    """
    check_output_is_outside(job)
    build, report = inspect_slice(job, SliceFolders.open(job.paths), read_only=True)
    if build is None:
        return RunPlan(job, cluster, report=report)
    state = build.load_state()
    earlier, rows = find_earlier(build, state)
    known = build.known_figures(are_taken_over=not rows and state.is_taken_over)
    asked = {probe.name: build.load_probe_state(probe) for probe in build.probes if probe.name not in known}
    hashes = {probe.name: probe.hash for probe in build.probes}
    staged = build.staged.to_report(job.slice_path).probes if build.staged is not None else {}
    is_told = {name for name, told in staged.items() if told.hash == hashes.get(name)}
    probes = {
        name: (state.rows_asked, 0 if name in is_told else state.rows_missing)
        for name, state in asked.items()
    }
    findings = _quarantine_findings(build, state)
    if build.inference is None or not rows:
        name = build.staged.name if build.staged is not None else None
        return RunPlan(
            job, cluster, build.plan, report, earlier=earlier, staged=name, probes=probes, findings=findings
        )
    engine = build.inference.engine
    past = newest_throughput(job)
    engine.choose_sizes(facts.SizingInputs(cluster, _token_lengths(build), past))
    engine_plan = engine.plan
    chosen, spread = engine_plan.sizes, None
    if chosen is not None and chosen.batch_size is not None:
        blocks = math.ceil(rows / chosen.block_rows)
        batch_rows = min(rows // blocks, chosen.batch_size)
        spread = sizes.spread_tasks(rows, blocks, batch_rows, chosen.workers[1])
    model = model_config.read_model_config(job.model_source, engine_plan.engine_kwargs)
    findings += preflight_findings(engine_plan, rows, cluster)
    findings += check_request(build.inference.builder.columns, rows)
    return RunPlan(
        job, cluster, build.plan, None, rows, earlier, None, probes,
        engine_plan, spread, model, past, findings,
    )  # fmt: skip


def _quarantine_findings(build: VersionBuild, state: CheckpointState) -> list[Finding]:
    """Failed rows that are not asked again may be more than a slice may lose, before a run begins."""
    try:
        check_quarantine(build.job, build.plan, build.checkpoint, state)
    except SliceError as e:
        failure = e.failure
        return [Finding("too_many_failed", "error", failure.sentence, joined(failure.advice), failure.kind)]
    return []


def _token_lengths(build: VersionBuild) -> facts.TokenLengthSample | None:
    inference = build.inference
    if inference is None or not inference.engine.needs_token_lengths(raised=False):
        return None
    try:
        state = build.load_state()
        rows = sample_rows(state.missing or state.suspects)
        return sample_token_lengths(inference.engine.open_tokenizer, build.plan, rows, inference.builder)
    except (ImportError, SliceError):  # the tokenizer is not on this machine
        return None


def as_table(run: RunPlan, gpu_hour_price: float | None = None) -> str:
    """For people: a line for each known thing."""
    lines: list[Line] = [("slice", f"{run.job.slice_key} -> {run.job.slice_path}")]
    plan = run.plan
    if plan is None:
        return _align([*lines, ("to do", _nothing(run.report))])
    lines.append(("rows", f"{plan.rows:,} in {len(plan.units):,} unit(s) of {plan.files:,} file(s)"))
    lines += [("to answer", f"{run.missing_rows:,}"), *run.earlier.lines()]
    for name, (asked, missing) in run.probes.items():
        lines.append((f"{name} rows", f"{asked:,}, of which {missing:,} are to be answered"))
    if run.staged is not None:
        does = "publishes if the gates let it" if run.job.quality.gates else "publishes"
        lines.append(("staged", f"{run.staged}, which the run {does}"))
    if run.engine is not None:
        lines += [
            *_engine_lines(run.engine, run),
            *_memory_lines(run.engine, run.model),
            *_time_lines(run, gpu_hour_price),
        ]
    if run.cluster is None and run.missing_rows:
        lines.append(("cluster", "none can be reached from here: its resources are not checked"))
    lines += [(f.severity, str(f)) for f in run.findings] or [("checks", "no problems found")]
    return _align(lines)


def _nothing(report: Report | None) -> str:
    if report is None or report.published_version is None:
        return "nothing: the slice has no rows"
    counts = report.counts
    failed = f", {counts.quarantined:,} in quarantine" if counts.quarantined else ""
    return (
        f"nothing: version {report.published_version} is published, of this configuration and input: "
        f"{counts.succeeded:,} rows{failed}"
    )


def _engine_lines(engine: facts.EnginePlan, run: RunPlan) -> Iterator[Line]:
    needs, chosen = engine.resources, engine.sizes
    yield "engine", f"{engine.name}, {engine.model_source}"
    yield "needs at once", f"{needs.cpus:g} CPUs, {needs.gpus:g} GPUs ({needs.breakdown})"
    if run.cluster is not None:
        has = run.cluster.resources
        yield "cluster has", f"{has.get('CPU', 0):g} CPUs, {has.get('GPU', 0):g} GPUs"
    if chosen is None:
        return
    yield "workers", workers_text(chosen)
    if run.spread is not None:
        tasks, per_worker = run.spread.tasks, run.spread.tasks_per_worker
        yield "batches", f"{tasks:,} of up to {chosen.batch_size} rows, {per_worker:,} for each worker"
    sign = ">=" if chosen.rows_in_flight >= chosen.max_num_seqs else "<"
    yield (
        "in flight",
        f"{chosen.rows_in_flight:,} rows a worker {sign} {chosen.max_num_seqs:,} that it runs at once; they "
        f"travel in blocks of {chosen.block_rows:,}",
    )


def _memory_lines(engine: facts.EnginePlan, model: model_config.ModelConfig | None) -> Iterator[Line]:
    if model is None:
        yield "model", "its configuration is not on this machine: memory is not estimated"
        return
    yield "weights", "unknown" if model.weight_bytes is None else _bytes(model.weight_bytes)
    tokens, token_bytes = model_config.row_length(engine.engine_kwargs, model), model.kv_bytes_per_token
    row_bytes = _bytes(tokens * token_bytes)
    yield "cache", f"{row_bytes} for a row of max_model_len {tokens:,} ({_bytes(token_bytes)} a token)"


def _time_lines(run: RunPlan, gpu_hour_price: float | None) -> Iterator[Line]:
    chosen = run.engine.sizes if run.engine is not None else None
    yield "expected", expected_text(run.missing_rows, chosen, run.past_throughput)
    if chosen is not None and (cost := run.cost(gpu_hour_price)) is not None:
        yield "cost", f"{cost:,.2f}: {chosen.gpus[1]} GPU(s) at {gpu_hour_price:g} an hour"


def as_json(run: RunPlan, gpu_hour_price: float | None = None) -> dict[str, Any]:
    """For programs."""
    plan, engine, model, report = run.plan, run.engine, run.model, run.report
    return {
        "slice_key": run.job.slice_key,
        "output_path": run.job.slice_path,
        "rows": plan.rows if plan is not None else report.counts.planned if report is not None else 0,
        "published_version": report.published_version if report is not None else None,
        "units": len(plan.units) if plan is not None else 0,
        "to_answer": run.missing_rows,
        "earlier": asdict(run.earlier),
        "staged": run.staged,
        **{
            name: dict(zip(("rows", "to_answer"), run.probes[name], strict=True))
            if name in run.probes
            else None
            for name in PROBES
        },
        "needs": asdict(engine.resources) if engine is not None else None,
        "sizes": asdict(engine.sizes) if engine is not None and engine.sizes is not None else None,
        "work": asdict(run.spread) if run.spread is not None else None,
        "weight_bytes": model and model.weight_bytes,
        "kv_bytes_per_token": model and model.kv_bytes_per_token,
        "seconds": run.seconds,
        "cost": run.cost(gpu_hour_price),
        "findings": [asdict(f) for f in run.findings],
    }


def _asked(rows: tuple[int, int] | None) -> dict[str, int] | None:
    return None if rows is None else dict(zip(("rows", "to_answer"), rows, strict=True))


def reachable_cluster() -> facts.ClusterFacts | None:
    """Returns the facts of the cluster that this process can reach, if there is one."""
    import ray

    address = os.environ.get("RAY_ADDRESS") or node_cluster_address()
    # Ray itself would try for minutes to reach a head that is gone.
    if not address or not _is_reachable(address):
        return None
    try:
        ray.init(address=address, logging_level="error", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError):
        return None
    return probe_cluster()


def node_cluster_address() -> str:
    """The address that `ray start` on this machine wrote down; empty when it did not."""
    folder = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray"
    try:
        return (folder / "ray_current_cluster").read_text().strip()
    except OSError:
        return ""


def _is_reachable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
    except (OSError, ValueError):
        return False
    return True


def _bytes(amount: float) -> str:
    for unit in ("B", "KB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.1f} GB"


def _align(lines: list[Line]) -> str:
    width = max(len(name) for name, _ in lines)
    return "\n".join(plain_text(f"{name:<{width}}  {text}") for name, text in lines)
