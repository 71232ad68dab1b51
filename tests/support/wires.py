"""What may stand between Airflow and a Ray cluster: a TLS front, and a forwarding HTTP proxy. On loopback."""

from __future__ import annotations

import base64
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.serving import serving


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Bytes in both directions, until either side ends."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    back = threading.Thread(target=copy, args=(other, one), daemon=True)
    back.start()
    copy(one, other)
    back.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that ends the handshake or the connection is what tests are about."""


@contextmanager
def _serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    with serving(_Server(("127.0.0.1", 0), handler)) as server:
        yield server.server_address[1]


@contextmanager
def tls_front(target: str, certificate: Path, client_ca: Path | None = None) -> Iterator[str]:
    """Takes TLS from clients, of which it asks for a certificate if `client_ca` is given, and speaks plainly
    with the server at `target`. Yields its address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    if client_ca:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    parts = urlsplit(target)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                context.wrap_socket(self.request, server_side=True) as client,
                socket.create_connection((parts.hostname, parts.port)) as server,
            ):
                _pump(client, server)

    with _serving(Handler) as port:
        yield f"https://127.0.0.1:{port}"


@contextmanager
def http_proxy(credentials: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """A proxy that forwards http:// requests and tunnels the others. Yields HOST:PORT, and a list that the
    first line of each request that it let pass is put into."""
    passed: list[str] = []
    wanted = credentials and f"Basic {base64.b64encode(credentials.encode()).decode()}"

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            first = self.rfile.readline().decode().strip()
            headers = []
            while line := self.rfile.readline().decode().strip():
                headers.append(line)
            given = [h for h in headers if h.lower().startswith("proxy-authorization:")]
            if wanted and given != [f"Proxy-Authorization: {wanted}"]:
                self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            passed.append(first)
            method, where, _ = first.split()
            parts = urlsplit(f"//{where}" if method == "CONNECT" else where)
            with socket.create_connection((parts.hostname, parts.port)) as server:
                if method == "CONNECT":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                else:
                    path = parts._replace(scheme="", netloc="").geturl()
                    kept = [h for h in headers if not h.lower().startswith(("proxy-", "connection:"))]
                    head = [f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]
                    sizes = [int(h.split(":")[1]) for h in headers if h.lower().startswith("content-length:")]
                    server.sendall("\r\n".join(head).encode() + self.rfile.read(sum(sizes)))
                _pump(self.connection, server)

    with _serving(Handler) as port:
        yield f"127.0.0.1:{port}", passed
