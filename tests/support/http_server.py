from __future__ import annotations

import http.server
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.certificates import Authority
from tests.support.serving import serving

Request = http.server.BaseHTTPRequestHandler


@contextmanager
def http_server(
    respond: Callable[[Request], tuple[int, Any]], certificate: Path | None = None
) -> Iterator[str]:
    """Answers GET and POST with a status and JSON, or bytes; of 3xx the address to go to. Over TLS if there
    is a certificate. Yields its address."""

    class Handler(Request):
        def do_GET(self) -> None:
            status, value = respond(self)
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if 300 <= status < 400:
                self.send_header("Location", value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"


@dataclass
class TlsServer:
    address: str
    ca_file: Path
    #: Of the requests so far, with names in lower case.
    headers: list[dict[str, str]]


@contextmanager
def tls_server(folder: Path, host: str = "") -> Iterator[TlsServer]:
    """Answers Ray's version over TLS.

    :param host: that the certificate has; "" for its address.
    """
    authority = Authority(folder)
    headers: list[dict[str, str]] = []

    def respond(request: Request) -> tuple[int, Any]:
        headers.append({name.lower(): value for name, value in request.headers.items()})
        return 200, {"ray_version": "2.60.0"}

    with http_server(respond, authority.issue("server", host=host)) as address:
        yield TlsServer(address, authority.ca_file, headers)
