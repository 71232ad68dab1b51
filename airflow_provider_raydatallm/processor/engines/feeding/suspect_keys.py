"""Requests that were in engines when they died, known to all feeders of a slice through the cluster's
key-value store: otherwise each feeder would send an identical one to an engine, twice."""

from __future__ import annotations

from collections.abc import Iterable

_PREFIX = b"ray-llm-suspect "


class SuspectKeys:
    """Picklable."""

    def __init__(self, run: str) -> None:
        """:param run: a name that no other run has."""
        self._prefix = _PREFIX + run.encode() + b" "

    def add(self, keys: Iterable[bytes]) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        for key in keys:
            _internal_kv_put(self._prefix + key.hex().encode(), b"")

    def read(self) -> set[bytes]:
        """Returns the keys that feeders have added."""
        from ray.experimental.internal_kv import _internal_kv_list

        names = _internal_kv_list(self._prefix)
        return {bytes.fromhex(name.removeprefix(self._prefix).decode()) for name in names}

    def forget(self) -> None:
        from ray.experimental.internal_kv import _internal_kv_del

        _internal_kv_del(self._prefix, del_by_prefix=True)
