"""Which of a slice's feeders have rows to send, known to each through the cluster's key-value store.

Only they share the workers. Ray Data gives most blocks to the feeders that start first, and at the end of a
slice few feeders have any left: their rows fill all workers all the same.
"""

from __future__ import annotations

import time

_PREFIX = b"ray-llm-feeder "
_LOOK_SECONDS = 2.0
#: Without rows to send, after which a feeder no longer counts: it may get a block at once.
_IDLE_SECONDS = 5.0


class ActiveFeeders:
    """Picklable; each feeder has its own."""

    def __init__(self, run: str, most: int) -> None:
        """
        :param run: a name that no other run has.
        :param most: feeders at once.
        """
        self._prefix = _PREFIX + run.encode() + b" "
        self._most = most
        self._is_listed = False
        self._rows_seen_at = self._looked_at = -_IDLE_SECONDS
        self._place = 0, 1

    def place(self, feeder: str, has_rows: bool) -> tuple[int, int]:
        """Tells the others whether a feeder has rows to send.

        Returns its place among those that have, from 0, and their number, which includes this one.
        """
        from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_list, _internal_kv_put

        now, mine = time.monotonic(), self._prefix + feeder.encode()
        if has_rows:
            self._rows_seen_at = now
        is_active = now - self._rows_seen_at < _IDLE_SECONDS
        if is_active != self._is_listed:
            (_internal_kv_put(mine, b"") if is_active else _internal_kv_del(mine))
            self._is_listed = is_active
        if is_active and now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            listed = sorted({*_internal_kv_list(self._prefix), mine})
            # Feeders that died stay listed.
            count = min(self._most, len(listed))
            self._place = listed.index(mine) % count, count
        return self._place

    def forget(self) -> None:
        from ray.experimental.internal_kv import _internal_kv_del

        _internal_kv_del(self._prefix, del_by_prefix=True)
