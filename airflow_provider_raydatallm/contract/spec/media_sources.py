"""Where the files that rows name may come from: folders, sites, and addresses of machines. Pure.

Rows are data, and who writes them must not choose what the cluster's nodes open: without a source, a row's
address is never opened. A listed site may have public addresses only, unless its address is listed, too: a
name could otherwise lead to a cloud's metadata service or into the cluster's own network. A path that two
programs may read differently is refused: what checks it and what serves it are two programs.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterator, Sequence
from urllib.parse import unquote, urlsplit

from airflow_provider_raydatallm.contract.addresses import canonical, check_address, holds

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: A source: addresses that hold the file themselves (`data:image/png;base64,...`), in messages.
_INLINE = "data:"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SEPARATOR = re.compile(r"[/\\]")
#: IANA's registries of special-purpose addresses. Python's own lists differ between its patch releases.
_SPECIAL_IPV4 = [
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
        "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
        "168.63.129.16/32",  # in no registry: what Azure tells its own machines
    )
]  # fmt: skip
#: All addresses of machines in the public network are in this one, but for the others.
_GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL_IPV6 = [
    ipaddress.IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
#: The gateway from IPv6 to all of IPv4, which networks without IPv4 put before a public address.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class MediaSources:
    def __init__(self, sources: Sequence[str], argument: str = "images") -> None:
        """:raises ValueError: naming the source that is neither a folder nor a site nor an address."""
        self.argument = argument
        self._folders: list[str] = []
        self._sites: list[tuple[tuple[str, str, int], str]] = []
        self._has_inline = False
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for source in sources:
            if source == _INLINE:
                self._has_inline = True
            elif is_url(source):
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
        """:raises ValueError: for an address that no source holds, or that can be read in two ways."""
        if _CONTROL.search(address):
            raise ValueError(f"{address!r:.200} holds control characters")
        if is_url(address):
            path = _path(address)
            held = any(site == _site(address) and is_below(path, root) for site, root in self._sites)
        elif address.startswith(_INLINE):
            held = self._has_inline
        else:
            for form in _decodings(address):
                if ".." in _names(form):
                    raise ValueError(f"{address!r:.200} has '..' in it, perhaps encoded")
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
        machine = _machine(ip)
        is_listed = any(i in network for i in (ip, machine) for network in self._networks)
        if not is_listed and not _is_public(machine):
            raise ValueError(
                f"{host} has the address {address}, which is not public: if it is yours, list it in "
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
    """The path of a URL, as its server decodes it.

    :raises ValueError: when servers differ in how they read it.
    """
    raw = urlsplit(url).path or "/"
    try:
        path = unquote(raw, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"{url!r:.200} is not UTF-8 where it is percent-encoded") from None
    if unquote(path) != path:
        raise ValueError(f"{url!r:.200} is percent-encoded twice")
    names = _names(path)
    if "\\" in path or _CONTROL.search(path) or len(names) != path.count("/") + 1:
        raise ValueError(f"{url!r:.200} has backslashes or control characters in its path")
    # Some servers leave out what follows a semicolon.
    *folders, last = (name.partition(";")[0].strip() for name in names[1:])
    if {"", ".", ".."} & {*folders} or last in (".", ".."):
        raise ValueError(f"{url!r:.200} has '.', '..' or '//' in its path")
    return path


def _decodings(text: str) -> Iterator[str]:
    """The text, and what comes out each time that its percent-escapes are read."""
    previous = None
    while text != previous:
        yield text
        text, previous = unquote(text), text


def _names(path: str) -> list[str]:
    """The names in a path; letters of full width and the like are the same as plain ones."""
    return _SEPARATOR.split(unicodedata.normalize("NFKC", path))


def _machine(ip: _Address) -> _Address:
    """The IPv4 address that an IPv6 address stands for, where a gateway or the system itself reaches it."""
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return ip.ipv4_mapped
        if ip in _NAT64:
            return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip


def _is_public(ip: _Address) -> bool:
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in network for network in _SPECIAL_IPV4)
    return ip in _GLOBAL_IPV6 and not any(ip in network for network in _SPECIAL_IPV6)


def is_below(path: str, folder: str) -> bool:
    return path.startswith(folder if folder.endswith("/") else f"{folder}/") or path == folder
