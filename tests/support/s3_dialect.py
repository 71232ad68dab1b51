"""A way to an S3 server that speaks as other stores do, or as S3 does on a bad day.

In a test: `with s3_dialect(server_port) as dialect:`, whose attributes may be changed at any time. As a
program: `python -m tests.support.s3_dialect PORT SERVER_PORT [NAME=VALUE ...]` with those attributes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

_NOTHING = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
_LISTING = b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s"
_STATUS = {403: b"Forbidden", 409: b"Conflict", 503: b"Slow Down"}


@dataclass
class Dialect:
    """Counts are of the next requests to which it happens; -1: to all."""

    #: The answer to a refused conditional put: with the `condition` that s3fs looks for, `bare`, or `empty`.
    refusal: str = "condition"
    #: Conditional puts that are answered 409 and do nothing.
    conflicts: int = 0
    #: Whether If-None-Match is not understood.
    ignores_condition: bool = False
    #: Whether it is understood by looking first and writing then.
    races: bool = False
    #: Listings that show nothing.
    stale_listings: int = 0
    #: Puts and copies that are done, and whose answer is lost.
    lost_answers: int = 0
    #: Requests that are answered 503.
    throttled: int = 0
    #: Puts that are answered 403.
    forbidden: int = 0
    #: Requests that read, which are answered 403.
    denied: int = 0
    #: Answers to reads of a range that end half way, and say that this is all.
    cut_ranges: int = 0
    latency_s: float = 0.0
    #: Copies happen so long after they were asked for, whether the client is still there or not.
    copy_delay_s: float = 0.0
    #: Copies whose connection ends at once; the copy happens all the same.
    lost_copies: int = 0
    port: int = 0
    #: Of all answers.
    sent_bytes: int = 0
    #: Method and path of each request.
    requests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def takes(self, count: str) -> bool:
        left = getattr(self, count)
        if left > 0:
            setattr(self, count, left - 1)
        return bool(left)


class _Server:
    def __init__(self, dialect: Dialect, server_port: int) -> None:
        self._dialect = dialect
        self._server_port = server_port
        self._late: set[asyncio.Task[bytes]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (answer := await self._answer(await _read_head(reader), reader, writer)) is not None:
                writer.write(answer)
                self._dialect.sent_bytes += len(answer)
                await writer.drain()
                if b"\r\nconnection: close" in answer[:2000].lower():
                    break
        writer.close()

    async def _answer(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | None:
        """None where the connection ends."""
        if not head:
            return None
        if b"100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = re.sub(rb"(?i)\r\nexpect: *100-continue", b"", head)
        body = await reader.readexactly(_length(head))
        said = self._dialect
        method, path = head.split(b" ", 2)[:2]
        said.requests.append((method.decode(), path.decode()))
        await asyncio.sleep(said.latency_s)
        if said.takes("throttled"):
            return _error(method, 503, b"SlowDown")
        if method in (b"GET", b"HEAD") and said.takes("denied"):
            return _error(method, 403, b"AccessDenied")
        if method == b"PUT" and said.takes("forbidden"):
            return _error(method, 403, b"AccessDenied")
        is_conditional = method == b"PUT" and b"\r\nif-none-match:" in head.lower()
        is_copy = b"\r\nx-amz-copy-source:" in head.lower()
        if is_conditional and said.ignores_condition:
            head = re.sub(rb"(?i)\r\nif-none-match:[^\r]*", b"", head)
        if is_conditional and said.races:
            head = re.sub(rb"(?i)\r\nif-none-match:[^\r]*", b"", head)
            look = b"HEAD" + re.sub(rb"(?i)\r\n(content-length|expect):[^\r]*", b"", head)[3:]
            if b" 200 " in (await self._ask(look, b"", 0))[:20]:
                return _error(method, 412, b"PreconditionFailed")
            await asyncio.sleep(0.2)
        if b"list-type=2" in path and said.takes("stale_listings"):
            return _LISTING % (len(_NOTHING), _NOTHING)
        if is_conditional and said.takes("conflicts"):
            return _error(method, 409, b"ConditionalRequestConflict")
        work = asyncio.create_task(self._ask(head, body, said.copy_delay_s if is_copy else 0))
        self._late.add(work)
        work.add_done_callback(self._late.discard)
        if is_copy and said.takes("lost_copies"):
            return None
        answer = await asyncio.shield(work)
        if method == b"PUT" and said.takes("lost_answers"):
            return None
        if method == b"GET" and b"\r\nrange:" in head.lower() and said.takes("cut_ranges"):
            return _cut(answer)
        if answer.split(b" ", 2)[1] == b"412":
            if said.refusal == "bare":
                return _error(method, 412, b"PreconditionFailed")
            if said.refusal == "empty":
                return b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"
        return answer

    async def _ask(self, head: bytes, body: bytes, delay_s: float) -> bytes:
        await asyncio.sleep(delay_s)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            writer.write(head + body)
            await writer.drain()
            answer = await _read_head(reader)
            if not head.startswith(b"HEAD"):
                answer += await reader.readexactly(_length(answer))
            return answer
        finally:
            writer.close()


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def _length(head: bytes) -> int:
    match = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(match[1]) if match else 0


def _cut(answer: bytes) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    body = body[: len(body) // 2]
    head = re.sub(rb"(?i)(\r\ncontent-length: *)\d+", rb"\g<1>%d" % len(body), head)
    head = re.sub(rb"(?i)\r\nx-amz-checksum-[^\r]*", b"", head)  # which not every store sends
    return head + b"\r\n\r\n" + body


def _error(method: bytes, status: int, code: bytes) -> bytes:
    body = b"<Error><Code>" + code + b"</Code><Message>as asked</Message></Error>"
    body = b"" if method == b"HEAD" else body
    reason = _STATUS.get(status, b"Precondition Failed")
    head = b"HTTP/1.1 %d %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
    return head % (status, reason, len(body)) + body


async def _serve(dialect: Dialect, server_port: int) -> asyncio.Server:
    server = await asyncio.start_server(
        _Server(dialect, server_port).serve, "127.0.0.1", dialect.port, limit=1 << 20
    )
    dialect.port = server.sockets[0].getsockname()[1]
    return server


@contextlib.contextmanager
def s3_dialect(server_port: int) -> Iterator[Dialect]:
    """Serves from a thread."""
    dialect, loop = Dialect(), asyncio.new_event_loop()
    server = loop.run_until_complete(_serve(dialect, server_port))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield dialect
    finally:
        asyncio.run_coroutine_threadsafe(_close(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _close(server: asyncio.Server) -> None:
    server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _main(port: int, server_port: int, settings: list[str]) -> None:
    dialect = Dialect(port=port)
    types = {f.name: type(getattr(dialect, f.name)) for f in fields(dialect)}
    for name, _, value in (s.partition("=") for s in settings):
        setattr(dialect, name, types[name](int(value) if types[name] is bool else value))
    await (await _serve(dialect, server_port)).serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
