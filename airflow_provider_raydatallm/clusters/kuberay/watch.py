"""The RayJobs of a namespace as they are now: one watch for all tasks of a process that wait for one."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from airflow_provider_raydatallm.clusters.kuberay.api import ExpiredError, KubernetesApi
from airflow_provider_raydatallm.clusters.kuberay.ray_job import MANAGED, RayJob
from airflow_provider_raydatallm.exceptions import RayUnreachableError

logger = logging.getLogger(__name__)

#: Seconds without a look after which the watch ends.
_IDLE_SECONDS = 120.0
#: Seconds until they are listed again, after a failure.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
#: Seconds that the first look waits for the list.
_LIST_SECONDS = 45.0


class RayJobWatch:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._jobs: dict[str, RayJob] = {}
        #: When this process said what one is: a list that was asked for before may lack it.
        self._noted_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._has_listed = threading.Event()
        self._error: Exception | None = None
        self._looked_at = time.monotonic()
        self._thread: threading.Thread | None = None

    def get(self, name: str) -> RayJob | None:
        """Returns it as it was told last, also while the API server is away; None when it is gone.

        :raises RayConnectionError, RayUnreachableError: when it was never told.
        """
        self._looked_at = time.monotonic()
        self._run()
        if not self._has_listed.wait(_LIST_SECONDS):
            raise RayUnreachableError(f"{self._api.label}: the API server does not answer")
        with self._lock:
            job = self._jobs.get(name)
        if job is None and self._error is not None:
            raise self._error
        return job

    def note(self, job: RayJob) -> None:
        """Says what it is now, which the watch has not told yet."""
        with self._lock:
            self._jobs[job["metadata"]["name"]] = job
            self._noted_at[job["metadata"]["name"]] = time.monotonic()

    def _run(self) -> None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._has_listed.clear()
            self._thread = threading.Thread(target=self._follow, name="ray-jobs", daemon=True)
            self._thread.start()

    def _follow(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while time.monotonic() - self._looked_at < _IDLE_SECONDS:
            try:
                asked_at = time.monotonic()
                listed, version = self._api.find(MANAGED)
                with self._lock:
                    noted = {name for name, at in self._noted_at.items() if at >= asked_at}
                    kept = {name: job for name, job in self._jobs.items() if name in noted}
                    self._jobs = {**{job["metadata"]["name"]: job for job in listed}, **kept}
                    self._noted_at = {name: self._noted_at[name] for name in noted}
                self._error, pause_s = None, _FIRST_PAUSE_S
                self._has_listed.set()
                for event, job in self._api.watch(MANAGED, version):
                    self._told(event, job)
            except ExpiredError:
                continue
            except Exception as e:
                logger.debug("The watch of %s has ended", self._api.label, exc_info=e)
                self._error = e
                self._has_listed.set()
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        for key in [key for key, watch in list(_watches.items()) if watch is self]:
            _watches.pop(key, None)  # and its credentials

    def _told(self, event: str, job: dict[str, Any]) -> None:
        with self._lock:
            if event == "DELETED":
                self._jobs.pop(job["metadata"]["name"], None)
            elif event in ("ADDED", "MODIFIED"):
                self._jobs[job["metadata"]["name"]] = job


_watches: dict[tuple[int, str, str], RayJobWatch] = {}


def watch_of(api: KubernetesApi) -> RayJobWatch:
    key = (os.getpid(), api.conn_id, api.namespace)  # no thread outlives a fork
    if key not in _watches:
        _watches[key] = RayJobWatch(api)
    return _watches[key]
