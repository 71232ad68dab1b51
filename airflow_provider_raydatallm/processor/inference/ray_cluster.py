"""Runs the work of a slice on Ray. The life of a slice (`slice_run`) knows Ray only through this module."""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.engines.feeding.token_lengths import (
    sample_rows,
    sample_token_lengths,
)
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.shared.holdings import name_engines_that_hold_memory
from airflow_provider_raydatallm.processor.inference import pipeline
from airflow_provider_raydatallm.processor.inference.admission import QueueSlot, admit
from airflow_provider_raydatallm.processor.inference.death_error import ROW_ADVICE, death_error
from airflow_provider_raydatallm.processor.inference.dying_workers import DyingWorkers
from airflow_provider_raydatallm.processor.inference.fragment_writers import FragmentWriters
from airflow_provider_raydatallm.processor.inference.size_watch import SizeWatch
from airflow_provider_raydatallm.processor.inference.slice_process import SliceProcess, run_in_slice_process
from airflow_provider_raydatallm.processor.inference.stall import StallWatch, stall_error
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.metrics.meter import WriterUpdate
from airflow_provider_raydatallm.processor.metrics.past_speed import newest_throughput
from airflow_provider_raydatallm.processor.ray_runtime.bounded_calls import wait_for_refs
from airflow_provider_raydatallm.processor.ray_runtime.driver import connect_to_ray
from airflow_provider_raydatallm.processor.ray_runtime.interruptible_wait import InterruptibleWait
from airflow_provider_raydatallm.processor.ray_runtime.job_state import (
    describe_waiting,
    worker_exit,
    workers_of_job,
)
from airflow_provider_raydatallm.processor.ray_runtime.own_phase import say_admitted
from airflow_provider_raydatallm.processor.request.answers.parser import AnswerParser
from airflow_provider_raydatallm.processor.request.feedback import Feedback
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder, RequestReader
from airflow_provider_raydatallm.processor.root_error import root_error, starting
from airflow_provider_raydatallm.processor.sizing import checks, cluster_probe
from airflow_provider_raydatallm.processor.sizing.checks import Finding
from airflow_provider_raydatallm.processor.sizing.facts import SizingInputs, TokenLengthSample
from airflow_provider_raydatallm.processor.sizing.sizes import fits_one_process
from airflow_provider_raydatallm.processor.store.ledger import MissingRows

logger = logging.getLogger(__name__)

#: Called every second of a run, which it ends by raising. Returns how many workers finish the slice in time;
#: None: as many as it may have.
OnUpdate = Callable[[WriterUpdate], int | None]
Asked = TypeVar("Asked")
Told = TypeVar("Told")

#: Seconds for the writers' last flush after an error or a stop.
_LAST_FLUSH_SECONDS = 20.0
_CHECK_SECONDS = 1.0
#: Rounds in which a feeder died and no row finished, after which a run ends.
_MOST_LOST_ROUNDS = 4
#: More than the limits of what a check asks add up to.
_CHECK_LIMIT_SECONDS = 150.0


@dataclass(frozen=True)
class InferencePlan:
    """How the rows of a plan become requests and answers."""

    job: SliceJob
    plan: Plan
    builder: RequestBuilder
    engine: Engine
    shape: AnswerParser


@dataclass(frozen=True)
class InferenceRun:
    """Missing rows, and the folder for their answers.

    still_missing: reads again which of the rows are.
    next_run: returns the next run of the same engine, when this one is written; None when there is none.
    on_wait: called every second while the run waits for room on the cluster, as by `admission.admit`.
    on_admitted: called when there is room.
    limit_raised: the engine replaces one whose length limit was too low for the rows.
    feedback: for rows whose answers were invalid.
    is_probe: the rows are not the slice's, and do not count as such.
    """

    inference: InferencePlan
    missing: MissingRows
    url: str
    folder: str
    epoch: int
    still_missing: Callable[[], MissingRows]
    next_run: Callable[[], InferenceRun | None]
    on_wait: Callable[[dict[str, Any]], None]
    on_admitted: Callable[[], None]
    limit_raised: bool = False
    feedback: Feedback | None = None
    is_probe: bool = False

    def place_of_first(self, rows: MissingRows) -> Place:
        unit, spans = rows[0]
        plan = self.inference.plan
        return plan.place_in(plan.units[unit], int(spans[0, 0]))

    @property
    def parser(self) -> AnswerParser:
        return self.inference.shape.agreeing_in(self.url, self.folder)

    @property
    def reader(self) -> RequestReader:
        plan, builder, needs_row = self.inference.plan, self.inference.builder, self.parser.needs_row
        return RequestReader(plan, builder, carry_row=needs_row, feedback=self.feedback)


