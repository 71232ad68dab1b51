"""Which addresses of files are accepted, and which of them name the same place.

Asked before a job is submitted, and where files are opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

#: Comma-separated schemes to accept beside `SCHEMES`, such as "hdfs". Set it where Airflow's tasks run: jobs
#: get it from there. Who may set input_path can then make the cluster send requests to what they reach.
EXTRA_SCHEMES = "RAY_LLM_ALLOWED_SCHEMES"
SCHEMES = ("file", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")

_AZURE = ("abfs", "abfss", "az")  # container@account is how these name a folder
#: Schemes of the same storage.
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs"}
#: Of a name on the file systems of Linux and macOS.
_NAME_BYTES = 255
_DISK = re.compile(r"^(file|local):(//)?")
_FIELD = re.compile(r"\{[^{}/]*\}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)")
#: What clients of S3, Azure and Google cut off a key, and all that follows: two tables would have one.
_VERSION = re.compile(r"[?&](versionid|generation)=|#[\s+-]*\d", re.IGNORECASE)


def check_address(address: str) -> str:
    """Returns a path or an address of an accepted scheme.

    :raises ValueError: for all else, without the address: it may hold a secret.
    """
    if "\0" in address:
        raise ValueError("addresses with a NUL character are not accepted: give one without")
    if "::" in address or address.startswith("data:"):
        raise ValueError("chained addresses (a::b) and data: are not accepted: give a path or one address")
    if ".." in re.split(r"[/\\]", address):
        raise ValueError("addresses with '..' are not accepted: give the folder itself")
    match = _SCHEME.match(address)
    if match is None:
        return address
    scheme, host = match.groups()
    accepted = (*SCHEMES, *extra_schemes())
    if scheme not in accepted:
        raise ValueError(
            f"addresses that begin with {scheme}:// are not accepted, but paths and "
            f"{', '.join(f'{s}://' for s in accepted)}. The environment variable {EXTRA_SCHEMES} adds "
            "others, comma-separated"
        )
    if scheme != "file" and (version := _VERSION.search(address)):
        raise ValueError(
            f"{version[0]!r} in a {scheme}:// address names a version of an object, which is not accepted: "
            "give the object or folder itself"
        )
    if any(mark in host for mark in _secret_marks(scheme, host)):
        raise ValueError(
            f"this {scheme}:// address has a user name or a password before its first /, and would be stored "
            "and shown: leave them out, and give credentials by storage_conn_id or the cluster's environment"
        )
    return address


def check_absolute(name: str, address: str) -> None:
    """
    :raises ValueError: for a relative path, naming it: what a task reads or waits for on another machine, in
        another folder, is somewhere else.
    """
    is_relative = not address.startswith(("/", "data:")) and "::" not in address
    if is_relative and _SCHEME.match(address) is None:
        raise ValueError(
            f"{name} {address[:200]!r} is relative, and Airflow and the cluster run in folders of their own: "
            "give a path that begins with /, or an address such as s3://bucket/table"
        )


def check_name_lengths(address: str) -> None:
    """:raises ValueError: for a folder with a longer name than disks have."""
    names = () if "://" in canonical(address) else canonical(address).split("/")
    if (longest := max((len(name.encode(errors="replace")) for name in names), default=0)) > _NAME_BYTES:
        raise ValueError(
            f"the folder {address[:200]!r} has a name of {longest:,} bytes, and disks have names of at most "
            f"{_NAME_BYTES}: give shorter ones"
        )


def check_fields(name: str, address: str) -> None:
    """:raises ValueError: for a field other than {slice}, which would stay as it is."""
    if others := [field for field in _FIELD.findall(address) if field != "{slice}"]:
        raise ValueError(
            f"{name} {address[:200]!r} has {others[0]}, and only {{slice}} is replaced there. A template of "
            "Airflow's has two braces: {{ ds }}"
        )


def canonical(address: str) -> str:
    """Returns the one form of an address, in which addresses are compared; that of a disk begins with `/`.

    Keys of an object store stay as they are: there `a//b` is another object than `a/b`. Links of a disk stay,
    too, since nothing is looked at (`storage.filesystem.resolve` follows them).
    """
    match = _SCHEME.match(address)
    if match is None or match[1] == "file":
        path = os.path.abspath(os.path.expanduser(_DISK.sub("", address)))
        return "/" + path.lstrip("/")
    scheme = match[1]
    host, slash, key = address[len(f"{scheme}://") :].lstrip("/").partition("/")
    if scheme in _AZURE:  # an account has a host for each of its interfaces
        host = host.partition(".")[0]
    return f"{_ALIASES.get(scheme, scheme)}://{host}{slash}{key.rstrip('/')}".removesuffix("/")


def holds(folder: str, address: str) -> bool:
    """Whether an address is the folder or lies below it, both in canonical form."""
    return address == folder or address.startswith(f"{folder.rstrip('/')}/")


def ancestors(address: str) -> Iterator[str]:
    """Yields an address in canonical form and the folders above it, the root of its bucket or disk last."""
    scheme, separator, path = address.rpartition("://")
    while path.strip("/"):
        yield f"{scheme}{separator}{path}"
        path = path.rpartition("/")[0]
    if not separator:
        yield "/"


def _secret_marks(scheme: str, host: str) -> str:
    if scheme in _AZURE:
        return ":"
    # A bucket has no port, and a secret may hold the slash that ends the host before its @.
    return "@" if host.startswith("arn:") or scheme not in SCHEMES else ":@"


def extra_schemes() -> list[str]:
    return [s for s in re.split(r"[\s,]+", os.environ.get(EXTRA_SCHEMES, "")) if s]


def environment() -> dict[str, str]:
    """What a job needs to accept what this process accepts."""
    return {EXTRA_SCHEMES: ",".join(extra_schemes())} if extra_schemes() else {}
