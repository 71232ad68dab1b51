"""The actor through which a slice's feeders answer identical requests once.

Feeders claim requests by key, infer those they claimed, and copy the answers to the others from the actor,
which also has those of other slices (`answer_cache`). There is no deadlock: a feeder adds the answers to all
that it claimed before it waits for any. What is lost (the actor's memory, a feeder that died, an evicted
answer) is inferred again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.processor.columns import ANSWER_FIELDS, SHARED_FIELDS
from airflow_provider_raydatallm.processor.engines.dedup.answer_cache import AnswerCache
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheNamespace

#: Columns that are equal for all rows with the same request.
ANSWER_COLUMNS = tuple(f.name for f in SHARED_FIELDS)
#: Columns that feeders add for an inferred answer, and those that they copy.
ADDED_COLUMNS = (*ANSWER_COLUMNS, "input_tokens", "output_tokens")
COPIED_COLUMNS = (*ANSWER_COLUMNS, "cached", "saved_tokens")

_COPIED_SCHEMA = pa.schema([f for f in ANSWER_FIELDS if f.name in COPIED_COLUMNS])
_OF_THIS_SLICE = {"cached": False, "saved_tokens": 0}
#: Memory for answers (the oldest go first), and bytes added per key.
_MAX_BYTES = 256 << 20
_BYTES_PER_KEY = 700
#: A feeder that sent no heartbeat for so long has died.
_DEAD_SECONDS = 60.0
#: Longest wait of a feeder for its first answer, before it asks again.
_WAIT_SECONDS = 5.0
#: Wait for more answers: delivering a group of copies costs as much as delivering one of answers.
_GROUP_SECONDS = 3.0
_POLL_SECONDS = 0.1
#: Feeders' total wait for the cache to load; an engine takes longer to start.
_LOAD_SECONDS = 10.0


class DedupCoordinator:
    def __init__(self, namespace: CacheNamespace | None = None, max_bytes: int = _MAX_BYTES) -> None:
        """:param namespace: of the cache that slices share."""
        self._cache = AnswerCache.open(namespace) if namespace is not None else None
        self._load_deadline: float | None = None
        self._max_bytes = max_bytes
        self._bytes = 0
        self._claims: dict[bytes, tuple[str, str]] = {}  # feeder and call
        self._answers: dict[bytes, dict[str, Any]] = {}
        self._failed_once: set[bytes] = set()
        self._groups: deque[tuple[list[bytes], int]] = deque()  # keys and bytes, the oldest first
        self._heartbeats: dict[str, float] = {}

    async def heartbeat(self, feeder: str) -> None:
        self._heartbeats[feeder] = time.monotonic()

    async def claim(self, feeder: str, call: str, keys: list[bytes]) -> list[bool]:
        """Claims the keys that have no answer and no other claim. Returns which of them this feeder is to
        infer: the same when Ray repeats the call."""
        await self._wait_for_cache()
        await self.heartbeat(feeder)
        is_mine = []
        for key, position in zip(keys, self._find_cached(keys), strict=True):
            is_free = position < 0 and key not in self._answers and not self._is_claimed(key)
            if is_free:
                self._claims[key] = feeder, call
            is_mine.append(is_free or self._claims.get(key) == (feeder, call))
        return is_mine

    async def release(self, keys: list[bytes]) -> None:
        """Gives up claims whose keys were not answered."""
        for key in keys:
            self._claims.pop(key, None)

    async def add_answers(self, keys: list[bytes], answers: pa.Table) -> None:
        """:param answers: `ADDED_COLUMNS`, a row for each key."""
        if self._cache is not None:
            self._cache.add(keys, answers)
        size = 0
        for key, answer in zip(keys, answers.select(ANSWER_COLUMNS).to_pylist(), strict=True):
            self._claims.pop(key, None)
            if answer["error"] is not None and key not in self._failed_once:
                # The first error may be one row's bad luck: the next row with this request tries again.
                self._failed_once.add(key)
                continue
            self._answers[key] = answer
            size += _BYTES_PER_KEY + len(answer["text"] or "") + len(answer["error"] or "")
        self._groups.append((keys, size))
        self._bytes += size
        while self._bytes > self._max_bytes and len(self._groups) > 1:
            oldest, size = self._groups.popleft()
            self._bytes -= size
            for key in oldest:
                self._answers.pop(key, None)

    async def wait_for_answers(self, keys: list[bytes]) -> tuple[list[int], pa.Table, list[int]]:
        """Waits until all keys have answers, or some seconds if some have.

        Returns the indices of the keys that have answers, their answers (`COPIED_COLUMNS`), and the indices
        of the keys that no feeder is inferring any more.
        """
        began = time.monotonic()
        positions = self._find_cached(keys)
        cached = [i for i in np.flatnonzero(positions >= 0).tolist() if keys[i] not in self._answers]
        uncached = sorted(set(range(len(keys))) - set(cached))
        while True:
            own = [i for i in uncached if keys[i] in self._answers]
            lost = [i for i in uncached if keys[i] not in self._answers and not self._is_claimed(keys[i])]
            known, waited = own + cached, time.monotonic() - began
            if lost or len(known) == len(keys) or waited >= (_GROUP_SECONDS if known else _WAIT_SECONDS):
                answers = [self._answers[keys[i]] | _OF_THIS_SLICE for i in own]
                tables = [pa.Table.from_pylist(answers, _COPIED_SCHEMA)]
                if self._cache is not None and cached:
                    tables.append(_copies_of(self._cache.entries_at(positions[cached])))
                return known, pa.concat_tables(tables), lost
            await asyncio.sleep(_POLL_SECONDS)  # waking up at each `add_answers` would be far more often

    async def close(self) -> None:
        """Stores new answers for other slices."""
        if self._cache is not None:
            await asyncio.to_thread(self._cache.close)

    async def _wait_for_cache(self) -> None:
        if self._cache is None:
            return
        if self._load_deadline is None:
            self._load_deadline = time.monotonic() + _LOAD_SECONDS
        while not self._cache.is_loaded and time.monotonic() < self._load_deadline:
            await asyncio.sleep(_POLL_SECONDS)

    def _find_cached(self, keys: list[bytes]) -> np.ndarray:
        """`AnswerCache.find`."""
        return self._cache.find(keys) if self._cache is not None else np.full(len(keys), -1)

    def _is_claimed(self, key: bytes) -> bool:
        claim = self._claims.get(key)
        return claim is not None and time.monotonic() - self._heartbeats[claim[0]] < _DEAD_SECONDS


def _copies_of(entries: pa.Table) -> pa.Table:
    tokens = pc.add(entries.column("input_tokens"), entries.column("output_tokens"))
    columns = {n: entries.column(n) for n in ANSWER_COLUMNS if n in entries.schema.names}
    columns |= {"cached": [True] * entries.num_rows, "saved_tokens": tokens}
    missing = {f.name: pa.nulls(entries.num_rows) for f in _COPIED_SCHEMA if f.name not in columns}
    return pa.table(columns | missing).select(_COPIED_SCHEMA.names).cast(_COPIED_SCHEMA)
