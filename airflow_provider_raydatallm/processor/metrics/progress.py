"""Reports a run's progress: to the log, to runs that wait for it (the lease's heartbeat), to readers of the
slice's metadata (`progress.json`) and to Prometheus.

No failure here fails the run. A thread talks to storage and Ray, so that a slow store does not block the run.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from airflow_provider_raydatallm.contract.result.failure import KEPT, Failure
from airflow_provider_raydatallm.contract.result.failure_patterns import naming_model
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.metrics import prometheus
from airflow_provider_raydatallm.processor.ray_runtime.driver import process_log
from airflow_provider_raydatallm.processor.ray_runtime.own_task import own_task
from airflow_provider_raydatallm.processor.root_error import root_error
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.lease import Lease
from airflow_provider_raydatallm.processor.store.run_record import write_progress

logger = logging.getLogger(__name__)

#: Seconds between two exports to Prometheus, below Ray's collection period of 10 s; exports per file write.
_EXPORT_SECONDS = 5.0
_EXPORTS_PER_WRITE = 2

#: Attribute of an error whose record the progress file has.
_RECORDED = "is_recorded"
#: The counts of a failure's record, by the keys of `Meter.progress`.
_COUNTS = {"planned": "planned", "rows": "finished", "failed": "failed", "invalid_output": "invalid_output"}

ProgressCallback = Callable[[dict[str, Any]], None]


class ProgressReporter:
    """`with ProgressReporter(...) as reporter:` around the work. After `close` the file is not written
    again."""

    def __init__(self, job: SliceJob, store: Store, lease: Lease, log: ProgressCallback) -> None:
        self._job = job
        self._store = store
        self._lease = lease
        self._log = log
        self._logged_at = 0.0
        self._progress: dict[str, Any] = {}
        self._details: dict[str, Any] = {}
        self._warned: set[str] = set()
        #: What it is at this moment, once rows are counted.
        self.latest: Callable[[], dict[str, Any]] | None = None
        #: Writes what else is to be kept, as often as the file, and once more at the end.
        self.keep: Callable[[], None] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray-llm-progress", daemon=True)
        self._thread.start()

    def __enter__(self) -> ProgressReporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if error is not None:
            if self.latest is not None:
                self._progress = {**self._progress, **self.latest()}
            failure = diagnose_run(error, self._job, _counts(self._progress))
            counts = {key: failure.counts[name] for key, name in _COUNTS.items() if name in failure.counts}
            self._progress = {**self._progress, **counts, "step": "failed", "failure": failure.to_json()}
            if self._try(self._write):
                with contextlib.suppress(Exception):
                    setattr(error, _RECORDED, True)
        self._try_to_keep()

    def report(
        self, progress: dict[str, Any], log_every_s: float = 0.0, details: dict[str, Any] | None = None
    ) -> None:
        """
        :param log_every_s: logs only when the step is another, or the last log line at least this old.
        :param details: what only the file has; None: as before.
        """
        is_next_step = progress.get("step") != self._progress.get("step")
        self._progress = progress
        self._details = self._details if details is None else details
        self._lease.set_progress(progress)
        if is_next_step or time.monotonic() - self._logged_at >= log_every_s:
            self._log(progress)
            self._logged_at = time.monotonic()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=10)  # a longer write is rolled back if the lease is lost

    def _run(self) -> None:
        passes = 0
        while not self._closed.wait(_EXPORT_SECONDS):
            self._try(self._export)
            passes += 1
            if passes % _EXPORTS_PER_WRITE == 0:
                self._try(self._write)
                self._try_to_keep()

    def _export(self) -> None:
        prometheus.export(self._job, self._progress)

    def _write(self) -> None:
        progress = {**self._details, **self._progress}
        write_progress(self._store, self._lease, self._job.slice_key, own_task(), progress)

    def _try_to_keep(self) -> None:
        if self.keep is not None:
            self._try(self.keep)

    def _try(self, action: Callable[[], None]) -> bool:
        """Returns whether it succeeded."""
        try:
            action()
            return True
        except Exception as e:
            if action.__name__ not in self._warned:
                self._warned.add(action.__name__)
                logger.warning("could not report progress: %s", e)
            return False


def is_recorded(error: BaseException) -> bool:
    """Whether the progress file says already why, and when, the run failed."""
    return getattr(error, _RECORDED, False) is True


def diagnose_run(error: BaseException, job: SliceJob, counts: Mapping[str, int] | None = None) -> Failure:
    """Returns the record of what ended a run. The error carries it from then on: whoever reports it need not
    read the log again.

    :param counts: as far as the run's progress knows, unless the error counts rows itself.
    """
    failure = naming_model(root_error(error, process_log), job.model_source)
    counts = failure.counts or counts or {}
    is_kept = counts.get("finished", 0) > 0 and failure.can_retry and KEPT not in failure.advice
    failure = replace(failure, counts=counts, advice=(*failure.advice, *[KEPT] * is_kept))
    with contextlib.suppress(Exception):
        error.failure, error.log = failure, None  # type: ignore[attr-defined]
    return failure


def _counts(progress: Mapping[str, Any]) -> dict[str, int]:
    return {name: progress[key] for key, name in _COUNTS.items() if progress.get(key) is not None}
