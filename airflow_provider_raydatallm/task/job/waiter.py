"""Waits for a job: one loop, run by the trigger and, where a task waits on its worker, by the operator."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol

from airflow_provider_raydatallm.clusters.base import ClusterEndedError
from airflow_provider_raydatallm.contract.job.heartbeat import PUBLISHING_SECONDS, heartbeat_seconds
from airflow_provider_raydatallm.contract.log.progress_text import plan_lines, progress_text
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.job import verdict as job_verdict
from airflow_provider_raydatallm.task.job.log_entries import clean, entry_of, own_entry
from airflow_provider_raydatallm.task.job.log_follower import LogFollower, Throttle
from airflow_provider_raydatallm.task.job.verdict import JobWatch, Verdict, Wait

#: A waiter that starts this long after `JobRef.since` is not the first: another one has shown the log so far.
_TAKEN_OVER_SECONDS = 60.0
#: How long Airflow may take to say whether the task still waits.
_CONFIRM_SECONDS = 30.0
#: Lines that hold the report, the error and the last progress when the log is not followed.
_LAST_LINES = 200


class TaskLog(Protocol):
    def info(self, message: str, /, *args: Any) -> Any: ...
    def warning(self, message: str, /, *args: Any) -> Any: ...
    def log(self, level: int, message: str, /, *args: Any) -> Any: ...


@dataclass(frozen=True)
class JobRef:
    """A job and how to wait for it. Holds only JSON values: Airflow stores it with the trigger.

    :param poll_interval: seconds between two status checks.
    :param reconnect_timeout: seconds for which the cluster may be away, or refuse us.
    :param orphan_timeout: seconds after which the job ends when no task waits for it; None: never.
    :param deadline: epoch seconds at which the attempt's execution_timeout passes.
    :param since: epoch seconds at which the waiting began.
    :param nonce: marks the job's own lines in its log.
    :param url: its page in the dashboard.
    :param cluster: identity of the cluster that it runs on.
    :param log: what of the job's log the task's log shows: the provider's own lines, or all.
    """

    ray_conn_id: str
    poll_interval: float
    reconnect_timeout: float
    orphan_timeout: float | None
    deadline: float | None
    since: float
    submission_id: str = ""
    nonce: str = ""
    url: str = ""
    cluster: str = ""
    log: Literal["brief", "full"] = "brief"

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> JobRef:
        """Reads what another version of the provider may have stored, with fields that this one lacks."""
        return cls(**{field.name: known[field.name] for field in fields(cls) if field.name in known})

    @property
    def heartbeat_interval(self) -> float | None:
        return None if self.orphan_timeout is None else heartbeat_seconds(self.orphan_timeout)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until `deadline`; None when there is none."""
        return None if self.deadline is None else max(self.deadline - time.time(), 0.0)


@dataclass(frozen=True)
class Intervals:
    """Seconds between two events of a waiter. `min_poll`: checks of a young job, which may take only
    seconds. `silence`: after which a job whose log says nothing is looked for on its node."""

    min_poll: float = 1.0
    progress: float = 15.0
    warning: float = 30.0
    log_reconnect: float = 5.0
    silence: float = 60.0


def heartbeat_key(submission_id: str) -> str:
    """The key in the cluster's store under which a job's waiter leaves its heartbeat."""
    return f"ray-llm-owner-{submission_id}"


async def wait_for_job(
    ref: JobRef,
    log: TaskLog,
    still_waits: Callable[[], Awaitable[bool]],
    intervals: Intervals = Intervals(),
    hook: RayHook | None = None,
) -> Verdict:
    """Waits until a job reports its outcome or ends without a report; shows its log and progress meanwhile.

    Tolerates for `ref.reconnect_timeout` seconds a cluster that is away or refuses the token, which may be
    replaced in the connection: the job runs on meanwhile.

    :param still_waits: asks Airflow whether the task still waits; a job publishes only if it does. The wait
        ends when Airflow has not said so for `ref.orphan_timeout`.
    :param hook: to the job's cluster.
    """
    hook = hook or RayHook.to_cluster(ref.cluster)
    return await _Waiter(ref, log, still_waits, intervals, hook).run()


