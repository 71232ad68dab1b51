"""Parses and checks an Airflow connection of type `ray`, and masks its secrets.

Every error names the connection and the field, shows the value unless it may be secret, and says what to
write instead.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from airflow_provider_raydatallm.clusters.kinds import host_names, meant_by
from airflow_provider_raydatallm.contract.spec.engines import is_profile
from airflow_provider_raydatallm.exceptions import RayConnectionError
from airflow_provider_raydatallm.hooks.masking import mask, mask_all, mask_credentials, without_credentials

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_raydatallm.clusters.base import Access

#: Extras that are not secret. `auth_file` has no "token" in its name because Airflow masks the values of
#: extras that do, and errors have to show the path.
_PLAIN = frozenset(
    {
        "auth_file",
        "verify",
        "ca_file",
        "client_cert",
        "client_key",
        "dashboard_url",
        "engines",
        "driver_resources",
    }
)
EXTRAS = _PLAIN | {"headers", "proxy"}
#: Of `driver_resources`, and how each must be written.
_DRIVER_RESOURCES = {
    "num_cpus": "a number",
    "memory": "a whole number of bytes",
    "resources": 'an object of numbers, such as {"driver": 1}',
    "label_selector": 'an object of texts, such as {"ray.io/market-type": "on-demand"}',
}

CONNECT_TIMEOUT_S = 10.0
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True)
class RaySettings:
    """A checked connection. Paths are absolute. `token` is the connection's own; `auth.read_token` finds the
    others."""

    #: The host, which is the Jobs API without a trailing slash, unless it names a kind of cluster (`local`):
    #: then the Jobs API is known once the cluster was reached (`for_cluster`).
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
    #: Engine profiles: the operator's `engine` group by name.
    engines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: What Ray reserves for a job's own process (`jobs_api.submit`).
    driver_resources: Mapping[str, Any] = field(default_factory=dict)
    #: Use the environment's proxies and token; False for a cluster with a token of its own.
    use_environment: bool = True
    #: Whether something on the way keeps `Authorization` to itself.
    has_gateway: bool = False
    #: That the certificate has, if not the address'.
    server_name: str | None = None
    #: What errors call the connection.
    label: str = "the connection"
    #: Identity of the cluster that the connection means.
    cluster: str = ""

    @classmethod
    def from_connection(cls, connection: Connection) -> RaySettings:
        """Talks to Airflow's supervisor (masking), so it must not run in an event loop's thread.

        :raises RayConnectionError: when the connection cannot be used.
        """
        label = f"connection {connection.conn_id!r}"
        extra = _Extra(label, _masked_extra(label, connection))
        if connection.conn_type not in ("ray", "", None):
            raise RayConnectionError(f"{label} is of type {connection.conn_type!r}", advice="Write 'ray'")
        if unknown := sorted(set(extra.values) - EXTRAS):
            raise RayConnectionError(
                f"{label}: unknown extra {unknown[0]!r}", advice=f"Known are {', '.join(sorted(EXTRAS))}"
            )
        if token := (connection.password or "").strip() or None:
            check_token(f"{label}: its password", token)
        auth_file = extra.path("auth_file")
        if token and auth_file:
            raise RayConnectionError(
                f"{label} has both a password and an auth_file", advice="Keep one of them"
            )
        client_key, client_cert = extra.path("client_key"), extra.path("client_cert")
        if client_key and not client_cert:
            raise RayConnectionError(
                f"{label} has a client_key but no client_cert", advice="Set the certificate too"
            )
        dashboard_url = extra.text("dashboard_url")
        address = _address(label, connection)
        return cls(
            address=address,
            token=token,
            auth_file=auth_file,
            verify=extra.verify(),
            ca_file=extra.path("ca_file"),
            client_cert=client_cert,
            client_key=client_key,
            headers=extra.headers(),
            proxy=extra.proxy(),
            dashboard_url=_parse_url(f"{label}: dashboard_url", dashboard_url).geturl()
            if dashboard_url
            else None,
            engines=extra.engines(),
            driver_resources=extra.driver_resources(),
            label=label,
            cluster=meant_by(connection.conn_id, address),
        )

    def for_cluster(self, access: Access) -> RaySettings:
        """Returns the settings of a cluster that was reached."""
        if access.token is None:
            return replace(self, address=access.address)
        if not access.is_passing:
            # Airflow's masker takes longer with each secret that the process ever knew: half a second for the
            # 400th. Nothing here shows a token, not a gateway's either, which may change each minute; and a
            # job removes its cluster's from what it prints.
            mask(access.token)
        on_the_way: dict[str, Any] = {"headers": {}}
        if access.gateway is not None:
            on_the_way = {**asdict(access.gateway), "has_gateway": True}
        return replace(
            self,
            address=access.address,
            token=access.token,
            auth_file=None,
            use_environment=False,
            **on_the_way,
        )


def _masked_extra(label: str, connection: Connection) -> dict[str, Any]:
    """Masks all secrets of the connection before anything is checked, so that no error can show them."""
    mask(connection.password or "")
    mask_credentials(connection.host or "")
    try:
        extra = json.loads(connection.extra or "{}")
    except (ValueError, RecursionError) as e:
        raise RayConnectionError(
            f"{label}: extra is not valid JSON ({e})", advice="Write a JSON object"
        ) from None
    if not isinstance(extra, dict):
        mask_all(extra)
        raise RayConnectionError(f"{label}: extra must be a JSON object, got a {type(extra).__name__}")
    mask_all([value for name, value in extra.items() if name not in _PLAIN])
    mask_credentials(str(extra.get("dashboard_url") or ""))
    return extra


def check_token(what: str, token: str) -> None:
    """:raises RayConnectionError: when HTTP cannot send it; httpx would show it in its error."""
    if not re.fullmatch(r"[!-~]+", token):
        raise RayConnectionError(
            f"{what} is not a valid token: it holds spaces, line breaks or other invalid characters",
            advice="Write the cluster's token alone (`ray get-auth-token` prints it), without 'Bearer'",
        )


@dataclass(frozen=True)
class _Extra:
    """The connection's extra, field by field; "" and null count as not set."""

    label: str
    values: Mapping[str, Any]

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise RayConnectionError(f"{self.label}: {name} must be text, got a {type(value).__name__}")
        return (value or "").strip() or None

    def path(self, name: str) -> str | None:
        path = self.text(name)
        if path and not path.startswith("/"):
            mask_all(path)  # and not shown: it may be the file's content
            raise RayConnectionError(
                f"{self.label}: {name} must be an absolute path on the Airflow workers",
                advice=f"Write one such as /run/secrets/{name}",
            )
        return path

    def verify(self) -> bool:
        verify = self.values.get("verify")
        if verify is None or verify == "":
            return True
        if isinstance(verify, str):  # a connection that is written as a URI holds only text
            verify = {"true": True, "false": False}.get(verify, verify)
        if not isinstance(verify, bool):
            raise RayConnectionError(
                f"{self.label}: verify must be true or false, got {verify!r}",
                advice="The path of a CA goes into ca_file",
            )
        return verify

    def driver_resources(self) -> dict[str, Any]:
        value, where = self.values.get("driver_resources"), f"{self.label}: driver_resources"
        if value is None or value == "":
            return {}
        if not isinstance(value, dict):
            raise RayConnectionError(f'{where} must be a JSON object, such as {{"memory": 500000000}}')
        for name, amount in value.items():
            if name not in _DRIVER_RESOURCES:
                raise RayConnectionError(f"{where}: {name!r} is none of {', '.join(_DRIVER_RESOURCES)}")
            kind = {"label_selector": str, "memory": int}.get(name, (int, float))
            amounts = amount.values() if isinstance(amount, dict) else [amount]
            is_object = name in ("resources", "label_selector")
            if isinstance(amount, dict) != is_object or not all(
                isinstance(a, kind) and not isinstance(a, bool) for a in amounts
            ):
                raise RayConnectionError(f"{where}: {name} must be {_DRIVER_RESOURCES[name]}, got {amount!r}")
        return value

    def headers(self) -> dict[str, str]:
        headers, where = self.values.get("headers"), f"{self.label}: headers"
        if headers is None or headers == "":
            return {}
        if not isinstance(headers, dict):
            raise RayConnectionError(
                f'{where} must be a JSON object of texts, such as {{"X-Team": "data"}}, got a '
                f"{type(headers).__name__}"
            )
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise RayConnectionError(
                    f"{where}: {name!r} is not a valid header name",
                    advice="Write letters, digits and '-' only",
                )
            if not isinstance(value, str):
                raise RayConnectionError(
                    f"{where}: the value of {name!r} must be text, got a {type(value).__name__}",
                    advice="Write it in quotes",
                )
            if not re.fullmatch(r"[ -~\t]*", value.strip()):
                raise RayConnectionError(
                    f"{where}: the value of {name!r} holds line breaks or characters that are not ASCII",
                    advice="HTTP cannot send it: write printable ASCII",
                )
        return {name: value.strip() for name, value in headers.items()}

    def engines(self) -> dict[str, dict[str, Any]]:
        engines = self.values.get("engines") or {}
        if not isinstance(engines, dict) or not all(isinstance(leaves, dict) for leaves in engines.values()):
            raise RayConnectionError(
                f"{self.label}: engines must be a JSON object of engine profiles",
                advice='Write them as {"l4-small": {"accelerator": "L4", "kwargs": {"max_model_len": 4096}}}',
            )
        for name, leaves in engines.items():
            # What Ray Data LLM's stages take may be templates of its own, such as a chat template.
            if re.search(r"\{\{|\{%", json.dumps({**leaves, "processor": None})):
                raise RayConnectionError(
                    f"{self.label}: engines: {name!r} holds a template, which nobody renders",
                    advice="Give its value",
                )
            if not is_profile(name):
                raise RayConnectionError(
                    f"{self.label}: engines: {name!r} is the name of an engine",
                    advice="Give the profile another",
                )
        return engines

    def proxy(self) -> str | None:
        proxy = self.text("proxy")
        if proxy and "://" not in proxy:
            shown = without_credentials(proxy)
            raise RayConnectionError(
                f"{self.label}: proxy {shown!r} has no scheme", advice=f"Write 'http://{shown}'"
            )
        if proxy:
            _parse_url(f"{self.label}: proxy", proxy, credentials=True)
        return proxy


