"""Asks an endpoint for rows: within its limits, again after passing errors, and never another host.

Where a row gets no answer, the row may be the reason, or the endpoint. So it is asked again, over minutes,
each time between two requests that differ in their text only. If these are answered each time and the row
never is, it has failed. An endpoint that is away fails no row, but the slice, which a retry continues. One
that fails a share f of all requests fails a row by chance with f^12 (1 - f)^8, at most 1.4e-6.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from airflow_provider_raydatallm.contract.log.redaction import Redactor
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.spec.engines.http import KEY_VARIABLE, Http, clean_key
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import storable
from airflow_provider_raydatallm.processor.engines.http.api import Api
from airflow_provider_raydatallm.processor.engines.http.connections import (
    EndpointConnections,
    most_connections,
)
from airflow_provider_raydatallm.processor.engines.http.limits import (
    Pace,
    RequestSize,
    SpentTokens,
    TokenBudget,
    TokenEstimate,
)
from airflow_provider_raydatallm.processor.engines.http.replies import (
    ROW_REFUSED,
    DoubtfulRefusalError,
    PassingError,
    RowRefusedError,
    raise_unless_answered,
)

logger = logging.getLogger(__name__)

#: Error type of rows that get no answer while others do.
ROW_FAILED = "FailedAtEndpoint"
#: Tries of a row, apart from those that the endpoint's own limit refuses: 90 s with the pauses.
TRIES = 8
#: Those that seem to be refused as all others are, after some were answered: 25 s; and before: 5 s.
SUDDEN_TRIES, FIRST_TRIES = 6, 4
#: Further tries, three minutes, each between two requests with another text that are answered.
LONE_TRIES = 4
#: The first pause before another try, and the longest. Each is twice as long as the one before, less a
#: random part, so that rows that failed together do not come back together.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
#: Expected of an answer to another text.
_FEW_TOKENS = 16
#: Of `limits.stall`, for which a limit may refuse all rows, or requests hang: the run's watch names neither.
_STALL_SHARE = 0.9
#: Between two warnings that say why rows wait.
_WARN_EVERY_S = 60.0


class _LimitedError(SliceError):
    """The endpoint's limit has refused all rows that were left for too long."""

    def __init__(self, refusal: PassingError, limit_s: float) -> None:
        super().__init__(
            f"{refusal.message}, and to every row for {limit_s:g} s",
            kind="transient",
            advice="Have the endpoint's limit raised, lower engine.requests_per_minute, or raise "
            "limits.stall to wait longer",
            row_texts=(refusal.quoted,),
        )
        self.refusal = str(refusal)


class _InDoubtError(Exception):
    """Another row is to be asked first."""


