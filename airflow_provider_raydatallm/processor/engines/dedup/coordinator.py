"""The actors through which a slice's feeders answer identical requests once.

Each has its `Shard` of all keys. Feeders claim requests by key, infer those they claimed, and copy the
answers to the others from the actors, which also have those of other slices (`answer_cache`). There is no
deadlock: a feeder adds the answers to all that it claimed before it waits for any. What is lost (an actor's
memory, a feeder that died, an evicted answer) is inferred again. Ray may repeat a call: that changes nothing.

A call costs hundreds of microseconds, a key in it less than one: calls are for blocks and groups of rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.processor.columns import ANSWER_FIELDS, SHARED_FIELDS
from airflow_provider_raydatallm.processor.engines.dedup.answer_cache import AnswerCache
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheNamespace
from airflow_provider_raydatallm.processor.engines.dedup.messages import pack, split_keys, unpack
from airflow_provider_raydatallm.processor.engines.dedup.recent_answers import RecentAnswers
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import ALL_KEYS, Shard
from airflow_provider_raydatallm.processor.ray_runtime.slice_log import start_log

#: Columns that are equal for all rows with the same request.
ANSWER_COLUMNS = tuple(f.name for f in SHARED_FIELDS)
#: Columns that feeders add for an inferred answer, and those that they copy.
ADDED_COLUMNS = (*ANSWER_COLUMNS, "input_tokens", "output_tokens", "is_invalid")
COPIED_COLUMNS = (*ANSWER_COLUMNS, "cached", "saved_tokens")

_TYPES = {**{f.name: f.type for f in ANSWER_FIELDS}, "is_invalid": pa.bool_()}
_ANSWER_SCHEMA = pa.schema([(name, _TYPES[name]) for name in ANSWER_COLUMNS])
#: Of packed answers (`messages`).
ADDED_SCHEMA = pa.schema([(name, _TYPES[name]) for name in ADDED_COLUMNS])
COPIED_SCHEMA = pa.schema([(name, _TYPES[name]) for name in COPIED_COLUMNS])
#: Memory for answers; the oldest go first.
_MAX_BYTES = 256 << 20
#: A feeder that sent no heartbeat for so long has died.
_DEAD_SECONDS = 60.0
#: Longest wait of a feeder for answers, before it gets those that exist and asks again: delivering a group of
#: copies costs as much as delivering one of answers.
_WAIT_SECONDS = 3.0
#: Feeders' total wait for the cache to load; an engine takes longer to start.
_LOAD_SECONDS = 10.0
#: Calls that are known when Ray repeats them.
_KNOWN_CALLS = 10_000


class _Claim:
    """The keys that one call claimed."""

    def __init__(self, feeder: str, call: str) -> None:
        self.feeder = feeder
        self.call = call
        self.open_keys = 0
        self.settled = asyncio.Event()

    def settle(self) -> None:
        """One of its keys is answered, or given up."""
        self.open_keys -= 1
        if not self.open_keys:
            self.settled.set()


class DedupCoordinator:
    """Keys come joined, and answers packed (`messages`)."""

    def __init__(
        self,
        namespace: CacheNamespace | None = None,
        shard: Shard = ALL_KEYS,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        """:param namespace: of the cache that slices share."""
        start_log()
        self._cache = AnswerCache.open(namespace, shard) if namespace is not None else None
        self._loading: asyncio.Task[None] | None = None
        self._answers = RecentAnswers(_ANSWER_SCHEMA, max_bytes)
        #: Who infers a key, or the position of its answer.
        self._entries: dict[bytes, _Claim | int] = {}
        self._first_failures: dict[bytes, str] = {}  # the calls that added them
        self._claims: OrderedDict[str, _Claim] = OrderedDict()  # by call
        self._heartbeats: dict[str, float] = {}

    async def heartbeat(self, feeder: str) -> None:
        self._heartbeats[feeder] = time.monotonic()

    async def claim(self, feeder: str, call: str, joined_keys: bytes) -> list[bool]:
        """Claims the keys that have no answer and no other claim. Returns which of them this feeder is to
        infer.

        :param call: unique; the same when Ray repeats it.
        """
        await self._wait_for_cache()
        await self.heartbeat(feeder)
        keys = split_keys(joined_keys)
        if call not in self._claims:
            claim = self._claims[call] = _Claim(feeder, call)
            if len(self._claims) > _KNOWN_CALLS:
                self._claims.popitem(last=False)
            for key, position in zip(keys, self._find_cached(keys).tolist(), strict=True):
                if position < 0:
                    owner = self._entries.setdefault(key, claim)
                    if owner is not claim and isinstance(owner, _Claim) and not self._is_alive(owner):
                        self._entries[key] = claim
                        owner.settle()
            claim.open_keys = sum(self._owns(claim, keys))
        return self._owns(self._claims[call], keys)

    def _owns(self, claim: _Claim, keys: Sequence[bytes]) -> list[bool]:
        return [self._entries.get(key) is claim for key in keys]

    async def release(self, call: str, joined_keys: bytes) -> None:
        """Gives up those of a call's claims that were not answered."""
        for key in split_keys(joined_keys):
            owner = self._entries.get(key)
            if isinstance(owner, _Claim) and owner.call == call:
                del self._entries[key]
                owner.settle()

    async def forget_claims(self) -> None:
        """Gives up what feeders claimed, for all of them are gone."""
        claimed = [(key, owner) for key, owner in self._entries.items() if isinstance(owner, _Claim)]
        for key, owner in claimed:
            del self._entries[key]
            owner.settle()

    async def add_answers(self, call: str, joined_keys: bytes, packed_answers: bytes) -> None:
        """Takes answers, also to keys that nobody claimed. A key's first answer stays.

        :param call: as for `claim`.
        :param packed_answers: `ADDED_SCHEMA`, a row for each key.
        """
        keys, answers = split_keys(joined_keys), unpack(packed_answers, ADDED_SCHEMA)
        added: list[int] = []
        has_failed = answers.column("error").is_valid().to_pylist()
        for i, key in enumerate(keys):
            owner = self._entries.get(key)
            if isinstance(owner, int):
                continue
            if owner is not None:
                owner.settle()
            if has_failed[i] and self._first_failures.setdefault(key, call) == call:
                # The first error may be one row's bad luck: the next row with this request tries again.
                self._entries.pop(key, None)
                continue
            self._entries[key] = self._answers.end + len(added)
            added.append(i)
        if added:
            keys = [keys[i] for i in added]
            answers = answers.take(pa.array(added))
            if self._cache is not None:
                self._cache.add(keys, answers)
            for key in self._answers.append(keys, answers.select(ANSWER_COLUMNS)):
                del self._entries[key]

    async def wait_for_answers(self, joined_keys: bytes) -> tuple[list[int], bytes, list[int]]:
        """Waits some seconds for the keys' answers, unless some are lost.

        Returns the indices of the keys that have answers, their answers (`COPIED_SCHEMA`), and the indices
        of the keys that no feeder is inferring any more.
        """
        keys = split_keys(joined_keys)
        cached = self._find_cached(keys)
        owners = self._owners(keys)
        if not self._lost(owners, cached):
            waits = np.flatnonzero(cached < 0).tolist()
            claims = {owner for i in waits if isinstance(owner := owners[i], _Claim)}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WAIT_SECONDS):
                    for claim in claims:
                        await claim.settled.wait()
            owners = self._owners(keys)
        positions = {i: owner for i, owner in enumerate(owners) if isinstance(owner, int)}
        known = list(positions)
        copies = [_copies_of_this_slice(self._answers.take(list(positions.values())))]
        if self._cache is not None:
            of_others = [i for i in np.flatnonzero(cached >= 0).tolist() if i not in positions]
            copies.append(_copies_of_other_slices(self._cache.entries_at(cached[of_others])))
            known += of_others
        return known, pack(pa.concat_tables(copies), COPIED_SCHEMA), self._lost(owners, cached)

    def _owners(self, keys: Sequence[bytes]) -> list[_Claim | int | None]:
        return [self._entries.get(key) for key in keys]

    def _lost(self, owners: Sequence[_Claim | int | None], cached: np.ndarray) -> list[int]:
        return [
            i
            for i, owner in enumerate(owners)
            if not isinstance(owner, int) and cached[i] < 0 and (owner is None or not self._is_alive(owner))
        ]

    def _is_alive(self, claim: _Claim) -> bool:
        return time.monotonic() - self._heartbeats[claim.feeder] < _DEAD_SECONDS

    async def close(self) -> None:
        """Stores new answers for other slices."""
        if self._cache is not None:
            await asyncio.to_thread(self._cache.close)

    async def _wait_for_cache(self) -> None:
        if self._cache is None or self._cache.is_loaded:
            return
        if self._loading is None:
            loading = asyncio.to_thread(self._cache.wait_until_loaded, _LOAD_SECONDS)
            self._loading = asyncio.create_task(loading)
        await asyncio.shield(self._loading)

    def _find_cached(self, keys: list[bytes]) -> np.ndarray:
        """`AnswerCache.find`."""
        return self._cache.find(keys) if self._cache is not None else np.full(len(keys), -1)


def _copies_of_this_slice(answers: pa.Table) -> pa.Table:
    count = answers.num_rows
    columns = {"cached": pa.repeat(False, count), "saved_tokens": pa.repeat(0, count)}
    for name, values in columns.items():
        answers = answers.append_column(name, values.cast(_TYPES[name]))
    return answers


def _copies_of_other_slices(entries: pa.Table) -> pa.Table:
    tokens = pc.add(entries.column("input_tokens"), entries.column("output_tokens"))
    columns = {n: entries.column(n) for n in ANSWER_COLUMNS if n in entries.schema.names}
    columns |= {"cached": [True] * entries.num_rows, "saved_tokens": tokens}
    missing = {f.name: pa.nulls(entries.num_rows) for f in COPIED_SCHEMA if f.name not in columns}
    return pa.table(columns | missing).select(COPIED_SCHEMA.names).cast(COPIED_SCHEMA)
