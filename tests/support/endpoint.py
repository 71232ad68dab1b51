"""An endpoint with OpenAI's API on loopback, which answers as a test says."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.support.serving import serving_in_own_loop


@dataclass
class Endpoint:
    url: str = ""
    #: Of the requests so far: headers and body.
    requests: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [text_of(body) for _, body in self.requests]


#: Answers a request, by its number, from 0, and its body.
Respond = Callable[[int, dict[str, Any]], Awaitable[web.StreamResponse]]


@contextmanager
def endpoint(respond: Respond, certificate: Path | None = None) -> Iterator[Endpoint]:
    """:param certificate: and key, for https."""
    served = Endpoint()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        number = len(served.requests)
        served.requests.append((dict(request.headers), body))
        return await respond(number, body)

    async def serve(started: threading.Event, stop: asyncio.Event) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/{api:chat/completions|embeddings}", handle)
        runner = web.AppRunner(app, shutdown_timeout=0.01, access_log=None)  # 0 waits for who never answers
        await runner.setup()
        tls = None
        if certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(certificate)
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096, ssl_context=tls)
        await site.start()
        served.url = f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}/v1"
        started.set()
        await stop.wait()
        await runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    with serving_in_own_loop(serve):
        yield served


#: Answers in another endpoint's place; None: that one answers.
Fault = Callable[[int, dict[str, Any]], Awaitable[web.StreamResponse | None]]


@contextmanager
def proxy(server: str, fault: Fault) -> Iterator[Endpoint]:
    """An endpoint in front of the one with this base address."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        if (response := await fault(number, body)) is not None:
            return response
        path = "chat/completions" if "messages" in body else "embeddings"
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{server}/{path}", json=body) as reply,
        ):
            return web.Response(status=reply.status, body=await reply.read())

    with endpoint(respond) as served:
        yield served


class HangUp(web.StreamResponse):
    """No reply: the connection is closed."""

    async def prepare(self, request: web.BaseRequest) -> Any:
        assert request.transport is not None
        request.transport.close()
        raise ConnectionResetError


class Trickle(web.StreamResponse):
    """A reply whose body comes byte by byte, and says nothing."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def prepare(self, request: web.BaseRequest) -> Any:
        writer = await super().prepare(request)
        for _ in range(int(self._seconds * 10)):
            await self.write(b" ")
            await asyncio.sleep(0.1)
        return writer


def text_of(body: dict[str, Any]) -> str:
    """Of a chat's last message, or to embed."""
    content: str = body["messages"][-1]["content"] if "messages" in body else body["input"]
    return content


def completion(
    text: str | None, tokens: tuple[int, int] = (7, 3), finish_reason: str = "stop"
) -> web.Response:
    return web.json_response(
        {
            "choices": [{"message": {"content": text}, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]},
        }
    )


def embedding(vector: Any, tokens: int = 7) -> web.Response:
    return web.json_response(
        {
            "data": [{"index": 0, "embedding": vector}],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


def error(status: int, message: str = "no", **headers: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)
