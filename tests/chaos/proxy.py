"""A way to an S3 server that misbehaves: `python -m tests.chaos.proxy PORT SERVER_PORT [SHARE SEED]`.

Of SHARE of the requests, in equal parts: 500 or 503 instead of passing the request on; the request is passed
on and the connection ends without the answer; the connection ends in the middle of the request's body. With
SHARE 0 it only passes on, until it is killed.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys

_ERRORS = (b"500 Internal Server Error", b"InternalError"), (b"503 Slow Down", b"SlowDown")


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def _length(head: bytes) -> int:
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(found[1]) if found else 0


class Proxy:
    def __init__(self, server_port: int, share: float, seed: str) -> None:
        self._server_port = server_port
        self._share = share
        self._random = random.Random(seed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _read_head(reader):
                if not await self._one(head, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        size = _length(head)
        fault = self._random.choice(("error", "no answer", "cut")) if self._is_chosen() else ""
        if b"100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = re.sub(rb"(?i)\r\nexpect: *100-continue", b"", head)
        if fault == "cut" and size:
            await reader.readexactly(size // 2)
            # The server gets that half too, and is left alone with it.
            _, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
            to_server.write(head + b"x" * (size // 2))
            to_server.close()
            return False
        body = await reader.readexactly(size) if size else b""
        if fault == "error":
            status, code = self._random.choice(_ERRORS)
            text = b"<Error><Code>" + code + b"</Code><Message>chaos</Message></Error>"
            text = b"" if head.startswith(b"HEAD") else text
            writer.write(
                b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s"
                % (status, len(text), text)
            )
            await writer.drain()
            return True
        answer = await self._ask(head, body)
        if fault == "no answer":
            return False
        writer.write(answer)
        await writer.drain()
        return b"\r\nconnection: close" not in answer[:2000].lower()

    def _is_chosen(self) -> bool:
        return self._random.random() < self._share

    async def _ask(self, head: bytes, body: bytes) -> bytes:
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


async def main(port: int, server_port: int, share: float, seed: str) -> None:
    server = await asyncio.start_server(
        Proxy(server_port, share, seed).serve, "127.0.0.1", port, limit=1 << 20
    )
    await server.serve_forever()


if __name__ == "__main__":
    _port, _server_port, *_how = sys.argv[1:]
    _share, _seed = _how or ("0", "")
    asyncio.run(main(int(_port), int(_server_port), float(_share), _seed))
