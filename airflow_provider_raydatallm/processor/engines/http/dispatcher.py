"""Has a client ask for rows, keeps some more at hand, and delivers groups as they finish.

All rows are asked from one event loop, in a thread of its own. When no more may be asked, the rows in flight
are waited for and delivered, for they are paid for, before the failure is raised.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.columns import GROUP_SCHEMA
from airflow_provider_raydatallm.processor.engines.feeding.row import Row
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import add_worker_name

logger = logging.getLogger(__name__)

#: Shortest time between two groups.
_GROUP_SECONDS = 0.25


class Client(Protocol):
    #: What ended it.
    failure: SliceError | None

    async def answer(self, body: str, max_tokens: int) -> dict[str, Any] | None:
        """Returns columns of `GROUP_SCHEMA`; None when `failure` ended it."""


class HttpDispatcher:
    """Thread-safe."""

    def __init__(
        self,
        client: Client,
        in_flight: int,
        longest_s: float,
        on_group: Callable[[Sequence[Row], pa.Table], None],
    ) -> None:
        """
        :param in_flight: rows that the client asks for at once; twice as many are taken.
        :param longest_s: of a request.
        :param on_group: delivers finished rows, with their columns of `GROUP_SCHEMA` and `worker`.
        """
        self._client, self._in_flight, self._on_group = client, in_flight, on_group
        self._longest_s = longest_s
        self._loop = asyncio.new_event_loop()
        self._has_finished = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._finished: list[tuple[Row, dict[str, Any] | None]] = []
        self._unsettled: dict[Row, None] = {}
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="ray-llm-http", daemon=True).start()

    def wait_for_room(self) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or len(self._unsettled) < 2 * self._in_flight
            )
        self._raise_failure()

    def hand_in(self, rows: Sequence[Row], *, as_batch: bool = False) -> None:
        with self._changed:
            if self._error is not None:
                raise self._error
            self._unsettled.update(dict.fromkeys(rows))
        self._loop.call_soon_threadsafe(self._start, rows)

    def drain(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or not self._unsettled)
        self._raise_failure()

    @property
    def _failure(self) -> BaseException | None:
        return self._error or self._client.failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            with self._changed:
                if not self._error and (left := len(self._unsettled)):
                    logger.warning("the slice has failed, and waits for answers in flight (%d at most)", left)
                self._changed.wait_for(lambda: self._error or not self._unsettled, self._longest_s)
            raise self._failure

    # In the event loop

    def _run(self) -> None:
        self._loop.run_until_complete(self._deliver_groups())

    async def _deliver_groups(self) -> None:
        try:
            while True:
                await self._has_finished.wait()
                await asyncio.sleep(_GROUP_SECONDS)
                self._has_finished.clear()
                finished, self._finished = self._finished, []
                await asyncio.to_thread(self._deliver, finished)
        except BaseException as e:
            self._end(e)

    def _start(self, rows: Sequence[Row]) -> None:
        for row in rows:
            task = self._loop.create_task(self._answer(row))
            self._tasks.add(task)  # the loop itself keeps none
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, row: Row) -> None:
        try:
            answer = await self._client.answer(row.params, row.max_tokens)
            self._finished.append((row, answer))
            self._has_finished.set()
        except BaseException as e:
            self._end(e)

    # In threads that deliver

    def _deliver(self, finished: Sequence[tuple[Row, dict[str, Any] | None]]) -> None:
        answers = [(row, answer) for row, answer in finished if answer is not None]
        if answers:
            columns = [{"row": i, **answer} for i, (_, answer) in enumerate(answers)]
            group = add_worker_name(pa.Table.from_pylist(columns, schema=GROUP_SCHEMA), "endpoint")
            self._on_group([row for row, _ in answers], group)
        with self._changed:
            for row, _ in finished:
                del self._unsettled[row]
            self._changed.notify_all()

    def _end(self, error: BaseException) -> None:
        """Ends all waits with this error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
