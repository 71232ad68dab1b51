"""Runs a build under the lease: inference on the missing rows, what probes ask, and staging."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.probes import ProbeFigures
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.processor.build import Build
from airflow_provider_raydatallm.processor.engines.base import Engine, EngineGivenUpError
from airflow_provider_raydatallm.processor.gates.facts import Facts
from airflow_provider_raydatallm.processor.gates.gatekeeper import pass_gates
from airflow_provider_raydatallm.processor.inference.ray_cluster import Cluster, InferencePlan, InferenceRun
from airflow_provider_raydatallm.processor.metrics.deadline import lateness, workers_wanted
from airflow_provider_raydatallm.processor.metrics.meter import Meter, WriterUpdate
from airflow_provider_raydatallm.processor.metrics.past_speed import newest_throughput
from airflow_provider_raydatallm.processor.metrics.progress import ProgressReporter
from airflow_provider_raydatallm.processor.metrics.spending import Spending
from airflow_provider_raydatallm.processor.metrics.startup_time import environment_seconds
from airflow_provider_raydatallm.processor.probes.base import Answered, Probe
from airflow_provider_raydatallm.processor.publish.answer_columns import (
    with_known_size,
    with_known_types,
)
from airflow_provider_raydatallm.processor.publish.parts import Totals
from airflow_provider_raydatallm.processor.publish.quarantine_limits import (
    check_quarantine,
    exceeded_limit,
)
from airflow_provider_raydatallm.processor.publish.row_details import detail_columns
from airflow_provider_raydatallm.processor.publish.stage import Staging, counted
from airflow_provider_raydatallm.processor.request.feedback import Feedback
from airflow_provider_raydatallm.processor.slice_report import published_report
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, CheckpointState
from airflow_provider_raydatallm.processor.store.fragments import fragment_fields
from airflow_provider_raydatallm.processor.store.lease import Lease
from airflow_provider_raydatallm.processor.store.ledger import Fragments, MissingRows
from airflow_provider_raydatallm.processor.store.rejections import has_rejections
from airflow_provider_raydatallm.processor.store.staged_versions import StagedVersion
from airflow_provider_raydatallm.processor.store.versions import Commits, NumberTakenError

logger = logging.getLogger(__name__)

#: Seconds between two lines of progress in the log, and of an engine that starts.
PROGRESS_SECONDS = 5.0
_START_SECONDS = 30.0


@dataclass(frozen=True)
class _RowSet:
    """Rows that are answered, and the folder for their answers: the slice's, or those of a probe."""

    inference: InferencePlan | None
    checkpoint: Checkpoint
    load_state: Callable[[], CheckpointState]
    is_probe: bool = False


