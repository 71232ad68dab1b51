"""Requests that were in engines when they died, known to all feeders of a slice through the cluster's
key-value store: otherwise each feeder would send an identical one to an engine, twice."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_raydatallm.processor.ray_runtime.cluster_store import ClusterStore


class SuspectKeys:
    """Picklable."""

    def __init__(self, run: str) -> None:
        """:param run: a name that no other run has."""
        self._store = ClusterStore.of_kind("suspect", run)

    def add(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._store.put(key.hex())

    def read(self) -> set[bytes]:
        """Returns the keys that feeders have added."""
        return {bytes.fromhex(name) for name in self._store.names()}

    def forget(self) -> None:
        self._store.clear()
