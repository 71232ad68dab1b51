"""Watches whether a task waits for this job: without one it publishes nothing, and ends after a while.

The task that waits for a job renews a value in the cluster's key-value store, its *beat*
(`jobs_api.send_heartbeat`). A finished job commits when a beat confirms that its task still waits: the task
may have been marked or cleared when no triggerer lived to stop the job. If the beat stays unchanged for
`limits.orphan`, the job stops itself; its finished rows are kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from airflow_provider_raydatallm.contract.job.heartbeat import (
    CONFIRMED,
    MISSED_BEATS,
    PUBLISHING_SECONDS,
    heartbeat_seconds,
)
from airflow_provider_raydatallm.processor.ray_runtime.cluster_store import UPLOADED
from airflow_provider_raydatallm.processor.ray_runtime.driver import connect_to_ray

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
#: After which a job that waits to publish says so.
_WARNING_SECONDS = 30.0


class OrphanWatch:
    """
    :param key: the beat's.
    :param timeout_s: seconds without a beat after which this process gets SIGTERM.
    """

    def __init__(self, key: str, timeout_s: float) -> None:
        self._key, self._timeout_s = key, timeout_s
        self._beat: str | None = None
        self._changed_at = time.monotonic()
        self._lock = threading.Lock()
        #: Whether it stopped this process.
        self.has_stopped = False
        # Not in the thread: while one imports Ray, another that imports a part of it finds it half imported,
        # and then it stays so.
        import ray  # noqa: F401

        threading.Thread(target=self._watch, name="ray-llm-orphan", daemon=True).start()

    def wait_for_waiter(self, ask: Callable[[], None]) -> None:
        """Returns when a fresh beat confirms that a task waits for this job.

        :param ask: tells the waiter that the job publishes; called again and again, as it may be another one.
        """
        started = asked_at = time.monotonic()
        has_warned = False
        while True:
            silent_s, now = self._silent_s(), time.monotonic()
            if (self._beat or "").startswith(CONFIRMED) and silent_s <= MISSED_BEATS * self._interval_s:
                return
            if now - asked_at > self._interval_s:
                ask()
                asked_at = now
            if not has_warned and now - started > _WARNING_SECONDS:
                logger.warning(
                    "the slice is ready to be published, and waits until a task waits for it: the last sign "
                    "of one was %.0f s ago",
                    silent_s,
                )
                has_warned = True
            time.sleep(_POLL_SECONDS)

    @property
    def _interval_s(self) -> float:
        """Between two beats while this job publishes."""
        return min(heartbeat_seconds(self._timeout_s), PUBLISHING_SECONDS)

    def close(self) -> None:
        """Removes the beat from the cluster's store, where it would stay."""
        import ray

        if ray.is_initialized():
            with contextlib.suppress(Exception):  # the cluster may be gone
                UPLOADED.delete(self._key)

    def _silent_s(self) -> float:
        """Returns the seconds since the last new beat; looks for one."""
        with self._lock:
            try:
                connect_to_ray()
                beat = UPLOADED.get(self._key)
            except Exception:
                beat = self._beat  # the store is unreachable, perhaps for the waiting task too
            if beat != self._beat:
                self._beat, self._changed_at = beat, time.monotonic()
            return time.monotonic() - self._changed_at

    def _watch(self) -> None:
        while self._silent_s() < self._timeout_s:
            time.sleep(heartbeat_seconds(self._timeout_s))
        self.has_stopped = True
        os.kill(os.getpid(), signal.SIGTERM)