@dataclass(frozen=True)
class BuildRun:
    """The phases of a build under the lease, with what they share.

    :ivar known: figures of probes that need not be asked, by their names.
    """

    build: Build
    lease: Lease
    cluster: Cluster
    meter: Meter
    reporter: ProgressReporter
    spending: Spending
    known: Mapping[str, ProbeFigures]

    @property
    def _slice_rows(self) -> _RowSet:
        build = self.build
        return _RowSet(build.inference, build.checkpoint, partial(build.load_state, self.lease))

    @property
    def _probes(self) -> list[Probe]:
        """Those that are asked."""
        return [probe for probe in self.build.probes if probe.name not in self.known]

    def _rows_of(self, probe: Probe) -> _RowSet:
        build = self.build
        load_state = partial(build.load_probe_state, probe, self.lease)
        return _RowSet(probe.inference, probe.checkpoint(build.checkpoint), load_state, is_probe=True)

    def infer(self, state: CheckpointState) -> tuple[CheckpointState, dict[str, ProbeFigures]]:
        """Runs inference until every row has its answer or has failed for good, those of probes too. Returns
        the state of the slice's, and what probes say, by their names.

        :param state: of the slice's rows.
        """
        build, figures = self.build, dict(self.known)
        self._check_failures(state)
        self._look_back(state)
        state = self._infer_all(self._slice_rows, state)
        of_slice = Answered(build.plan, build.checkpoint, state.ledger)
        for probe in (probe.open(of_slice) for probe in self._probes):
            # Most have been answered by the engine of the slice's rows.
            rows = self._rows_of(probe)
            ledger = self._infer_all(rows, rows.load_state()).ledger
            answered = Answered(probe.plan, rows.checkpoint, ledger)
            figures[probe.name] = probe.figures(answered, of_slice)
            logger.info("%s", figures[probe.name])
        return state, figures

    def _look_back(self, state: CheckpointState) -> None:
        """Lets probes hear what earlier runs answered, which counts no more once other rows are."""
        of_slice = Answered(self.build.plan, self.build.checkpoint, state.ledger)
        for probe in self._probes if state.rows_missing and len(state.ledger.rows) else ():
            if probe.as_new_as_answers:
                rows = self._rows_of(probe)
                of_probe = rows.load_state()
                answered = Answered(probe.plan, rows.checkpoint, of_probe.ledger)
                probe.look_back(answered, of_slice, is_finished=of_probe.is_finished)

    def _infer_all(self, rows: _RowSet, state: CheckpointState) -> CheckpointState:
        build = self.build
        limit_raised = False
        while not state.is_finished:
            self.reporter.report({"step": "start", **self.progress()})
            outcomes = state.ledger.outcomes
            can_raise_limit = bool(state.missing) and build.job.quality.on_too_long == "raise_limit"
            state.release_ledger()  # inference takes hours, and the ledger is read again after it
            self._infer_once(rows, state, limit_raised)
            state = rows.load_state()
            if not rows.is_probe:
                self._check_failures(state)
            is_stuck = not state.is_finished and state.ledger.outcomes <= outcomes
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
                if before.is_finished:  # it was given up over rows of a probe, which are next
                    break
                if not before.suspects:
                    raise
                self._isolate(rows, before.suspects, before.invalid)
                after = rows.load_state()
                if len(after.ledger.failures) == len(before.ledger.failures):
                    raise  # no row was the reason
                if not rows.is_probe:
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
        """Answers rows, and those of probes that are missing, by the same engine.

        :param invalid: invalid answers of rows that are asked again, with what was wrong with them.
        """
        build, meter = self.build, self.meter
        checked_schemas: set[bytes] = set()
        inference = rows.inference
        assert inference is not None
        held_by = engine or inference.engine
        came: dict[str, float] = {}
        rows_left, waited_s = 0, 0.0
        past = newest_throughput(build.job) if build.finish_by is not None else None
        if has_rejections(build.folders.metadata):
            held_by.take_no_earlier_answers()
        if build.job.golden_path is not None:
            build.checkpoint.save_start(self.lease.epoch, meter.began)
        self.spending.begin_engine()
        if not rows.is_probe:  # the slice is answered
            self._check_cost()

        def on_queued(waiting: dict[str, Any]) -> None:
            nonlocal waited_s
            self._check_lease()
            self.spending.begin_engine()
            if not (rows.is_probe and meter.finished_rows):  # the slice's rows waited for others
                meter.add_queue_time(waiting["waited_s"] - waited_s)
            waited_s = waiting["waited_s"]
            # The longer the wait, the fewer the log lines.
            log_every = min(60.0, max(PROGRESS_SECONDS, waiting["waited_s"] / 10))
            self.reporter.report({"step": "queued", **self.progress(), **waiting}, log_every)

        def on_update(update: WriterUpdate) -> int | None:
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
            came.update(dict.fromkeys(update.workers - came.keys(), time.time()))
            # The fewest that it may have, as long as it is not known.
            gpus = held_by.gpus_held(len(came) or None) or held_by.resources.gpus
            fewest = held_by.fewest_workers
            self.spending.record(gpus, came.values(), len(came) if fewest is None else fewest)
            step = "answer" if meter.finished_rows else "start"
            progress = {"step": step, **self.progress()}
            wanted = None
            if build.finish_by is not None:
                most = held_by.sizes.workers[1] if held_by.sizes is not None else 1
                late = lateness(build.finish_by, time.time(), progress, past, most)
                progress, wanted = progress | late, workers_wanted(late)
            if progress["step"] == "start":
                if update.deaths.total:
                    progress |= {"died": update.deaths.total, "died_of": update.deaths.reason}
                log_every_s = _START_SECONDS
            else:
                log_every_s = PROGRESS_SECONDS if update.summaries else math.inf
            self.reporter.report(progress, log_every_s, meter.details())
            if rows_left > 0:
                self._check_cost()
            return wanted

        def run_of(rows: _RowSet, missing: MissingRows, invalid: Fragments) -> InferenceRun:
            nonlocal rows_left
            rows_left = 0 if rows.is_probe else missing.rows  # the slice is answered then
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
                self.spending.begin_engine,
                limit_raised,
                Feedback.of(url, folder, inference.plan, invalid) if build.job.quality.repair else None,
                rows.is_probe,
            )

        outcomes_of_probes: dict[str, int] = {}

        def next_run() -> InferenceRun | None:
            if engine is not None:  # suspects wait for the next round
                return None
            repairs, probes = build.job.quality.repair, self._probes
            if (repairs or probes) and not rows.is_probe:
                state = rows.load_state()
                check_quarantine(build.job, build.plan, build.checkpoint, state)
                if repairs and state.repairable:
                    return run_of(rows, state.repairable, state.invalid)
            for probe in map(self._rows_of, [probe for probe in probes if probe.shares_engine]):
                state, folder = probe.load_state(), probe.checkpoint.folder
                # As long as they come back: some may wait for an engine with a higher limit.
                has_moved = state.ledger.outcomes > outcomes_of_probes.get(folder, -1)
                outcomes_of_probes[folder] = state.ledger.outcomes
                if state.missing and has_moved:
                    return run_of(probe, state.missing, state.invalid)
            return None

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

    def _check_cost(self) -> None:
        """:raises SliceError: when the slice has spent what it may."""
        meter = self.meter
        self.spending.check(max(meter.rows_done - meter.failed_rows, 0), meter.planned_rows)

    def _check_lease(self) -> None:
        if self.lease.lost:
            self.lease.check()
        if self.lease.superseded:
            raise NumberTakenError(f"another run published {self.build.folders.table.url} meanwhile")

    def stage(
        self, state: CheckpointState, figures: Mapping[str, ProbeFigures], keep_days: float
    ) -> StagedVersion:
        build, meter = self.build, self.meter
        self.reporter.report({"step": "publish", **self.progress()})
        started = time.monotonic()
        carried_over = build.checkpoint.carried_over(build.plan)
        if carried_over is None and state.ledger.rows.carried.any():  # one of the fragments was damaged
            raise NumberTakenError("rows of the published version are to be copied again")
        rejections = build.checkpoint.rejections(state.honoured) if build.job.quality.gates else 0
        hear = partial(build.hear_of_golden, answered_by={*state.ledger.rows.run_epochs, self.lease.epoch})

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
                carried_over=carried_over,
                startup_s=startup_s,
                late_s=time.time() - build.finish_by if build.finish_by is not None else 0,
                earlier_cost=self.spending.earlier,
                own_cost=self.spending.now,
            ).model_copy(update=dict(figures))
            slice_ = Facts.of_commit(
                {
                    "report": report.model_dump(),
                    "checks": build.check_rows(self.cluster, files),
                    **counted(build.job, published, totals, carried_over),
                }
            )
            gates = pass_gates(build.job, replace(slice_, rejections=rejections), hear)
            return report.model_copy(update={"gates": gates})

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
            state.honoured,
            published,
            build.table,
            build.number,
            build.base,
            build.follows,
            self.lease,
        ).stage(
            partial(self.cluster.run_tasks, timeout=build.job.limits.stall), report_of, keep_days=keep_days
        )
