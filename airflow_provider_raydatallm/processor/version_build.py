"""Builds one version of a slice under the lease: run inference on the missing rows, then publish."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.fingerprint import answers_fingerprint, asked
from airflow_provider_raydatallm.contract.result.errors import SliceError, log_text
from airflow_provider_raydatallm.contract.result.golden import GoldenFigures
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import Engine, EngineGivenUpError
from airflow_provider_raydatallm.processor.gates.facts import Facts
from airflow_provider_raydatallm.processor.gates.gatekeeper import pass_gates
from airflow_provider_raydatallm.processor.gates.own_checks import CheckPlan, run_check
from airflow_provider_raydatallm.processor.golden_rows import GoldenRows
from airflow_provider_raydatallm.processor.inference.ray_cluster import Cluster, InferencePlan, InferenceRun
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.survey import with_table_types
from airflow_provider_raydatallm.processor.metrics.deadline import lateness
from airflow_provider_raydatallm.processor.metrics.meter import Meter, WriterUpdate
from airflow_provider_raydatallm.processor.metrics.past_speed import newest_throughput
from airflow_provider_raydatallm.processor.metrics.progress import ProgressCallback, ProgressReporter
from airflow_provider_raydatallm.processor.metrics.spending import Spending
from airflow_provider_raydatallm.processor.metrics.startup_time import environment_seconds
from airflow_provider_raydatallm.processor.publish.answer_columns import (
    undecided_as_null,
    with_known_size,
    with_known_types,
)
from airflow_provider_raydatallm.processor.publish.carry_over import carry_over_rows
from airflow_provider_raydatallm.processor.publish.commit import (
    OtherColumnsError,
    SupersededError,
    UnusableError,
    check_waits,
    commit,
    discard,
)
from airflow_provider_raydatallm.processor.publish.parts import Totals
from airflow_provider_raydatallm.processor.publish.quarantine_limits import (
    check_quarantine,
    exceeded_limit,
)
from airflow_provider_raydatallm.processor.publish.row_details import detail_columns
from airflow_provider_raydatallm.processor.publish.stage import Staging, counted
from airflow_provider_raydatallm.processor.publish.table_schema import check_columns
from airflow_provider_raydatallm.processor.publish.value_spread import check_measured_columns
from airflow_provider_raydatallm.processor.request.answers.parser import AnswerParser
from airflow_provider_raydatallm.processor.request.feedback import Feedback
from airflow_provider_raydatallm.processor.sizing.checks import check_request
from airflow_provider_raydatallm.processor.sizing.facts import SizingInputs
from airflow_provider_raydatallm.processor.sizing.model_work import ModelWork, read_model_work
from airflow_provider_raydatallm.processor.sizing.plan_lines import Line, plan_lines
from airflow_provider_raydatallm.processor.slice_report import published_report
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, CheckpointState
from airflow_provider_raydatallm.processor.store.column_agreement import ColumnAgreement
from airflow_provider_raydatallm.processor.store.fragments import fragment_fields
from airflow_provider_raydatallm.processor.store.lease import Lease
from airflow_provider_raydatallm.processor.store.ledger import Fragments, MissingRows
from airflow_provider_raydatallm.processor.store.leftovers import remove_checkpoints
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import (
    StagedVersion,
    StagedVersionError,
    remove_document,
)
from airflow_provider_raydatallm.processor.store.table_columns import TableColumns
from airflow_provider_raydatallm.processor.store.versions import Commits, NumberTakenError, Version

logger = logging.getLogger(__name__)

#: Seconds between two lines of progress in the log, and of an engine that starts.
PROGRESS_SECONDS = 5.0
_START_SECONDS = 30.0


@dataclass
class VersionBuild:
    """One version of a slice that is still to be published."""

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
    before_commit: Callable[[], None] | None = None
    #: What an earlier run staged of it, which is committed instead.
    staged: StagedVersion | None = None
    golden: GoldenRows | None = None

    def check(self, cluster: Cluster) -> None:
        """:raises SliceError: when there are rows to answer and the cluster cannot."""
        if self.staged is not None:
            return
        inference, state = self.inference, self.load_state()
        golden = self.load_golden_state() if self.known_golden(not state.is_finished) is None else None
        missing = state.missing or state.suspects
        if self.golden is not None and golden is not None and not missing:
            inference, missing = self.golden.inference, golden.missing or golden.suspects
        if inference is not None and missing:
            self.progress({"step": "check"})
            findings = check_request(inference.builder.columns, self.plan.rows)
            findings += cluster.preflight(inference, missing)
            for finding in findings:
                logger.warning("%s", finding)
            engine = inference.engine
            if engine.sizing_inputs is not None:
                plan = self._plan_lines(state, engine, engine.sizing_inputs)
                self.progress({"step": "planned", "plan": plan})

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
                judged = self._judge(self.staged, cluster)
                if not judged.to_report(self.job.slice_path).awaits_person:
                    return self._commit(lease, judged)
                self._check_waits(judged)
                return self._held_report(judged)
            except StagedVersionError as e:
                self._forget_staged(log_text(e))
        staged = self.stage(lease, cluster)
        if staged.is_held:
            return self._held_report(staged)
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
                return self._judge(self.staged, cluster)
            except StagedVersionError as e:
                self._forget_staged(log_text(e))
        return self.stage(lease, cluster, keep_days)

    def _check_waits(self, staged: StagedVersion) -> None:
        accepts_change = self.job.publish.on_schema_change == "accept"
        check_waits(self.folders, self.job.slice_key, staged, accepts_change=accepts_change)

    def _held_report(self, staged: StagedVersion) -> Report:
        own = {"outcome": "held", "published_version": None, "staged_version": staged.name}
        return staged.to_report(self.job.slice_path).model_copy(update=own)

    def _judge(self, staged: StagedVersion, cluster: Cluster) -> StagedVersion:
        """Returns what an earlier run staged, with what the gates of now say: they may be others than then.

        :raises SliceError: when they stop it.
        """
        try:
            told = Facts.of_commit(staged.version.body)
            located = staged.locate(self.folders)
        except ValueError as e:
            raise UnusableError(f"{staged.name} says what no run counted: it is staged anew") from e
        is_measured = told.spreads.keys() >= set(self.job.quality.measured_columns)
        golden = told.golden.hash if told.golden is not None else None
        if not is_measured or (self.golden is not None and golden != self.golden.hash):
            raise UnusableError(f"{staged.name} lacks what gates look at: it is staged anew")
        files = [f"{store.url}/{name}" for store, name in (located[file] for file in staged.version.files)]
        slice_ = replace(told, checks=self.check_rows(cluster, files))
        return staged.with_gates(pass_gates(self.job, slice_))

    def check_rows(self, cluster: Cluster, files: Sequence[str]) -> dict[str, float]:
        """Returns what the own checks of gates say.

        :param files: addresses of the staged rows.
        """
        checks = self.job.quality.own_checks
        plans = [CheckPlan(check, tuple(files)) for check in checks]
        said = cluster.run_tasks(run_check, plans, timeout=self.job.limits.stall) if plans else []
        return dict(zip(checks, said, strict=True))

    def stage(self, lease: Lease, cluster: Cluster, keep_days: float = 0) -> StagedVersion:
        """Answers the missing rows and stages the version.

        :param keep_days: how long it waits for somebody who commits or discards it; 0 when this run commits
            it.
        """
        lease.watch(self._is_superseded)
        self.checkpoint.save_plan(self.plan, self.types, asked(self.job))
        self.agree_on_columns(self.known_fields)
        if self.checkpoint.base is not None:
            assert self.base is not None
            carry_over_rows(self.checkpoint, self.folders, self.base, self.plan, lease.epoch)
        with ProgressReporter(self.job, self.folders.metadata, lease, self.progress) as reporter:
            meter: Meter | None = None
            spending = Spending(self.job, self.checkpoint, lease)
            reporter.keep = spending.save
            while True:
                state = self.load_state(lease)
                # After the ledger: whoever published meanwhile has removed the fragments that it counts.
                if self._is_superseded():
                    raise NumberTakenError(f"another run published {self.folders.table.url} meanwhile")
                if self.inference is not None and state.has_rejected_answers:
                    self.inference.engine.take_no_earlier_answers()
                if meter is None:
                    meter = Meter(self.plan.rows, self.plan.rows - state.rows_missing, self._model_work())
                golden = self.known_golden(not state.is_finished)
                run = _Run(self, lease, cluster, meter, reporter, spending, golden)
                reporter.latest = run.progress
                try:
                    return run.stage(run.infer(state), keep_days)
                except CorruptFileError as e:
                    self.checkpoint.keep_damaged_file(e.name, e)

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
            )
        except SupersededError as e:
            if not staged.is_held:
                discard(self.folders, staged)
            raise NumberTakenError(e.failure.sentence, advice=e.failure.advice) from e
        newest = Commits.list(self.folders.metadata).newest()
        if newest is not None:
            remove_checkpoints(self.folders, newest, lease)
        return version.to_report(self.job.slice_path)

    def _forget_staged(self, why: str) -> None:
        """Removes the document of what an earlier run staged, and cannot be published: its rows are there,
        and it is staged anew."""
        assert self.staged is not None
        logger.warning("%s", why)
        remove_document(self.folders.metadata, self.staged.name)
        self.staged = None

    def _is_superseded(self) -> bool:
        """Whether another run published since this one decided what to build. A void number changes nothing
        for the rows: it is noticed at the commit."""
        commits = Commits.list(self.folders.metadata)
        if commits.highest < self.number:
            return False
        newest = commits.newest()
        return newest is not None and newest.number >= self.number

    def load_state(self, lease: Lease | None = None) -> CheckpointState:
        """Reads which rows are finished, quarantined and missing."""
        return self._state_of(self.plan, self.checkpoint, lease)

    def load_golden_state(self, lease: Lease | None = None) -> CheckpointState | None:
        """As `load_state`, of the golden rows; None where there are none."""
        if self.golden is None:
            return None
        return self._state_of(self.golden.plan, self.golden_checkpoint, lease)

    def known_golden(self, has_rows_to_answer: bool) -> GoldenFigures | None:
        """Returns the published version's figures, where its answers are published anew: no engine starts for
        its golden rows either."""
        if self.golden is None or self.base is None or has_rows_to_answer:
            return None
        known = self.base.to_report(self.job.slice_path).golden
        is_same = known is not None and known.hash == self.golden.hash
        if not is_same or self.base.answers != answers_fingerprint(self.job):
            return None
        golden = self.load_golden_state()
        return known if golden is not None and golden.rows_missing == golden.plan.rows else None

    @property
    def golden_checkpoint(self) -> Checkpoint:
        assert self.golden is not None
        return self.checkpoint.of_golden_rows(self.golden.hash)

    def _state_of(self, plan: Plan, checkpoint: Checkpoint, lease: Lease | None) -> CheckpointState:
        since_epoch = 0
        if self.job.rerun.retry_quarantined:
            # Failures of earlier runs do not count. Without a lease, this run has not failed any row yet.
            since_epoch = lease.epoch if lease is not None else sys.maxsize
        ledger = checkpoint.read_ledger(plan, retry=self.job.rerun.retry_quarantined)
        quality = self.job.quality
        return CheckpointState(plan, ledger, quality.max_attempts, since_epoch, quality.repair)


@dataclass(frozen=True)
class _RowSet:
    """Rows that are answered, and the folder for their answers: the slice's, or the golden ones."""

    inference: InferencePlan | None
    checkpoint: Checkpoint
    load_state: Callable[[], CheckpointState]
    is_golden: bool = False


