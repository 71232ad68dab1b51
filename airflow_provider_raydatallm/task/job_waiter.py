"""Waiting for a job: one loop, run by the trigger and, where a task waits on its worker, by the operator."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

from airflow_provider_raydatallm.contract.progress_text import progress_text
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.job_verdict import (
    ClusterUnreachable,
    Finished,
    JobWatch,
    TimedOut,
    Verdict,
    Wait,
)
from airflow_provider_raydatallm.task.log_follower import LogFollower, Throttle

#: Whoever starts to wait for a job so long after it was told to is not the first: what the job had printed by
#: then was shown by another.
_TAKEN_OVER_SECONDS = 60.0
_PROGRESS_SECONDS = 15.0
_WARNING_SECONDS = 30.0
#: Where a job's report, error and last progress are looked for in a log that is not followed.
_END_OF_LOG = 200


class TaskLog(Protocol):
    def info(self, message: str, /, *args: Any) -> Any: ...
    def warning(self, message: str, /, *args: Any) -> Any: ...


@dataclass(frozen=True)
class JobRef:
    """A job, and how it is waited for. Ids and numbers only: it is stored as it is.

    :param poll_interval: seconds between two looks at it.
    :param reconnect_timeout: seconds that the cluster may be away, or refuse us.
    :param orphan_timeout: seconds after which the job ends when nobody waits for it; None when it does not.
    :param deadline: when the attempt's time is over, in epoch seconds.
    :param since: when the waiting began, in epoch seconds.
    :param nonce: marks the job's own lines in its log.
    """

    ray_conn_id: str
    poll_interval: float
    reconnect_timeout: float
    orphan_timeout: float | None
    deadline: float | None
    since: float
    submission_id: str = ""
    nonce: str = ""

    @property
    def beat_interval(self) -> float | None:
        """Seconds between two signs that somebody waits for it."""
        return None if self.orphan_timeout is None else min(self.orphan_timeout / 12, 300.0)


def owner_key(submission_id: str) -> str:
    """Under which name a job is told that somebody waits for it."""
    return f"ray-llm-owner-{submission_id}"


async def wait_for_job(ref: JobRef, log: TaskLog) -> Verdict:
    """Look at a job until it has said its word, or is over without one; show its log and progress meanwhile.

    The cluster may be away, or refuse the token (which may be replaced in the connection), for
    `ref.reconnect_timeout` seconds: a job runs on without us.
    """
    return await _Waiter(ref, log).run()


class _Waiter:
    def __init__(self, ref: JobRef, log: TaskLog) -> None:
        self._ref = ref
        self._log = log
        self._hook = RayHook(ref.ray_conn_id)
        self._watch = JobWatch(ref.nonce)
        self._throttle = Throttle()
        self._heard = asyncio.Event()
        self._follower = LogFollower(
            ref.submission_id, from_start=time.time() - ref.since < _TAKEN_OVER_SECONDS, take=self._take
        )
        self._beat_at = self._shown_at = -float("inf")
        self._shown_step: Any = None

    async def run(self) -> Verdict:
        began = answered = time.monotonic()
        warned = -float("inf")
        try:
            while True:
                now = time.monotonic()
                if self._seconds_left() == 0:
                    return TimedOut()
                try:
                    async with asyncio.timeout(self._seconds_left()):
                        verdict = await self._look()
                    answered = time.monotonic()
                except TimeoutError:
                    pass  # the attempt's time is over
                except (RayLLMJobError, RayConnectionError) as e:
                    if time.monotonic() - answered > self._ref.reconnect_timeout:
                        return ClusterUnreachable(str(e), refused=isinstance(e, RayConnectionError))
                    if time.monotonic() - warned >= _WARNING_SECONDS:
                        self._log.warning("Waiting for the cluster: %s", e)
                        warned = time.monotonic()
                    self._hook.reread()
                else:
                    if not isinstance(verdict, Wait):
                        return verdict
                    self._show(verdict.progress)
                # Jobs of seconds are looked at often, those of hours every now and then.
                pause = min(self._ref.poll_interval, max(1.0, (now - began) / 5))
                left = self._seconds_left()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._heard.wait(), pause if left is None else min(pause, left))
                self._heard.clear()
        finally:
            await self._follower.stop()

    def _seconds_left(self) -> float | None:
        """Until the attempt's time is over; None when it has no end."""
        return None if self._ref.deadline is None else max(self._ref.deadline - time.time(), 0.0)

    async def _look(self) -> Verdict | Wait:
        await self._beat()
        ref, watch = self._ref, self._watch
        info = await self._hook.acall(jobs_api.get_status(ref.submission_id))
        if info is None:
            return watch.check(None)
        over = info.status in jobs_api.TERMINAL
        if info.node_id is not None and not over:
            self._follower.start(self._hook, info.node_id)
        if over or (not self._follower.active and self._is_progress_due()):
            end = await self._hook.acall(jobs_api.read_log_tail(ref.submission_id, info, _END_OF_LOG))
            # Of a job that failed Ray keeps the end of the log too, even when its node is gone.
            watch.check_status(end or info.message)
        verdict = watch.check(info.status, info.message)
        return replace(verdict, started_at=info.started_at) if isinstance(verdict, Finished) else verdict

    async def _beat(self) -> None:
        interval, now = self._ref.beat_interval, time.monotonic()
        if interval is not None and now - self._beat_at >= interval:
            await self._hook.acall(jobs_api.send_heartbeat(owner_key(self._ref.submission_id)))
            self._beat_at = now

    def _take(self, lines: list[str]) -> None:
        for line in self._throttle.pass_on(self._watch.read_log(lines), time.monotonic()):
            self._log.info("%s", line)
        if self._watch.has_word:
            self._heard.set()

    def _is_progress_due(self) -> bool:
        return time.monotonic() - self._shown_at >= _PROGRESS_SECONDS

    def _show(self, progress: dict[str, Any] | None) -> None:
        if progress is None or (progress.get("step") == self._shown_step and not self._is_progress_due()):
            return
        self._shown_at, self._shown_step = time.monotonic(), progress.get("step")
        self._log.info("%s", progress_text(progress))
