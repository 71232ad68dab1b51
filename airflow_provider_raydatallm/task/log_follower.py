"""Following a job's log as it is written: whole lines, none twice, in bounded memory, not too many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow.sdk.configuration import conf

from airflow_provider_raydatallm.exceptions import RayLLMInputError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api

if TYPE_CHECKING:
    import httpx

    from airflow_provider_raydatallm.hooks.ray import RayHook

#: Longer than any marked line (`lines.py`).
_MAX_LINE_BYTES = 128 * 1024
_MAX_SHOWN_CHARACTERS = 2000
#: Lines a second that may go into the task's log for long, and at once.
_LINES_PER_SECOND, _LINES_AT_ONCE = 20.0, 400.0
_RECONNECT_SECONDS = 5.0

#: How many logs this process follows now.
_following = 0


class LineSplitter:
    """Cuts a stream of bytes into lines. What a line has beyond 128 KiB is dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        *whole, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_MAX_LINE_BYTES]
        return [line[:_MAX_LINE_BYTES].decode(errors="replace") for line in whole]


class Throttle:
    """Lets so many lines through that a job that prints without end does not fill the task's log."""

    def __init__(self) -> None:
        self._allowance = _LINES_AT_ONCE
        self._at: float | None = None
        self._dropped = 0

    def pass_on(self, lines: list[str], now: float) -> list[str]:
        """:param now: seconds of a clock that only goes forward."""
        if self._at is not None:
            more = (now - self._at) * _LINES_PER_SECOND
            self._allowance = min(_LINES_AT_ONCE, self._allowance + more)
        self._at = now
        count = min(len(lines), int(self._allowance))
        self._allowance -= count
        shown = [line[:_MAX_SHOWN_CHARACTERS] for line in lines[:count]]
        if self._dropped and shown:
            shown.insert(0, f"({self._dropped:,} lines are left out here; the Ray job's log has them)")
            self._dropped = 0
        self._dropped += len(lines) - count
        return shown


class LogFollower:
    """Follows one job's log in the background, if this process does not follow too many already
    (`[ray_llm] max_log_streams`).

    :param from_start: whether to begin at the log's first line; else at its end.
    :param take: called with the lines as they come.
    """

    def __init__(self, submission_id: str, *, from_start: bool, take: Callable[[list[str]], None]) -> None:
        self._submission_id = submission_id
        self._from_start = from_start
        self._take = take
        self._limit = conf.getint("ray_llm", "max_log_streams")
        self._bytes_read = 0
        self._lines = LineSplitter()
        self._task: asyncio.Task[None] | None = None

    @property
    def active(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, hook: RayHook, node_id: str) -> None:
        global _following
        if self.active or _following >= self._limit:
            return
        _following += 1
        self._task = asyncio.create_task(self._follow(hook, node_id))
        self._task.add_done_callback(_done)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self, hook: RayHook, node_id: str) -> None:
        import httpx

        request = jobs_api.log_stream_request(self._submission_id, node_id, from_start=self._from_start)
        while True:
            # The stream can be cut while the job runs; a look at the job's status finds out what is wrong.
            with contextlib.suppress(httpx.HTTPError, RayLLMJobError, RayLLMInputError):
                async with hook.astream(request) as answer:
                    if answer.status_code == 200:
                        await self._read(answer)
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _read(self, answer: httpx.Response) -> None:
        # A stream from the first line begins there each time: what was read before is skipped. One from the
        # end begins with a line that was there already.
        skip, old_line = self._bytes_read, not self._from_start
        lines = self._lines if self._from_start else LineSplitter()
        async for chunk in answer.aiter_bytes():
            new = chunk[skip:]
            skip -= len(chunk) - len(new)
            self._bytes_read += len(new)
            found = lines.feed(new)
            if old_line and found:
                found, old_line = found[1:], False
            if found:
                self._take(found)


def _done(task: asyncio.Task[None]) -> None:
    global _following
    _following -= 1
    if not task.cancelled():
        task.exception()  # the job is looked at all the same, and its log is followed again then
