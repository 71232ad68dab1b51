"""What a run finds of earlier ones: rows that it keeps, those that it asks again, and why no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_raydatallm.contract.fingerprint import changes_since
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.sizing.plan_lines import Line
from airflow_provider_raydatallm.processor.store.checkpoint import (
    CheckpointState,
    asked_before,
)
from airflow_provider_raydatallm.processor.store.file_names import CHECKPOINT, input_of_plan
from airflow_provider_raydatallm.processor.store.ledger import SET_ASIDE, answered_in_name
from airflow_provider_raydatallm.processor.version_build import VersionBuild


@dataclass(frozen=True)
class NotKept:
    rows: int
    why: str


@dataclass(frozen=True)
class EarlierAnswers:
    """
    :param answered: rows that are kept.
    :param quarantined: rows that failed, and are not asked again.
    :param asked_again: rows that failed, and are.
    """

    answered: int = 0
    quarantined: int = 0
    asked_again: int = 0
    not_kept: tuple[NotKept, ...] = ()

    def lines(self) -> Iterator[Line]:
        kept = [f"{self.answered:,} answered rows"] if self.answered else []
        if self.quarantined:
            kept.append(f"{self.quarantined:,} in quarantine, which rerun.retry_quarantined asks again")
        if kept:
            yield "kept", ", ".join(kept)
        if self.asked_again:
            yield "asked again", f"{self.asked_again:,} rows that failed"
        for one in self.not_kept:
            yield "not kept", f"{one.rows:,} answered rows: {one.why}"


NOTHING_EARLIER = EarlierAnswers()


def find_earlier(build: VersionBuild, state: CheckpointState) -> tuple[EarlierAnswers, int]:
    """Returns what there is of earlier runs, and how many rows are to be answered. Changes nothing."""
    once_failed = replace(state, max_attempts=1, failed_since=0).rows_quarantined
    found = EarlierAnswers(
        answered=build.plan.rows - state.rows_missing - state.rows_quarantined,
        quarantined=state.rows_quarantined,
        asked_again=max(0, once_failed - state.rows_quarantined),
    )
    taken_over = _taken_over(build)
    found = replace(
        found,
        answered=found.answered + taken_over.answered,
        quarantined=found.quarantined + taken_over.quarantined,
        asked_again=found.asked_again + taken_over.asked_again,
        not_kept=(*_of_this_question(state), *_of_other_questions(build)),
    )
    return found, max(0, state.rows_missing - taken_over.answered - taken_over.quarantined)


def _taken_over(build: VersionBuild) -> EarlierAnswers:
    """Rows of the published version that the run takes over when it begins."""
    checkpoint, version = build.checkpoint, build.base
    if checkpoint.base is None or version is None or checkpoint.carried_over(build.plan) is not None:
        return NOTHING_EARLIER
    units = {unit.id for unit in build.plan.units}
    if not checkpoint.rows_of_base or not checkpoint.has_rows_of_base(units):
        return NOTHING_EARLIER
    failed = sum(file.rows for file in version.quarantine)
    is_asked = build.job.rerun.retry_quarantined
    return EarlierAnswers(
        answered=sum(file.rows for file in version.files),
        quarantined=0 if is_asked else failed,
        asked_again=failed if is_asked else 0,
    )


def _of_this_question(state: CheckpointState) -> Iterator[NotKept]:
    ranges = state.ledger.rows.ranges
    for unit, why in (
        (-1, "their files changed or are gone, or requests read other columns of them now"),
        (SET_ASIDE, "a person rejected them, to have these rows asked again"),
    ):
        if rows := int((ranges.stops - ranges.starts)[ranges.units == unit].sum()):
            yield NotKept(rows, why)


def _of_other_questions(build: VersionBuild) -> Iterator[NotKept]:
    metadata, version = build.folders.metadata, build.base
    for question in metadata.names(CHECKPOINT):
        if question == build.checkpoint.question:
            continue
        names = metadata.names(f"{CHECKPOINT}/{question}")
        plan = next((name for name in names if input_of_plan(name) is not None), None)
        if rows := sum(map(answered_in_name, names)):
            before = asked_before(metadata, f"{CHECKPOINT}/{question}/{plan}") if plan else None
            yield NotKept(rows, _why(build.job, before))
    if version is not None and build.checkpoint.base is None:
        rows = sum(file.rows for file in version.files)
        if rows:
            before = asked_before(metadata, version.plan)
            yield NotKept(rows, f"version {version.number}, {_why(build.job, before)}")


def _why(job: SliceJob, before: Mapping[str, Any] | None) -> str:
    """Why answers to another question are not kept."""
    if before is None:
        return "they are of another configuration"
    if changes := changes_since(before, job):
        return ", ".join(changes)
    return (
        "rerun.force asks again" if job.rerun.force else "an adapter, or the provider's way to ask, changed"
    )
