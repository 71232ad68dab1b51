"""A cluster's key-value store, in this process."""

from __future__ import annotations

import pytest


def replace_store(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Returns what is in it."""
    keys: dict[str, bytes] = {}

    def delete(key: str, *, del_by_prefix: bool = False) -> None:
        for name in [name for name in keys if name == key or (del_by_prefix and name.startswith(key))]:
            del keys[name]

    kv = "ray.experimental.internal_kv._internal_kv_"
    monkeypatch.setattr(f"{kv}put", lambda key, value: keys.update({key: value.encode()}))
    monkeypatch.setattr(f"{kv}get", keys.get)
    monkeypatch.setattr(f"{kv}del", delete)
    monkeypatch.setattr(
        f"{kv}list", lambda prefix: [name.encode() for name in keys if name.startswith(prefix)]
    )
    return keys
