"""A vLLM worker that slices share, as a Ray Serve replica: it shares its request slots fairly, and drops the
rows of slices whose job is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import logging.handlers
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import add_worker_name
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.shared.fair_share import FairShare
from airflow_provider_raydatallm.processor.engines.vllm.worker.worker import VllmWorker

logger = logging.getLogger(__name__)

#: The variable in which hub clients look for a token.
MODEL_TOKEN = "HF_TOKEN"
#: Slots per row that vLLM runs at once: vLLM must never wait for a row.
_SLOTS_PER_SEQUENCE = 2
_USERS_POLL_SECONDS = 3.0
#: vLLM's process answers pings between two steps; after so long without an answer it hangs. vLLM itself has
#: the same limit for a step, but only for workers in processes of their own.
_HUNG_SECONDS = 300.0


@contextlib.contextmanager
def _serve_logging_kept() -> Iterator[None]:
    """Restores Serve's log handlers after vLLM's import, which closes every handler. A restarted Serve
    controller asks for the log file of one, and stops replicas that cannot name it."""
    handlers = [
        h for h in logging.getLogger("ray.serve").handlers if isinstance(h, logging.handlers.MemoryHandler)
    ]
    targets = [h.target for h in handlers]
    yield
    for handler, target in zip(handlers, targets, strict=True):
        handler.setTarget(target)


@contextlib.contextmanager
def _model_token_lent(app: str) -> Iterator[None]:
    """Has the model hub's token of a job that waits for this worker, while the model loads. Without one, or
    where the node has its own, nothing changes."""
    token = None if MODEL_TOKEN in os.environ else serve_apps.SERVE.model_token(app)
    if token is None:
        yield
        return
    os.environ[MODEL_TOKEN] = token
    try:
        yield
    finally:
        del os.environ[MODEL_TOKEN]


class SharedVllmReplica(VllmWorker):
    def __init__(self, app: str, arguments: dict[str, Any]) -> None:
        from ray import serve

        with _serve_logging_kept(), _model_token_lent(app):
            super().__init__(arguments)
        self._app = app
        self._name = serve.get_replica_context().replica_id.unique_id
        config = self._engine.vllm_config
        ranks = config.parallel_config.data_parallel_size
        self._share = FairShare(_SLOTS_PER_SEQUENCE * config.scheduler_config.max_num_seqs * ranks)
        self._batches: Counter[str] = Counter()  # running ones by user
        self._user_gone: dict[str, asyncio.Event] = {}
        self._user_watch: asyncio.Task[None] | None = None
        self._ping: asyncio.Future[bool] | None = None
        self._ping_sent_at = time.monotonic()

    async def generate(
        self, rows: pa.Table, feeder: str = "", user: str = "", limit: int | None = None
    ) -> AsyncGenerator[pa.Table]:
        groups = super().generate(rows, feeder, user, limit)
        async with self._watched(user) as user_gone:
            gone = asyncio.ensure_future(user_gone.wait())
            try:
                while True:
                    next_group = asyncio.ensure_future(anext(groups, None))
                    await asyncio.wait({next_group, gone}, return_when=asyncio.FIRST_COMPLETED)
                    if not next_group.done() or (group := await next_group) is None:
                        return
                    yield add_worker_name(group, self._name)
            finally:
                gone.cancel()
                next_group.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await next_group
                await groups.aclose()  # cancels its rows, which vLLM then aborts

    def _slot(self, user: str) -> contextlib.AbstractAsyncContextManager[None]:
        return self._share.slot(user)

    @contextlib.asynccontextmanager
    async def _watched(self, user: str) -> AsyncIterator[asyncio.Event]:
        """Yields an event that is set when the user's job is gone."""
        if self._user_watch is None:
            self._user_watch = asyncio.create_task(self._watch_users())
        self._batches[user] += 1
        try:
            yield self._user_gone.setdefault(user, asyncio.Event())
        finally:
            self._batches[user] -= 1
            if not self._batches[user]:
                del self._batches[user], self._user_gone[user]

    async def _watch_users(self) -> None:
        while True:
            await asyncio.sleep(_USERS_POLL_SECONDS)
            if not self._batches:
                continue
            try:
                users = await asyncio.to_thread(serve_apps.SERVE.users, self._app)
            except Exception:  # unknown for now
                continue
            for user in self._batches.keys() - set(users):
                self._user_gone[user].set()

    async def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica for which this raises, or that ends."""
        await self._engine.check_health()
        if self._ping is None or self._ping.done():
            self._ping_sent_at = time.monotonic()
            # Any call that vLLM's process answers itself.
            self._ping = asyncio.ensure_future(self._engine.is_sleeping())
        elif time.monotonic() - self._ping_sent_at > _HUNG_SECONDS:
            # Raising would have Serve wait for the rows in it.
            logger.error("the engine hangs: no answer for %g s", _HUNG_SECONDS)
            os._exit(1)

    def __del__(self) -> None:
        # Ray Serve calls nothing else when it stops a replica.
        self.kill_processes()
