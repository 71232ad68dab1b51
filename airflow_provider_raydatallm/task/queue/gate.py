"""The gate through which the tasks of one machine submit their jobs to a cluster, one after another.

Each task is a process of its own. A file that they share is their lock, which ends with its holder, and keeps
the last look at the cluster's jobs, so that many tasks that wait cost the cluster no more looks than one.
Machines do not know each other: tasks that start on several in the same second may each submit.
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

from airflow_provider_raydatallm.exceptions import RayConnectionError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.job.waiter import TaskLog
from airflow_provider_raydatallm.task.queue.places import (
    QueueLog,
    QueuePlace,
    count_waiting,
    max_waiting_jobs,
    seconds_between_looks,
)

#: Between two tries to get the lock, and to find a free place.
_LOCK_SECONDS, _TRY_SECONDS = 0.1, 1.0


@dataclass(frozen=True)
class _Look:
    """What the machine's tasks know of the cluster: jobs that waited, by epoch seconds, with those that the
    tasks have submitted since, and the seconds that it took to list them."""

    at: float = 0.0
    seconds: float = 0.0
    waiting: int = 0

    @property
    def is_due(self) -> bool:
        return not 0 <= time.time() - self.at < seconds_between_looks(self.seconds)


class SubmissionGate:
    """Holds the machine's lock from `enter` until `close`, between which the task submits."""

    def __init__(self, place: QueuePlace, log: TaskLog) -> None:
        self._place, self._log = place, QueueLog(log)
        self._hook = RayHook(place.ray_conn_id)
        self._fd: int | None = None
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
        places = max_waiting_jobs() if has_turn or holds else 1
        while True:
            self._place.seconds_left()
            try:
                await self._lock()
                look = await self._look(places if has_turn else 0)
                self._last_contact = time.monotonic()
            except (RayLLMJobError, RayConnectionError) as e:
                self.close()
                self._raise_if_away_for_long(e)
            else:
                if look.waiting < places:
                    self._write(_Look(look.at, look.seconds, look.waiting + 1))
                    self.held_s = time.monotonic() - self._began
                    return True
                self.close()
                if not holds:
                    return False
                self._log.waiting(look.waiting)
            await asyncio.sleep(_TRY_SECONDS)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _raise_if_away_for_long(self, error: Exception) -> None:
        is_refused = isinstance(error, RayConnectionError)
        if self._last_contact is None and is_refused:
            raise error  # as at any first call; later its token may be being replaced
        if time.monotonic() - (self._last_contact or self._began) > self._place.reconnect_timeout:
            raise error
        self._log.unreachable(error)
        self._hook.reread()

    async def _lock(self) -> None:
        address = await asyncio.to_thread(lambda: self._hook.settings.address)
        self._fd = fd = _open(address)
        while True:
            with contextlib.suppress(BlockingIOError):
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._place.seconds_left()
            await asyncio.sleep(_LOCK_SECONDS)

    async def _look(self, expected_below: int) -> _Look:
        look = self._read()
        if look.is_due or 0 < expected_below <= look.waiting:  # who was called knows better
            jobs = await self._hook.acall(jobs_api.list_live_jobs())
            if jobs.refusal:
                self._log.unlisted(jobs.refusal)
            look = _Look(time.time(), jobs.seconds, count_waiting(jobs))
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


def _open(address: str) -> int:
    """Opens the file of a cluster; where that cannot be, one that nobody shares."""
    cluster = hashlib.sha256(address.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"airflow-ray-llm-{os.getuid()}-{cluster}.queue")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.fstat(fd).st_uid == os.getuid():
            return fd
        os.close(fd)
    except OSError:
        pass
    fd, name = tempfile.mkstemp()
    os.unlink(name)
    return fd
