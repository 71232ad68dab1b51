"""Finds and sends the cluster's token.

The token is the connection's password, else in its `auth_file`, else in the worker's environment as Ray reads
it: RAY_AUTH_TOKEN, then the file RAY_AUTH_TOKEN_PATH. Ray's last resort, `~/.ray/auth_token`, belongs to a
cluster on this machine and is never sent to another unless a connection names it.

Who edits a connection chooses both the file and the host that gets its content, so an `auth_file` lies in a
folder for such files. A token goes to its connection's host alone, whatever that host redirects to.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import stat
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import NamedTuple

import httpx
from airflow.sdk.configuration import conf

from airflow_provider_raydatallm.exceptions import RayConnectionError
from airflow_provider_raydatallm.hooks.connection import RaySettings, check_token
from airflow_provider_raydatallm.hooks.masking import mask

#: A connection with one of these headers authenticates without a token of the environment.
_AUTHORIZATION = {"authorization", "x-ray-authorization"}

log = logging.getLogger(__name__)

#: Addresses to which this process has sent a token without encryption.
_unencrypted: set[str] = set()


class Token(NamedTuple):
    value: str
    #: For people, such as "the password".
    source: str


class TokenAuth(httpx.Auth):
    """Sends the token with each request, and reads its file again for each, as tokens are rotated.

    When the connection's headers hold an `Authorization` for a proxy in front of the cluster, or a gateway
    is there, the token goes into `X-Ray-Authorization`, which Ray reads when that has removed the other.
    """

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._masked = settings.token
        self._address = httpx.URL(settings.address)

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        yield self._signed(request, self._token())

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        yield self._signed(request, self._settings.token or await asyncio.to_thread(self._token))

    def _token(self) -> str | None:
        token = read_token(self._settings)
        if token is None:
            return None
        if token.value != self._masked:  # not each time: masking sends a message
            mask(token.value)
            self._masked = token.value
        return token.value

    def _signed(self, request: httpx.Request, token: str | None) -> httpx.Request:
        if self._settings.server_name:
            request.extensions["sni_hostname"] = self._settings.server_name
        if token is None or _origin(request.url) != _origin(self._address):
            return request
        if is_unencrypted(self._address) and str(self._address) not in _unencrypted:
            _unencrypted.add(str(self._address))
            log.warning("%s: %s", self._settings.label, UNENCRYPTED.format(self._settings.address))
        is_taken = self._settings.has_gateway or "Authorization" in request.headers
        name = "X-Ray-Authorization" if is_taken else "Authorization"
        request.headers[name] = f"Bearer {token}"
        return request


UNENCRYPTED = (
    "the token goes to {} without encryption: who reads the traffic can run code on the cluster. Use https://"
)


def is_unencrypted(address: httpx.URL) -> bool:
    """Whether others on the network can read what is sent there."""
    if address.scheme != "http" or address.host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return True


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def read_token(settings: RaySettings) -> Token | None:
    """:raises RayConnectionError: when the file or variable for the token has no valid one."""
    if settings.token:
        return Token(settings.token, "the password")
    if settings.auth_file:
        _check_auth_file(settings.label, Path(settings.auth_file))
        return _read_file(settings.label, "auth_file", settings.auth_file)
    if not settings.use_environment or _AUTHORIZATION & {name.lower() for name in settings.headers}:
        return None
    if value := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return _checked(settings.label, value, "RAY_AUTH_TOKEN of the environment")
    if path := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return _read_file(settings.label, "RAY_AUTH_TOKEN_PATH", path)
    return None


def _check_auth_file(label: str, file: Path) -> None:
    """:raises RayConnectionError: when it is outside the folders for token files, or others can read it."""
    configured = conf.get("ray_llm", "token_folder", fallback="")
    folders = [Path.home() / ".ray", *([Path(configured)] if configured else [])]
    if not any(file.resolve().is_relative_to(folder.resolve()) for folder in folders):
        raise RayConnectionError(
            f"{label}: auth_file {str(file)!r} is not in {' or '.join(map(str, folders))}, and a connection "
            "must not have other files sent to its host",
            advice="Put it there, or set [ray_llm] token_folder on the Airflow workers and triggerers to the "
            "folder of token files",
        )
    try:
        status = file.stat()
    except OSError:
        return  # reading it says why
    # Kubernetes mounts a secret as root's, for the group (fsGroup) of the pod's user.
    others = 0o037 if status.st_uid == 0 else 0o077
    if not stat.S_ISREG(status.st_mode) or status.st_mode & others:
        raise RayConnectionError(
            f"{label}: auth_file {str(file)!r} is not a file that only its owner can read (its mode is "
            f"{stat.S_IMODE(status.st_mode):04o})",
            advice="Run `chmod 600` on it, or set defaultMode: 0400 for a secret of Kubernetes",
        )


def _read_file(label: str, name: str, path: str) -> Token:
    try:
        value = Path(path).read_text("utf-8", errors="replace").strip()
    except OSError as e:
        raise RayConnectionError(
            f"{label}: {name} {path!r} cannot be read ({e.strerror})",
            advice="Write the path of a file with the cluster's token that every Airflow worker can read",
        ) from e
    if not value:
        raise RayConnectionError(
            f"{label}: {name} {path!r} is empty", advice="Write the cluster's token into it"
        )
    return _checked(label, value, f"{name} {path!r}")


def _checked(label: str, value: str, source: str) -> Token:
    check_token(f"{label}: the content of {source}", value)
    return Token(value, source)
