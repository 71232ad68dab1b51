"""Masks the secrets of connections in task logs, in every form in which they may appear there."""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from airflow.sdk.log import mask_secret

from airflow_provider_raydatallm.contract.log.redaction import encodings

_AUTHORIZATION = re.compile(r"\s*(bearer|basic|token|apikey)\s+(.+)", re.IGNORECASE | re.DOTALL)


def mask(secret: str) -> None:
    """Masks a text in all its encodings; of `Bearer TOKEN` and the like also the token alone, of a URL also
    its user and password.

    Talks to Airflow's supervisor, so it must not run in an event loop's thread."""
    _mask_forms(secret)
    if authorization := _AUTHORIZATION.fullmatch(secret):
        scheme, credentials = authorization.groups()
        _mask_forms(credentials)
        if scheme.lower() == "basic":
            with suppress(ValueError):
                _mask_user_and_password(base64.b64decode(credentials).decode())
    mask_credentials(secret)


def mask_all(value: Any) -> None:
    """Masks every text in a JSON value, at any depth, including texts that are JSON themselves."""
    pending = [value]
    while pending:
        match pending.pop():
            case dict() as members:
                pending.extend(members.values())
            case list() as items:
                pending.extend(items)
            case str() as text:
                mask(text)
                if text.lstrip().startswith(("{", "[", '"')):
                    with suppress(ValueError, RecursionError):
                        pending.append(json.loads(text))
            case int() | float() as number if not isinstance(number, bool):
                mask(str(number))


def mask_credentials(url: str) -> None:
    """Masks user and password of a URL, if it has any."""
    credentials, at, _ = url.partition("://")[2].rpartition("@")
    if at:
        _mask_user_and_password(credentials)


def without_credentials(url: str) -> str:
    """Removes user and password from a URL, also from an invalid one."""
    scheme, separator, rest = url.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]


def _mask_user_and_password(credentials: str) -> None:
    user, _, password = (unquote(part) for part in credentials.partition(":"))
    header = base64.b64encode(f"{user}:{password}".encode()).decode()
    for secret in (credentials, user, password, header):
        _mask_forms(secret)


def _mask_forms(secret: str) -> None:
    mask_secret(sorted(encodings(secret)))  # type: ignore[arg-type]  # one message to the supervisor
