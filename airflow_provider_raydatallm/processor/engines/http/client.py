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
import urllib.request
import uuid
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_raydatallm.contract.log.redaction import Redactor
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.endpoint import KEY_VARIABLE
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import storable
from airflow_provider_raydatallm.processor.engines.http.api import Api
from airflow_provider_raydatallm.processor.engines.http.limits import (
    Pace,
    RequestSize,
    SpentTokens,
    TokenBudget,
    TokenEstimate,
)
from airflow_provider_raydatallm.processor.engines.http.replies import (
    ROW_REFUSED,
    PassingError,
    RowRefusedError,
    raise_unless_answered,
)

logger = logging.getLogger(__name__)

#: Error type of rows that get no answer while others do.
ROW_FAILED = "FailedAtEndpoint"
#: Tries of a row, apart from those that the endpoint's own limit refuses: 90 s with the pauses.
TRIES = 8
#: Further tries, three minutes, each between two requests with another text that are answered.
LONE_TRIES = 4
#: The first pause before another try, and the longest. Each is twice as long as the one before, less a
#: random part, so that rows that failed together do not come back together.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
#: Expected of an answer to another text.
_FEW_TOKENS = 16
#: Of `limits.stall`, for which a limit may refuse all rows: the run's own watch cannot name it.
_STALL_SHARE = 0.9
_CONNECT_S = 30.0
_MAX_REPLY_BYTES = 64 << 20
#: Between two warnings that say why rows wait.
_WARN_EVERY_S = 60.0

try:
    import aiohttp
except ImportError as e:  # Ray without its dashboard
    raise SliceError(
        "engine.kind 'http' needs aiohttp on the cluster's nodes, which ray[default] brings: install it, or "
        "set runtime_env={'pip': ['aiohttp']}",
        kind="input",
    ) from e


