"""HTTP clients, one per event loop and settings, shared by the hooks.

A triggerer that waits for a thousand jobs of one cluster needs one client: creating one costs 20 ms of CPU,
and each has its own connections. Few requests run at once, because httpx scans all pending requests each
time. One that nobody has used for a while is closed: clusters come and go.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow_provider_raydatallm.exceptions import RayConnectionError
from airflow_provider_raydatallm.hooks.auth import TokenAuth
from airflow_provider_raydatallm.hooks.connection import CONNECT_TIMEOUT_S, RaySettings
from airflow_provider_raydatallm.hooks.status_poller import StatusPoller
from airflow_provider_raydatallm.hooks.tls_errors import pem_fault

if TYPE_CHECKING:
    import httpx

_MAX_REQUESTS = 16
#: After which a client that nobody uses is closed.
_IDLE_SECONDS = 600.0

_clients_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[RaySettings, SharedClient]]]
_clients_by_loop = WeakKeyDictionary()
#: That asyncio alone would forget.
_closing: set[asyncio.Task[None]] = set()


class SharedClient:
    def __init__(self, settings: RaySettings) -> None:
        import httpx

        # The semaphore bounds the connections; streams come on top.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(**client_options(settings), limits=limits)
        self._slots = asyncio.Semaphore(_MAX_REQUESTS)
        self._users, self._used_at = 0, 0.0
        self.statuses = StatusPoller()

    @classmethod
    def for_settings(cls, settings: RaySettings) -> SharedClient:
        """Returns the running event loop's client for these settings."""
        clients = _clients_by_loop.setdefault(asyncio.get_running_loop(), [])
        now = time.monotonic()
        client = next((client for known, client in clients if known == settings), None)
        if client is None:
            client = cls(settings)
            for idle in [one for one in clients if one[1]._is_idle(now)]:
                clients.remove(idle)
                _closing.add(closing := asyncio.create_task(idle[1].aclose()))
                closing.add_done_callback(_closing.discard)
            clients.append((settings, client))
        client._used_at = now
        return client

    def _is_idle(self, now: float) -> bool:
        return not self._users and now - self._used_at > _IDLE_SECONDS

    async def request(self, **arguments: object) -> httpx.Response:
        with self._in_use():
            async with self._slots:
                return await self._client.request(**arguments)  # type: ignore[arg-type]

    @contextlib.asynccontextmanager
    async def stream(self, **arguments: object) -> AsyncIterator[httpx.Response]:
        with self._in_use():
            async with self._client.stream(**arguments) as response:  # type: ignore[arg-type]
                yield response

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._used_at = time.monotonic()

    async def aclose(self) -> None:
        await self._client.aclose()


async def close_clients() -> None:
    """Closes the running event loop's clients, before it ends."""
    for _, client in _clients_by_loop.pop(asyncio.get_running_loop(), []):
        await client.aclose()


def client_options(settings: RaySettings) -> dict[str, Any]:
    """Returns the arguments of `httpx.Client` and `httpx.AsyncClient`.

    :raises RayConnectionError: when a certificate file cannot be used.
    """
    import httpx

    return {
        "base_url": settings.address,
        "headers": dict(settings.headers),
        "auth": TokenAuth(settings),
        "verify": _tls_context(settings),
        "proxy": settings.proxy,
        "trust_env": settings.use_environment,
        "timeout": httpx.Timeout(30.0, connect=CONNECT_TIMEOUT_S),
    }


def _tls_context(settings: RaySettings) -> bool | ssl.SSLContext:
    import httpx

    ca_file = settings.ca_file if settings.verify else None
    if not (ca_file or settings.client_cert):
        return settings.verify
    if ca_file:
        try:
            context = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as e:
            raise _cannot_be_used(settings.label, {"ca_file": ca_file}, e) from e
    else:
        context = httpx.create_ssl_context(verify=settings.verify, trust_env=settings.use_environment)
    if settings.client_cert:
        try:
            # A dummy password makes a key that needs one an error instead of a prompt on the terminal.
            context.load_cert_chain(settings.client_cert, settings.client_key, password="none")
        except (OSError, ssl.SSLError) as e:
            files = {"client_cert": settings.client_cert, "client_key": settings.client_key}
            raise _cannot_be_used(settings.label, files, e) from e
    return context


def _cannot_be_used(label: str, files: dict[str, str | None], error: Exception) -> RayConnectionError:
    """Returns the error that names the file that is wrong, or all of them where only OpenSSL knows."""
    set_files = {name: path for name, path in files.items() if path}
    for name, path in set_files.items():
        if fault := pem_fault(path, "PRIVATE KEY" if name == "client_key" else "CERTIFICATE"):
            return RayConnectionError(
                f"{label}: {name} {path!r} cannot be used: {fault.sentence}", advice=fault.advice
            )
    named = " with ".join(f"{name} {path!r}" for name, path in set_files.items())
    return RayConnectionError(
        f"{label}: {named} cannot be used: OpenSSL refuses the content ({error})",
        advice="A key must belong to its certificate and have no passphrase",
    )
