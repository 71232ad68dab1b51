"""What a connection for each request costs beside connections that are used again, on loopback.

1,000 requests in flight from one process, as an endpoint is asked. The server, in a process of its own,
answers after a second, or at once: then the client is the limit. Medians of runs that take turns.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import ssl
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.table import print_rows, say

IN_FLIGHT, TURNS = 1000, 5
#: Requests of a run, by the seconds that an answer takes.
REQUESTS = {1.0: 5000, 0.0: 5000}
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}' % (b"Company number 1 " * 20)
REPLY = b'{"choices": [{"message": {"content": "Healthcare"}, "finish_reason": "stop"}], "usage": {}}'


class _Server(asyncio.Protocol):
    """Answers a request when its body has come."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._came = seconds, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        if self._came.endswith(BODY):
            closes = b"onnection: close" in self._came
            self._came = b""
            asyncio.get_running_loop().call_later(self._seconds, self._answer, closes)

    def _answer(self, closes: bool) -> None:
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(REPLY), REPLY))
        if closes:
            self._transport.close()


def run() -> None:
    from tests.support.certificates import Authority

    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        certificate = authority.issue("server")
        rows = [
            [scheme, f"{seconds:g} s", *_compare(authority.ca_file, certificate, scheme, seconds)]
            for scheme in ("http", "https")
            for seconds in REQUESTS
        ]
    header = ["", "answer takes", "used again", "one each", "rows/s against used again", "CPU a request more"]
    print_rows(header, rows)


def _compare(authority: Path, certificate: Path, scheme: str, seconds: float) -> list[str]:
    spawn = multiprocessing.get_context("spawn")
    port: Any = spawn.Queue()
    server = spawn.Process(
        target=_serve, args=(port, certificate if scheme == "https" else None, seconds), daemon=True
    )
    server.start()
    url = f"{scheme}://127.0.0.1:{port.get()}/v1/chat/completions"
    tls = ssl.create_default_context(cafile=authority)
    runs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for turn in range(2 * TURNS):
        is_fresh = bool(turn % 2)
        runs[is_fresh].append(asyncio.run(_ask(url, tls, REQUESTS[seconds], is_fresh)))
        say(f"{scheme} {seconds:g} s, fresh {is_fresh}: {runs[is_fresh][-1]}")
    server.terminate()
    server.join()
    (kept, kept_cpu), (fresh, fresh_cpu) = (
        (statistics.median(rate for rate, _ in of), statistics.median(cpu for _, cpu in of))
        for of in (runs[False], runs[True])
    )
    more = f"{(fresh_cpu - kept_cpu) * 1e3:.2f} ms"
    return [f"{kept:,.0f} rows/s", f"{fresh:,.0f} rows/s", f"{fresh / kept:.2f}", more]


def _serve(port: Any, certificate: Path | None, seconds: float) -> None:
    async def serve() -> None:
        tls = None
        if certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(certificate)
        server = await asyncio.get_running_loop().create_server(
            lambda: _Server(seconds), "127.0.0.1", 0, ssl=tls, backlog=4096
        )
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


async def _ask(url: str, tls: ssl.SSLContext, requests: int, is_fresh: bool) -> tuple[float, float]:
    """Returns requests a second, and seconds of CPU for each."""
    left = iter(range(requests))
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT, force_close=is_fresh, ssl=tls)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask() -> None:
            for _ in left:
                async with session.post(url, data=BODY) as reply:
                    await reply.read()

        began, cpu = time.monotonic(), time.process_time()
        await asyncio.gather(*(ask() for _ in range(IN_FLIGHT)))
        return requests / (time.monotonic() - began), (time.process_time() - cpu) / requests
