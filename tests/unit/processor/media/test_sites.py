from __future__ import annotations

import contextlib
import io
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.spec.media_sources import MediaSources
from airflow_provider_raydatallm.processor.media.medium import InvalidMedia, MediaUnavailable
from airflow_provider_raydatallm.processor.media.sites import read_url
from tests.support.http_server import Request, http_server, tls_server

Respond = Callable[[Request], tuple[int, Any]]


def read(
    respond: Respond, path: str = "/a.jpg", *, sources: tuple[str, ...] = (), max_bytes: int = 1000,
    timeout_s: float = 5,
) -> bytes:  # fmt: skip
    with http_server(respond) as site:
        allowed = MediaSources([site, "127.0.0.1", *sources])
        return read_url(f"{site}{path}", allowed, max_bytes=max_bytes, timeout_s=timeout_s)


def test_file_is_read() -> None:
    asked: list[str] = []

    def respond(request: Request) -> tuple[int, Any]:
        asked.append(request.path)
        return 200, b"x" * 1000

    assert read(respond, "/a%20b.jpg?size=3") == b"x" * 1000
    assert asked == ["/a%20b.jpg?size=3"]


def test_file_over_the_limit_is_refused() -> None:
    with pytest.raises(InvalidMedia, match=r"more than images\.max_bytes, 999 bytes"):
        read(lambda request: (200, b"x" * 1000), max_bytes=999)


@pytest.mark.parametrize(("status", "error"), [
    (404, InvalidMedia), (403, InvalidMedia), (204, InvalidMedia), (429, MediaUnavailable),
    (503, MediaUnavailable),
])  # fmt: skip
def test_other_answers_are_refused(status: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"HTTP {status}"):
        read(lambda request: (status, b""))


def test_redirect_on_the_same_host_is_followed() -> None:
    assert read(lambda r: (302, "/b.jpg") if r.path == "/a.jpg" else (200, b"ok")) == b"ok"


def test_redirect_to_another_host_is_not() -> None:
    asked: list[str] = []

    def other(request: Request) -> tuple[int, Any]:
        asked.append(request.path)
        return 200, b"secret"

    with http_server(other) as target, pytest.raises(InvalidMedia, match="redirects to another host"):
        read(lambda request: (302, f"{target}/a.jpg"), sources=(target,))
    assert not asked


def test_endless_redirects_end() -> None:
    with pytest.raises(InvalidMedia, match="again and again"):
        read(lambda request: (302, request.path))


def test_private_address_that_is_not_listed_is_not_connected_to() -> None:
    asked: list[str] = []
    with http_server(lambda r: (asked.append(r.path), (200, b"x"))[1]) as site:
        with pytest.raises(InvalidMedia, match=r"127\.0\.0\.1, which is not public"):
            read_url(f"{site}/a", MediaSources([site]), max_bytes=10, timeout_s=5)
        by_name = site.replace("127.0.0.1", "localhost")
        with pytest.raises(InvalidMedia, match=r"localhost has the address .*not public"):
            read_url(f"{by_name}/a", MediaSources([by_name]), max_bytes=10, timeout_s=5)
    assert not asked


@pytest.mark.parametrize("host", ["localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1"])
def test_any_spelling_of_a_private_address_is_checked_once_resolved(host: str) -> None:
    asked: list[str] = []
    with http_server(lambda request: (asked.append(request.path), (200, b"x"))[1]) as site:
        site = site.replace("127.0.0.1", host)
        with pytest.raises(InvalidMedia, match=r"127\.0\.0\.1, which is not public"):
            read_url(f"{site}/a", MediaSources([site]), max_bytes=9, timeout_s=5)
    assert not asked


def test_name_that_changes_its_address_is_connected_to_where_it_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS rebinding: the second answer would be another machine."""
    resolve, asked = socket.getaddrinfo, []

    def rebinding(host: str, *args: Any, **kwargs: Any) -> Any:
        if host != "cdn.example.com":
            return resolve(host, *args, **kwargs)
        asked.append(host)
        return resolve("127.0.0.1" if len(asked) == 1 else "127.0.0.2", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with http_server(lambda request: (200, b"checked")) as site:
        url = site.replace("127.0.0.1", "cdn.example.com")
        sources = MediaSources([url, "127.0.0.1"])
        assert read_url(f"{url}/a", sources, max_bytes=9, timeout_s=5) == b"checked"
    assert len(asked) == 1


@pytest.mark.slow
def test_slow_site_is_cut_off() -> None:
    """Also one that sends a byte now and then."""

    def respond(request: Request) -> tuple[int, Any]:
        with contextlib.suppress(OSError):
            request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(300):
                request.wfile.write(b"x")
                time.sleep(0.1)
        return 200, b""

    began = time.monotonic()
    with pytest.raises(MediaUnavailable, match=r"took over images\.timeout, 0\.5 s"):
        read(respond, timeout_s=0.5)
    assert time.monotonic() - began < 20


def test_file_that_ends_early_is_unavailable() -> None:
    def respond(request: Request) -> tuple[int, Any]:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nxxx")
        request.wfile, request.close_connection = io.BytesIO(), True
        return 200, b""

    with pytest.raises(MediaUnavailable, match="ended 997 bytes early"):
        read(respond)


def test_closed_port_and_unknown_host_are_unavailable() -> None:
    for url in ("http://127.0.0.1:9/a", "http://no-such-host.invalid/a"):
        sources = MediaSources([url, "127.0.0.1"])
        with pytest.raises(MediaUnavailable, match="could not be read"):
            read_url(url, sources, max_bytes=10, timeout_s=5)


def test_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tls_server(tmp_path) as server:
        sources = MediaSources([server.address, "127.0.0.1"])
        with pytest.raises(MediaUnavailable, match=r"(?i)certificate"):
            read_url(f"{server.address}/a", sources, max_bytes=100, timeout_s=5)
        monkeypatch.setenv("SSL_CERT_FILE", str(server.ca_file))
        assert b"2.60.0" in read_url(f"{server.address}/a", sources, max_bytes=100, timeout_s=5)
