"""The connections to an endpoint: which reply is whose, and how much of one is read.

HTTP/1.1 pairs replies with requests by their order. After one reply too many (a late duplicate, the real
answer after a gateway's 504) the connection's next request would take it for its own. So each request has a
connection of its own, which ends with its reply. A server that returns the request's id, as vLLM's does,
shows whose reply it is: its connections are used again, and a reply on one of them counts only with its
request's id.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import resource
import urllib.request
import uuid
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.engines.http import Http
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.http.replies import PassingError, is_answer, is_passing

try:
    import aiohttp
except ImportError as e:  # Ray without its dashboard
    raise SliceError(
        "engine.kind 'http' needs aiohttp on the cluster's nodes, which ray[default] brings",
        kind="input",
        advice="Install it, or set runtime_env={'pip': ['aiohttp']}",
    ) from e

logger = logging.getLogger(__name__)

_CONNECT_S = 30.0
#: Of an answer, and of an error, which is only quoted.
_MAX_REPLY_BYTES = 64 << 20
_MAX_ERROR_BYTES = 64 << 10
#: Of larger replies only a few are read at once, so that memory is bounded.
_LARGE_REPLY_BYTES = 256 << 10
_LARGE_REPLIES = 8
#: Files that a process opens beside these connections: of the store, of Ray, of the checkpoint.
_OTHER_FILES = 256
_PROXY = "the proxy (HTTPS_PROXY of the cluster's nodes)"

#: An id: a hash of the request, and a random part.
_ID = re.compile(r"rayllm-[0-9a-f]{32}-[0-9a-f]{12}")
_HASH_CHARS = len("rayllm-") + 32
#: That of a reply's body. Quotes within texts are escaped, so that no answer can hold one.
_ID_IN_BODY = re.compile(rb'"id"\s*:\s*"[^"\\]{0,64}?(' + _ID.pattern.encode() + rb")")


class Reply(NamedTuple):
    """:param excess_of: the bytes up to which a reply is read that is longer; `body` is its beginning."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    excess_of: int | None = None


