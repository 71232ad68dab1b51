"""Progress, waiting and results as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_raydatallm.contract.log.plain_text import plain_lines, plain_text
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.report import Report

_STEPS = {
    "plan": "planning the slice",
    "check": "checking the cluster",
    "start": "starting the engine",
    "answer": "answering",
    "publish": "publishing",
    "attach": "waiting for {holder}, which is running this slice",
}

#: Why rows are in quarantine: the most frequent ones.
_REASONS = 3
#: Seconds after which a start tells how long it takes.
_LONG_START_S = 10.0


def progress_text(progress: dict[str, Any]) -> str:
    """Such as `answering: 1,280 of 4,000 rows (32%), 210 rows/s, 9,700 tokens/s, 13 s left`."""
    if progress.get("step") == "queued":
        return f"queued: {waiting_text(progress)}"
    if progress.get("step") == "failed":
        return "\n".join(plain_lines(f"failed: {Failure.parse(progress.get('failure')).headline}"))
    if plan := plan_lines(progress):
        return "\n".join(plan)
    details = []
    if progress.get("step") == "start":
        seconds = (progress.get("elapsed_s") or 0) - (progress.get("queued_s") or 0)
        details += [f"for {seconds:,.0f} s"] if seconds >= _LONG_START_S else []
        if died := progress.get("died"):
            reason = progress.get("died_of")
            details.append(f"{died:,} worker(s) died{f', the last one: {reason}' if reason else ''}")
    if progress.get("planned") and (progress["rows"] or progress.get("step") == "answer"):
        share = progress["rows"] / progress["planned"]
        details.append(f"{progress['rows']:,} of {progress['planned']:,} rows ({share:.0%})")
    if progress.get("rows") and progress.get("rows_per_s"):
        rates = (progress["rows_per_s"], "rows/s"), (progress["tokens_per_s"] or 0, "tokens/s")
        details += [rate_text(*rate) for rate in rates]
        if progress["eta_s"]:
            details.append(f"{progress['eta_s']:,.0f} s left")
    if (progress.get("late_s") or 0) > 0:
        workers = progress["workers_needed"]
        enough = f" ({workers:,} workers would be in time)" if workers else ""
        details.append(f"{progress['late_s']:,} s later than finish_by{enough}")
    step = str(progress.get("step"))
    if step in _STEPS:  # another one may be a text that others wrote, with fields of its own
        step = _STEPS[step].format(holder=progress.get("holder"))
    return "\n".join(plain_lines(f"{step}: {', '.join(details)}" if details else step))


def rate_text(rate: float, unit: str) -> str:
    """Such as `1,280 rows/s`, or `0.43 rows/s` of a large model's."""
    return f"{rate:,.0f} {unit}" if rate >= 10 else f"{rate:.2g} {unit}"


def result_lines(report: Report) -> list[str]:
    """A run's result, what the time before its first row was spent on, and advice for the next one."""
    counts, rate = report.counts, report.throughput.rows_per_s
    if report.outcome == "kept":
        stay = f"the {counts.succeeded:,} rows of version {report.published_version} stay"
        return [plain_text(f"kept: the input is empty now, and {stay} in {report.output_path}")]
    result = plain_text(f"{report.outcome}: {counts.succeeded:,} rows in {report.output_path}")
    if counts.quarantined:
        reasons = [f"{name} {rows:,}" for name, rows in (report.quarantine_reasons or {}).items()]
        most = ", ".join(reasons[:_REASONS]) + ", ..." * (len(reasons) > _REASONS)
        result += f", {counts.quarantined:,} in quarantine" + (f" ({most})" if reasons else "")
    probes = [plain_text(str(figures)) for figures in report.probes.values()]
    if report.outcome == "held":
        by = "; ".join(str(gate) for gate in report.gates or () if gate.verdict == "held")
        return [result, *probes, plain_text(f"A person decides whether they are published: {by}")]
    gates = [plain_text(f"Gate: {one} ({one.verdict})") for one in report.gates or () if not one.has_passed]
    if report.outcome != "published":
        return [result]
    start = str(report.seconds.start or "")
    return [
        result + (f", {rate_text(rate, 'rows/s')}" if rate else ""),
        *probes,
        *gates,
        *([f"Before the first row: {start}"] if start else ()),
        *(plain_text(f"Advice: {advice}") for advice in report.advice or ()),
    ]


def plan_lines(progress: dict[str, Any]) -> list[str]:
    """The lines of a plan; none for other progress."""
    lines: list[tuple[str, str]] = progress.get("plan") or []
    width = max((len(name) for name, _ in lines), default=0)
    return [plain_text(f"{name:<{width}}  {text}") for name, text in lines]


def waiting_text(waiting: dict[str, Any]) -> str:
    """Such as `waited 95 s for 4 GPUs and 9 CPUs at once, 2 GPUs and 30 CPUs are free, behind s3://...`."""

    text = f"waited {waiting['waited_s']:,.0f} s for {amounts_text(waiting['needs']) or 'its turn'}"
    if waiting["free"]:
        text += f" at once, {amounts_text(waiting['free'])} are free"
    if ahead := list(waiting["ahead"]):
        text += f", behind {ahead[0]}" + (f" and {len(ahead) - 1} more" if len(ahead) > 1 else "")
    return plain_text(text)


def amounts_text(resources: Mapping[str, float]) -> str:
    """Such as `4 GPUs and 9 CPUs`: memory first, then GPUs, as the scarcer ones."""

    def amount(name: str) -> str:
        of_it = resources[name]
        return f"{of_it / 1e9:,.1f} GB of memory" if name == "memory" else f"{of_it:,g} {name}s"

    return " and ".join(map(amount, sorted(resources, reverse=True)))
