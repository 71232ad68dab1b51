"""Watches whether a task waits for this job: without one it publishes nothing, and ends after a while.

The task that waits for a job renews a value in the cluster's key-value store, its *beat*
(`jobs_api.send_heartbeat`). While the beat is stale, a finished job does not commit: its task may have been
marked or cleared when no triggerer lived to stop it. If the beat stays unchanged for `orphan_timeout`, the
job stops itself; its finished rows are kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time

from airflow_provider_raydatallm.contract.heartbeat import heartbeat_seconds
from airflow_provider_raydatallm.processor.ray_runtime.cluster_store import UPLOADED
from airflow_provider_raydatallm.processor.ray_runtime.driver import connect_to_ray

logger = logging.getLogger(__name__)

#: A beat is stale when so many in a row did not come.
_MISSED_BEATS = 3
_POLL_SECONDS = 1.0


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
        threading.Thread(target=self._watch, name="ray-llm-orphan", daemon=True).start()

    def wait_for_waiter(self) -> None:
        """Returns when a task waits for this job: at once, unless its beat is stale."""
        waited = False
        while self._silent_s() > _MISSED_BEATS * heartbeat_seconds(self._timeout_s):
            if not waited:
                logger.warning(
                    "the slice is ready to be published, and waits until a task waits for it: there was no "
                    "sign of one for %.0f s",
                    self._silent_s(),
                )
                waited = True
            time.sleep(_POLL_SECONDS)

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
