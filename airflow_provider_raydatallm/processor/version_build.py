"""One version of a slice that is to be published: what is staged of it already, or what a run builds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_raydatallm.contract.fingerprint import asked
from airflow_provider_raydatallm.contract.result.errors import SliceError, log_text
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.processor.build import Build
from airflow_provider_raydatallm.processor.build_run import BuildRun
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.gates.facts import Facts
from airflow_provider_raydatallm.processor.gates.gatekeeper import pass_gates
from airflow_provider_raydatallm.processor.inference.ray_cluster import Cluster, InferencePlan
from airflow_provider_raydatallm.processor.metrics.meter import Meter
from airflow_provider_raydatallm.processor.metrics.past_speed import newest_throughput
from airflow_provider_raydatallm.processor.metrics.progress import ProgressReporter
from airflow_provider_raydatallm.processor.metrics.spending import Spending
from airflow_provider_raydatallm.processor.publish.carry_over import carry_over_rows
from airflow_provider_raydatallm.processor.publish.commit import (
    OtherColumnsError,
    SupersededError,
    UnusableError,
    check_files,
    check_waits,
    commit,
    discard,
)
from airflow_provider_raydatallm.processor.publish.quarantine_limits import exceeded_limit
from airflow_provider_raydatallm.processor.sizing.checks import check_request
from airflow_provider_raydatallm.processor.sizing.facts import SizingInputs
from airflow_provider_raydatallm.processor.sizing.model_work import ModelWork, read_model_work
from airflow_provider_raydatallm.processor.sizing.plan_lines import Line, plan_lines
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError
from airflow_provider_raydatallm.processor.store.checkpoint import CheckpointState
from airflow_provider_raydatallm.processor.store.column_agreement import ColumnAgreement
from airflow_provider_raydatallm.processor.store.lease import Lease
from airflow_provider_raydatallm.processor.store.ledger import MissingRows
from airflow_provider_raydatallm.processor.store.leftovers import remove_checkpoints
from airflow_provider_raydatallm.processor.store.run_record import remove_progress
from airflow_provider_raydatallm.processor.store.staged_versions import (
    StagedVersion,
    StagedVersionError,
    remove_document,
)
from airflow_provider_raydatallm.processor.store.versions import Commits, NumberTakenError

logger = logging.getLogger(__name__)


@dataclass
class VersionBuild(Build):
    """One version of a slice that is still to be published."""

    before_commit: Callable[[], None] | None = None
    #: What an earlier run staged of it, which is committed instead.
    staged: StagedVersion | None = None
    #: What waits for a person, and is staged anew. Until then the decision may come.
    set_aside: StagedVersion | None = None

    def check(self, cluster: Cluster) -> None:
        """:raises SliceError: when there are rows to answer and the cluster cannot."""
        if self.staged is not None:
            return
        state = self.load_state()
        missing = state.missing or state.suspects
        if self.inference is not None and missing:
            self.progress({"step": "check"})
            self._check_engine(cluster, self.inference, missing)
            engine = self.inference.engine
            if engine.sizing_inputs is not None:
                plan = self._plan_lines(state, engine, engine.sizing_inputs)
                self.progress({"step": "planned", "plan": plan})
        for probe in self.probes:
            of_probe = self.load_probe_state(probe)
            asked = of_probe.missing or of_probe.suspects
            if asked and not (missing and probe.shares_engine):
                self._check_engine(cluster, probe.inference, asked)

    def _check_engine(self, cluster: Cluster, inference: InferencePlan, missing: MissingRows) -> None:
        findings = check_request(inference.builder.columns, inference.plan.rows)
        for finding in [*findings, *cluster.preflight(inference, missing)]:
            logger.warning("%s", finding)

    def _plan_lines(self, state: CheckpointState, engine: Engine, inputs: SizingInputs) -> list[Line]:
        return plan_lines(
            rows=self.plan.rows,
            missing_rows=state.rows_missing,
            files=self.plan.files,
            engine=engine.plan,
            cluster=inputs.cluster,
            past=inputs.past_throughput or newest_throughput(self.job),
        )

    def run(self, lease: Lease, cluster: Cluster) -> Report:
        """Answers the missing rows and publishes the version, or leaves it to a person where a gate says so.

        :raises NumberTakenError: when another run committed meanwhile: what to do is to be decided again.
        """
        if self.staged is not None:
            self.progress({"step": "publish"})
            try:
                judged = self._pass_gates(self.staged, cluster)
                if not judged.to_report(self.job.slice_path).awaits_person:
                    return self._commit(lease, judged)
                self._check_waits(judged)
                self._keep_verdicts(judged)
                return self._held_report(judged, lease)
            except StagedVersionError as e:
                self._forget_staged(log_text(e))
        staged = self.stage(lease, cluster)
        if staged.is_held:
            return self._held_report(staged, lease)
        try:
            return self._commit(lease, staged, self.table.agreement)
        except OtherColumnsError as e:
            remove_document(self.folders.metadata, staged.name)
            raise SliceError.of(replace(e.failure, kind="transient")) from e
        except UnusableError as e:
            raise NumberTakenError(e.failure.sentence, advice=e.failure.advice) from e

    def hold(self, lease: Lease, cluster: Cluster, keep_days: float) -> StagedVersion:
        """Answers the missing rows and stages the version, which then waits for somebody who commits or
        discards it.

        :param keep_days: for how long.
        :raises NumberTakenError: when another run committed meanwhile: what to do is to be decided again.
        """
        if self.staged is not None:
            try:
                self._check_waits(self.staged)
                judged = self._pass_gates(self.staged, cluster)
                self._keep_verdicts(judged)
                remove_progress(self.folders.metadata, lease)
                return judged
            except StagedVersionError as e:
                self._forget_staged(log_text(e))
        staged = self.stage(lease, cluster, keep_days)
        remove_progress(self.folders.metadata, lease)
        return staged

    def _check_waits(self, staged: StagedVersion) -> None:
        accepts_change = self.job.publish.on_schema_change == "accept"
        check_waits(self.folders, self.job.slice_key, staged, accepts_change=accepts_change)

    def _keep_verdicts(self, judged: StagedVersion) -> None:
        if judged != self.staged:
            judged.keep_verdicts(self.folders.metadata)

    def _held_report(self, staged: StagedVersion, lease: Lease) -> Report:
        remove_progress(self.folders.metadata, lease)
        own = {"outcome": "held", "published_version": None, "staged_version": staged.name}
        return staged.to_report(self.job.slice_path).model_copy(update=own)

    def _pass_gates(self, staged: StagedVersion, cluster: Cluster) -> StagedVersion:
        """Returns what an earlier run staged, with what the gates of now say: they may be others than then.

        :raises UnusableError: when it lacks what they look at, its files too, or lost more rows than it may
            now.
        :raises SliceError: when they stop it.
        """
        try:
            told = Facts.of_commit(staged.version.body)
            located = staged.locate(self.folders)
        except ValueError as e:
            raise UnusableError(f"{staged.name} says what no run counted: it is staged anew") from e
        is_measured = told.spreads.keys() >= set(self.job.quality.measured_columns)
        asked = {name: figures.hash for name, figures in told.probes.items()}
        if not is_measured or any(asked.get(probe.name) != probe.hash for probe in self.probes):
            raise UnusableError(f"{staged.name} lacks what gates look at: it is staged anew")
        files = [f"{store.url}/{name}" for store, name in (located[file] for file in staged.version.files)]
        lost = [told.counts.get(name) or 0 for name in ("quarantined", "invalid_output")]
        if exceeded := exceeded_limit(self.job, told.planned, *lost):
            raise UnusableError(f"{staged.name} lost more rows than quality.{exceeded[0]}: it is staged anew")
        try:
            checks = self.check_rows(cluster, files)
        except Exception:
            check_files(self.folders, staged)
            raise
        rejections = self.checkpoint.rejections(staged.version.body.get("honoured") or ())
        slice_ = replace(told, checks=checks, rejections=rejections)
        return staged.with_gates(pass_gates(self.job, slice_, self.hear_of_golden))

    def stage(self, lease: Lease, cluster: Cluster, keep_days: float = 0) -> StagedVersion:
        """Answers the missing rows and stages the version.

        :param keep_days: how long it waits for somebody who commits or discards it; 0 when this run commits
            it.
        """
        lease.watch(self._is_superseded)
        self.checkpoint.save_plan(self.plan, self.types, asked(self.job))
        self.agree_on_columns(self.known_fields)
        self._carry_over(lease)
        with ProgressReporter(self.job, self.folders.metadata, lease, self.progress) as reporter:
            begun: tuple[Meter, Spending] | None = None
            while True:
                state = self.load_state(lease)
                # After the ledger: whoever published meanwhile has removed the fragments that it counts.
                if self._is_superseded():
                    raise NumberTakenError(f"another run published {self.folders.table.url} meanwhile")
                if begun is None:
                    begun = (
                        Meter(self.plan.rows, self.plan.rows - state.rows_missing, self._model_work()),
                        Spending(self.job, self.checkpoint, lease, state.ledger.rows.run_epochs),
                    )
                meter, spending = begun
                reporter.keep = spending.save
                known = self.known_figures(are_taken_over=state.is_finished and state.is_taken_over)
                run = BuildRun(self, lease, cluster, meter, reporter, spending, known)
                reporter.latest = run.progress
                try:
                    staged = run.stage(*run.infer(state), keep_days)
                    if self.set_aside is not None:
                        remove_document(self.folders.metadata, self.set_aside.name)
                    return staged
                except CorruptFileError as e:
                    self.checkpoint.keep_damaged_file(e.name, e)
                    self._carry_over(lease)

    def _carry_over(self, lease: Lease) -> None:
        """Takes the published version's rows over, once more where what an earlier run took is damaged."""
        if self.checkpoint.base is None:
            return
        assert self.base is not None
        try:
            carry_over_rows(self.checkpoint, self.folders, self.base, self.plan, lease.epoch)
        except CorruptFileError as e:
            self.checkpoint.keep_damaged_file(e.name, e)
            carry_over_rows(self.checkpoint, self.folders, self.base, self.plan, lease.epoch)

    def _model_work(self) -> ModelWork | None:
        engine = self.inference.engine if self.inference is not None else None
        if engine is None or engine.sizes is None:  # another's GPUs, or none
            return None
        return read_model_work(self.job.model_source, engine.engine_kwargs)

    def _commit(self, lease: Lease, staged: StagedVersion, known: ColumnAgreement | None = None) -> Report:
        """:param known: the table's columns, if this run has just staged it."""
        if self.before_commit is not None:
            self.before_commit()
        lease.check()
        try:
            version = commit(
                self.folders,
                self.job.slice_key,
                staged,
                known,
                lease,
                accepts_change=self.job.publish.on_schema_change == "accept",
                check=partial(self._check_rejections, staged),
            )
        except SupersededError as e:
            if not staged.is_held:
                discard(self.folders, staged)
            raise NumberTakenError(e.failure.sentence, advice=e.failure.advice) from e
        newest = Commits.list(self.folders.metadata).newest()
        if newest is not None:
            remove_checkpoints(self.folders, newest, lease)
        return version.to_report(self.job.slice_path)

    def _check_rejections(self, staged: StagedVersion) -> None:
        """:raises NumberTakenError: when a person rejected these answers since the gates looked at them."""
        if not any(gate.then == "hold" for gate in self.job.quality.gates):
            return
        gates = staged.to_report(self.job.slice_path).gates or ()
        seen = sum(gate.value or 0 for gate in gates if gate.of == "rejections")
        if self.checkpoint.rejections(staged.version.body.get("honoured") or ()) > seen:
            raise NumberTakenError(f"a person rejected the answers of {self.folders.table.url} meanwhile")

    def _forget_staged(self, why: str) -> None:
        """Sets aside what an earlier run staged, and cannot be published: it is staged anew."""
        logger.warning("%s", why)
        self.staged, self.set_aside = None, self.staged

    def _is_superseded(self) -> bool:
        """Whether another run published since this one decided what to build. A void number changes nothing
        for the rows: it is noticed at the commit."""
        commits = Commits.list(self.folders.metadata)
        if commits.highest < self.number:
            return False
        newest = commits.newest()
        return newest is not None and newest.number >= self.number
