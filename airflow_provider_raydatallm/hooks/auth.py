"""Finds and sends the cluster's token.

The token is the connection's password, else in its `auth_file`, else in the worker's environment as Ray reads
it: RAY_AUTH_TOKEN, then the file RAY_AUTH_TOKEN_PATH. Ray's last resort, `~/.ray/auth_token`, belongs to a
cluster on this machine and is never sent to another.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import NamedTuple

import httpx

from airflow_provider_raydatallm.exceptions import RayConnectionError
from airflow_provider_raydatallm.hooks.connection import RaySettings, check_token
from airflow_provider_raydatallm.hooks.masking import mask

#: A connection with one of these headers authenticates without a token of the environment.
_AUTHORIZATION = {"authorization", "x-ray-authorization"}


class Token(NamedTuple):
    value: str
    #: For people, such as "the password".
    source: str


class TokenAuth(httpx.Auth):
    """Sends the token with each request, and reads its file again for each, as tokens are rotated.

    When the connection's headers hold an `Authorization` for a proxy in front of the cluster, the token goes
    into `X-Ray-Authorization`, which Ray reads when the proxy has removed the other.
    """

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._masked = settings.token

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        yield _signed(request, self._token())

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        yield _signed(request, self._settings.token or await asyncio.to_thread(self._token))

    def _token(self) -> str | None:
        token = read_token(self._settings)
        if token is None:
            return None
        if token.value != self._masked:  # not each time: masking sends a message
            mask(token.value)
            self._masked = token.value
        return token.value


def read_token(settings: RaySettings) -> Token | None:
    """:raises RayConnectionError: when the file or variable for the token has no valid one."""
    if settings.token:
        return Token(settings.token, "the password")
    if settings.auth_file:
        return _read_file(settings.label, "auth_file", settings.auth_file)
    if not settings.use_environment or _AUTHORIZATION & {name.lower() for name in settings.headers}:
        return None
    if value := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return _checked(settings.label, value, "RAY_AUTH_TOKEN of the environment")
    if path := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return _read_file(settings.label, "RAY_AUTH_TOKEN_PATH", path)
    return None


def _read_file(label: str, name: str, path: str) -> Token:
    try:
        value = Path(path).read_text("utf-8", errors="replace").strip()
    except OSError as e:
        raise RayConnectionError(
            f"{label}: {name} {path!r} cannot be read ({e.strerror}): write the path of a file with the "
            "cluster's token that every Airflow worker can read"
        ) from e
    if not value:
        raise RayConnectionError(f"{label}: {name} {path!r} is empty: write the cluster's token into it")
    return _checked(label, value, f"{name} {path!r}")


def _checked(label: str, value: str, source: str) -> Token:
    check_token(f"{label}: the content of {source}", value)
    return Token(value, source)


def _signed(request: httpx.Request, token: str | None) -> httpx.Request:
    if token:
        name = "X-Ray-Authorization" if "Authorization" in request.headers else "Authorization"
        request.headers[name] = f"Bearer {token}"
    return request