class EndpointClient:
    """Of a slice: one, in one event loop, so that its limits hold for all rows."""

    def __init__(self, job: SliceJob, api: Api, spent: SpentTokens | None = None) -> None:
        """:param spent: of `engine.token_budget`, by this run."""
        self._job, self._api = job, api
        key = os.environ.get(KEY_VARIABLE, "")
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )
        self._redact = Redactor([key]).text
        self._requests, self._tokens = Pace(job.requests_per_minute), Pace(job.tokens_per_minute)
        self._estimate = TokenEstimate()
        self._budget = TokenBudget(job.token_budget, self._estimate, spent)
        self._has_told_of_counts = False
        self._places = asyncio.Semaphore(job.requests_in_flight)
        #: Requests that got what they ask for: a gateway refuses some while what is behind it is away.
        self._answered = 0
        self._settled_at = time.monotonic()
        self._warned_at = -_WARN_EVERY_S
        self._session: aiohttp.ClientSession | None = None
        #: What ended it: no row is asked from then on.
        self.failure: SliceError | None = None
        self._has_failed = asyncio.Event()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def answer(self, body: str, max_tokens: int) -> dict[str, Any] | None:
        """Returns the columns of an answer, or of a row that failed; None when `failure` ended it."""
        try:
            columns = await self._answer(body, max_tokens)
        except SliceError as e:
            self.failure = self.failure or SliceError(storable(self._redact(str(e))), kind=e.kind)
            self._has_failed.set()
            self._requests.end_pause()
            return None
        if error := columns.get("error"):
            columns["error"] = storable(self._redact(error))
        return columns

    async def _answer(self, body: str, max_tokens: int) -> dict[str, Any]:
        """:raises SliceError: when the endpoint answers no other row either."""
        data = body.encode()
        while True:
            answered_before = self._answered
            try:
                return await self._ask_often(data, max_tokens, TRIES)
            except PassingError as e:
                error = e
            for number in range(LONE_TRIES):
                if number:
                    await self._pause(error, LONGEST_PAUSE_S)
                if not await self._answers_other_text(body):
                    break
                try:
                    return await self._ask_often(data, max_tokens, 1)
                except PassingError as e:
                    error = e
                if not await self._answers_other_text(body):
                    break
            else:
                tries = TRIES + LONE_TRIES
                return _failed(ROW_FAILED, f"{error}, in each of {tries} tries, while it answers others")
            if self._answered == answered_before:
                raise SliceError(
                    f"{error}, in each of {TRIES} tries. The answered rows are kept, and a retry continues "
                    "with the others. Check that the endpoint of engine.url runs, and that the cluster's "
                    "nodes reach it",
                    kind="transient",
                )

    async def _answers_other_text(self, body: str) -> bool:
        """Whether the endpoint answers the same request with a text that no row or cache has."""
        other = self._api.with_text(body, f"Hello {uuid.uuid4().hex}").encode()
        try:
            return "error" not in await self._ask_often(other, _FEW_TOKENS, 1)
        except PassingError:
            return False

    async def _ask_often(self, data: bytes, max_tokens: int, tries: int) -> dict[str, Any]:
        """:raises PassingError: of the last of so many tries."""
        failed = pauses = 0
        while self.failure is None:
            try:
                return await self._ask(data, max_tokens)
            except PassingError as e:
                failed += not e.is_limit  # `_pause` ends a wait without end
                if failed == tries:
                    raise
                await self._pause(e, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**pauses))
                pauses += 1
        raise self.failure

    async def _ask(self, data: bytes, max_tokens: int) -> dict[str, Any]:
        async with self._places:
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
                    columns = await self._post(data)
                except PassingError as e:
                    if is_guess := e.may_have_cost:
                        spent = self._estimate.of_uncounted(size)
                    raise
                except RowRefusedError as e:
                    columns = _failed(ROW_REFUSED, str(e))
                else:
                    spent, is_guess = self._count(columns, size)
                self._answered += "error" not in columns
                self._settled_at = time.monotonic()
                return {**columns, "engine_seconds": time.time() - began, "finished_at": time.time()}
            finally:
                self._tokens.correct(spent - expected)
                await self._budget.settle(reserved, spent, is_guess=is_guess)

    def _count(self, columns: dict[str, Any], size: RequestSize) -> tuple[float, bool]:
        """Returns the tokens of an answer, and whether they are a guess. Removes counts that are wrong."""
        reply_bytes = sum(len((t.get("text") or "").encode()) for t in columns.get("texts") or [columns])
        counts = columns["input_tokens"], columns["output_tokens"]
        if None not in counts:
            problem = size.find_absurdity(*counts, reply_bytes)
            if problem is None:
                self._estimate.learn(size, *counts)
                return sum(counts), False
            columns |= dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"))
            self._tell_of_counts(f"the endpoint counts {problem}")
        elif self._job.token_budget is not None or self._job.tokens_per_minute is not None:
            self._tell_of_counts("the endpoint does not count the tokens of its answers in whole numbers")
        spent = self._estimate.of_uncounted(size, reply_bytes)
        self._estimate.learn_length(reply_bytes)
        return spent, True

    def _tell_of_counts(self, problem: str) -> None:
        if not self._has_told_of_counts:
            self._has_told_of_counts = True
            logger.warning("%s: such answers' tokens are estimated, and missing in the report", problem)

    async def _post(self, data: bytes) -> dict[str, Any]:
        """:raises PassingError, RowRefusedError, SliceError: as `raise_unless_answered`."""
        if self._session is None:
            self._session = self._new_session()
        url = f"{self._job.endpoint_url}{self._api.path}"
        try:
            request = self._session.post(url, data=data, allow_redirects=False, proxy=self._proxy)
            async with request as response:
                body = bytearray()
                async for chunk in response.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > _MAX_REPLY_BYTES:
                        raise RowRefusedError(f"the endpoint's reply is over {_MAX_REPLY_BYTES:,} bytes")
                raise_unless_answered(response.status, response.headers, bytes(body), self._redact)
                return self._api.read(bytes(body), self._redact)
        except aiohttp.ConnectionTimeoutError as e:
            raise PassingError(f"the endpoint cannot be reached: {e}") from e
        except TimeoutError as e:
            limit_s = self._job.request_timeout
            raise PassingError(
                f"no whole reply within {limit_s:g} s (engine.request_timeout)", may_have_cost=True
            ) from e
        except aiohttp.ClientConnectorCertificateError as e:
            raise SliceError(
                f"the endpoint's certificate is not trusted: {e}. Check engine.url; the cluster's nodes have "
                "to know a private authority (SSL_CERT_FILE)",
                kind="input",
            ) from e
        except aiohttp.ClientHttpProxyError as e:
            message = f"the proxy (HTTPS_PROXY of the cluster's nodes) answered {e.status}: {e.message}"
            if e.status >= 500:
                raise PassingError(message) from e
            raise SliceError(f"{message}. Check its rules, or set NO_PROXY", kind="input") from e
        except aiohttp.ClientConnectorError as e:
            raise PassingError(f"the endpoint cannot be reached: {e}") from e
        except (aiohttp.ClientError, OSError) as e:
            raise PassingError(f"the endpoint's reply broke off: {e}", may_have_cost=True) from e

    @cached_property
    def _proxy(self) -> str | None:
        """That of the environment, which must not get what is for this machine."""
        address = urlsplit(self._job.endpoint_url or "")
        host = address.hostname or ""
        if self._job.is_local_endpoint or urllib.request.proxy_bypass(host):
            return None
        return urllib.request.getproxies().get(address.scheme)

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self._job.request_timeout, sock_connect=_CONNECT_S),
            connector=aiohttp.TCPConnector(limit=self._job.requests_in_flight),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Else it sends the endpoint what the node's ~/.netrc has for its host.
            trust_env=False,
        )

    async def _pause(self, error: PassingError, longest_s: float) -> None:
        """Waits before another try: as long as the endpoint asks, and a random time.

        :raises SliceError: when the endpoint's limit has refused all rows for too long.
        """
        asked_s = error.pause_s or 0.0
        ends_at = time.monotonic() + asked_s + longest_s * random.uniform(0.5, 1)
        if error.is_limit:
            self._requests.pause(asked_s)  # the limit is for all rows
        if time.monotonic() - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = time.monotonic()
            advice = ". Lower engine.requests_per_minute or engine.in_flight" if error.is_limit else ""
            logger.warning("%s: rows wait, and are asked again%s", self._redact(str(error)), advice)
        longest_limit_s = _STALL_SHARE * self._job.stall_timeout
        while not self._has_failed.is_set():
            wait_s = ends_at - time.monotonic()
            if error.is_limit:
                left_s = self._settled_at + longest_limit_s - time.monotonic()
                if left_s <= 0:
                    raise SliceError(
                        f"{error}, and to every row for {longest_limit_s:g} s. The answered rows are kept, "
                        "and a retry continues with the others. Have the endpoint's limit raised, lower "
                        "engine.requests_per_minute, or raise limits.stall to wait longer",
                        kind="transient",
                    )
                wait_s = min(wait_s, left_s)
            if wait_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._has_failed.wait()


def _failed(error_type: str, error: str) -> dict[str, Any]:
    return {"finished_at": time.time(), "error_type": error_type, "error": error}
