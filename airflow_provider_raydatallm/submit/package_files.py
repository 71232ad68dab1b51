"""Which files of a package travel to the cluster: all but hidden ones, caches, and what looks like a secret.

Whoever holds the cluster's token can read a package. So a key beside the code stays here, and a link out of
the package is refused by name: it would send whatever this machine has there.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.contract.log.secret_shapes import holds_secret
from airflow_provider_raydatallm.exceptions import RayLLMInputError

log = logging.getLogger(__name__)

_SKIPPED_NAMES = frozenset({"__pycache__", "node_modules", ".git", ".venv", "venv"})
_SECRET_NAME = re.compile(
    r"(?:id_(rsa|dsa|ecdsa|ed25519)"
    r"|.*\.(key|p12|pfx|jks|keystore|kdbx|ppk|env|kubeconfig|tfstate|tfvars|ovpn|gpg)"
    r"|([\w.-]*[_.-])?credentials?(\.(json|ya?ml|toml|ini|cfg|csv|txt))?"
    r"|secrets?\.(json|ya?ml|toml|ini|cfg|txt)|client[_-]?secret[\w.-]*\.json"
    r"|service[_-]?account[\w.-]*\.json"
    r"|([\w.-]*[_.-])?token(\.(json|txt))?|passwords?\.(json|ya?ml|csv|txt)"
    r"|kubeconfig[\w.-]*|_?netrc|pgpass\.conf|htpasswd|airflow\.cfg)(\.(bak|backup|old|orig)|~)?",
    re.IGNORECASE | re.DOTALL,
)
#: Of files in any format, such as a PEM or the JSON of a service account.
_PRIVATE_KEY = re.compile(
    rb"PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File|" + re.escape("PRIVATE KEY-----".encode("utf-16-le"))
)
#: Of settings that may hold one, up to a size that is read at once.
_SETTINGS = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".txt", ".ipynb", "")
_SETTINGS_BYTES = 1 << 20
MAX_PACKAGE_BYTES = 100 << 20
#: Names in a message.
_MOST_NAMES = 5


def read_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yields names and contents of all files of the provider's own package."""
    for name, path in _walk(root, root.resolve(), (), may_lead_out=True):
        yield name, path.read_bytes()


def user_files(root: Path) -> dict[str, bytes]:
    """Returns names and contents of those files of a user's package that travel.

    :raises RayLLMInputError: for a link that leads out of it, and for code that names a file which looks like
        a secret: on the cluster, it would miss it.
    """
    files: dict[str, bytes] = {}
    secrets: set[str] = set()
    size = 0
    for name, path in _walk(root, root.resolve(), ()):
        files[name] = path.read_bytes()
        check_size(size := size + len(files[name]), str(root))
        # A link's target may say what it is.
        if any(_looks_like_secret(known, files[name]) for known in {path.name, path.resolve().name}):
            secrets.add(name)
    sent = {name: data for name, data in files.items() if name not in secrets}
    if secrets:
        _check_not_named(root, secrets, sent)
        names = [*map(plain_text, sorted(secrets)[:_MOST_NAMES]), *["..."] * (len(secrets) > _MOST_NAMES)]
        log.warning(
            "Left out of the code that is sent (%s), since they look like secrets: %s",
            plain_text(str(root)), ", ".join(names),
        )  # fmt: skip
    return sent


def check_size(total_bytes: int, source: str) -> None:
    """:raises RayLLMInputError: when a package's files are over 100 MiB."""
    if total_bytes > MAX_PACKAGE_BYTES:
        raise RayLLMInputError(
            f"{source} holds more than {MAX_PACKAGE_BYTES >> 20} MiB of files",
            advice="Name only the package that the functions need in code_paths",
        )


def _walk(
    folder: Path, root: Path, above: tuple[Path, ...], *, may_lead_out: bool = False, prefix: str = ""
) -> Iterator[tuple[str, Path]]:
    """Yields the files in a folder by their names in the package.

    :param root: of the package, and `above`, the folders between, without links.
    """
    above = (*above, folder.resolve())
    for path in sorted(folder.iterdir()):
        name = f"{prefix}{path.name}"
        if _is_skipped(path.name):
            continue
        if path.is_symlink() and not may_lead_out:
            _check_link(path, root, above)
        if path.is_dir():
            yield from _walk(path, root, above, may_lead_out=may_lead_out, prefix=f"{name}/")
        elif path.is_file():
            yield name, path


def _is_skipped(name: str) -> bool:
    return name in _SKIPPED_NAMES or name.startswith(".") or name.endswith(".pyc")


def _check_link(path: Path, root: Path, above: tuple[Path, ...]) -> None:
    """:raises RayLLMInputError: for a link that leads out of the package, to what of it does not travel, or
    to a folder that it is in."""
    target = Path(os.path.realpath(path))
    is_inside = target.is_relative_to(root) and not any(map(_is_skipped, target.relative_to(root).parts))
    if not is_inside or target in above:
        where = "to a folder that it is in" if target in above else f"to {str(target)!r}, which is not sent"
        raise RayLLMInputError(
            f"code_paths: {str(path)!r} is a link in a package that is sent to the cluster, and leads "
            f"{where}",
            advice="Put the file itself there, or name what is needed in code_paths",
        )


def _looks_like_secret(name: str, data: bytes) -> bool:
    if name.endswith(".py"):
        return False
    if _SECRET_NAME.fullmatch(name) is not None or _PRIVATE_KEY.search(data) is not None:
        return True
    is_settings = Path(name).suffix.lower() in _SETTINGS and len(data) <= _SETTINGS_BYTES
    return is_settings and holds_secret(data.decode(errors="replace"))


def _check_not_named(root: Path, secrets: set[str], files: Mapping[str, bytes]) -> None:
    names = {name.rpartition("/")[2] for name in secrets}
    named = re.compile(
        rb"""["'/\\](%s)["']""" % b"|".join(re.escape(os.fsencode(name)) for name in sorted(names))
    )
    for name, data in files.items():
        if name.endswith(".py") and (match := named.search(data)):
            raise RayLLMInputError(
                f"code_paths: {name!r} of {str(root)!r} names {os.fsdecode(match[1])!r}, which looks like a "
                "secret and is not sent to the cluster, where each holder of its token could read it",
                advice=(
                    "Give what it holds by a connection (model_conn_id, storage_conn_id) or by the cluster's "
                    "nodes",
                    "If it is no secret, rename it",
                ),
            )
