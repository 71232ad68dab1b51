"""An endpoint with OpenAI's API that a test writes the bytes of: replies too many, too few or never ending.

Each of its answers names the text that it answers, so that an answer that another row got shows.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.endpoint import Endpoint, text_of
from tests.support.serving import serving_in_own_loop


@dataclass
class Asked:
    """number: of the request, from 0. on_connection: on its connection, from 0."""

    number: int
    on_connection: int
    headers: dict[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter

    @property
    def text(self) -> str:
        return text_of(self.body)

    @property
    def own_answer(self) -> bytes:
        """The JSON of a chat, or a vector, that names the text."""
        if "input" in self.body:
            return json.dumps({"data": [{"embedding": vector_of(self.text)}]}).encode()
        choice = {"message": {"content": answer_to(self.text)}, "finish_reason": "stop"}
        return json.dumps({"id": self.body_id, "choices": [choice]}).encode()

    @property
    def body_id(self) -> str:
        return f"chatcmpl-{self.number}"

    async def send(self, body: bytes | None = None, status: int = 200, **headers: str) -> None:
        """Sends a whole reply; of a status of success, the request's own answer unless there is a body."""
        body = (self.own_answer if status == 200 else b"{}") if body is None else body
        await self.send_raw(head(status, {"Content-Length": str(len(body)), **headers}) + body)

    async def send_raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def send_later(self, seconds: float, data: bytes) -> None:
        """Also when the connection serves other requests by then."""
        asyncio.get_running_loop().call_later(
            seconds, lambda: self.writer.is_closing() or self.writer.write(data)
        )


class NamingAsked(Asked):
    """Of a server that returns the request's id, as vLLM's does."""

    @property
    def body_id(self) -> str:
        return f"chatcmpl-{self.headers.get('x-request-id')}"


@dataclass
class WireEndpoint(Endpoint):
    #: Connections so far, and requests on each.
    connections: list[int] = field(default_factory=list)


def head(status: int, headers: dict[str, str], version: str = "1.1") -> bytes:
    lines = [f"HTTP/{version} {status} Status", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def answer_to(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def vector_of(text: str) -> list[float]:
    return [1.0 + byte for byte in hashlib.sha256(text.encode()).digest()[:4]]


@contextmanager
def wire_endpoint(
    respond: Callable[[Any], Awaitable[None]],
    asked: type[Asked] = Asked,
    certificate: Path | None = None,
) -> Iterator[WireEndpoint]:
    """:param respond: writes what there is to a request; the connection stays open until the client ends it,
    unless that closes the request's `writer`."""
    served = WireEndpoint()

    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = len(served.connections)
        served.connections.append(0)
        with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                request = asked(len(served.requests), served.connections[place], headers, body, writer)
                served.requests.append((headers, body))
                served.connections[place] += 1
                await respond(request)
        writer.close()

    async def serve(started: threading.Event, stop: asyncio.Event) -> None:
        tls = None
        if certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(certificate)
        server = await asyncio.start_server(serve_connection, "127.0.0.1", 0, ssl=tls, backlog=4096)
        port = server.sockets[0].getsockname()[1]
        served.url = f"http{'s' if tls else ''}://127.0.0.1:{port}/v1"
        started.set()
        await stop.wait()
        server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    with serving_in_own_loop(serve):
        yield served
