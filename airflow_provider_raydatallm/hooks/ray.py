"""`RayHook`: an Airflow connection of type `ray`, and calls to its cluster.

A connection whose host is `local` starts, or joins, an embedded Ray head on this machine. An unknown
connection is an error, never a silent local Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_provider_raydatallm.exceptions import RayConnectionError
from airflow_provider_raydatallm.hooks.jobs_api import Flow, Pause, Send

if TYPE_CHECKING:
    import httpx
    from airflow.sdk import Connection

T = TypeVar("T")

_EXTRAS = frozenset({"verify", "ca_file", "headers", "dashboard_url"})
_CONNECT_TIMEOUT = 10.0


@dataclass(frozen=True)
class RaySettings:
    """What a connection says. `address`: the Jobs API, without a trailing slash; "local" for the embedded
    head."""

    address: str
    token: str | None = field(default=None, repr=False)
    verify: bool = True
    ca_file: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    dashboard_url: str | None = None
    #: Whether proxies of the environment are used; never to an embedded head, which listens on loopback.
    proxies: bool = True

    @property
    def is_local(self) -> bool:
        return self.address == "local"

    @classmethod
    def of(cls, connection: Connection) -> RaySettings:
        """:raises RayConnectionError: when the connection cannot be used, saying which field and what to
        write instead."""
        where = f"connection {connection.conn_id!r}"
        if connection.conn_type not in ("ray", "", None):
            raise RayConnectionError(f"{where} is of type {connection.conn_type!r}, not 'ray'")
        extra = connection.extra_dejson
        if unknown := sorted(set(extra) - _EXTRAS):
            raise RayConnectionError(
                f"{where}: unknown extra {unknown[0]!r}; known are {', '.join(sorted(_EXTRAS))}"
            )
        headers = extra.get("headers") or {}
        if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
            raise RayConnectionError(f"{where}: headers must be a JSON object of texts")
        for secret in (connection.password, *headers.values()):
            if secret:
                mask_secret(secret)
        verify = extra.get("verify", True)
        if verify is None or verify == "":
            verify = True
        if not isinstance(verify, bool):
            raise RayConnectionError(
                f"{where}: verify must be true or false, got {verify!r}; a CA file goes into ca_file"
            )
        return cls(
            address=_address(where, connection),
            token=connection.password or None,
            verify=verify,
            ca_file=extra.get("ca_file") or None,
            headers=headers,
            dashboard_url=(extra.get("dashboard_url") or "").rstrip("/") or None,
        )


def _address(where: str, connection: Connection) -> str:
    host = (connection.host or "").strip().rstrip("/")
    if not host:
        raise RayConnectionError(
            f"{where} has no host: give the Jobs address, such as http://ray-head:8265, or 'local' for an "
            "embedded Ray"
        )
    if host == "local":
        return host
    if host.startswith("ray://") or connection.schema == "ray":
        raise RayConnectionError(
            f"{where} names the Ray Client address {host!r}: give the Jobs address instead, such as "
            f"http://{urlsplit(host).hostname or 'ray-head'}:8265"
        )
    if "://" not in host:
        host = f"{connection.schema or 'http'}://{host}"
    try:
        parts = urlsplit(host)
        port = parts.port
    except ValueError as e:
        raise RayConnectionError(f"{where}: {host!r} is no Jobs address: {e}") from e
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RayConnectionError(
            f"{where}: {host!r} is no Jobs address: write http://HOST:PORT or https://HOST[:PORT]"
        )
    if port is None and connection.port:
        return parts._replace(netloc=f"{parts.netloc}:{connection.port}").geturl()
    return host


class RayHook(BaseHook):
    """Speaks the Ray Jobs REST API.

    `call` runs a flow of `jobs_api` and blocks; `acall` runs the same flow without blocking the event loop:

        RayHook("ray_default").call(jobs_api.status_of("raysubmit_1"))
        await RayHook("ray_default").acall(jobs_api.status_of("raysubmit_1"))

    :param ray_conn_id: a connection of type `ray`.
    """

    conn_name_attr = "ray_conn_id"
    default_conn_name = "ray_default"
    conn_type = "ray"
    hook_name = "Ray"

    def __init__(self, ray_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.ray_conn_id = ray_conn_id

    @cached_property
    def settings(self) -> RaySettings:
        """:raises RayConnectionError: when there is no such connection, or it cannot be used."""
        try:
            connection = self.get_connection(self.ray_conn_id)
        except AirflowNotFoundException as e:
            raise self._unknown() from e
        return self._resolved(RaySettings.of(connection))

    def get_conn(self) -> httpx.Client:
        """A client of the cluster's Jobs API. Close it."""
        import httpx

        return httpx.Client(**self._client_options(self.settings))

    def call(self, flow: Flow[T]) -> T:
        """Run a flow of `jobs_api` and return its result."""
        import httpx

        with self.get_conn() as client:
            answer: httpx.Response | httpx.TransportError | None = None
            while True:
                try:
                    step = flow.send(answer)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                if isinstance(step, Pause):
                    answer = None
                    time.sleep(step.seconds)
                    continue
                try:
                    answer = client.request(**_arguments(step))
                except httpx.TransportError as e:
                    answer = e

    async def acall(self, flow: Flow[T]) -> T:
        """Run a flow of `jobs_api` and return its result, without blocking the event loop."""
        import httpx

        client = await self._aclient()
        answer: httpx.Response | httpx.TransportError | None = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(step, Pause):
                answer = None
                await asyncio.sleep(step.seconds)
                continue
            try:
                answer = await client.request(**_arguments(step))
            except httpx.TransportError as e:
                answer = e

    @contextlib.asynccontextmanager
    async def astream(self, request: Send) -> AsyncIterator[httpx.Response]:
        """An answer that is read as it comes, for as long as it comes."""
        import httpx

        client = await self._aclient()
        arguments = {
            **_arguments(request),
            "timeout": httpx.Timeout(30.0, connect=_CONNECT_TIMEOUT, read=None),
        }
        async with client.stream(**arguments) as answer:
            yield answer

    def reread(self) -> None:
        """Read the connection again at the next call: its token may have been replaced."""
        self.__dict__.pop("settings", None)

    async def _aclient(self) -> httpx.AsyncClient:
        if "settings" not in self.__dict__:
            try:
                connection = await self.aget_connection(self.ray_conn_id)
            except AirflowNotFoundException as e:
                raise self._unknown() from e
            self.settings = await asyncio.to_thread(self._resolved, RaySettings.of(connection))
        return _shared_client(self.settings, self._client_options)

    def job_url(self, submission_id: str) -> str:
        """The page of a job in the Ray Dashboard, at the address that people use."""
        return f"{self.settings.dashboard_url or self.settings.address}/#/jobs/{submission_id}"

    def _unknown(self) -> RayConnectionError:
        return RayConnectionError(
            f"there is no connection {self.ray_conn_id!r}: add one of type 'ray' with the Jobs address as "
            "its host "
            f"(or 'local' for an embedded Ray on this machine), say AIRFLOW_CONN_{self.ray_conn_id.upper()}='ray://local'"
        )

    def _resolved(self, settings: RaySettings) -> RaySettings:
        if not settings.is_local:
            return settings
        from airflow_provider_raydatallm.local import LocalHeadError, ensure_head

        try:
            head = ensure_head()
        except LocalHeadError as e:
            raise RayConnectionError(f"connection {self.ray_conn_id!r}: {e}") from e
        mask_secret(head.token)
        return RaySettings(head.address, head.token, dashboard_url=settings.dashboard_url, proxies=False)

    @staticmethod
    def _client_options(settings: RaySettings) -> dict[str, Any]:
        import httpx

        verify: bool | ssl.SSLContext = settings.verify
        if settings.verify and settings.ca_file:
            try:
                verify = ssl.create_default_context(cafile=settings.ca_file)
            except (OSError, ssl.SSLError) as e:
                raise RayConnectionError(f"ca_file {settings.ca_file!r} cannot be used: {e}") from e
        headers = dict(settings.headers)
        if settings.token:
            headers["Authorization"] = f"Bearer {settings.token}"
        return {
            "base_url": settings.address,
            "headers": headers,
            "verify": verify,
            "trust_env": settings.proxies,
            "timeout": httpx.Timeout(30.0, connect=_CONNECT_TIMEOUT),
        }


#: The clients of an event loop. A triggerer that waits for a thousand jobs of one cluster needs one: making
#: one costs 20 ms of CPU, and each has connections of its own.
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[RaySettings, httpx.AsyncClient]]]
_clients = WeakKeyDictionary()


def _shared_client(
    settings: RaySettings, options: Callable[[RaySettings], dict[str, Any]]
) -> httpx.AsyncClient:
    import httpx

    clients = _clients.setdefault(asyncio.get_running_loop(), [])
    for known, client in clients:
        if known == settings:
            return client
    client = httpx.AsyncClient(**options(settings), limits=httpx.Limits(max_connections=200))
    clients.append((settings, client))
    return client


async def close_clients() -> None:
    """Close what `acall` and `astream` keep open in this event loop, before it ends."""
    for _, client in _clients.pop(asyncio.get_running_loop(), []):
        await client.aclose()


def _arguments(step: Send) -> dict[str, Any]:
    import httpx

    return {
        "method": step.method,
        "url": step.path.lstrip("/"),
        "json": step.json,
        "content": step.content,
        "timeout": httpx.Timeout(step.read_timeout, connect=_CONNECT_TIMEOUT),
    }