class Cluster(Protocol):
    def preflight(self, inference: InferencePlan, missing: MissingRows) -> list[Finding]:
        """Checks a run before it starts and returns the warnings.

        :raises SliceError: when the run cannot work.
        """

    def run_inference(self, run: InferenceRun, on_update: OnUpdate) -> None:
        """Waits for room, answers the rows and writes their fragments, also when an error ends it."""

    def run_tasks(
        self, function: Callable[[Asked], Told], inputs: Iterable[Asked], timeout: float
    ) -> Iterable[Told]:
        """Calls the function on each input, in parallel, and returns its results in their order.

        :param timeout: seconds in which no call ended, after which this raises.
        """


class RayCluster:
    """The Ray cluster that this process can reach."""

    def preflight(
        self, inference: InferencePlan, missing: MissingRows, *, limit_raised: bool = False
    ) -> list[Finding]:
        connect_to_ray()
        engine = inference.engine
        if not _fits_one_process(engine, missing):
            # Needed later: meanwhile this process waits for the cluster.
            threading.Thread(target=importlib.import_module, args=("ray.data",), name="import").start()
        rows, cluster = missing.rows, cluster_probe.probe_cluster()
        checks.raise_errors(checks.preflight_findings(engine.plan, rows, cluster))
        if inference.job.engine.capabilities.loads_model:
            cluster_probe.check_model_folder(inference.job.model_source)
        lengths = None
        if engine.needs_token_lengths(raised=limit_raised):
            lengths = _sample_lengths(inference, missing)
        past_throughput = newest_throughput(inference.job) if engine.needs_past_throughput else None
        with starting():
            engine.choose_sizes(SizingInputs(cluster, lengths, past_throughput, limit_raised))
        findings = checks.preflight_findings(engine.plan, rows, cluster)
        checks.raise_errors(findings)
        return findings

    def run_inference(self, run: InferenceRun, on_update: OnUpdate) -> None:
        connect_to_ray()
        job, engine = run.inference.job, run.inference.engine
        if run.limit_raised or engine.sizing_inputs is None:
            self.preflight(run.inference, run.missing, limit_raised=run.limit_raised)
        size_watch = SizeWatch(engine, run.missing.rows, job.limits.stall)

        def on_wait(waiting: dict[str, Any]) -> None:
            run.on_wait(waiting)
            size_watch.check(waiting["waited_s"])

        try:
            slot = admit(
                engine,
                name=job.slice_path,
                timeout_s=job.limits.queue,
                on_wait=on_wait,
                make_room=lambda: serve_apps.SERVE.stop_idle_engine(keep=engine.engine_to_keep),
            )
        except BaseException:
            engine.stop()
            raise
        try:
            run.on_admitted()
            say_admitted()
            with starting():
                engine.on_admitted()
            _answer(run, slot, on_update)
        except Exception as e:
            name_engines_that_hold_memory(e, engine)
            raise
        finally:
            slot.release()

    def run_tasks(
        self, function: Callable[[Asked], Told], inputs: Iterable[Asked], timeout: float
    ) -> Iterable[Told]:
        import ray

        connect_to_ray()
        remote: Any = ray.remote(function)
        tasks = left = [remote.remote(one) for one in inputs]
        told: dict[Any, Told] = {}
        with _errors_of_tasks(Exception):
            while left:
                done, left = wait_for_refs(left, num_returns=1, timeout_s=timeout)
                if not done:
                    event, waiting = (
                        f"no call of {function.__name__} ended for {timeout:g} s",
                        f"{len(left):,} wait",
                    )
                    raise stall_error(event, waiting, describe_waiting())
                told |= zip(done, ray.get(done, timeout=timeout), strict=True)
        return [told[task] for task in tasks]


def _fits_one_process(engine: Engine, missing: MissingRows) -> bool:
    return not engine.needs_ray_data and fits_one_process(missing.rows, len(missing))


class _Watch:
    """Looks at a run once a second: what the writers count, whether the engine lives, and whether anything
    moves."""

    def __init__(self, engine: Engine, slot: QueueSlot, on_update: OnUpdate) -> None:
        self._engine = engine
        self._slot = slot
        self._on_update = on_update
        # Deaths of the slice's process are counted where it is started again (`slice_process`).
        self._dying = DyingWorkers(
            lambda: [worker for worker in workers_of_job() if worker.name != SliceProcess.__name__],
            worker_exit,
        )
        self._was_answered = False

    def follow(self, run: InferenceRun, writers: FragmentWriters) -> None:
        def describe() -> str:
            return "; ".join(filter(None, (writers.describe_silent(), describe_waiting())))

        self._run, self._writers, self._left = run, writers, run.missing.rows
        stall_s = run.inference.job.limits.stall
        self._stall = StallWatch(run.missing.rows, stall_s, self._engine.is_starting, describe)

    def check(self) -> None:
        self._engine.raise_if_broken()
        update = self._writers.update()
        has_answered = update.inferred_rows > 0
        if has_answered:
            self._slot.release()
            self._was_answered = True
        elif not self._was_answered:
            update = update._replace(deaths=self._dying.observe())
        self._left -= update.finished_rows
        wanted = self._on_update(update.without_rows() if self._run.is_probe else update)
        for node_id in self._engine.fit_workers(max(self._left, 0), wanted):
            if self._writers.slice_process is not None:  # else the node's feeders may still write there
                self._writers.release(node_id)
        self._stall.observe(update.finished_rows, self._engine.is_ready or has_answered)


