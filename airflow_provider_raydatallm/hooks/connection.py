"""What an Airflow connection of type `ray` says: checked, and masked, in one place.

Every error names the connection and the field, shows the value unless it may be secret, and says what to
write instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from airflow_provider_raydatallm.exceptions import RayConnectionError
from airflow_provider_raydatallm.hooks.masking import mask, mask_all, mask_credentials, without_credentials

if TYPE_CHECKING:
    from airflow.sdk import Connection

#: Extras that hold no secret themselves. `auth_file` is not called after the token in it because Airflow
#: masks the value of each extra with "token" in its name, and errors have to show the path.
_PLAIN = frozenset({"auth_file", "verify", "ca_file", "client_cert", "client_key", "dashboard_url"})
EXTRAS = _PLAIN | {"headers", "proxy"}

CONNECT_TIMEOUT = 10.0
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True)
class RaySettings:
    """What a connection says. `address`: the Jobs API, without a trailing slash; "local" for the embedded
    head. Paths are absolute. `token` is the one that the connection itself holds: `auth.read_token` knows
    the others."""

    address: str
    token: str | None = field(default=None, repr=False)
    auth_file: str | None = None
    verify: bool = True
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    proxy: str | None = field(default=None, repr=False)
    dashboard_url: str | None = None
    #: Whether the environment's proxies and token are used; never for an embedded head, which has its own
    #: token and listens on loopback.
    environment: bool = True
    #: How errors call the connection.
    label: str = "the connection"

    @property
    def is_local(self) -> bool:
        return self.address == "local"

    @classmethod
    def from_connection(cls, connection: Connection) -> RaySettings:
        """Talks to Airflow's supervisor (masking): not for the thread of an event loop.

        :raises RayConnectionError: when the connection cannot be used.
        """
        where = f"connection {connection.conn_id!r}"
        extra = _masked_extra(where, connection)
        if connection.conn_type not in ("ray", "", None):
            raise RayConnectionError(f"{where} is of type {connection.conn_type!r}: write 'ray'")
        if unknown := sorted(set(extra) - EXTRAS):
            raise RayConnectionError(
                f"{where}: unknown extra {unknown[0]!r}: known are {', '.join(sorted(EXTRAS))}"
            )
        token = _token(where, connection.password)
        auth_file = _path(where, extra, "auth_file")
        if token and auth_file:
            raise RayConnectionError(f"{where} has both a password and an auth_file: keep one of them")
        client_key = _path(where, extra, "client_key")
        client_cert = _path(where, extra, "client_cert")
        if client_key and not client_cert:
            raise RayConnectionError(f"{where} has a client_key and no client_cert: give the certificate too")
        dashboard_url = _text(where, extra, "dashboard_url")
        return cls(
            address=_address(where, connection),
            token=token,
            auth_file=auth_file,
            verify=_verify(where, extra),
            ca_file=_path(where, extra, "ca_file"),
            client_cert=client_cert,
            client_key=client_key,
            headers=_headers(where, extra),
            proxy=_proxy(where, extra),
            dashboard_url=_url(f"{where}: dashboard_url", dashboard_url).geturl() if dashboard_url else None,
            label=where,
        )

    def of_local_head(self, address: str, token: str) -> RaySettings:
        """The settings of the embedded head that `local` stands for."""
        mask(token)
        return RaySettings(
            address, token, dashboard_url=self.dashboard_url, environment=False, label=self.label
        )


def _masked_extra(where: str, connection: Connection) -> dict[str, Any]:
    """The connection's extra, after all that is secret in the connection has been masked: before anything
    is checked, so that no error can show it."""
    mask(connection.password or "")
    mask_credentials(connection.host or "")
    try:
        extra = json.loads(connection.extra or "{}")
    except (ValueError, RecursionError) as e:
        raise RayConnectionError(f"{where}: extra is no JSON ({e}): write a JSON object") from None
    if not isinstance(extra, dict):
        mask_all(extra)
        raise RayConnectionError(f"{where}: extra must be a JSON object, got a {type(extra).__name__}")
    mask_all([value for name, value in extra.items() if name not in _PLAIN])
    mask_credentials(str(extra.get("dashboard_url") or ""))
    return extra


def _token(where: str, given: str | None) -> str | None:
    token = (given or "").strip()
    if token:
        check_token(f"{where}: its password", token)
    return token or None


def check_token(what: str, token: str) -> None:
    """:raises RayConnectionError: when this can be no token; HTTP would refuse to send it, and show it."""
    if not re.fullmatch(r"[!-~]+", token):
        raise RayConnectionError(
            f"{what} is no token: it holds spaces, line breaks or other characters that a token has not. "
            "Write the cluster's token alone (`ray get-auth-token` prints it), without 'Bearer'"
        )


def _text(where: str, extra: Mapping[str, Any], name: str) -> str | None:
    value = extra.get(name)
    if value is not None and not isinstance(value, str):
        raise RayConnectionError(f"{where}: {name} must be a text, got a {type(value).__name__}")
    return (value or "").strip() or None


def _path(where: str, extra: Mapping[str, Any], name: str) -> str | None:
    path = _text(where, extra, name)
    if path and not path.startswith("/"):
        # Not shown: it may be what belongs into the file.
        mask_all(path)
        raise RayConnectionError(
            f"{where}: {name} must be an absolute path on the Airflow workers, such as /run/secrets/{name}"
        )
    return path


def _verify(where: str, extra: Mapping[str, Any]) -> bool:
    verify = extra.get("verify")
    if verify is None or verify == "":
        return True
    # A connection that is written as a URI can hold texts only.
    verify = {"true": True, "false": False}.get(verify, verify) if isinstance(verify, str) else verify
    if not isinstance(verify, bool):
        raise RayConnectionError(
            f"{where}: verify must be true or false, got {verify!r}; the path of a CA goes into ca_file"
        )
    return verify


def _headers(where: str, extra: Mapping[str, Any]) -> dict[str, str]:
    headers = extra.get("headers")
    if headers is None or headers == "":
        return {}
    if not isinstance(headers, dict):
        raise RayConnectionError(
            f'{where}: headers must be a JSON object of texts, such as {{"X-Team": "data"}}, got a '
            f"{type(headers).__name__}"
        )
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise RayConnectionError(
                f"{where}: headers: {name!r} is no name of a header: write letters, digits and '-' only"
            )
        if not isinstance(value, str):
            raise RayConnectionError(
                f"{where}: headers: the value of {name!r} must be a text, got a {type(value).__name__}: "
                "write it in quotes"
            )
        if not re.fullmatch(r"[ -~\t]*", value.strip()):
            raise RayConnectionError(
                f"{where}: headers: the value of {name!r} holds line breaks or characters that are not "
                "ASCII: HTTP cannot send it"
            )
    return {name: value.strip() for name, value in headers.items()}


def _proxy(where: str, extra: Mapping[str, Any]) -> str | None:
    proxy = _text(where, extra, "proxy")
    if not proxy:
        return None
    if "://" not in proxy:
        raise RayConnectionError(
            f"{where}: proxy {without_credentials(proxy)!r} has no scheme: write "
            f"'http://{without_credentials(proxy)}'"
        )
    _url(f"{where}: proxy", proxy, credentials=True)
    return proxy


def _url(what: str, url: str, *, credentials: bool = False, example: str = "http://HOST:PORT") -> SplitResult:
    """A checked http or https URL, without a slash at its end."""
    shown = without_credentials(url)
    try:
        parts = urlsplit(url.rstrip("/"))
        _ = parts.port
    except ValueError as e:
        raise RayConnectionError(f"{what} {shown!r}: {e}: write {example}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"\s", url):
        raise RayConnectionError(
            f"{what} {shown!r} is no web address: write {example} or {example.replace('http:', 'https:')}"
        )
    if "@" in parts.netloc and not credentials:
        raise RayConnectionError(
            f"{what} {shown!r} holds a user or a password: write it without; the cluster's token goes into "
            'the password, and what a proxy in front of it asks for into headers, such as {"Authorization": '
            '"Basic ..."}'
        )
    if parts.query or parts.fragment:
        clean = parts._replace(netloc=without_credentials(parts.netloc), query="", fragment="").geturl()
        raise RayConnectionError(f"{what}: write {clean.rstrip('/')!r}, without what follows '?' or '#'")
    return parts


def _address(where: str, connection: Connection) -> str:
    host = (connection.host or "").strip()
    if not host:
        raise RayConnectionError(
            f"{where} has no host: write the Jobs address, such as http://ray-head:8265, or 'local' for an "
            "embedded Ray"
        )
    if host == "local":
        return host
    if "://" not in host:
        host = f"{connection.schema or 'http'}://{host}"
    if host.startswith("ray://"):
        shown = without_credentials(host)
        name = re.match(r"[\w.-]+", shown.removeprefix("ray://"))
        raise RayConnectionError(
            f"{where}: host {shown!r} is a Ray Client address: write the Jobs address, such as "
            f"http://{name[0] if name else 'ray-head'}:8265"
        )
    parts = _url(f"{where}: host", host, example="http://HOST:8265")
    if parts.port is None and connection.port:
        port = str(connection.port)
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise RayConnectionError(
                f"{where}: port must be a number from 1 to 65535, such as 8265, got {port!r}"
            )
        parts = parts._replace(netloc=f"{parts.netloc}:{port}")
    return parts.geturl()
