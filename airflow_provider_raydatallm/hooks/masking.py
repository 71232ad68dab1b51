"""Secrets of a connection stay out of task logs, in whichever form they would appear there."""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from airflow.sdk.log import mask_secret

_AUTHORIZATION = re.compile(r"\s*(bearer|basic|token|apikey)\s+(.+)", re.IGNORECASE | re.DOTALL)


def mask(secret: str) -> None:
    """Mask a text, also as URLs, JSON and `repr` write it; of `Bearer <token>` and the like also the latter
    part alone, of a URL also its user and password.

    Talks to Airflow's supervisor: not for the thread of an event loop."""
    _mask_forms(secret)
    if found := _AUTHORIZATION.fullmatch(secret):
        _mask_forms(found[2])
        if found[1].lower() == "basic":
            with suppress(ValueError):
                _mask_user_and_password(base64.b64decode(found[2]).decode())
    mask_credentials(secret)


def mask_all(value: Any) -> None:
    """Mask every text within a JSON value, at whatever depth, also within texts that are JSON themselves."""
    todo = [value]
    while todo:
        match todo.pop():
            case dict() as members:
                todo.extend(members.values())
            case list() as items:
                todo.extend(items)
            case str() as text:
                mask(text)
                if text.lstrip().startswith(("{", "[", '"')):
                    with suppress(ValueError, RecursionError):
                        todo.append(json.loads(text))
            case int() | float() as number if not isinstance(number, bool):
                mask(str(number))


def mask_credentials(url: str) -> None:
    """Mask user and password of a URL, if it has any."""
    credentials, at, _ = url.partition("://")[2].rpartition("@")
    if at:
        _mask_user_and_password(credentials)


def without_credentials(url: str) -> str:
    """A URL as it may be shown, also when it is none."""
    scheme, separator, rest = url.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]


def _mask_user_and_password(credentials: str) -> None:
    user, _, password = (unquote(part) for part in credentials.partition(":"))
    # What a proxy is sent.
    header = base64.b64encode(f"{user}:{password}".encode()).decode()
    for secret in (credentials, user, password, header):
        _mask_forms(secret)


def _mask_forms(secret: str) -> None:
    forms = {secret, secret.strip(), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    forms |= {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    for form in forms:
        mask_secret(form)