class EndpointConnections:
    """In one event loop."""

    def __init__(self, job: SliceJob, url: str, headers: Mapping[str, str]) -> None:
        """
        :param headers: of all requests.
        """
        self._asked, self._url, self._headers = job.engine_as(Http), url, headers
        self._proxy = _find_proxy(job)
        self._salt = headers.get("Authorization", "").encode()[: hashlib.blake2b.MAX_KEY_SIZE]
        self._large_replies = asyncio.Semaphore(_LARGE_REPLIES)
        self._single_use = self._new_session(is_single_use=True)
        self._reused = self._new_session(is_single_use=False)
        #: Whether the endpoint returns ids; None until a reply has one.
        self._returns_ids: bool | None = None

    def _new_session(self, *, is_single_use: bool) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self._asked.request_timeout, sock_connect=_CONNECT_S),
            connector=aiohttp.TCPConnector(limit=0, force_close=is_single_use),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Else it sends the endpoint what the node's ~/.netrc has for its host.
            trust_env=False,
        )

    async def close(self) -> None:
        for session in (self._single_use, self._reused):
            await session.close()

    async def post(self, data: bytes) -> Reply:
        """
        :raises PassingError: without a reply, or for the reply to another request.
        :raises SliceError: where no request can have a reply.
        """
        # By the hash, the reply to an equal request is no other's: a gateway's cache may answer with it.
        digest = hashlib.blake2b(data, digest_size=16, key=self._salt).hexdigest()
        request_id = f"rayllm-{digest}-{uuid.uuid4().hex[:12]}"
        if self._returns_ids:
            reply = await self._exchange(self._reused, request_id, data)
            returned = _returned_id(reply)
            if returned == request_id:
                return reply
            if returned is not None or is_answer(reply.status):
                raise self._distrust(returned)
            if is_passing(reply.status):
                return reply
            # May be another request's: not all errors have an id.
        reply = await self._exchange(self._single_use, request_id, data)
        returned = _returned_id(reply)
        if returned is not None and returned[:_HASH_CHARS] != request_id[:_HASH_CHARS]:
            raise self._distrust(returned)
        if self._returns_ids is None and returned == request_id and is_answer(reply.status):
            self._returns_ids = True
        return reply

    def _distrust(self, returned: str | None) -> PassingError:
        """Ends the reuse of connections.

        :param returned: the id of a reply that is not its request's.
        """
        what = "the reply to another request" if returned else "a reply without its request's id"
        if self._returns_ids is not False:
            self._returns_ids = False
            logger.warning("the endpoint sent %s: each request has its own connection from here on", what)
        return PassingError(f"the endpoint sent {what}, which is not used", may_have_cost=True)

    async def _exchange(self, session: aiohttp.ClientSession, request_id: str, data: bytes) -> Reply:
        try:
            async with session.post(
                self._url,
                data=data,
                headers={"X-Request-Id": request_id},
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                return await self._read(response)
        except aiohttp.ConnectionTimeoutError as e:
            raise PassingError(f"the endpoint cannot be reached: {e}") from e
        except TimeoutError as e:
            limit_s = self._asked.request_timeout
            raise PassingError(
                f"no whole reply within {limit_s:g} s (engine.request_timeout)",
                may_have_cost=True,
                timed_out=True,
            ) from e
        except aiohttp.ClientConnectorCertificateError as e:
            raise SliceError(
                f"the endpoint's certificate is not trusted: {e}",
                kind="input",
                advice="Check engine.url; the cluster's nodes have to know a private authority "
                "(SSL_CERT_FILE)",
            ) from e
        except aiohttp.ClientHttpProxyError as e:
            message = f"{_PROXY} answered {e.status}: {e.message}"
            if e.status >= 500:
                raise PassingError(message) from e
            raise SliceError(message, kind="input", advice="Check its rules, or set NO_PROXY") from e
        except aiohttp.ClientProxyConnectionError as e:
            raise PassingError(f"{_PROXY} cannot be reached: {e}") from e
        except aiohttp.ClientConnectorError as e:
            raise PassingError(f"the endpoint cannot be reached: {e}") from e
        except (aiohttp.InvalidURL, UnicodeError) as e:
            raise SliceError(f"engine.url cannot be asked: {e}", kind="input", advice="Correct it") from e
        except (aiohttp.ClientError, OSError) as e:
            raise PassingError(f"the endpoint's reply broke off: {e}", may_have_cost=True) from e

    async def _read(self, response: aiohttp.ClientResponse) -> Reply:
        limit = _MAX_REPLY_BYTES if is_answer(response.status) else _MAX_ERROR_BYTES
        body, is_large = bytearray(), False
        try:
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > limit:
                    response.close()
                    break
                if len(body) > _LARGE_REPLY_BYTES and not is_large:
                    await self._large_replies.acquire()
                    is_large = True
        finally:
            if is_large:
                self._large_replies.release()
        if len(body) > limit:
            return Reply(response.status, response.headers, bytes(body[:_MAX_ERROR_BYTES]), limit)
        return Reply(response.status, response.headers, bytes(body))


def _find_proxy(job: SliceJob) -> str | None:
    """That of the environment, which must not get what is for this machine.

    :raises SliceError: for one that is no HTTP proxy.
    """
    endpoint = job.engine_as(Http)
    address = urlsplit(endpoint.url)
    if endpoint.is_local or urllib.request.proxy_bypass(address.hostname or ""):
        return None
    proxy = urllib.request.getproxies().get(address.scheme)
    if proxy is None:
        return None
    if "://" not in proxy:  # as curl has it
        proxy = f"http://{proxy}"
    try:
        parts = urlsplit(proxy)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:  # it may hold a password
        raise SliceError(
            f"{_PROXY} is no address as http://host:port, without which the endpoint cannot be asked",
            kind="input",
            advice="Correct it, or set NO_PROXY",
        )
    return proxy


def _returned_id(reply: Reply) -> str | None:
    """The id of one of these requests: that which the server itself wrote, before that of a gateway."""
    if (in_body := _ID_IN_BODY.search(reply.body)) is not None:
        return in_body[1].decode()
    in_header = _ID.search(reply.headers.get("X-Request-Id", ""))
    return in_header and in_header[0]


def most_connections(wanted: int) -> int:
    """Returns how many connections this process can have beside its files, at most `wanted`.

    Raises the process's own limit for that, as far as it may.

    :raises SliceError: when it can have none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    taken = len(os.listdir("/dev/fd")) + _OTHER_FILES
    if soft < wanted + taken and soft != hard:
        soft = wanted + taken if hard == resource.RLIM_INFINITY else min(wanted + taken, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft - taken >= wanted:
        return wanted
    advice = f"Raise it (ulimit -n) on the cluster's nodes to {wanted + taken:,}, or lower engine.in_flight"
    if soft <= taken:
        raise SliceError(
            f"a process may open {soft:,} files here, which leaves none for connections",
            kind="input",
            advice=advice,
        )
    logger.warning(
        "engine.in_flight is %s, and a process may open %s files here: %s requests are in flight at most. To "
        "have more, %s", f"{wanted:,}", f"{soft:,}", f"{soft - taken:,}", advice,
    )  # fmt: skip
    return soft - taken