class _Waiter:
    def __init__(
        self,
        ref: JobRef,
        log: TaskLog,
        still_waits: Callable[[], Awaitable[bool]],
        intervals: Intervals,
        hook: RayHook,
    ) -> None:
        self._ref = ref
        self._log = log
        self._still_waits = still_waits
        self._intervals = intervals
        self._hook = hook
        self._watch = JobWatch(ref.nonce)
        self._throttle = Throttle()
        #: Set by a line of the log that wants an answer at once.
        self._wake = asyncio.Event()
        self._is_publishing = False
        #: Since when Airflow does not let the job publish, and why.
        self._unconfirmed: tuple[float, str] | None = None
        self._follower = LogFollower(
            ref.submission_id,
            from_start=time.time() - ref.since < _TAKEN_OVER_SECONDS,
            on_lines=self._read_lines,
            reconnect_s=intervals.log_reconnect,
        )
        self._last_heartbeat = self._last_progress = self._last_warning = -float("inf")
        self._last_step: Any = None
        self._heard_at = time.monotonic()
        self._has_died = False

    async def run(self) -> Verdict:
        start = last_contact = time.monotonic()
        try:
            while self._ref.seconds_left != 0:
                check_start = time.monotonic()
                try:
                    async with asyncio.timeout(self._ref.seconds_left):
                        verdict = await self._check_job()
                    last_contact = time.monotonic()
                except TimeoutError:
                    pass  # the deadline has passed
                except ClusterEndedError:
                    verdict = self._watch.decide(None)
                    if not isinstance(verdict, Wait):
                        return verdict
                except (RayLLMJobError, RayConnectionError) as e:
                    if time.monotonic() - last_contact > self._ref.reconnect_timeout:
                        return job_verdict.ClusterUnreachable(Failure.parse(e.failure.to_json(), clean))
                    self._warn(e)
                    self._hook.reread()
                else:
                    if not isinstance(verdict, Wait):
                        return verdict
                # Check short jobs often, and jobs of hours every now and then.
                pause = min(self._ref.poll_interval, max(self._intervals.min_poll, (check_start - start) / 5))
                limits = (self._ref.seconds_left, self._beat_interval)
                pause = min([pause, *(seconds for seconds in limits if seconds is not None)])
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
                self._wake.clear()
            return job_verdict.TimedOut()
        finally:
            await self._follower.stop()

    async def _check_job(self) -> Verdict | Wait:
        await self._send_heartbeat()
        ref, watch = self._ref, self._watch
        info = await self._hook.aget_status(ref.submission_id)
        if info is None:
            return watch.decide(None)
        ended = info.status in jobs_api.TERMINAL
        if info.node_id is not None and not ended:
            self._follower.start(self._hook, info.node_id)
        if ended or (not self._follower.active and self._is_progress_due()):
            last_lines = await self._hook.acall(jobs_api.read_log_tail(ref.submission_id, info, _LAST_LINES))
            self._heard_at = time.monotonic() if last_lines else self._heard_at
            # Ray's message about a failed job holds the end of the log too, even when its node is gone.
            self._take_progress(watch.read_log_end(last_lines or info.message))
        if not ended and await self._died_with_its_node(info):
            return watch.decide(None)
        verdict = watch.decide(info.status, info.message)
        if isinstance(verdict, job_verdict.Finished):
            return replace(verdict, started_at=info.started_at)
        if isinstance(verdict, Wait) and self._unconfirmed and ref.orphan_timeout is not None:
            since, reason = self._unconfirmed
            if time.monotonic() - since > ref.orphan_timeout:
                return job_verdict.Unconfirmed(reason)
        return verdict

    async def _died_with_its_node(self, info: jobs_api.JobInfo) -> bool:
        """A head that has its memory in Redis, and was started again, says for ever that its jobs run."""
        now = time.monotonic()
        if self._has_died or info.node_id is None or now - self._heard_at < self._intervals.silence:
            return self._has_died
        self._heard_at = now
        self._has_died = await self._hook.acall(jobs_api.is_dead_node(info.node_id))
        if self._has_died:
            self._log.warning("Ray job %s died with its node", self._ref.submission_id)
        return self._has_died

    @property
    def _beat_interval(self) -> float | None:
        interval = self._ref.heartbeat_interval
        return min(interval, PUBLISHING_SECONDS) if interval is not None and self._is_publishing else interval

    async def _send_heartbeat(self) -> None:
        interval, now = self._beat_interval, time.monotonic()
        if interval is None or now - self._last_heartbeat < interval:
            return
        confirmed = self._is_publishing and await self._confirm()
        key = heartbeat_key(self._ref.submission_id)
        await self._hook.acall(jobs_api.send_heartbeat(key, confirmed=confirmed))
        self._last_heartbeat = now

    async def _confirm(self) -> bool:
        try:
            async with asyncio.timeout(_CONFIRM_SECONDS):
                if await self._still_waits():
                    self._unconfirmed = None
                    return True
            reason = "Airflow no longer wants this task to wait for it"
        except Exception as e:  # the API server is away, or this process is cut off from it
            reason = f"cannot ask Airflow whether the task still waits for it: {type(e).__name__}: {e}"
        since, _ = self._unconfirmed or (time.monotonic(), "")
        self._unconfirmed = since, reason
        if time.monotonic() - self._last_warning >= self._intervals.warning:
            self._log.warning("Ray job %s must not publish yet: %s", self._ref.submission_id, reason)
            self._last_warning = time.monotonic()
        return False

    def _read_lines(self, lines: list[str]) -> None:
        self._heard_at = time.monotonic()
        for item in self._watch.read_log(lines):
            if isinstance(item, dict):
                self._take_progress(item)
            elif entry := entry_of(item) if self._ref.log == "full" else own_entry(item):
                for level, text in self._throttle.limit([entry], time.monotonic()):
                    self._log.log(level, "%s", text)
        if self._watch.has_outcome:
            self._wake.set()

    def _warn(self, error: Exception) -> None:
        if time.monotonic() - self._last_warning >= self._intervals.warning:
            self._log.warning("Waiting for the cluster: %s", clean(str(error)))
            self._last_warning = time.monotonic()

    def _is_progress_due(self) -> bool:
        return time.monotonic() - self._last_progress >= self._intervals.progress

    def _take_progress(self, progress: dict[str, Any] | None) -> None:
        if progress is not None and progress.get("step") == "publish" and not self._is_publishing:
            self._is_publishing = True
            self._last_heartbeat = -float("inf")  # the job waits for it
            self._wake.set()
        self._show_progress(progress)

    def _show_progress(self, progress: dict[str, Any] | None) -> None:
        if progress is None or (progress.get("step") == self._last_step and not self._is_progress_due()):
            return
        self._last_progress, self._last_step = time.monotonic(), progress.get("step")
        if plan := plan_lines(progress):
            self._log.info("::group::Plan")
            for line in plan:
                self._log.info("%s", clean(line))
            self._log.info("::endgroup::")
        else:
            self._log.info("%s", clean(progress_text(progress)))
