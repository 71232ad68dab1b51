"""The status of many jobs of one cluster, in as few calls as possible.

A triggerer that waits for hundreds of jobs asks for the status of each every few seconds. One list of all
jobs could answer all who ask within a second, but Ray reads for it every job that it ever ran. So both are
timed, and a list is made only where it takes less time than the calls that it replaces. Who finds no answer
in it, as it failed, took too long or lacks the job, calls for itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from airflow_provider_raydatallm.exceptions import RayConnectionError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.jobs_api import Flow, JobInfo

#: For which a list waits for others who ask.
_GATHER_SECONDS = 1.0
#: That a list may take, and after which one that failed or was too expensive is tried again.
_MOST_LIST_SECONDS, _TRY_AGAIN_SECONDS = 2.0, 600.0
#: By which a call is taken to last longer, at most, than the shortest before it: others may have delayed it.
_SLOWER = 1.1


class StatusPoller:
    """Of one event loop and one connection's settings: connections of other rights share no list."""

    def __init__(self) -> None:
        #: Jobs of the last second, by when somebody asked for them, oldest first.
        self._asked_at: dict[str, float] = {}
        #: A list that has not begun.
        self._next_list: asyncio.Task[dict[str, JobInfo]] | None = None
        self._list_s, self._listed_at = 0.0, -float("inf")
        self._call_s = 0.0

    async def get(self, submission_id: str, call: Callable[[Flow[Any]], Awaitable[Any]]) -> JobInfo | None:
        """Returns the same as `jobs_api.get_status`, about a second later where many ask.

        :param call: runs a flow of `jobs_api`.
        """
        if self._is_list_cheaper(submission_id):
            if self._next_list is None:
                self._next_list = asyncio.create_task(self._list(call))
            # Who stops waiting does not end the list of the others.
            if (info := (await asyncio.shield(self._next_list)).get(submission_id)) is not None:
                return info
        began = time.monotonic()
        called: JobInfo | None = await call(jobs_api.get_status(submission_id))
        seconds = time.monotonic() - began
        self._call_s = min(seconds, self._call_s * _SLOWER) if self._call_s else seconds
        return called

    def _is_list_cheaper(self, submission_id: str) -> bool:
        now = time.monotonic()
        self._asked_at.pop(submission_id, None)
        self._asked_at[submission_id] = now
        while now - self._asked_at[oldest := next(iter(self._asked_at))] > _GATHER_SECONDS:
            del self._asked_at[oldest]
        if now - self._listed_at > _TRY_AGAIN_SECONDS:
            self._list_s = 0.0
        calls = len(self._asked_at)
        return calls > 1 and calls * self._call_s > self._list_s

    async def _list(self, call: Callable[[Flow[Any]], Awaitable[Any]]) -> dict[str, JobInfo]:
        await asyncio.sleep(_GATHER_SECONDS)
        self._next_list = None
        began = self._listed_at = time.monotonic()
        try:
            async with asyncio.timeout(_MOST_LIST_SECONDS):
                statuses: dict[str, JobInfo] = await call(jobs_api.list_statuses())
        except (TimeoutError, RayLLMJobError, RayConnectionError):
            self._list_s = float("inf")
            return {}
        self._list_s = time.monotonic() - began
        return statuses
