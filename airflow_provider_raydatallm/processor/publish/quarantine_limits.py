"""How many rows of a slice may fail: above that, nothing is published."""

from __future__ import annotations

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.row_errors import changes_for, may_be_asked_again
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.publish.quarantine_summary import summarize_quarantine
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, CheckpointState


def check_quarantine(job: SliceJob, plan: Plan, checkpoint: Checkpoint, state: CheckpointState) -> None:
    """:raises SliceError: when more rows failed than the slice may lose."""
    failed, invalid = state.rows_quarantined, state.rows_invalid
    exceeded = exceeded_limit(job, plan.rows, failed, invalid)
    if exceeded is None:
        return
    name, limit = exceeded
    if name == "max_invalid":
        what = f"{invalid:,} of {plan.rows:,} rows have an invalid answer"
        rows, fragments = state.quarantined_for_answers, state.ledger.invalid + state.ledger.cut
    else:
        what = f"{failed:,} of {plan.rows:,} rows failed"
        rows, fragments = state.quarantined, state.ledger.failures
    summary = summarize_quarantine(checkpoint.store, checkpoint.folder, plan, fragments, rows)
    most = ", ".join(f"{count:,} {kind}" for kind, count in summary.reasons.most_common(3))
    functions = dict.fromkeys(kind.partition(" in ")[2] for kind in summary.reasons if " in " in kind)
    left = f", while {state.rows_missing:,} are still to be asked" if state.rows_missing else ""
    kept = ", and the answered rows are kept" if plan.rows > state.rows_missing + failed else ""
    again = "Set rerun.retry_quarantined=True to ask for the failed rows again"
    raise SliceError(
        f"{what}, which is more than quality.{name} {limit:g}" + (f" ({most})" if most else "") + left,
        kind="input",
        advice=(
            *changes_for(summary.reasons),
            *(
                f"Correct {function}, and set rerun.retry_quarantined=True to ask for its rows again"
                for function in functions
            ),
            again if not functions and may_be_asked_again(summary.reasons) else "",
            f"Or raise quality.{name} to publish without them",
            f"Nothing is published{kept}: `airflow-ray-llm sample "
            f"{job.output_path} {job.slice_key} --quarantined` shows those that failed",
        ),
        place=summary.place,
        row_texts=summary.examples,
        frames=summary.frames,
        counts={
            "planned": plan.rows,
            "finished": plan.rows - state.rows_missing,
            "failed": failed,
            "invalid_output": invalid,
        },
        code="too_many_failed" if name == "max_quarantine" else "",
    )


def exceeded_limit(job: SliceJob, planned: int, failed: int, invalid: int) -> tuple[str, float] | None:
    """The limit that so many failed rows exceed, `invalid` of which for their answers."""
    limits = [
        ("max_invalid", job.quality.max_invalid, invalid),
        ("max_quarantine", job.quality.max_quarantine, failed),
    ]
    for name, limit, rows in limits:
        if limit is not None and rows / max(1, planned) > limit:
            return name, limit
    return None
