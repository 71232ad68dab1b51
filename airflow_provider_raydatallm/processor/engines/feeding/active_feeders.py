"""Which of a slice's feeders have rows to send, known to each through the cluster's key-value store.

Only they share the workers. Ray Data gives most blocks to the feeders that start first, and at the end of a
slice few feeders have any left: their rows fill all workers all the same. A feeder that died stays in the
store, but renews its entry no longer, and loses its share after some seconds.
"""

from __future__ import annotations

import time

from airflow_provider_raydatallm.processor.ray_runtime.cluster_store import ClusterStore

_LOOK_SECONDS = 2.0
#: Without rows to send, after which a feeder no longer counts: it may get a block at once.
_IDLE_SECONDS = 5.0
#: Without a renewal, after which an entry's feeder counts as dead. One that is idle removes its own sooner.
_DEAD_SECONDS = 10.0


class ActiveFeeders:
    """Picklable; each feeder has its own."""

    def __init__(self, run: str) -> None:
        """:param run: a name that no other run has."""
        self._store = ClusterStore.of_kind("feeder", run)
        #: This feeder's, while it counts: its name, and a text that each renewal changes.
        self._entry: str | None = None
        #: Of all entries. Clocks of nodes differ: only this one's tells how old an entry is.
        self._first_seen: dict[str, float] = {}
        self._rows_seen_at = self._renewed_at = self._looked_at = -_IDLE_SECONDS
        self._place = 0, 1

    def place(self, feeder: str, has_rows: bool) -> tuple[int, int]:
        """Tells the others whether a feeder has rows to send.

        Returns its place among those that have, from 0, and their number, which includes this one.
        """
        now = time.monotonic()
        if has_rows:
            self._rows_seen_at = now
            # Only now: an entry that came after `forget` would stay.
            if self._entry is None or now - self._renewed_at >= _LOOK_SECONDS:
                self._renewed_at = now
                self._replace_entry(f"{feeder} {now}")
        elif now - self._rows_seen_at >= _IDLE_SECONDS:
            self._replace_entry(None)
        if self._entry is not None and now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._first_seen = {entry: self._first_seen.get(entry, now) for entry in self._store.names()}
            alive = [entry for entry, seen in self._first_seen.items() if now - seen < _DEAD_SECONDS]
            feeders = sorted({feeder, *(entry.split()[0] for entry in alive)})
            self._place = feeders.index(feeder), len(feeders)
        return self._place

    def _replace_entry(self, entry: str | None) -> None:
        if entry is not None:
            self._store.put(entry)
        if self._entry is not None:
            self._store.delete(self._entry)
        self._entry = entry

    def forget(self) -> None:
        self._store.clear()
