"""How much a slice may ask of an endpoint: requests and tokens in a minute, and tokens in all.

A request's tokens are known when it is answered; until then they are estimated, and corrected afterwards: for
a pace by the average, for the budget by the most that it may take. All of it runs in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.ray_runtime.cluster_store import ClusterStore

logger = logging.getLogger(__name__)

#: Unused time that is made up for, as a share of a minute: what a busy machine is late, and under the 2% by
#: which a minute may differ.
_MADE_UP_S = 0.6
#: Bytes of a request for each token of its prompt, before the endpoint has counted any.
_BYTES_PER_TOKEN = 4
#: Tokens that a server may add by itself, to a prompt (its template, instructions) or beyond max_tokens
#: (thoughts).
_OWN_TOKENS = 1 << 16
#: Bytes. Those of tokenizers are shorter: of spaces, say.
_LONGEST_TOKEN = 256
#: Tokens of all texts of an answer without max_tokens; models write far less.
_LONGEST_ANSWER = 1 << 22
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


@dataclass(frozen=True)
class RequestSize:
    """What is known of a request's tokens before it is answered.

    :param body_bytes: its prompt has hardly more tokens: byte-level tokenizers make one of a byte at most.
    :param max_tokens: of its answer, all of its texts together; None where the endpoint decides.
    """

    body_bytes: int
    max_tokens: int | None

    def find_absurdity(self, input_tokens: int, output_tokens: int, reply_bytes: int) -> str | None:
        """Returns what no endpoint can mean by the tokens that it counts.

        :param reply_bytes: of the answer's text.
        """
        if not input_tokens:
            return "no token for a prompt"
        if input_tokens > self.body_bytes + _OWN_TOKENS:
            return f"{input_tokens:,} tokens for a prompt in {self.body_bytes:,} bytes"
        if reply_bytes > output_tokens * _LONGEST_TOKEN:
            return f"{output_tokens:,} tokens for an answer of {reply_bytes:,} bytes"
        most = _LONGEST_ANSWER if self.max_tokens is None else self.max_tokens + _OWN_TOKENS
        return f"{output_tokens:,} tokens for an answer" if output_tokens > most else None


class TokenEstimate:
    """Estimates a request's tokens, prompt and answer, by those that were answered."""

    def __init__(self) -> None:
        self._bytes = self._tokens = 0
        self._longest_answer = 0
        #: By which a request took more than it was asked for: a server may think, or add to a prompt.
        self._excess = 0
        #: Requests that were answered.
        self.answered = 0

    def of(self, size: RequestSize) -> float:
        """What it takes, on average."""
        if not self._bytes:
            return size.body_bytes / _BYTES_PER_TOKEN + (size.max_tokens or 0)
        return size.body_bytes * self._tokens / self._bytes

    def most(self, size: RequestSize) -> float:
        """What it may take; where nothing limits its answer, by the longest that there was."""
        limit = 2 * self._longest_answer if size.max_tokens is None else size.max_tokens
        return size.body_bytes + limit + self._excess

    def of_uncounted(self, size: RequestSize, reply_bytes: int = 0) -> float:
        """The most that it took, where the endpoint does not say so: such answers may be the long ones."""
        return max(self.most(size), size.body_bytes + reply_bytes)

    def learn(self, size: RequestSize, input_tokens: int, output_tokens: int) -> None:
        self._bytes += size.body_bytes
        self._tokens += input_tokens + output_tokens
        beyond = max(0, input_tokens - size.body_bytes)
        if size.max_tokens is not None:
            beyond += max(0, output_tokens - size.max_tokens)
        self._excess = max(self._excess, beyond)
        self.learn_length(output_tokens)

    def learn_length(self, output_tokens: int) -> None:
        """Of an answer: its tokens, or as many at most."""
        self.answered += 1
        self._longest_answer = max(self._longest_answer, output_tokens)


class TokenBudget:
    """Keeps what is spent, and what requests in flight may spend, under a limit.

    Where nothing limits answers, as many requests may be in flight as were answered before, and one more.
    """

    def __init__(self, limit: int | None, estimate: TokenEstimate, spent: SpentTokens | None = None) -> None:
        """:param spent: by whom others continue."""
        self._limit, self._estimate, self._kept = limit, estimate, spent
        self._spent = spent.read() if spent is not None else 0.0
        self._guessed = 0.0
        self._reserved = 0.0
        self._in_flight = 0
        self._turn, self._changed = asyncio.Lock(), asyncio.Condition()

    async def reserve(self, size: RequestSize) -> float:
        """Waits while requests in flight might spend what is left. Returns what is to be given to `settle`.

        :raises SliceError: when the limit is reached.
        """
        async with self._turn, self._changed:
            await self._changed.wait_for(lambda: not self._in_flight or self._has_room(size))
            tokens = self._estimate.most(size)
            if not self._fits(tokens):
                guessed = f" ({self._guessed:,.0f} of them estimated: the endpoint did not count them)"
                raise SliceError(
                    f"this run has spent {self._spent:,.0f} tokens{guessed if self._guessed else ''}, and "
                    f"the next request may take {tokens:,.0f} more, which is over engine.token_budget "
                    f"{self._limit:,}",
                    kind="input",
                    advice=("The answered rows are kept", "Raise it to continue with the others"),
                )
            self._reserved += tokens
            self._in_flight += 1
            self._keep()
            return tokens

    def _has_room(self, size: RequestSize) -> bool:
        if self._limit is not None and size.max_tokens is None and self._in_flight > self._estimate.answered:
            return False
        return self._fits(self._estimate.most(size))

    def _fits(self, tokens: float) -> bool:
        return self._limit is None or self._spent + self._reserved + tokens <= self._limit

    async def settle(self, reserved: float, spent: float, *, is_guess: bool) -> None:
        """:param is_guess: whether the endpoint did not say what was spent."""
        async with self._changed:
            self._in_flight -= 1
            self._reserved = self._reserved - reserved if self._in_flight else 0.0
            self._spent += spent
            self._guessed += spent if is_guess else 0.0
            self._keep()
            self._changed.notify_all()

    def _keep(self) -> None:
        if self._kept is not None and self._limit is not None:
            try:
                self._kept.write(self._spent + self._reserved, self._limit / 100)
            except Exception as e:  # of Ray's store; the row that was answered is worth more
                logger.warning("What this run has spent could not be kept for its next process: %s", e)


class SpentTokens:
    """What a run has spent, for a process that is started again. Picklable."""

    def __init__(self, run: str, tokens: float) -> None:
        """
        :param run: a name that no other run has.
        :param tokens: that it has spent before.
        """
        self._store = ClusterStore.of_kind("spent", run)
        self._before = self._written = tokens

    def read(self) -> float:
        self._written = float(self._store.get("tokens") or self._before)
        return self._written

    def write(self, tokens: float, grain: float) -> None:
        """Keeps the number, unless it differs less than `grain` from the one that is kept."""
        if abs(tokens - self._written) >= grain:
            self._written = tokens
            self._store.put("tokens", repr(tokens))

    def forget(self) -> None:
        self._store.clear()