def _answer(run: InferenceRun, slot: QueueSlot, on_update: OnUpdate) -> None:
    """Answers a run, and those that follow it."""
    engine = run.inference.engine
    process = SliceProcess if _fits_one_process(engine, run.missing) else None
    watch = _Watch(engine, slot, on_update)
    writers: FragmentWriters | None = None
    next_run: InferenceRun | None = run
    try:
        while next_run is not None:
            if writers is not None:
                writers.stop()  # the next ones need their CPU
            unit_ids = [unit.id for unit in next_run.inference.plan.units]
            writers = FragmentWriters(next_run.url, next_run.folder, unit_ids, next_run.epoch, process)
            watch.follow(next_run, writers)
            next_run = _answer_into_folder(next_run, writers, watch)
    finally:
        engine.stop()
        if writers is not None:
            writers.stop()


def _answer_into_folder(run: InferenceRun, writers: FragmentWriters, watch: _Watch) -> InferenceRun | None:
    """Answers a run, and those that follow it, as long as their answers go into one folder. Returns the run
    that is next."""
    engine, stall_s = run.inference.engine, run.inference.job.limits.stall
    next_run: InferenceRun | None = run
    try:
        try:
            with InterruptibleWait(watch.check, _CHECK_SECONDS, _CHECK_LIMIT_SECONDS):
                while next_run is not None and next_run.folder == run.folder:
                    _answer_rows(next_run, writers)
                    writers.flush()
                    next_run = next_run.next_run()
        except Exception:
            engine.raise_if_broken()  # its own error names the cause; errors of its callers do not
            raise
        watch.check()
    except BaseException:
        try:
            writers.flush(min(_LAST_FLUSH_SECONDS, stall_s))
        except Exception as e:
            why = root_error(e).without_row_texts().sentence
            logger.warning("the last finished rows could not be kept: %s", why)
        raise
    return next_run


def _answer_rows(run: InferenceRun, writers: FragmentWriters) -> None:
    job, engine = run.inference.job, run.inference.engine
    if writers.slice_process is None:
        _answer_until_none_is_lost(run, writers)
        return
    with starting():
        open_feeder = engine.start_for_feeders(alone=True)
    run_in_slice_process(
        writers.slice_process,
        run.missing,
        run.still_missing,
        run.place_of_first,
        job,
        run.reader,
        open_feeder,
        run.parser,
        engine.block_rows,
    )


def _answer_until_none_is_lost(run: InferenceRun, writers: FragmentWriters) -> None:
    """Answers the missing rows, and those that were lost with a feeder again.

    :raises SliceError: when feeders die again and again.
    """
    missing, rounds = run.missing, 0
    while len(missing):
        death = pipeline.run_inference(
            missing, run.reader, run.inference.engine, run.parser, writers.for_tasks(), writers.release
        )
        if death is None:
            return
        writers.flush()
        before, missing = missing.rows, run.still_missing()
        rounds = rounds + 1 if missing.rows == before else 1
        if rounds >= _MOST_LOST_ROUNDS:
            raise death_error(
                f"feeders died in {rounds} rounds without a finished row (missing: {missing.rows:,})",
                death,
                kind="transient",
                place=run.place_of_first(missing),
                advice=ROW_ADVICE,
            ) from death
        if len(missing):
            why = root_error(death).sentence
            logger.warning("a feeder died, and its rows are answered again (%d): %s", missing.rows, why)


def _sample_lengths(inference: InferencePlan, missing: MissingRows) -> TokenLengthSample:
    """Runs on a node, to keep the driver small."""
    import ray
    from ray.exceptions import GetTimeoutError

    timeout_s = inference.job.limits.stall
    remote: Any = ray.remote(num_cpus=0)(sample_token_lengths)
    rows, open_tokenizer = sample_rows(missing), inference.engine.open_tokenizer
    task = remote.remote(open_tokenizer, inference.plan, rows, inference.builder)
    with _errors_of_tasks(SliceError):
        try:
            sample: TokenLengthSample = ray.get(task, timeout=timeout_s)
        except GetTimeoutError as e:
            event = f"the lengths of a sample of rows were not known after {timeout_s:g} s"
            raise stall_error(event, "the run starts", describe_waiting()) from e
    return sample


@contextlib.contextmanager
def _errors_of_tasks(kind: type[Exception]) -> Iterator[None]:
    """Raises errors of this kind as the remote task raised them, without Ray's wrapper."""
    from ray.exceptions import RayTaskError

    try:
        yield
    except RayTaskError as e:
        if isinstance(e.cause, kind):
            raise e.cause from e
        raise
