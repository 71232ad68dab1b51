"""How much a slice may ask of an endpoint: requests and tokens in a minute, and tokens in all.

A request's tokens are known when it is answered; until then they are estimated, and corrected afterwards.
Pure asyncio; all of it runs in one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from airflow_provider_raydatallm.contract.result.errors import SliceError

#: Unused time that is made up for, as a share of a minute: what a busy machine is late, and under the 2% by
#: which a minute may differ.
_MADE_UP_S = 0.6
#: Bytes of a request for each token of its prompt, before the endpoint has counted any.
_BYTES_PER_TOKEN = 4
#: Between two looks whether a pause is over.
_LOOK_S = 1.0


class Pace:
    """Spreads amounts evenly over time, in the order in which they are asked for."""

    def __init__(self, per_minute: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """:param per_minute: None: without end, but for pauses."""
        self._seconds_each = 60 / per_minute if per_minute is not None else 0.0
        self._clock = clock
        self._free_at = clock()
        self._turn = asyncio.Lock()

    async def take(self, amount: float) -> None:
        """Waits until everything before it has had its time."""
        async with self._turn:
            while (wait_s := self._free_at - self._clock()) > 0:
                await asyncio.sleep(min(wait_s, _LOOK_S))
            self._free_at = max(self._free_at, self._clock() - _MADE_UP_S) + amount * self._seconds_each

    def correct(self, amount: float) -> None:
        """Takes so much more, or less where it is negative."""
        self._free_at += amount * self._seconds_each

    def pause(self, seconds: float) -> None:
        self._free_at = max(self._free_at, self._clock() + seconds)

    def end_pause(self) -> None:
        self._free_at = self._clock()


class TokenEstimate:
    """Estimates a request's tokens, prompt and answer, by those that were answered."""

    def __init__(self) -> None:
        self._bytes = self._tokens = 0

    def of(self, body_bytes: int, max_tokens: int) -> float:
        if not self._bytes:
            return body_bytes / _BYTES_PER_TOKEN + max_tokens
        return body_bytes * self._tokens / self._bytes

    def learn(self, body_bytes: int, tokens: int) -> None:
        self._bytes += body_bytes
        self._tokens += tokens


class TokenBudget:
    """Keeps what is spent, and what requests in flight may spend, under a limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._spent = self._reserved = 0.0
        self._in_flight = 0
        self._changed = asyncio.Condition()

    async def reserve(self, tokens: float) -> None:
        """Waits while requests in flight might spend what is left.

        :raises SliceError: when the limit is reached.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._fits(tokens) or not self._in_flight)
            if not self._fits(tokens):
                raise SliceError(
                    f"this run has spent {self._spent:,.0f} tokens, and the next request may take "
                    f"{tokens:,.0f} more, which is over engine.token_budget {self._limit:,}. The answered "
                    "rows are kept. Raise it to continue with the others",
                    kind="input",
                )
            self._reserved += tokens
            self._in_flight += 1

    def _fits(self, tokens: float) -> bool:
        return self._limit is None or self._spent + self._reserved + tokens <= self._limit

    async def settle(self, reserved: float, spent: float) -> None:
        async with self._changed:
            self._in_flight -= 1
            self._reserved = self._reserved - reserved if self._in_flight else 0.0
            self._spent += spent
            self._changed.notify_all()