class EndpointClient:
    """Of a slice: one, in one event loop, so that its limits hold for all rows."""

    def __init__(self, job: SliceJob, api: Api, spent: SpentTokens | None = None) -> None:
        """:param spent: of `engine.token_budget`, by this run."""
        self._job, self._api = job, api
        key = _read_key()
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )
        self._redact = Redactor([key]).text
        self._asked = asked = job.engine_as(Http)
        self._url = f"{asked.url}{api.path}"
        self._requests, self._tokens = Pace(asked.requests_per_minute), Pace(asked.tokens_per_minute)
        self._estimate = TokenEstimate()
        self._budget = TokenBudget(asked.token_budget, self._estimate, spent)
        self._has_told_of_counts = False
        self._places = asyncio.Semaphore(most_connections(asked.in_flight))
        #: Requests that got what they ask for: a gateway refuses some while what is behind it is away.
        self._answered = 0
        #: How many had been answered when it became doubtful whether any other is: a reply may have cost and
        #: was no answer, or all seem to be refused. Until there is another answer, one row is asked.
        self._doubted_at: int | None = None
        self._scout = asyncio.Lock()
        #: When a row was answered, or refused.
        self._settled_at = time.monotonic()
        self._warned_at = -_WARN_EVERY_S
        #: What a request says that had no reply in time, until another has one.
        self._hang: str | None = None
        #: What ended it: no row is asked from then on.
        self.failure: SliceError | None = None
        self._has_failed = asyncio.Event()

    async def close(self) -> None:
        await self._connections.close()

    async def answer(self, body: str, max_tokens: int) -> dict[str, Any] | None:
        """Returns the columns of an answer, or of a row that failed; None when `failure` ended it."""
        try:
            columns = await self._answer(body, max_tokens)
        except SliceError as e:
            self.failure = self.failure or SliceError.of(
                Failure.parse(e.failure.to_json(), clean=lambda text: storable(self._redact(text)))
            )
            self._has_failed.set()
            self._requests.end_pause()
            return None
        if error := columns.get("error"):
            columns["error"] = storable(self._redact(error))
        return columns

    async def _answer(self, body: str, max_tokens: int) -> dict[str, Any]:
        """:raises SliceError: when the endpoint answers no other row either."""
        while True:
            answered_before = self._answered
            try:
                return await self._ask_row(body, max_tokens, TRIES)
            except PassingError as e:
                error, tries = e, e.tries
            for number in range(LONE_TRIES):
                if number:
                    await self._pause(error, LONGEST_PAUSE_S)
                if not await self._answers_other_text(body, max_tokens):
                    break
                try:
                    return await self._ask_row(body, max_tokens, 1)
                except PassingError as e:
                    error = e
                if not await self._answers_other_text(body, max_tokens):
                    break
                tries += 1
                if number + 1 == LONE_TRIES or (error.timed_out and not self._has_time_for(1)):
                    return _failed(ROW_FAILED, f"{error}, in each of {tries} tries, while it answers others")
            before = answered_before if error.of_all is None else self._doubted_at
            if self._answered == before or (error.timed_out and not self._has_time_for(1)):
                raise error.of_all or SliceError(
                    f"{error.message}, in each of {tries} tries",
                    kind="transient",
                    advice=f"Check that {self._redact(self._url)} (engine.url) runs, and that the cluster's "
                    "nodes reach it",
                    row_texts=(error.quoted,),
                )

    def _has_time_for(self, timeouts: int) -> bool:
        """Whether a row's requests may time out so often before the slice counts as stalled."""
        left_s = self._settled_at + _STALL_SHARE * self._job.limits.stall - time.monotonic()
        return timeouts * self._asked.request_timeout <= left_s

    async def _ask_row(self, body: str, max_tokens: int, tries: int) -> dict[str, Any]:
        try:
            columns = await self._ask_often(body, max_tokens, tries)
        except _LimitedError:
            self._requests.end_pause()
            if not await self._answers_other_text(body, max_tokens):
                raise
            try:  # the limit may have ended while the row waited
                columns = await self._ask_often(body, max_tokens, 1)
            except _LimitedError as e:
                columns = _failed(ROW_FAILED, f"{e.refusal}, again and again, while it answers others")
        self._settled_at = time.monotonic()
        return columns

    async def _answers_other_text(self, body: str, max_tokens: int) -> bool:
        """:raises SliceError: when it refuses all texts."""
        try:
            for request in self._with_other_texts(body, max_tokens):
                if "error" not in await self._ask_often(*request, 1):
                    return True
        except PassingError:
            pass
        return False

    def _with_other_texts(self, body: str, max_tokens: int) -> Iterator[tuple[str, int]]:
        """Yields bodies with texts that no row or cache has, and the tokens of an answer: the same request,
        then the plainest, for rules of parameters may refuse it (of a prompt's words, of a shortest answer).
        """
        yield self._api.with_text(body, f"Hello {uuid.uuid4().hex}"), _FEW_TOKENS
        yield self._api.plain(body, f"Hello {uuid.uuid4().hex}"), max_tokens

    async def _ask_often(self, body: str, max_tokens: int, tries: int) -> dict[str, Any]:
        """:raises PassingError: of the last of so many tries."""
        # Each kind of error has its own patience: an endpoint that restarts shows several in turn.
        failed: Counter[str] = Counter()
        is_alone = False
        async with contextlib.AsyncExitStack() as alone:
            while self.failure is None:
                if self._doubted_at != self._answered:
                    await alone.aclose()
                    is_alone = False
                elif tries > 1 and not is_alone:
                    await alone.enter_async_context(self._scout)
                    is_alone = True
                    continue
                try:
                    return await self._ask(body, max_tokens, in_doubt=is_alone or tries == 1)
                except _InDoubtError:
                    continue
                except PassingError as e:
                    kind = "limit" if e.is_limit else "passing" if e.of_all is None else "sudden"
                    failed[kind] += 1
                    # `_pause` ends the wait for a limit.
                    most_sudden = min(tries, SUDDEN_TRIES if self._answered else FIRST_TRIES)
                    is_last = failed["passing"] == tries or failed["sudden"] >= most_sudden
                    if is_last or (e.timed_out and not self._has_time_for(2)):
                        e.tries = failed["passing"] + failed["sudden"]
                        raise
                    error = e
                if error.of_all is not None or (error.may_have_cost and not self._answered):
                    self._doubted_at = self._answered
                await self._pause(error, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (failed[kind] - 1)))
        raise self.failure

    async def _ask(self, body: str, max_tokens: int, *, in_doubt: bool) -> dict[str, Any]:
        """
        :param in_doubt: whether the row may be asked while it is doubtful whether any is answered.
        :raises PassingError: also when it stays open whether a refusal is of this row or of all.
        :raises SliceError: when no row can have an answer.
        """
        async with self._places:
            if self._doubted_at == self._answered and not in_doubt:  # since the row waits for its place
                raise _InDoubtError
            if self._hang is not None and not in_doubt and not self._has_time_for(2):
                raise PassingError(self._hang, timed_out=True)
            try:
                return await self._ask_once(body.encode(), max_tokens)
            except DoubtfulRefusalError as e:
                refusal = e
            if refusal.is_sudden:
                raise _passing(refusal)
            # From the same place, so that few rows are asked for nothing if all are refused.
            try:
                for other, tokens in self._with_other_texts(body, max_tokens):
                    if "error" not in await self._ask_once(other.encode(), tokens):
                        break
                else:
                    raise PassingError(refusal.message, quoted=refusal.quoted)
            except DoubtfulRefusalError as e:
                raise _passing(e) from e
            # The refusal may have been of all, and have ended between the two.
            try:
                return await self._ask_once(body.encode(), max_tokens)
            except DoubtfulRefusalError as e:
                return _failed(ROW_REFUSED, f"{e}, while it answers others")

    async def _ask_once(self, data: bytes, max_tokens: int) -> dict[str, Any]:
        """
        :raises PassingError, DoubtfulRefusalError: without an answer, or a refusal of the row.
        :raises SliceError: when no row can have one.
        """
        size = RequestSize(len(data), max_tokens or None if self._api.writes else 0)
        reserved = await self._budget.reserve(size)
        expected, spent, is_guess = self._estimate.of(size), 0.0, False
        try:
            await self._tokens.take(expected)
            await self._requests.take(1)
            if self.failure is not None:  # meanwhile
                raise self.failure
            began = time.time()
            try:
                columns, reply_bytes = await self._post(data)
            except (PassingError, DoubtfulRefusalError) as e:
                self._hang = str(e) if isinstance(e, PassingError) and e.timed_out else None
                if is_guess := e.may_have_cost:
                    spent = self._estimate.of_uncounted(size, e.reply_bytes)
                raise
            except RowRefusedError as e:
                columns = _failed(ROW_REFUSED, str(e))
                if is_guess := e.reply_bytes > 0:
                    spent = self._estimate.of_uncounted(size, e.reply_bytes)
            else:
                self._hang = None
                spent, is_guess = self._count(columns, size, reply_bytes)
            self._answered += "error" not in columns
            return {**columns, "engine_seconds": time.time() - began, "finished_at": time.time()}
        finally:
            self._tokens.correct(spent - expected)
            await self._budget.settle(reserved, spent, is_guess=is_guess)

    def _count(self, columns: dict[str, Any], size: RequestSize, reply_bytes: int) -> tuple[float, bool]:
        """Returns the tokens of an answer, and whether they are a guess. Removes counts that are wrong."""
        if "error" not in columns:
            reply_bytes = sum(len((t.get("text") or "").encode()) for t in columns.get("texts") or [columns])
        counts = columns["input_tokens"], columns["output_tokens"]
        if None not in counts:
            problem = size.find_absurdity(*counts, reply_bytes)
            if problem is None:
                self._estimate.learn(size, *counts)
                return sum(counts), False
            columns |= dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"))
            self._tell_of_counts(f"the endpoint counts {problem}")
        elif self._asked.token_budget is not None or self._asked.tokens_per_minute is not None:
            self._tell_of_counts("the endpoint does not count the tokens of its answers in whole numbers")
        spent = self._estimate.of_uncounted(size, reply_bytes)
        self._estimate.learn_length(reply_bytes)
        return spent, True

    def _tell_of_counts(self, problem: str) -> None:
        if not self._has_told_of_counts:
            self._has_told_of_counts = True
            logger.warning("%s: such answers' tokens are estimated, and missing in the report", problem)

    async def _post(self, data: bytes) -> tuple[dict[str, Any], int]:
        """Returns an answer's columns, and the bytes of the reply.

        :raises Exception: as `raise_unless_answered`.
        """
        reply = await self._connections.post(data)
        raise_unless_answered(reply.status, reply.headers, reply.body, self._redact, self._url)
        if reply.excess_of is not None:
            message = f"the endpoint's reply is over {reply.excess_of:,} bytes"
            raise RowRefusedError(message, reply_bytes=reply.excess_of)
        try:
            return self._api.read(reply.body, data, self._redact), len(reply.body)
        except (PassingError, DoubtfulRefusalError) as e:
            e.reply_bytes = len(reply.body)
            raise

    @cached_property
    def _connections(self) -> EndpointConnections:  # which an event loop must run for
        return EndpointConnections(self._job, self._url, self._headers)

    async def _pause(self, error: PassingError, longest_s: float) -> None:
        """Waits before another try: as long as the endpoint asks, and a random time.

        :raises SliceError: when the endpoint's limit has refused all rows for too long.
        """
        asked_s = error.pause_s or 0.0
        if not error.is_limit:
            asked_s = min(asked_s, LONGEST_PAUSE_S)
        ends_at = time.monotonic() + asked_s + longest_s * random.uniform(0.5, 1)
        if error.is_limit:
            self._requests.pause(asked_s)  # the limit is for all rows
        if time.monotonic() - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = time.monotonic()
            advice = ". Lower engine.requests_per_minute or engine.in_flight" if error.is_limit else ""
            logger.warning("%s: rows wait, and are asked again%s", self._redact(error.message), advice)
        longest_limit_s = _STALL_SHARE * self._job.limits.stall
        while not self._has_failed.is_set():
            wait_s = ends_at - time.monotonic()
            if error.is_limit:
                left_s = self._settled_at + longest_limit_s - time.monotonic()
                if left_s <= 0:
                    raise _LimitedError(error, longest_limit_s)
                wait_s = min(wait_s, left_s)
            if wait_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._has_failed.wait()


def _read_key() -> str:
    try:
        return clean_key(os.environ.get(KEY_VARIABLE, ""))
    except ValueError as e:
        raise SliceError(f"the endpoint's key ({KEY_VARIABLE}) cannot be sent: {e}", kind="input") from None


def _passing(refusal: DoubtfulRefusalError) -> PassingError:
    """One of all rows may pass: while a gateway reads its routes or its rules again, say."""
    return PassingError(
        refusal.message,
        quoted=refusal.quoted,
        of_all=refusal.of_all,
        may_have_cost=refusal.may_have_cost,
    )


def _failed(error_type: str, error: str) -> dict[str, Any]:
    return {"finished_at": time.time(), "error_type": error_type, "error": error}
