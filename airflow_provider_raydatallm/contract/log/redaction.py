"""Refuses secrets in arguments, and removes known ones from text in any encoding, all others by their shape.

The one redactor of both sides: worker and triggerer hand `encodings` to Airflow's masker (`hooks/masking`),
and a job redacts what it prints by the secrets of its own environment (`processor/job`). Pure.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from airflow_provider_raydatallm.contract.log.secret_shapes import (
    MASK,
    MIN_CHARACTERS,
    holds_secret,
    is_secret_name,
    without_secrets,
)

_PASSWORD = re.compile(r"://[^/\s:@]*:([^/\s]+)@")
#: A password, which templates may fill in; the user of a web address, often a token; anything before the @
#: of a bucket, where a secret may hold a slash. `ssh://git@host` is fine.
_IN_ADDRESS = re.compile(
    r"://[^/:@\n]*:[^/@\n]+@|https?://[^/@\n]+@|\b(?:s3a?|gs|gcs)://(?:[^:@\n]{0,999}:[^@\n]{0,999}|[^/@\n]*)@"
)


def environment_secrets(environment: Mapping[str, str]) -> set[str]:
    """Returns the values of variables with a secret's name, and the passwords of addresses in all others."""
    secrets = {value for name, value in environment.items() if is_secret_name(name)}
    for value in environment.values():
        for password in _PASSWORD.findall(value):
            secrets |= {password, unquote(password)}
    return secrets


def check_no_secrets(name: str, value: Any) -> None:
    """:raises ValueError: when an argument holds a secret, at any depth, naming the key but not the value."""
    for path, problem in _find_secrets(name, value):
        raise ValueError(
            f"{path} {problem}, and would be stored, logged and shown: leave it out. The model hub's token "
            "goes into the connection of model_conn_id, keys of the storage into that of storage_conn_id, "
            "and all others into the environment of the cluster's nodes"
        )


def _find_secrets(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            place = f"{path}[{key!r}]"
            if isinstance(item, str) and len(item) >= MIN_CHARACTERS and is_secret_name(str(key)):
                yield place, "looks like a secret"
            yield from _find_secrets(place, item)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _find_secrets(f"{path}[{i}]", item)
    elif isinstance(value, str) and _IN_ADDRESS.search(value):
        yield path, "is an address with a user or a password"
    elif isinstance(value, str) and holds_secret(value):
        yield path, "looks like a secret, or a signed address"


class Redactor:
    """Replaces secrets in text by `***`: those that are given, and what looks like one."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {f for s in secrets if len(s.strip()) >= MIN_CHARACTERS for f in encodings(s)}
        longest_first = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def text(self, text: str) -> str:
        return without_secrets(text if self._pattern is None else self._pattern.sub(MASK, text))

    def value(self, value: Any) -> Any:
        """Redacts every text in a JSON value, and all of those with a secret's name."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {
                    self.text(name): MASK
                    if isinstance(item, str) and len(item) >= MIN_CHARACTERS and is_secret_name(name)
                    else self.value(item)
                    for name, item in value.items()
                }
            case list():
                return [self.value(item) for item in value]
        return value


def encodings(secret: str) -> set[str]:
    """Returns the texts in which a secret may appear: as it is and line by line, as JSON, `repr`, URLs and
    base64 write it, also within a longer text that is in base64."""
    forms: set[str] = set()
    for text in {secret, secret.strip(), *(line for line in secret.splitlines() if len(line) >= 16)}:
        escaped = json.dumps(text)[1:-1]
        forms |= {text, escaped, json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}
        forms |= {escaped.replace("/", "\\/"), json.dumps(escaped)[1:-1]}
        for encoded in (*(quote(text, safe=safe) for safe in ("/", "", "!'()*")), quote_plus(text)):
            forms |= {encoded, re.sub("%..", lambda code: code[0].lower(), encoded), quote(encoded, safe="")}
        forms |= _base64(text.encode())
    return forms - {""}


def _base64(data: bytes) -> set[str]:
    """Returns the characters that stand for `data` alone, wherever it begins within what is encoded."""
    forms = set()
    for offset in range(3):
        begin, end = -(-offset * 8 // 6), (offset + len(data)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            forms.add(encode(bytes(offset) + data).decode()[begin:end])
    return forms
