"""Follows a job's log as it is written: whole lines, each once, rate-limited, in bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow.sdk.configuration import conf

from airflow_provider_raydatallm.exceptions import RayLLMInputError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.task.job.log_entries import LogEntry

if TYPE_CHECKING:
    import httpx

    from airflow_provider_raydatallm.hooks.ray import RayHook

#: Longer than any marked line (`contract/log/marked_lines.py`).
_MAX_LINE_BYTES = 128 * 1024
#: Lines that may enter the task's log: sustained rate and burst.
_LINES_PER_SECOND, _LINES_AT_ONCE = 20.0, 400.0

#: Logs that this process follows at the moment.
_following = 0


class LineSplitter:
    """Splits a stream of bytes into lines; drops what a line has beyond 128 KiB."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        *whole, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_MAX_LINE_BYTES]
        return [line[:_MAX_LINE_BYTES].decode(errors="replace") for line in whole]


class Throttle:
    """Limits the lines that are shown, so that a job that prints endlessly does not fill the task's log."""

    def __init__(self) -> None:
        self._allowance = _LINES_AT_ONCE
        self._last_call: float | None = None
        self._dropped = 0

    def limit(self, entries: list[LogEntry], now: float) -> list[LogEntry]:
        """Returns the entries to show. `now`: seconds of a monotonic clock."""
        if self._last_call is not None:
            refill = (now - self._last_call) * _LINES_PER_SECOND
            self._allowance = min(_LINES_AT_ONCE, self._allowance + refill)
        self._last_call = now
        count = min(len(entries), int(self._allowance))
        self._allowance -= count
        shown = entries[:count]
        if self._dropped and shown:
            omitted = f"({self._dropped:,} lines omitted; see the Ray job's log)"
            shown.insert(0, LogEntry(logging.INFO, omitted))
            self._dropped = 0
        self._dropped += len(entries) - count
        return shown


class LogFollower:
    """Follows one job's log in the background, unless this process already follows `[ray_llm]
    max_log_streams` logs.

    :param from_start: begin at the log's first line, else at its end.
    :param on_lines: called with each group of new lines.
    :param reconnect_s: pause before a stream that was cut is opened again.
    """

    def __init__(
        self,
        submission_id: str,
        *,
        from_start: bool,
        on_lines: Callable[[list[str]], None],
        reconnect_s: float,
    ) -> None:
        self._submission_id = submission_id
        self._from_start = from_start
        self._on_lines = on_lines
        self._reconnect_s = reconnect_s
        self._limit = conf.getint("ray_llm", "max_log_streams")
        self._bytes_read = 0
        self._splitter = LineSplitter()
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
        self._task.add_done_callback(_count_end)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self, hook: RayHook, node_id: str) -> None:
        import httpx

        request = jobs_api.log_stream_request(self._submission_id, node_id, from_start=self._from_start)
        while True:
            # The stream can be cut while the job runs; the next status check reports what is wrong.
            with contextlib.suppress(httpx.HTTPError, RayLLMJobError, RayLLMInputError):
                async with hook.astream(request) as response:
                    if response.status_code == 200:
                        await self._read(response)
            await asyncio.sleep(self._reconnect_s)

    async def _read(self, response: httpx.Response) -> None:
        # A stream from the first line begins there each time: skip what was read before. A stream from the
        # end begins with one old line.
        skip, has_old_line = self._bytes_read, not self._from_start
        splitter = self._splitter if self._from_start else LineSplitter()
        async for chunk in response.aiter_bytes():
            new = chunk[skip:]
            skip -= len(chunk) - len(new)
            self._bytes_read += len(new)
            lines = splitter.feed(new)
            if has_old_line and lines:
                lines, has_old_line = lines[1:], False
            if lines:
                self._on_lines(lines)


def _count_end(task: asyncio.Task[None]) -> None:
    global _following
    _following -= 1
    if not task.cancelled():
        task.exception()  # mark it as read: the next status check starts another follower
