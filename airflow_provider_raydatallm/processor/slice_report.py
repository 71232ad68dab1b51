"""The report of a slice: what was published, and what this run measured. Values in, `Report` out."""

from __future__ import annotations

from typing import Any

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.result.counters import Counter, Section, counters_of
from airflow_provider_raydatallm.contract.result.report import Cost, Counts, Report, Tokens
from airflow_provider_raydatallm.contract.spec.engine_arguments import SPECULATIVE
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.metrics.advice import RunFacts, advise
from airflow_provider_raydatallm.processor.metrics.meter import Meter
from airflow_provider_raydatallm.processor.publish.parts import Totals
from airflow_provider_raydatallm.processor.publish.value_counts import reported
from airflow_provider_raydatallm.processor.sizing.model_config import could_use_fp8


def published_report(
    job: SliceJob,
    number: int,
    planned_rows: int,
    totals: Totals,
    meter: Meter,
    *,
    engine: Engine | None,
    carried_over: dict[str, Any] | None,
    startup_s: dict[str, float | None],
    late_s: float,
    earlier_cost: float,
    own_cost: float,
) -> Report:
    """The report of a version that is ready to publish.

    :param number: of the version.
    :param carried_over: counts and tokens of what was taken over (`Checkpoint.carried_over`).
    :param startup_s: seconds of this process before its first step.
    :param late_s: how much later than `finish_by` the slice is finished.
    :param earlier_cost: what other tries spent.
    :param own_cost: what this one spent.
    """

    def total(counter: Counter) -> int | None:
        """Its total plus that of the rows taken over."""
        value = totals.counters[counter.name]
        if carried_over is None:
            return value
        return counter.add(carried_over[counter.section].get(counter.report_field), value)

    def totals_of(section: Section) -> dict[str, int | None]:
        return {c.report_field: total(c) for c in counters_of(section)}

    repaired: int | None = totals.repaired
    if carried_over is not None:
        before = carried_over["counts"].get("repaired")
        repaired = None if before is None else before + totals.repaired
    counts = Counts(
        planned=planned_rows,
        succeeded=totals.rows,
        resumed=meter.resumed_rows,
        quarantined=totals.quarantined,
        invalid_output=totals.invalid,
        repaired=repaired,
        **totals_of("counts"),
    )
    sections = (
        meter.report_sections(
            engine.gpus_held, {**startup_s, **engine.startup_seconds}, fewest=engine.fewest_workers
        )
        if engine is not None
        else meter.report_sections()
    )
    kept_rows = 0
    if carried_over is not None:
        kept = "succeeded" if job.rerun.retry_quarantined else "planned"
        kept_rows = carried_over["counts"].get(kept) or 0
    speculates = SPECULATIVE & job.engine.arguments.keys()
    run = RunFacts(
        counts,
        task=job.task.kind,
        seconds=sections["seconds"],
        utilisation=sections["utilisation"],
        balance=sections["balance"],
        worker_busy=meter.mean_busy,
        too_long_rows=totals.too_long,
        late_s=late_s,
        could_use_fp8=engine is not None and _could_use_fp8(engine),
        repeated_share=engine.repeated_share if engine is not None and not speculates else None,
        sizes=engine.sizes if engine is not None else None,
        labels=totals.labels,
    )
    return slice_report(
        job,
        "published" if planned_rows else "empty",
        published_version=number,
        counts=counts,
        tokens=Tokens(**totals_of("tokens")) if totals.rows else Tokens(),
        **sections,
        cost=Cost.of(
            sections["gpu_seconds"],
            job.engine.gpu_price,
            meter.finished_rows,
            meter.tokens,
            earlier_cost,
            own_cost,
            planned_rows - kept_rows,
        ),
        labels=reported(totals.labels),
        quarantine_reasons=reported(totals.reasons),
        advice=advise(run),
    )


def _could_use_fp8(engine: Engine) -> bool:
    job, inputs = engine.job, engine.sizing_inputs
    if engine.sizes is None or not engine.sizes.gpus[1]:
        return False
    cluster = inputs.cluster if inputs is not None else None
    types = [job.engine.gpu] if job.engine.gpu else cluster.gpus_by_type if cluster else []
    return could_use_fp8(job.model_source, job.engine.arguments, types)


def slice_report(job: SliceJob, outcome: str, **sections: Any) -> Report:
    identity = {"slice_key": job.slice_key, "output_path": job.slice_path, "fingerprint": fingerprint(job)}
    return Report.model_validate({"outcome": outcome, **identity, **sections})
