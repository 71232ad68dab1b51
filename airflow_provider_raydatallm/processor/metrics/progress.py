"""Telling how a run is getting on, until it ends: to the log, to runs that wait for it (the lease's beat), to
whoever reads the slice folder (`_progress.json`) and to Prometheus.

Nothing of it makes a run fail. Storage and Ray are talked to in a thread, so that a slow store keeps nobody
waiting. Only the holder of the lease writes the file. It stays after a run that failed, with its error, until
the next one replaces it or publishes (`publish.derive`): a published slice has none.
"""

from __future__ import annotations

import datetime as dt
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.metrics import prometheus
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store.lease import Lease, LeaseLostError
from airflow_provider_raydatallm.processor.store.versions import PROGRESS

#: Seconds between two exports to Prometheus, within the 10 s in which Ray collects; and as many exports to a
#: write of the file.
_EXPORT_SECONDS = 5.0
_EXPORTS_PER_WRITE = 2
_MESSAGE_CHARACTERS = 2000

ProgressCallback = Callable[[dict[str, Any]], None]


class ProgressReporter:
    """`with Reporter(...) as reporter:` around the work. Once it is `close`d, the file is written no more."""

    def __init__(self, job: SliceJob, store: Store, lease: Lease, log: ProgressCallback) -> None:
        self._job = job
        self._store = store
        self._lease = lease
        self._log = log
        self._logged = 0.0
        self._said: dict[str, Any] = {}
        self._warned: set[str] = set()
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
            why = str(error) or type(error).__name__
            self._said = {**self._said, "step": "failed", "error": why[:_MESSAGE_CHARACTERS]}
            self._try(self._write)

    def report(self, said: dict[str, Any], log_every: float = 0.0) -> None:
        """:param log_every: no line in the log if the last one is not so many seconds old."""
        self._said = said
        self._lease.set_progress(said)
        if time.monotonic() - self._logged >= log_every:
            self._log(said)
            self._logged = time.monotonic()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=10)  # a write that lasts longer is taken back when the lease is gone

    def _run(self) -> None:
        passes = 0
        while not self._closed.wait(_EXPORT_SECONDS):
            self._try(self._export)
            passes += 1
            if passes % _EXPORTS_PER_WRITE == 0:
                self._try(self._write)

    def _export(self) -> None:
        prometheus.export(self._job, self._said)

    def _write(self) -> None:
        if self._lease.lost:
            return
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        run = {"slice_key": self._job.slice_key, "when": now, "epoch": self._lease.epoch}
        try:
            self._lease.check()
            self._store.put_json(PROGRESS, {**run, **self._said})
            self._lease.check()
        except LeaseLostError:
            # It slept between the check and the put: whoever has the slice may be done with it by now.
            if (self._store.read_json(PROGRESS) or {}).get("epoch") == self._lease.epoch:
                self._store.remove(PROGRESS)

    def _try(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception as e:
            if tell.__name__ not in self._warned:
                self._warned.add(tell.__name__)
                print(f"warning: progress cannot be told: {e}", file=sys.stderr, flush=True)
