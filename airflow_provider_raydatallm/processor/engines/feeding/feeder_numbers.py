"""Numbers a slice's feeders, which Ray Data starts all alike, through the cluster's key-value store."""

from __future__ import annotations

import itertools
import time

_PREFIX = b"ray-llm-feeder "
_RECOUNT_SECONDS = 2.0


class FeederNumbers:
    """Picklable."""

    def __init__(self, run: str, most: int) -> None:
        """
        :param run: a name that no other run has.
        :param most: feeders at once.
        """
        self._prefix = _PREFIX + run.encode() + b" "
        self._most = most
        self._count, self._counted_at = 1, -_RECOUNT_SECONDS

    def take(self) -> int:
        """Returns a number that no other feeder has; one that was started again counts as another."""
        from ray.experimental.internal_kv import _internal_kv_put

        return next(
            number
            for number in itertools.count()
            # It returns whether the key was there.
            if not _internal_kv_put(self._prefix + str(number).encode(), b"", overwrite=False)
        )

    def count(self) -> int:
        """Returns the feeders that there are, at most `most`."""
        from ray.experimental.internal_kv import _internal_kv_list

        if time.monotonic() - self._counted_at >= _RECOUNT_SECONDS:
            self._counted_at = time.monotonic()
            self._count = max(1, min(self._most, len(_internal_kv_list(self._prefix))))
        return self._count

    def forget(self) -> None:
        from ray.experimental.internal_kv import _internal_kv_del

        _internal_kv_del(self._prefix, del_by_prefix=True)
