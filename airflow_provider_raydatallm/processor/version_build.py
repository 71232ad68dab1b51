"""Making one version of a slice, under the lease: answer what is missing, seal, publish."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.report import Counts, Report, Tokens
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.cluster.ray_cluster import Cluster, InferencePlan, InferenceRun
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.metrics.advice import RunFacts, advise
from airflow_provider_raydatallm.processor.metrics.deadline import lateness
from airflow_provider_raydatallm.processor.metrics.meter import Meter, WriterUpdate
from airflow_provider_raydatallm.processor.metrics.progress import ProgressCallback, ProgressReporter
from airflow_provider_raydatallm.processor.metrics.startup_time import environment_seconds
from airflow_provider_raydatallm.processor.publish import publication
from airflow_provider_raydatallm.processor.publish.carry_over import carry_over_rows
from airflow_provider_raydatallm.processor.publish.parts import Totals
from airflow_provider_raydatallm.processor.publish.quarantine_summary import summarize_quarantine
from airflow_provider_raydatallm.processor.request.answer_shape import AnswerParser
from airflow_provider_raydatallm.processor.storage import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, CheckpointState
from airflow_provider_raydatallm.processor.store.lease import Lease
from airflow_provider_raydatallm.processor.store.versions import Version
from airflow_provider_raydatallm.processor.version_policy import Mode

#: Seconds between two lines of progress in the log.
PROGRESS_SECONDS = 5.0


@dataclass
class VersionBuild:
    """One version in the making."""

    job: SliceJob
    store: Store
    checkpoint: Checkpoint
    plan: Plan
    shape: AnswerParser
    inference: InferencePlan | None
    previous_version: Version | None
    mode: Mode
    progress: ProgressCallback
    #: Epoch seconds at which the slice should be finished.
    finish_by: float | None = None
    #: Seconds from the process's beginning to its first step; None where it did other things, too.
    imports: float | None = None

    def check(self, cluster: Cluster) -> None:
        """:raises SliceError: when there are rows to answer and the cluster cannot."""
        missing = self.load_state().missing
        if self.inference is not None and missing:
            self.progress({"step": "check", "rows": 0, "planned": self.plan.rows})
            for finding in cluster.preflight(self.inference, missing):
                print(f"warning: {finding}", file=sys.stderr, flush=True)

    def finish(self, lease: Lease, cluster: Cluster) -> Report:
        """Answer what is missing and publish."""
        self.checkpoint.save_plan(self.plan)
        if self.mode in ("extend", "retry") and self.checkpoint.seeded() is None:
            assert self.previous_version is not None
            carry_over_rows(self.checkpoint, self.previous_version, self.plan, lease.epoch)
        with ProgressReporter(self.job, self.store, lease, self.progress) as reporter:
            meter: Meter | None = None
            while True:
                # Once it is sealed it is decided: nothing that is answered now could be published.
                sealed = publication.read_seal(self.store, self.checkpoint.folder, self.plan)
                state = None if sealed is not None else self.load_state(lease)
                if meter is None:
                    meter = Meter(self.plan.rows, self.plan.rows - (state.rows_missing if state else 0))
                if sealed is None:
                    assert state is not None
                    sealed = self._seal(self._answer(state, lease, cluster, meter, reporter))
                try:
                    report = self._publish(sealed, lease, cluster, meter, reporter)
                    break
                except CorruptFileError as e:
                    self.checkpoint.keep_damaged_file(e.name, e)
                    self.store.keep_damaged_file(
                        sealed.name, "it names a damaged file", "the slice is sealed again"
                    )
        versions.remove_checkpoints(self.store, self.checkpoint.number)
        return report

    def load_state(self, lease: Lease | None = None) -> CheckpointState:
        """How far the version has come."""
        since = 0
        if self.job.retry_quarantined:
            # What failed before this run is tried again; before the lease, that is all there is.
            since = lease.epoch if lease is not None else sys.maxsize
        return CheckpointState(self.plan, self.checkpoint.fragments(), self.job.max_row_attempts, since)

    def _answer(
        self, state: CheckpointState, lease: Lease, cluster: Cluster, meter: Meter, reporter: ProgressReporter
    ) -> CheckpointState:
        """Until every row has its answer or has failed for good."""
        self._check_quarantine(state)
        raised = False
        while state.missing:
            meter.failed = state.rows_quarantined
            reporter.report({"step": "start", **meter.progress()})
            self._round(state, lease, cluster, meter, reporter, raised=raised)
            before, state = state, self.load_state(lease)
            self._check_quarantine(state)
            stuck = len(state.fragments) <= len(before.fragments)
            if state.missing and stuck and (raised or self.job.on_too_long != "raise_limit"):
                unit, spans = state.missing[0]
                raise SliceError(
                    f"{state.rows_missing:,} row(s) came back from the engine neither answered nor failed, "
                    f"the first of them {self.plan.locate(unit, spans[0][0])}",
                    kind="transient",
                )
            # What is missing was longer than the engine's limit.
            raised = self.job.on_too_long == "raise_limit"
        return state

    def _round(
        self,
        state: CheckpointState,
        lease: Lease,
        cluster: Cluster,
        meter: Meter,
        reporter: ProgressReporter,
        *,
        raised: bool,
    ) -> None:
        assert self.inference is not None
        schemas: set[bytes] = set()

        def queued(waiting: dict[str, Any]) -> None:
            if lease.lost:
                lease.check()
            meter.queued(waiting["waited_s"])
            # The longer it lasts, the less there is to say.
            log_every = min(60.0, max(PROGRESS_SECONDS, waiting["waited_s"] / 10))
            reporter.report({"step": "queued", **meter.progress(), **waiting}, log_every)

        def hear(news: WriterUpdate) -> None:
            if lease.lost:
                lease.check()
            for summary in news.summaries:
                for schema in set(summary.column("schema").to_pylist()) - schemas - {None}:
                    fields = list(pa.ipc.read_schema(pa.BufferReader(schema)))
                    publication.check_columns(self.job, self.plan, fields)
                    schemas.add(schema)
            meter.add(news)
            meter.failed = state.rows_quarantined + news.failed
            if self.job.max_row_attempts == 1 and self._too_many(meter.failed):
                # Nothing that is answered from here on could be published.
                raise SliceError(f"{news.failed:,} rows failed", kind="input")
            said = {"step": "answer" if meter.rows else "start", **meter.progress()}
            if self.finish_by is not None:
                said |= lateness(self.finish_by, time.time(), said)
            reporter.report(said, PROGRESS_SECONDS if news.summaries else math.inf)

        work = state.missing
        task = InferenceRun(
            self.inference, work, self.store.url, self.checkpoint.folder, lease.epoch, queued, raised
        )
        try:
            cluster.run_inference(task, hear)
        except SliceError:
            self._check_quarantine(self.load_state(lease))  # says more about rows that failed
            raise

    def _seal(self, state: CheckpointState) -> publication.Seal:
        fields = self.shape.fields if self.shape.fields is not None or self.plan.rows else []
        return publication.seal(self.store, self.checkpoint.folder, self.plan, state.fragments, fields)

    def _publish(
        self,
        sealed: publication.Seal,
        lease: Lease,
        cluster: Cluster,
        meter: Meter,
        reporter: ProgressReporter,
    ) -> Report:
        reporter.report({"step": "publish", **meter.progress()})
        began = time.monotonic()
        store, folder, plan = self.store, self.checkpoint.folder, self.plan
        counted = self.checkpoint.fragments(only=sealed.fragments)
        taken = self.checkpoint.seeded()

        def report(totals: Totals) -> Report:
            meter.published(time.monotonic() - began)
            reporter.close()  # what is published holds no progress
            engine = self.inference.engine if self.inference is not None else None
            counts = Counts(
                planned=plan.rows,
                succeeded=totals.rows,
                resumed=meter.resumed,
                quarantined=totals.quarantined,
                invalid_output=totals.invalid,
                truncated=_with(taken, totals.truncated, lambda taken: taken["truncated"]),
                shortened=_with(taken, totals.shortened, lambda taken: taken.get("shortened")),
                deduplicated=_with(taken, totals.deduplicated, lambda taken: taken.get("deduplicated")),
                cached=_with(taken, totals.cached, lambda taken: taken.get("cached")),
            )
            figures = (
                meter.report_sections(engine.gpus_held, {**self._own_start(), **engine.startup_seconds})
                if engine is not None
                else meter.report_sections()
            )
            run = RunFacts(
                counts,
                seconds=figures["seconds"],
                utilisation=figures["utilisation"],
                balance=figures["balance"],
                busy=meter.busy,
                too_long=totals.too_long,
                late=time.time() - self.finish_by if self.finish_by is not None else 0,
                sizes=engine.sizes if engine is not None else None,
            )
            return report_of(
                self.job,
                "published" if plan.rows else "empty",
                counts=counts,
                tokens=Tokens(
                    input=_with(taken, totals.input_tokens, lambda taken: taken["tokens"]["input"]),
                    output=_with(taken, totals.output_tokens, lambda taken: taken["tokens"]["output"]),
                    cached=_with(taken, totals.cached_tokens, lambda taken: taken["tokens"]["cached"]),
                    saved=_with(taken, totals.saved_tokens, lambda taken: taken["tokens"].get("saved")),
                )
                if totals.rows
                else Tokens(),
                **figures,
                advice=advise(run),
            )

        return publication.Publication(
            store,
            self.job,
            plan,
            folder,
            counted,
            sealed,
            self.checkpoint.number,
            lease,
            self.previous_version,
        ).publish(partial(cluster.build_parts, timeout=self.job.stall_timeout), report)

    def _own_start(self) -> dict[str, float | None]:
        if self.imports is None:
            return {}
        return {"environment": environment_seconds(), "imports": self.imports}

    def _check_quarantine(self, state: CheckpointState) -> None:
        failed = state.rows_quarantined
        if self._too_many(failed):
            said = summarize_quarantine(self.store, self.checkpoint.folder, self.plan, state.fragments)
            raise SliceError(
                f"{failed:,} of {self.plan.rows:,} rows failed, which is more than max_quarantine_fraction "
                f"{self.job.max_quarantine_fraction:g}: {said}. Nothing is published, and the answered "
                "rows are kept. Raise that fraction, or set retry_quarantined=True to try the failed rows "
                "again",
                kind="input",
            )

    def _too_many(self, failed: int) -> bool:
        return failed > self.job.max_quarantine_fraction * self.plan.rows


def _with(
    taken: dict[str, Any] | None, value: int | None, before: Callable[[dict[str, Any]], int | None]
) -> int | None:
    """A count with that of the version whose rows were taken over; None when either is not known."""
    if taken is None or value is None:
        return value
    counted = before(taken)
    return None if counted is None else counted + value


def report_of(job: SliceJob, outcome: str, **figures: Any) -> Report:
    return Report.model_validate(
        {
            "outcome": outcome,
            "slice_key": job.slice_key,
            "output_path": job.slice_path,
            "fingerprint": fingerprint(job),
            **figures,
        }
    )
