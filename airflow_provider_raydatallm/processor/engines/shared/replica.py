"""A vLLM worker that slices share, as Ray Serve hosts it: it gives them places in its engine by turns, and
drops the rows of a slice whose job is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import logging.handlers
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.shared.fair_share import FairShare
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import users
from airflow_provider_raydatallm.processor.engines.vllm.worker import VllmWorker
from airflow_provider_raydatallm.processor.engines.vllm.worker_pool import from_worker

#: Rows that vLLM is given for each that it runs at once: it must never wait for the next.
_ROWS_PER_SEQUENCE = 2
_LOOK_SECONDS = 3.0
#: Seconds without an answer from vLLM's process, which it gives between two steps, after which it hangs. That
#: is vLLM's own limit of a step, which it has only for workers in processes of their own.
_HUNG_SECONDS = 300.0


@contextlib.contextmanager
def _serve_logging_kept() -> Iterator[None]:
    """Importing vLLM closes every handler there is. Serve's controller asks for the file of one when it has
    been started anew, and ends a replica that cannot tell."""
    handlers = [
        h for h in logging.getLogger("ray.serve").handlers if isinstance(h, logging.handlers.MemoryHandler)
    ]
    targets = [h.target for h in handlers]
    yield
    for handler, target in zip(handlers, targets, strict=True):
        handler.setTarget(target)


class SharedVllmReplica(VllmWorker):
    def __init__(self, app: str, arguments: dict[str, Any]) -> None:
        from ray import serve

        with _serve_logging_kept():
            super().__init__(arguments)
        self._app = app
        self._name = serve.get_replica_context().replica_id.unique_id
        most = self._engine.vllm_config.scheduler_config.max_num_seqs
        self._share = FairShare(_ROWS_PER_SEQUENCE * most)
        self._asking: Counter[str] = Counter()
        self._gone: dict[str, asyncio.Event] = {}
        self._watching: asyncio.Task[None] | None = None
        self._heard = time.monotonic()
        self._asked: asyncio.Future[bool] | None = None

    async def generate(self, batch: pa.Table, user: str = "") -> AsyncGenerator[pa.Table]:
        groups = super().generate(batch, user)
        async with self._while_there(user) as gone:
            left = asyncio.ensure_future(gone.wait())
            try:
                while True:
                    more = asyncio.ensure_future(anext(groups, None))
                    await asyncio.wait({more, left}, return_when=asyncio.FIRST_COMPLETED)
                    if not more.done():
                        return
                    if (group := await more) is None:
                        return
                    yield from_worker(group, self._name)
            finally:
                left.cancel()
                more.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await more
                # By this its rows are cancelled, and vLLM aborts them.
                await groups.aclose()

    def _place(self, user: str) -> contextlib.AbstractAsyncContextManager[None]:
        return self._share.place(user)

    @contextlib.asynccontextmanager
    async def _while_there(self, user: str) -> AsyncIterator[asyncio.Event]:
        """An event for the time when the user is there no more."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        self._asking[user] += 1
        try:
            yield self._gone.setdefault(user, asyncio.Event())
        finally:
            self._asking[user] -= 1
            if not self._asking[user]:
                del self._asking[user], self._gone[user]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if not self._asking:
                continue
            try:
                there = await asyncio.to_thread(users, self._app)
            except Exception:  # who is there is not known for now
                continue
            for user in self._asking.keys() - set(there):
                self._gone[user].set()

    async def check_health(self) -> None:
        """For Ray Serve, which replaces a worker for which this raises, or that ends."""
        await self._engine.check_health()
        if self._asked is None or self._asked.done():
            self._heard = time.monotonic()
            # Any question that vLLM's process answers itself.
            self._asked = asyncio.ensure_future(self._engine.is_sleeping())
        elif time.monotonic() - self._heard > _HUNG_SECONDS:
            # Serve would wait for the rows that it has.
            print(f"the engine hangs: it did not answer for {_HUNG_SECONDS:g} s", file=sys.stderr, flush=True)
            os._exit(1)

    def __del__(self) -> None:
        # Ray Serve calls this, and no other, when a worker is to end.
        self.end()
