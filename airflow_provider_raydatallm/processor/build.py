"""What a version of a slice is built of: its rows, how they are asked, and what of it is answered."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.probes import ProbeFigures
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.gates.own_checks import CheckPlan, run_check
from airflow_provider_raydatallm.processor.inference.ray_cluster import Cluster, InferencePlan
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.survey import with_table_types
from airflow_provider_raydatallm.processor.metrics.progress import ProgressCallback
from airflow_provider_raydatallm.processor.probes.base import Probe
from airflow_provider_raydatallm.processor.publish.answer_columns import (
    undecided_as_null,
    with_known_types,
)
from airflow_provider_raydatallm.processor.publish.row_details import detail_columns
from airflow_provider_raydatallm.processor.publish.table_schema import check_columns
from airflow_provider_raydatallm.processor.publish.value_spread import check_measured_columns
from airflow_provider_raydatallm.processor.request.answers.parser import AnswerParser
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, CheckpointState
from airflow_provider_raydatallm.processor.store.lease import Lease
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.table_columns import TableColumns
from airflow_provider_raydatallm.processor.store.versions import Version


@dataclass
class Build:
    """A version that is not yet staged."""

    job: SliceJob
    folders: SliceFolders
    number: int
    checkpoint: Checkpoint
    plan: Plan
    #: The table's columns, when the plan was made.
    table: TableColumns
    #: Hash of what decides the types of published columns.
    types: str
    shape: AnswerParser
    inference: InferencePlan | None
    #: The published version, which this one follows; None when it cannot be read, too.
    base: Version | None
    #: Its number; 0 for none.
    follows: int
    progress: ProgressCallback
    #: Epoch seconds at which the slice should be finished.
    finish_by: float | None = None
    #: Seconds from the process's start to its first step; None where it did other things, too.
    imports_s: float | None = None
    probes: tuple[Probe, ...] = ()

    @property
    def known_fields(self) -> list[pa.Field]:
        """The answers' columns, where they are known before there is an answer."""
        return with_known_types(self.job, self.shape.known_fields, self.table.answers)

    def check_columns(self, fields: Sequence[pa.Field]) -> None:
        """
        :param fields: the answers' columns.
        :raises SliceError: when what would be published has a column that Parquet cannot hold, or others than
            the table.
        """
        check_measured_columns(self.job, fields)
        fields = [*fields, *detail_columns(self.job)]
        check_columns(self.job, self.plan, fields)
        if self.job.publish.on_schema_change == "fail":
            self.table.check(
                self.job.slice_key, self.plan.schema, undecided_as_null(self.job, fields, self.table.answers)
            )

    def agree_on_columns(self, fields: Sequence[pa.Field]) -> None:
        """Proposes the slice's columns for the table, with the types that it has by now."""
        fields = [*fields, *detail_columns(self.job)]
        now = TableColumns.read(self.table.store, self.table)
        known = now.inputs(self.job.slice_key)
        if known != self.table.inputs(self.job.slice_key):
            self.plan = with_table_types(self.plan, known)
            if self.inference is not None:
                self.inference = replace(self.inference, plan=self.plan)
        self.table = now.agree(
            self.job.slice_key,
            self.plan.schema,
            undecided_as_null(self.job, fields, self.table.answers),
            accepts_change=self.job.publish.on_schema_change == "accept",
        )

    def check_rows(self, cluster: Cluster, files: Sequence[str]) -> dict[str, float]:
        """Returns what the own checks of gates say, without those that know nothing.

        :param files: addresses of the staged rows.
        :raises SliceError: naming the check that raises, or says no number; where one hangs, or its process
            dies, all of them.
        """
        checks = self.job.quality.own_checks
        plans = [CheckPlan(check, tuple(files)) for check in checks]
        try:
            said = cluster.run_tasks(run_check, plans, timeout=self.job.limits.stall) if plans else []
            return {check: told for check, told in zip(checks, said, strict=True) if told is not None}
        except SliceError as e:
            if e.failure.kind == "input":
                raise
            sentence = f"quality.gates ({'; '.join(checks)}): {e.failure.sentence}"
            raise SliceError.of(replace(e.failure, sentence=sentence)) from e

    def load_state(self, lease: Lease | None = None) -> CheckpointState:
        """Reads which rows are finished, quarantined and missing."""
        return self._state_of(self.plan, self.checkpoint, lease)

    def load_probe_state(self, probe: Probe, lease: Lease | None = None) -> CheckpointState:
        """As `load_state`, of a probe's rows. No retry asks those again that failed."""
        state = self._state_of(probe.plan, probe.checkpoint(self.checkpoint), lease)
        return replace(state, failed_since=0, unasked=probe.unasked)

    def known_figures(self, *, are_taken_over: bool) -> dict[str, ProbeFigures]:
        """Returns what the published version tells of probes, by their names, where its answers are published
        anew: no engine starts for these either.

        :param are_taken_over: whether all answers are the published version's.
        """
        if self.base is None or self.checkpoint.base is None or not are_taken_over:
            return {}
        of_probes = self.base.to_report(self.job.slice_path).probes
        hashes = {probe.name: probe.hash for probe in self.probes}
        return {name: told for name, told in of_probes.items() if told.hash == hashes.get(name)}

    def hear_of_golden(self, verdicts: Sequence[GateVerdict], answered_by: Set[int] | None = None) -> None:
        """Has other slices doubt what the cache of answers has of runs that golden rows speak against.

        :param answered_by: their epochs; None: all that there were.
        """
        said = {verdict.verdict for verdict in verdicts if verdict.of == "golden"}
        if self.inference is None or not said & {"failed", "held"}:
            return
        starts = self.checkpoint.starts()
        if epochs := starts.keys() & (starts.keys() if answered_by is None else answered_by):
            self.inference.engine.doubt_answers(min(starts[epoch] for epoch in epochs))
            self.checkpoint.remove_starts(epochs)  # else each clear would doubt what was answered since

    def _state_of(self, plan: Plan, checkpoint: Checkpoint, lease: Lease | None) -> CheckpointState:
        since_epoch = 0
        if self.job.rerun.retry_quarantined:
            # Failures of earlier runs do not count. Without a lease, this run has not failed any row yet.
            since_epoch = lease.epoch if lease is not None else sys.maxsize
        ledger, honoured = checkpoint.read_ledger(plan, retry=self.job.rerun.retry_quarantined)
        quality = self.job.quality
        return CheckpointState(
            plan, ledger, quality.max_attempts, since_epoch, quality.repair, honoured=honoured
        )
