"""Where the files that rows name may come from: folders, sites, and addresses of machines. Pure.

Rows are data, and who writes them must not choose what the cluster's nodes open: without a source, a row's
address is never opened. A listed site may have public addresses only, unless its address is listed, too: a
name could otherwise lead to a cloud's metadata service or into the cluster's own network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from airflow_provider_raydatallm.contract.addresses import canonical, check_address, holds

_DEFAULT_PORTS = {"http": 80, "https": 443}


class MediaSources:
    def __init__(self, sources: Sequence[str], argument: str = "images") -> None:
        """:raises ValueError: naming the source that is neither a folder nor a site nor an address."""
        self.argument = argument
        self._folders: list[str] = []
        self._sites: list[tuple[tuple[str, str, int], str]] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for source in sources:
            if is_url(source):
                self._sites.append((_site(source), _path(source)))
            elif (network := _network(source)) is not None:
                self._networks.append(network)
            elif _is_absolute(source):
                self._folders.append(canonical(check_address(source)))
            else:
                raise ValueError(
                    f"{source!r} is not a source: give folders, such as 's3://lake/photos/' or "
                    "'/mnt/photos', sites, such as 'https://cdn.example.com', or addresses of machines, such "
                    "as '10.1.2.3'"
                )

    def check(self, address: str) -> None:
        """:raises ValueError: for an address that no source holds."""
        if is_url(address):
            path = _path(address)
            held = any(site == _site(address) and is_below(path, root) for site, root in self._sites)
        else:
            path = canonical(check_address(address))
            held = _is_absolute(address) and any(holds(folder, path) for folder in self._folders)
        if not held:
            raise ValueError(f"{address!r:.200} is below none of {self.argument}.sources")

    @property
    def disk_folders(self) -> list[str]:
        return [folder for folder in self._folders if "://" not in folder]

    def check_machine(self, host: str, address: str) -> None:
        """:param address: of the host, as it was resolved.
        :raises ValueError: for one that is not public, and not listed.
        """
        ip = ipaddress.ip_address(address)
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        is_listed = any(ip.version == network.version and ip in network for network in self._networks)
        if not is_listed and (not ip.is_global or ip.is_multicast):
            raise ValueError(
                f"{host} has the address {ip}, which is not public: if it is yours, list it in "
                f"{self.argument}.sources"
            )


def is_url(address: str) -> bool:
    return address.lower().startswith(("http://", "https://"))


def _is_absolute(address: str) -> bool:
    return address.startswith("/") or "://" in address


def _network(source: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(source)
    except ValueError:
        return None


def _site(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL.

    :raises ValueError: when it has no host, or a user name.
    """
    parts = urlsplit(url)
    if not parts.hostname or "@" in parts.netloc or "\\" in url:
        raise ValueError(f"{url!r:.200} is not an address of the form https://host/path")
    return parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme]


def _path(url: str) -> str:
    path = unquote(urlsplit(url).path)
    if ".." in path.split("/"):
        raise ValueError("addresses with '..' are not accepted")
    return path or "/"


def is_below(path: str, folder: str) -> bool:
    return path.startswith(folder if folder.endswith("/") else f"{folder}/") or path == folder