@dataclass(frozen=True)
class _Run:
    """The phases of a build under the lease, with what they share."""

    build: VersionBuild
    lease: Lease
    cluster: Cluster
    meter: Meter
    reporter: ProgressReporter
    spending: Spending
    known_golden: GoldenFigures | None

    @property
    def _slice_rows(self) -> _RowSet:
        build = self.build
        return _RowSet(build.inference, build.checkpoint, partial(build.load_state, self.lease))

    @property
    def _golden_rows(self) -> _RowSet | None:
        build = self.build
        if build.golden is None or self.known_golden is not None:
            return None

        def load_state() -> CheckpointState:
            state = build.load_golden_state(self.lease)
            assert state is not None
            return state

        return _RowSet(build.golden.inference, build.golden_checkpoint, load_state, is_golden=True)

    def infer(self, state: CheckpointState) -> CheckpointState:
        """Runs inference until every row has its answer or has failed for good, golden ones too. Returns the
        state of the slice's.

        :param state: of the slice's rows.
        """
        self._check_failures(state)
        state = self._infer_all(self._slice_rows, state)
        if (golden := self._golden_rows) is not None:
            # Most have been answered by the engine of the slice's rows.
            self._infer_all(golden, golden.load_state())
        return state

    def _infer_all(self, rows: _RowSet, state: CheckpointState) -> CheckpointState:
        build = self.build
        limit_raised = False
        while not state.is_finished:
            self.reporter.report({"step": "start", **self.progress()})
            fragments = state.ledger.fragments
            can_raise_limit = bool(state.missing) and build.job.quality.on_too_long == "raise_limit"
            state.release_ledger()  # inference takes hours, and the ledger is read again after it
            self._infer_once(rows, state, limit_raised)
            state = rows.load_state()
            if not rows.is_golden:
                self._check_failures(state)
            is_stuck = not state.is_finished and state.ledger.fragments <= fragments
            if is_stuck and Commits.list(build.folders.metadata).highest >= build.number:
                raise NumberTakenError(f"another run, or gc, changed {build.folders.table.url} meanwhile")
            if is_stuck and (limit_raised or not can_raise_limit):
                unit, spans = (state.missing or state.suspects)[0]
                raise SliceError(
                    f"{state.rows_missing:,} row(s) came back from the engine neither answered nor failed, "
                    f"the first of them {state.plan.locate(unit, int(spans[0, 0]))}",
                    kind="transient",
                )
            # The missing rows were longer than the engine's limit.
            limit_raised = can_raise_limit
        return state

    def _infer_once(self, rows: _RowSet, state: CheckpointState, limit_raised: bool) -> None:
        """Answers the missing rows. Those that may kill an engine run last, or when it is given up."""
        missing, invalid = state.missing, state.invalid
        if not missing:
            self._isolate(rows, state.suspects, invalid)
        while missing:
            try:
                self._run_inference(rows, missing, invalid, limit_raised)
                break
            except EngineGivenUpError:
                before = rows.load_state()
                if before.is_finished:  # it was given up over golden rows, which are next
                    break
                if not before.suspects:
                    raise
                self._isolate(rows, before.suspects, before.invalid)
                after = rows.load_state()
                if len(after.ledger.failures) == len(before.ledger.failures):
                    raise  # no row was the reason
                if not rows.is_golden:
                    self._check_failures(after)
                missing, invalid, limit_raised = after.missing, after.invalid, False

    def _isolate(self, rows: _RowSet, suspects: MissingRows, invalid: Fragments) -> None:
        """Answers rows that may kill an engine, on one that they may kill."""
        assert rows.inference is not None
        engine = rows.inference.engine.for_suspects(suspects.rows)
        self._run_inference(rows, suspects, invalid, limit_raised=False, engine=engine)

    def _run_inference(
        self,
        rows: _RowSet,
        missing: MissingRows,
        invalid: Fragments,
        limit_raised: bool,
        engine: Engine | None = None,
    ) -> None:
        """Answers rows, and golden ones that are missing, by the same engine.

        :param invalid: answers whose faults their rows are told when they are asked again.
        """
        build, meter = self.build, self.meter
        checked_schemas: set[bytes] = set()
        inference = rows.inference
        assert inference is not None
        held_by = engine or inference.engine
        rows_left = 0
        self._check_cost()

        def on_queued(waiting: dict[str, Any]) -> None:
            self._check_lease()
            meter.record_queue_time(waiting["waited_s"])
            # The longer the wait, the fewer the log lines.
            log_every = min(60.0, max(PROGRESS_SECONDS, waiting["waited_s"] / 10))
            self.reporter.report({"step": "queued", **self.progress(), **waiting}, log_every)

        def on_update(update: WriterUpdate) -> None:
            nonlocal rows_left
            self._check_lease()
            for summary in update.summaries:
                for schema in set(summary.column("schema").to_pylist()) - checked_schemas - {None}:
                    fields = list(pa.ipc.read_schema(pa.BufferReader(schema)))
                    build.check_columns(with_known_types(build.job, fields, build.table.answers))
                    checked_schemas.add(schema)
            meter.add(update)
            meter.failed_rows += update.failed
            lost, lost_for_answers = meter.failed_rows, meter.invalid_rows
            if build.job.quality.repair:  # these may still get a valid answer
                lost, lost_for_answers = lost - lost_for_answers, 0
            if build.job.quality.max_attempts == 1 and exceeded_limit(
                build.job, build.plan.rows, lost, lost_for_answers
            ):
                # Nothing that is answered from here on could be published. The ledger has the last word: here
                # a row that a task delivered again counts twice.
                raise SliceError(f"{lost:,} rows failed", kind="transient")
            rows_left -= update.settled_rows
            self.spending.record(meter.gpu_seconds(self._gpus_held(held_by), time.time()))
            step = "answer" if meter.finished_rows else "start"
            progress = {"step": step, **self.progress()}
            if build.finish_by is not None:
                progress |= lateness(build.finish_by, time.time(), progress)
            if progress["step"] == "start":
                if update.deaths.total:
                    progress |= {"died": update.deaths.total, "died_of": update.deaths.reason}
                log_every_s = _START_SECONDS
            else:
                log_every_s = PROGRESS_SECONDS if update.summaries else math.inf
            self.reporter.report(progress, log_every_s, meter.details())
            if rows_left > 0:
                self._check_cost()

        def run_of(rows: _RowSet, missing: MissingRows, invalid: Fragments) -> InferenceRun:
            nonlocal rows_left
            rows_left = 0 if rows.is_golden else missing.rows  # the slice is answered then
            url, folder = rows.checkpoint.store.url, rows.checkpoint.folder
            inference = rows.inference
            assert inference is not None

            def still_missing() -> MissingRows:
                state = rows.load_state()
                return state.missing if engine is None else state.suspects

            return InferenceRun(
                inference if engine is None else replace(inference, engine=engine),
                missing,
                url,
                folder,
                self.lease.epoch,
                still_missing,
                next_run,
                on_queued,
                limit_raised,
                Feedback.of(url, folder, inference.plan, invalid) if build.job.quality.repair else None,
                rows.is_golden,
            )

        golden_fragments = -1

        def next_run() -> InferenceRun | None:
            nonlocal golden_fragments
            if engine is not None:  # suspects wait for the next round
                return None
            repairs, golden = build.job.quality.repair, self._golden_rows
            if (repairs or golden is not None) and not rows.is_golden:
                state = rows.load_state()
                check_quarantine(build.job, build.plan, build.checkpoint, state)
                if repairs and state.repairable:
                    return run_of(rows, state.repairable, state.invalid)
            if golden is None:
                return None
            state = golden.load_state()
            # As long as they come back: some may wait for an engine with a higher limit.
            has_moved, golden_fragments = state.ledger.fragments > golden_fragments, state.ledger.fragments
            return run_of(golden, state.missing, state.invalid) if state.missing and has_moved else None

        run = run_of(rows, missing, invalid)
        try:
            self.cluster.run_inference(run, on_update)
        except SliceError:
            self._check_failures(build.load_state(self.lease))  # says more about rows that failed
            raise

    def progress(self) -> dict[str, Any]:
        return {**self.meter.progress(), "cost": self.spending.total}

    def _check_failures(self, state: CheckpointState) -> None:
        """:raises SliceError: when more rows failed than the slice may lose."""
        self.meter.failed_rows, self.meter.invalid_rows = state.rows_quarantined, state.rows_invalid
        build = self.build
        check_quarantine(build.job, build.plan, build.checkpoint, state)

    def _gpus_held(self, engine: Engine) -> float | None:
        """Of an engine that runs. The fewest that it may have, as long as it is not known."""
        return engine.gpus_held(self.meter.workers) or engine.resources.gpus

    def _check_cost(self) -> None:
        """:raises SliceError: when the slice has spent what it may."""
        meter = self.meter
        self.spending.check(max(meter.rows_done - meter.failed_rows, 0), meter.planned_rows)

    def _check_lease(self) -> None:
        if self.lease.lost:
            self.lease.check()
        if self.lease.superseded:
            raise NumberTakenError(f"another run published {self.build.folders.table.url} meanwhile")

    def _golden_figures(self) -> GoldenFigures | None:
        build = self.build
        if build.golden is None or (rows := self._golden_rows) is None:
            return self.known_golden
        figures = build.golden.figures(rows.checkpoint, rows.load_state().ledger)
        logger.info("%s", figures)
        return figures

    def stage(self, state: CheckpointState, keep_days: float) -> StagedVersion:
        build, meter = self.build, self.meter
        self.reporter.report({"step": "publish", **self.progress()})
        started = time.monotonic()
        golden = self._golden_figures()

        def report_of(totals: Totals, files: Sequence[str]) -> Report:
            meter.record_publish_time(time.monotonic() - started)
            self.reporter.close()  # a published slice has no progress file
            startup_s = {}
            if build.imports_s is not None:
                startup_s = {"environment": environment_seconds(), "imports": build.imports_s}
            report = published_report(
                build.job,
                build.number,
                build.plan.rows,
                totals,
                meter,
                engine=build.inference.engine if build.inference is not None else None,
                carried_over=build.checkpoint.carried_over(),
                startup_s=startup_s,
                late_s=time.time() - build.finish_by if build.finish_by is not None else 0,
                earlier_cost=self.spending.earlier,
            ).model_copy(update={"golden": golden})
            slice_ = Facts.of_commit(
                {
                    "report": report.model_dump(),
                    "checks": build.check_rows(self.cluster, files),
                    **counted(build.job, published, totals),
                }
            )
            return report.model_copy(update={"gates": pass_gates(build.job, slice_)})

        fields = build.shape.fields
        if fields is None and build.plan.rows:
            fields = fragment_fields(build.checkpoint.store, build.checkpoint.folder, state.ledger.rows)
        # Without an answer: readers of the table expect the same columns in all of its files.
        if not fields:
            details = {column.name for column in detail_columns(build.job)}
            fields = with_known_size(build.job, build.known_fields) or [
                field for field in build.table.answer_fields if field.name not in details
            ]
        published = with_known_types(build.job, fields, build.table.answers)
        build.agree_on_columns(published)
        return Staging(
            build.folders,
            build.job,
            build.plan,
            build.checkpoint,
            state.ledger,
            published,
            build.table,
            build.number,
            build.base,
            build.follows,
            self.lease,
        ).stage(
            partial(self.cluster.run_tasks, timeout=build.job.limits.stall), report_of, keep_days=keep_days
        )
