"""The gate through which the tasks of one machine submit their jobs to a cluster, one after another.

Each task is a process of its own. A file that they share is their lock, which ends with its holder. Each
submits only after a look at the cluster's jobs of its own: it has seen those of its machine, and misses no
more than one of each other machine. The file keeps the last look for those that find no place in it, so that
many tasks that wait cost the cluster no more looks than one. Who has submitted removes it: clusters come and
go.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_provider_raydatallm.clusters.base import ClusterStartingError
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayLLMJobError, RayQueueTimeoutError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.lookup import patience
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.job.waiter import TaskLog
from airflow_provider_raydatallm.task.queue.places import (
    QueueLog,
    QueuePlace,
    count_in_line,
    count_waiting,
    jobs_text,
    max_waiting_jobs,
    seconds_between_looks,
)

#: Between two tries to get the lock, and to find a free place.
_LOCK_SECONDS, _TRY_SECONDS = 0.1, 1.0


@dataclass(frozen=True)
class _Look:
    """At the cluster's jobs: how many wait, the tasks in the line of a triggerer as far as they tell, when
    (epoch seconds), and the seconds that it took to list them."""

    at: float = 0.0
    seconds: float = 0.0
    waiting: int = 0
    in_line: int = 0

    @property
    def is_due(self) -> bool:
        return not 0 <= time.time() - self.at < seconds_between_looks(self.seconds)

    def has_place(self, *, passes_line: bool) -> bool:
        return self.waiting < max_waiting_jobs() and (passes_line or not self.in_line)

    def __str__(self) -> str:
        text = jobs_text(self.waiting)
        return f"{text}; tasks in line for a place: {self.in_line}" if self.in_line else text


class SubmissionGate:
    """Holds the machine's lock from `enter` until `close`, between which the task submits."""

    def __init__(self, place: QueuePlace, log: TaskLog, hook: RayHook | None = None) -> None:
        """:param hook: of the task, which knows what it acquires here."""
        self._place, self._log = place, QueueLog(log)
        self._hook = hook or RayHook(place.ray_conn_id)
        self._fd: int | None = None
        self._path: Path | None = None
        self._has_place = False
        self._last_contact: float | None = None
        self._began = time.monotonic()
        #: Seconds that the task waited here.
        self.held_s = 0.0

    async def enter(self, *, has_turn: bool, holds: bool) -> bool:
        """Returns True when the task may submit now.

        :param has_turn: whether the task has waited in the triggerer's line. One that has not does not pass
            those that wait there.
        :param holds: whether to wait here; else this returns False where there is no place.
        :raises RayQueueTimeoutError, RayLLMJobError, RayConnectionError: as `line.wait_in_line`.
        """
        while True:
            self._place.seconds_left(self._log.waits_for)
            try:
                await self._lock()
                look = await self._look(has_turn=has_turn, passes_line=has_turn or holds)
                self._last_contact = time.monotonic()
            except RayQueueTimeoutError:
                raise
            except ClusterStartingError as e:
                self.close()
                if not holds:
                    return False
                self._last_contact = time.monotonic()
                self._log.waiting(e.failure.headline)
            except (RayLLMJobError, RayConnectionError) as e:
                self.close()
                self._raise_if_away_for_long(e)
            else:
                if look.has_place(passes_line=has_turn or holds):
                    self.held_s = time.monotonic() - self._began
                    self._has_place = True
                    return True
                self.close()
                if not holds:
                    return False
                self._log.waiting(str(look))
            await asyncio.sleep(_TRY_SECONDS)

    @property
    def cluster(self) -> str:
        """Identity of the cluster that was acquired."""
        return self._hook.cluster

    def close(self) -> None:
        if self._fd is not None:
            if self._has_place and self._path is not None:
                with contextlib.suppress(OSError):
                    self._path.unlink()
            os.close(self._fd)
            self._fd = None

    def _raise_if_away_for_long(self, error: Exception) -> None:
        is_refused = isinstance(error, RayConnectionError)
        if self._last_contact is None and is_refused:
            raise error  # as at any first call; later its token may be being replaced
        allowed = patience(error, self._place.reconnect_timeout)
        if time.monotonic() - (self._last_contact or self._began) > allowed:
            raise error
        self._log.unreachable(error)
        self._hook.reread()

    async def _lock(self) -> None:
        address = await asyncio.to_thread(lambda: self._hook.settings.address)
        self._fd, self._path = _open(address)
        while not self._try_lock():
            self._place.seconds_left(self._log.waits_for)
            await asyncio.sleep(_LOCK_SECONDS)
            if not _is_at(self._path, self._fd):  # its holder has removed it
                os.close(self._fd)
                self._fd, self._path = _open(address)

    def _try_lock(self) -> bool:
        assert self._fd is not None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return _is_at(self._path, self._fd)

    async def _look(self, *, has_turn: bool, passes_line: bool) -> _Look:
        last = self._read()
        # Who was called knows better than an earlier look.
        if not (has_turn or last.is_due or last.has_place(passes_line=passes_line)):
            return last
        jobs = await self._hook.acall(jobs_api.list_live_jobs())
        if jobs.refusal:
            self._log.unlisted(jobs.refusal)
        look = _Look(time.time(), jobs.seconds, count_waiting(jobs), count_in_line(jobs))
        self._write(look)
        return look

    def _read(self) -> _Look:
        assert self._fd is not None
        try:
            return _Look(**json.loads(os.pread(self._fd, 4096, 0)))
        except (ValueError, TypeError):
            return _Look()  # new, or of another version

    def _write(self, look: _Look) -> None:
        assert self._fd is not None
        content = json.dumps(asdict(look)).encode()
        os.pwrite(self._fd, content, 0)
        os.ftruncate(self._fd, len(content))


def _open(address: str) -> tuple[int, Path | None]:
    """Opens the file of a cluster; where that cannot be, one without a path that nobody shares."""
    cluster = hashlib.sha256(address.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"airflow-ray-llm-{os.getuid()}-{cluster}.queue")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.fstat(fd).st_uid == os.getuid():
            return fd, path
        os.close(fd)
    except OSError:
        pass
    fd, name = tempfile.mkstemp()
    os.unlink(name)
    return fd, None


def _is_at(path: Path | None, fd: int) -> bool:
    if path is None:
        return True
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False
