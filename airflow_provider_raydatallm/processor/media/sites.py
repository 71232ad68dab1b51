"""Reads a file from a web site: from the machine that was checked, in bounded time and size."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from urllib.parse import urljoin, urlsplit

from airflow_provider_raydatallm.contract.spec.media_sources import MediaSources
from airflow_provider_raydatallm.processor.media.medium import InvalidMedia, MediaUnavailable

#: To another address of the same host.
_MOST_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
#: Of answers that may be others a moment later.
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_HEADERS = {"User-Agent": "airflow-provider-raydatallm", "Accept": "image/*, audio/*, */*;q=0.1"}


def read_url(url: str, sources: MediaSources, *, max_bytes: int, timeout_s: float) -> bytes:
    """
    :param timeout_s: for all of it.
    :raises InvalidMedia: when its site will not send it, or too much of it.
    :raises MediaUnavailable: when its site does not answer, or not now.
    """
    deadline = time.monotonic() + timeout_s
    for _ in range(_MOST_REDIRECTS + 1):
        try:
            sources.check(url)
        except ValueError as e:
            raise InvalidMedia(str(e)) from None
        try:
            target = _read_or_redirect(url, sources, max_bytes, deadline)
        except TimeoutError:
            limit = f"{sources.argument}.timeout, {timeout_s:g} s"
            raise MediaUnavailable(f"{url!r:.200} took over {limit}") from None
        except (OSError, http.client.HTTPException) as e:
            raise MediaUnavailable(f"{url!r:.200} could not be read: {e or type(e).__name__}") from e
        if isinstance(target, bytes):
            return target
        if urlsplit(target).netloc != urlsplit(url).netloc:
            raise InvalidMedia(f"{url!r:.200} redirects to another host: {target!r:.200}")
        url = target
    raise InvalidMedia(f"{url!r:.200} redirects again and again")


def _read_or_redirect(url: str, sources: MediaSources, max_bytes: int, deadline: float) -> bytes | str:
    parts = urlsplit(url)
    connection = _connect(parts.scheme, parts.hostname or "", parts.port, sources, deadline)
    # A site that sends a byte now and then keeps within any timeout of a socket.
    cut = threading.Timer(_seconds_until(deadline), _shut, [connection.sock])
    cut.start()
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers=_HEADERS)
        response = connection.getresponse()
        if response.status in _REDIRECTS:
            return urljoin(url, response.getheader("Location") or "")
        if response.status != 200:
            kind = MediaUnavailable if response.status in _TRANSIENT else InvalidMedia
            raise kind(f"{url!r:.200} answers with HTTP {response.status}")
        content = response.read(max_bytes + 1)
    finally:
        cut.cancel()
        connection.close()
        _seconds_until(deadline)
    if len(content) > max_bytes:
        raise InvalidMedia(f"{url!r:.200} has more than {sources.argument}.max_bytes, {max_bytes:,} bytes")
    if response.length:
        raise MediaUnavailable(f"{url!r:.200} could not be read: it ended {response.length:,} bytes early")
    return content


def _connect(
    scheme: str, host: str, port: int | None, sources: MediaSources, deadline: float
) -> http.client.HTTPConnection:
    """Connects to an address that was checked: asked again, a name may have another."""
    is_tls = scheme == "https"
    of_scheme = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
    connection = of_scheme(host, port)
    known = socket.getaddrinfo(host, connection.port, type=socket.SOCK_STREAM)
    addresses = [str(info[4][0]) for info in known]
    for address in addresses:
        try:
            sources.check_machine(host, address)
        except ValueError as e:
            raise InvalidMedia(str(e)) from None
    error: OSError | None = None
    for address in addresses:
        try:
            sock = socket.create_connection((address, connection.port), _seconds_until(deadline))
        except OSError as e:  # the network may lack IPv6
            error = e
            continue
        if is_tls:
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
        connection.sock = sock
        return connection
    raise error or OSError(f"{host} has no address")


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        sock.shutdown(socket.SHUT_RDWR)


def _seconds_until(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
