"""Where the work of a slice is done: on Ray. The life of a slice (`run.py`) knows no more of it than this."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.cluster.admission import QueueSlot, admit
from airflow_provider_raydatallm.processor.cluster.stall import StallWatch, stall_error
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.vllm.token_lengths import sample_token_lengths
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.metrics.meter import WriterUpdate, finished_rows, inferred_rows
from airflow_provider_raydatallm.processor.publish.parts import Part, PartPlan
from airflow_provider_raydatallm.processor.ray_runtime.interruptible_wait import InterruptibleWait
from airflow_provider_raydatallm.processor.ray_runtime.job_state import describe_waiting
from airflow_provider_raydatallm.processor.request.answer_shape import AnswerParser
from airflow_provider_raydatallm.processor.request.prompt import RequestBuilder
from airflow_provider_raydatallm.processor.sizing.checks import Finding
from airflow_provider_raydatallm.processor.sizing.cluster_probe import (
    check_model_folder,
    preflight_findings,
    probe_cluster,
    raise_errors,
)
from airflow_provider_raydatallm.processor.sizing.facts import SizingInputs, TokenLengthSample
from airflow_provider_raydatallm.processor.store.ledger import MissingRows, count_rows
from airflow_provider_raydatallm.processor.store.past_speed import newest_throughput

#: Seconds that the writers have to put what they hold when the job is told to stop.
_LAST_FLUSH_SECONDS = 20.0
_WATCH_SECONDS = 1.0
#: Lines of a dead engine's log in which its reason is looked for; seconds to get them, and those before each
#: time that they are asked for: it is done for a run that fails, and a busy node may not answer at once.
_LOG_LINES = 1000
_LOG_SECONDS = 60
_LOG_WAITS = (0, 1, 2, 4, 8)

_connecting = threading.Lock()


class StopRequested(BaseException):
    """The process was told to stop (SIGTERM)."""


@dataclass(frozen=True)
class InferencePlan:
    """What is asked of an engine about each row of a plan."""

    job: SliceJob
    plan: Plan
    builder: RequestBuilder
    engine: Engine
    shape: AnswerParser


@dataclass(frozen=True)
class InferenceRun:
    """Missing rows, and where their answers go.

    queued: told about every second, while the rows wait for room on the cluster, what `admission.admit` says.
    raised: the rows were too long for the engine before, whose limit is to be raised.
    """

    inference: InferencePlan
    missing: MissingRows
    url: str
    folder: str
    epoch: int
    queued: Callable[[dict[str, Any]], None]
    limit_raised: bool = False


class Cluster(Protocol):
    def preflight(self, question: InferencePlan, work: MissingRows) -> list[Finding]:
        """What is to be known before rows are answered here.

        :raises SliceError: when they cannot be.
        """

    def run_inference(self, task: InferenceRun, tell: Callable[[WriterUpdate], None]) -> None:
        """Have the rows answered, when there is room, and their fragments put, whatever ends it.

        :param tell: called every second; ends it by raising.
        """

    def build_parts(
        self, build: Callable[[PartPlan], Part], parts: Sequence[PartPlan], timeout: float
    ) -> Iterable[Part]:
        """`build` on each part, several at once.

        :param timeout: seconds without a part, after which none is waited for.
        """


class RayCluster:
    """The Ray cluster that this process can reach."""

    def preflight(self, question: InferencePlan, work: MissingRows, *, raised: bool = False) -> list[Finding]:
        connect_to_ray()
        engine = question.engine
        rows, cluster = sum(count_rows(spans) for _, spans in work), probe_cluster()
        raise_errors(preflight_findings(engine.plan, rows, cluster))
        check_model_folder(question.job.model_source)
        lengths = _lengths(question, work) if engine.needs_token_lengths(raised=raised) else None
        pace = newest_throughput(question.job) if engine.needs_past_throughput else None
        engine.choose_sizes(SizingInputs(cluster, lengths, pace, raised))
        found = preflight_findings(engine.plan, rows, cluster)
        raise_errors(found)
        return found

    def run_inference(self, task: InferenceRun, tell: Callable[[WriterUpdate], None]) -> None:
        connect_to_ray()
        q = task.inference
        if task.limit_raised or not q.engine.sizes_chosen:
            self.preflight(q, task.missing, raised=task.limit_raised)
        try:
            turn = admit(
                q.engine,
                name=q.job.slice_path,
                timeout=q.job.queue_timeout,
                say=task.queued,
                make_room=lambda: serve_apps.SERVE.stop_idle_engine(keep=q.engine.engine_to_keep),
            )
        except BaseException:
            q.engine.stop()
            raise
        try:
            q.engine.on_admitted()
            self._answer(task, turn, tell)
        finally:
            turn.release()

    def _answer(self, task: InferenceRun, turn: QueueSlot, tell: Callable[[WriterUpdate], None]) -> None:
        from airflow_provider_raydatallm.processor.cluster.fragment_writers import FragmentWriters
        from airflow_provider_raydatallm.processor.cluster.pipeline import run_inference

        q = task.inference
        writers = FragmentWriters.start(task.url, task.folder, [u.id for u in q.plan.units], task.epoch)
        rows = sum(count_rows(spans) for _, spans in task.missing)
        stall = StallWatch(rows, q.job.stall_timeout, q.engine.is_starting, describe_waiting)

        def look() -> None:
            q.engine.raise_if_broken()
            news = writers.updates()
            has_answered = inferred_rows(news) > 0
            if has_answered:
                turn.release()
            tell(news)
            stall.observe(finished_rows(news), q.engine.is_ready or has_answered)

        try:
            try:
                with InterruptibleWait(look, _WATCH_SECONDS):
                    run_inference(q.plan, task.missing, q.builder, q.engine, q.shape, writers)
            except Exception:
                q.engine.raise_if_broken()  # knows more of what broke than those who waited for it
                raise
            look()
            writers.flush()
        except BaseException:
            try:
                writers.flush(_LAST_FLUSH_SECONDS)
            except Exception as e:
                print(f"warning: the last finished rows could not be kept: {e}", file=sys.stderr, flush=True)
            raise
        finally:
            q.engine.stop()
            writers.stop()

    def build_parts(
        self, build: Callable[[PartPlan], Part], parts: Sequence[PartPlan], timeout: float
    ) -> Iterable[Part]:
        import ray
        from ray.exceptions import RayTaskError

        connect_to_ray()
        remote: Any = ray.remote(build)
        built = left = [remote.remote(p) for p in parts]
        try:
            while left:
                done, left = ray.wait(left, timeout=timeout)
                if not done:
                    seen, waiting = f"no part was built for {timeout:g} s", f"{len(left):,} wait"
                    raise stall_error(seen, waiting, describe_waiting())
                ray.get(done)
            return list(ray.get(built))
        except RayTaskError as e:
            if isinstance(e.cause, Exception):
                raise e.cause from e
            raise


def _lengths(q: InferencePlan, work: MissingRows) -> TokenLengthSample:
    """Looked at on a node: this process is to stay small."""
    import ray
    from ray.exceptions import RayTaskError

    look: Any = ray.remote(num_cpus=0)(sample_token_lengths)
    try:
        found: TokenLengthSample = ray.get(look.remote(q.job, q.plan, work, q.builder))
        return found
    except RayTaskError as e:
        if isinstance(e.cause, SliceError):
            raise e.cause from e
        raise


def process_log(**process: Any) -> str:
    """What an actor (`actor_id`) or a process (`node_id`, `pid`) of this job wrote last; "" when that cannot
    be told."""
    from ray.util.state import get_log

    for wait in _LOG_WAITS:
        time.sleep(wait)
        # The failure that is told matters more.
        with contextlib.suppress(Exception):
            if told := "".join(get_log(**process, tail=_LOG_LINES, timeout=_LOG_SECONDS)):
                return told
    return ""


def stop_on_sigterm() -> None:
    """Raise `Stopped` in the main thread when the process is told to stop, once."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise StopRequested


def connect_to_ray() -> None:
    """Connect this process to its cluster, once."""
    import ray

    with _connecting:
        if not ray.is_initialized():
            # It is needed after much waiting for the cluster, and takes a second to import.
            threading.Thread(target=importlib.import_module, args=("ray.data",), name="import").start()
            ray.init(logging_level="warning")
            # What asks for the cluster's state would look for one, and could find another on this machine.
            os.environ.setdefault("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
            stop_on_sigterm()  # Ray puts a handler of its own in place
