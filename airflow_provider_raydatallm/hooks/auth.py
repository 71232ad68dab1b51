"""The cluster's token: where it comes from, and how it is sent.

The connection's password, else its `auth_file`, else the worker's environment as Ray itself reads it:
RAY_AUTH_TOKEN, then the file that RAY_AUTH_TOKEN_PATH names. `~/.ray/auth_token`, Ray's last resort, is the
token of a cluster on this machine, and is not sent to others.
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


class Token(NamedTuple):
    value: str
    source: str
    """In words."""


class TokenAuth(httpx.Auth):
    """Sends the token with each request; one that is rotated in its file is picked up by the next request.

    Where the connection's headers hold an `Authorization` for a proxy in front of the cluster, the token goes
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
        if token.value != self._masked:  # masking is a message to Airflow's supervisor: not for each request
            mask(token.value)
            self._masked = token.value
        return token.value


def read_token(settings: RaySettings) -> Token | None:
    """:raises RayConnectionError: when what should hold the token does not."""
    if settings.token:
        return Token(settings.token, "the password")
    if settings.auth_file:
        return _in_file(settings.label, "auth_file", settings.auth_file)
    if not settings.environment or any(h.lower() in _OWN for h in settings.headers):
        return None
    if value := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return _checked(settings.label, value, "RAY_AUTH_TOKEN of the environment")
    if path := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return _in_file(settings.label, "RAY_AUTH_TOKEN_PATH", path)
    return None


#: With one of these among its headers a connection says itself how it identifies itself.
_OWN = frozenset({"authorization", "x-ray-authorization"})


def _in_file(where: str, name: str, path: str) -> Token:
    try:
        value = Path(path).read_text("utf-8", errors="replace").strip()
    except OSError as e:
        raise RayConnectionError(
            f"{where}: {name} {path!r} cannot be read ({e.strerror}): write the path of a file with the "
            "cluster's token that every Airflow worker can read"
        ) from e
    if not value:
        raise RayConnectionError(f"{where}: {name} {path!r} is empty: write the cluster's token into it")
    return _checked(where, value, f"{name} {path!r}")


def _checked(where: str, value: str, source: str) -> Token:
    check_token(f"{where}: the content of {source}", value)
    return Token(value, source)


def _signed(request: httpx.Request, token: str | None) -> httpx.Request:
    if token:
        name = "X-Ray-Authorization" if "Authorization" in request.headers else "Authorization"
        request.headers[name] = f"Bearer {token}"
    return request
