"""Asks an endpoint for rows: within its limits, again after passing errors, and never another host.

An endpoint that is away fails the slice, which a retry continues; a row that alone gets no answer is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
import urllib.request
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_raydatallm.contract.endpoint_spec import KEY_VARIABLE
from airflow_provider_raydatallm.contract.log.redaction import Redactor
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.columns import is_unicode, storable
from airflow_provider_raydatallm.processor.engines.http.bodies import unwrap_choice
from airflow_provider_raydatallm.processor.engines.http.limits import Pace, TokenBudget, TokenEstimate
from airflow_provider_raydatallm.processor.engines.http.replies import (
    Completion,
    PassingError,
    RowRefusedError,
    read_reply,
)

logger = logging.getLogger(__name__)

#: Error type of rows that the endpoint refuses.
ROW_REFUSED = "RefusedByEndpoint"
#: Tries of a row, apart from those that the endpoint's own limit refuses: two minutes with the pauses.
TRIES = 8
#: The first pause before another try, and the longest. Each is twice as long as the one before, less a random
#: part, so that rows that failed together do not come back together.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
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

    def __init__(self, job: SliceJob) -> None:
        self._job = job
        key = os.environ.get(KEY_VARIABLE, "")
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )
        self._redact = Redactor([key]).text
        self._requests, self._tokens = Pace(job.requests_per_minute), Pace(job.tokens_per_minute)
        self._estimate, self._budget = TokenEstimate(), TokenBudget(job.token_budget)
        self._answered = 0
        self._warned_at = -_WARN_EVERY_S
        self._session: aiohttp.ClientSession | None = None
        #: What ended it: no row is asked from then on.
        self.failure: SliceError | None = None
        self._has_failed = asyncio.Event()

    async def answer(self, body: str, max_tokens: int) -> dict[str, Any] | None:
        """Returns the columns of an answer, or of a row that failed; None for a row that is left."""
        data = body.encode()
        answered_before, tries, pauses = self._answered, 0, 0
        while self.failure is None:
            try:
                return await self._ask(data, max_tokens)
            except RowRefusedError as e:
                self._answered += 1
                message = storable(self._redact(str(e)))
                return {"finished_at": time.time(), "error_type": ROW_REFUSED, "error": message}
            except SliceError as e:
                self._fail(SliceError(storable(self._redact(str(e))), kind=e.kind))
            except PassingError as e:
                tries += not e.is_limit  # the endpoint answers: limits.stall ends a wait without end
                if tries >= TRIES:
                    self._give_up(e, is_alone=self._answered > answered_before)
                    return None
                await self._pause(e, pauses)
                pauses += 1
        return None

    async def _ask(self, data: bytes, max_tokens: int) -> dict[str, Any]:
        expected = self._estimate.of(len(data), max_tokens)
        await self._budget.reserve(expected)
        spent = 0.0
        try:
            await self._tokens.take(expected)
            await self._requests.take(1)
            if self.failure is not None:  # meanwhile
                raise self.failure
            began = time.time()
            try:
                completion = await self._post(data)
            except PassingError as e:
                spent = expected if e.may_have_cost else 0.0
                raise
            spent = self._learn(completion, len(data)) or expected
            return {
                **self._columns(completion),
                "engine_seconds": time.time() - began,
                "finished_at": time.time(),
            }
        finally:
            self._tokens.correct(spent - expected)
            await self._budget.settle(expected, spent)

    def _columns(self, completion: Completion) -> dict[str, Any]:
        """:raises RowRefusedError: for an answer without text, unless max_tokens cut it, with a part of one,
        or with half a character.
        """
        columns = vars(completion).copy()
        text, refusal = completion.text, self._redact(columns.pop("refusal") or "")
        reason = f"finish_reason {completion.finish_reason!r}"
        if completion.finish_reason == "content_filter":
            raise RowRefusedError(f"the endpoint filtered its answer ({reason}): {refusal!r:.500}")
        if text is None and completion.finish_reason != "length":
            raise RowRefusedError(f"the endpoint answered no text ({reason}): {refusal!r:.500}")
        if text is not None and not is_unicode(text):
            raise RowRefusedError("the endpoint's answer is not valid Unicode")
        if text is not None and self._job.choices is not None:
            columns["text"] = unwrap_choice(text)
        return columns

    def _learn(self, completion: Completion, body_bytes: int) -> int | None:
        """Returns the tokens that the endpoint counted."""
        self._answered += 1
        if completion.input_tokens is None or completion.output_tokens is None:
            return None
        tokens = completion.input_tokens + completion.output_tokens
        self._estimate.learn(body_bytes, tokens)
        return tokens

    async def _post(self, data: bytes) -> Completion:
        """:raises PassingError, RowRefusedError, SliceError: as `read_reply`."""
        if self._session is None:
            self._session = self._new_session()
        url = f"{self._job.endpoint_url}/chat/completions"
        try:
            request = self._session.post(url, data=data, allow_redirects=False, proxy=self._proxy)
            async with request as response:
                body = bytearray()
                async for chunk in response.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > _MAX_REPLY_BYTES:
                        raise RowRefusedError(f"the endpoint's reply is over {_MAX_REPLY_BYTES:,} bytes")
                return read_reply(response.status, response.headers, bytes(body), self._redact)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ServerDisconnectedError) as e:
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

    async def _pause(self, error: PassingError, earlier: int) -> None:
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**earlier) * random.uniform(0.5, 1)
        asked_s = error.pause_s or 0.0
        if error.is_limit:
            self._requests.pause(asked_s)  # the limit is for all rows
        if time.monotonic() - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = time.monotonic()
            advice = ". Lower engine.requests_per_minute or engine.in_flight" if error.is_limit else ""
            logger.warning("%s: rows wait, and are asked again%s", self._redact(str(error)), advice)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(asked_s + pause_s):
                await self._has_failed.wait()

    def _give_up(self, error: PassingError, *, is_alone: bool) -> None:
        """:param is_alone: whether others were answered meanwhile."""
        message = self._redact(str(error))
        if is_alone:
            logger.warning("a row is left after %d tries, while others are answered: %s", TRIES, message)
        else:
            self._fail(
                SliceError(
                    f"{message}, in each of {TRIES} tries. The answered rows are kept, and a retry continues "
                    "with the others. Check that the endpoint of engine.url runs, and that the cluster's "
                    "nodes reach it",
                    kind="transient",
                )
            )

    def _fail(self, error: SliceError) -> None:
        self.failure = self.failure or error
        self._has_failed.set()