def _parse_url(
    what: str, url: str, *, credentials: bool = False, example: str = "http://HOST:PORT"
) -> SplitResult:
    """Checks an http or https URL and removes the slash at its end."""
    shown = without_credentials(url)
    try:
        parts = urlsplit(url.rstrip("/"))
        _ = parts.port
    except ValueError as e:
        raise RayConnectionError(f"{what} {shown!r}: {e}", advice=f"Write {example}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"\s", url):
        raise RayConnectionError(
            f"{what} {shown!r} is not a web address",
            advice=f"Write {example} or {example.replace('http:', 'https:')}",
        )
    if "@" in parts.netloc and not credentials:
        raise RayConnectionError(
            f"{what} {shown!r} holds a user or a password",
            advice=(
                "Remove them",
                "The cluster's token goes into the password, and credentials of a proxy in front of it into "
                'headers, such as {"Authorization": "Basic ..."}',
            ),
        )
    if parts.query or parts.fragment:
        clean = parts._replace(netloc=without_credentials(parts.netloc), query="", fragment="").geturl()
        raise RayConnectionError(
            f"{what} has a query or a fragment",
            advice=f"Write {clean.rstrip('/')!r}, without what follows '?' or '#'",
        )
    return parts


def with_brackets(host: str) -> str:
    """Returns a host, with or without a scheme, as an address has it: an IPv6 one in brackets, which Airflow
    removes from a connection that is written as a URI."""
    scheme, separator, name = host.rpartition("://")
    try:
        ipaddress.IPv6Address(name)
    except ValueError:
        return host
    return f"{scheme}{separator}[{name}]"


def _address(label: str, connection: Connection) -> str:
    host = (connection.host or "").strip()
    if not host:
        raise RayConnectionError(
            f"{label} has no host",
            advice="Write the Jobs address, such as http://ray-head:8265, or 'local' for an embedded Ray",
        )
    if host in host_names():
        return host
    if "://" not in host:
        host = f"{connection.schema or 'http'}://{host}"
    host = with_brackets(host)
    if host.startswith("ray://"):
        shown = without_credentials(host)
        name = re.match(r"\[[\w:.%]+\]|[\w.-]+", shown.removeprefix("ray://"))
        raise RayConnectionError(
            f"{label}: host {shown!r} is a Ray Client address",
            advice=f"Write the Jobs address, such as http://{name[0] if name else 'ray-head'}:8265",
        )
    parts = _parse_url(f"{label}: host", host, example="http://HOST:8265")
    if parts.port is None and connection.port:
        port = str(connection.port)
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise RayConnectionError(
                f"{label}: port must be 1 to 65535, got {port!r}", advice="Write one such as 8265"
            )
        parts = parts._replace(netloc=f"{parts.netloc}:{port}")
    return parts.geturl()
