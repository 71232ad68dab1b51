"""Rows that ask the same are answered once, whichever feeders they come to.

Feeders claim requests by their keys in one actor, have the engine answer those that are theirs, and take the
others' answers from it, as they do those that other slices got (`answer_cache`). Nobody waits for a feeder
that waits: each puts the answers to all that it claimed before it takes any. What is lost (the actor's
memory, a feeder that died, an answer that was forgotten) is asked again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract import fingerprint
from airflow_provider_raydatallm.processor.columns import ANSWER_FIELDS
from airflow_provider_raydatallm.processor.engines.dedup.answer_cache import AnswerCache
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheNamespace

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: Columns of an answer that are the same for all who ask.
ANSWER_COLUMNS = ("text", "finish_reason", "shortened", "error_type", "error")
#: What is told of an answer that was inferred, and of one that is taken.
SENT_COLUMNS = (*ANSWER_COLUMNS, "input_tokens", "output_tokens")
COPIED_COLUMNS = (*ANSWER_COLUMNS, "cached", "saved_tokens")

_TAKEN = pa.schema([f for f in ANSWER_FIELDS if f.name in COPIED_COLUMNS])
_OF_THIS_SLICE = {"cached": False, "saved_tokens": 0}
#: Answers that are kept, the newest, by their size; and what a key takes beside.
_BYTES = 256 << 20
_BYTES_PER_KEY = 700
#: Seconds between two signs of life of a feeder, and after which one that gives none has died.
_BEAT_SECONDS = 10.0
_DEAD_SECONDS = 60.0
#: For how long the actor keeps a feeder that takes answers, before it has it ask again.
_TAKE_SECONDS = 5.0
#: A group of copies costs as much as one of answers: it waits so long for more.
_SOME_SECONDS = 3.0
_LOOK_SECONDS = 0.1
#: Seconds that feeders wait, in all, for what is kept to be loaded: an engine that is started takes longer.
_LOAD_SECONDS = 10.0


def request_key(request: str) -> bytes:
    return hashlib.blake2b(request.encode(), digest_size=16).digest()


def is_deterministic(request: str) -> bool:
    """Whether the answer would be the same again: greedy sampling, or a seed."""
    return fingerprint.is_deterministic(json.loads(request)["sampling_params"])


class DedupCoordinator:
    """The actor."""

    def __init__(self, space: CacheNamespace | None = None, most_bytes: int = _BYTES) -> None:
        """:param space: of answers that are kept for other slices."""
        self._cache = AnswerCache.open(space) if space is not None else None
        self._wait_until: float | None = None
        self._most_bytes = most_bytes
        self._bytes = 0
        self._claimed: dict[bytes, tuple[str, str]] = {}  # by whom, and in which call
        self._answers: dict[bytes, dict[str, Any]] = {}
        self._failed: set[bytes] = set()
        self._groups: deque[tuple[list[bytes], int]] = deque()
        self._seen: dict[str, float] = {}

    async def heartbeat(self, feeder: str) -> None:
        self._seen[feeder] = time.monotonic()

    async def claim(self, feeder: str, call: str, keys: list[bytes]) -> list[bool]:
        """Which of the keys are this feeder's to have answered: those that nobody has or had. The same call
        again, which Ray may make, is told the same."""
        await self._load()
        self._seen[feeder] = time.monotonic()
        mine = []
        for key, kept in zip(keys, self._kept(keys) >= 0, strict=True):
            free = not kept and key not in self._answers and not self._is_claimed(key)
            mine.append(free or self._claimed.get(key) == (feeder, call))
            if free:
                self._claimed[key] = feeder, call
        return mine

    async def release(self, keys: list[bytes]) -> None:
        """Give up what was claimed and not answered."""
        for key in keys:
            self._claimed.pop(key, None)

    async def put(self, keys: list[bytes], answers: pa.Table) -> None:
        """:param answers: `TOLD_COLUMNS`, a row for each key."""
        if self._cache is not None:
            self._cache.add(keys, answers)
        size = 0
        for key, answer in zip(keys, answers.select(ANSWER_COLUMNS).to_pylist(), strict=True):
            self._claimed.pop(key, None)
            if answer["error"] is not None and key not in self._failed:
                # One row's bad luck is not that of all who ask the same: the next of them tries.
                self._failed.add(key)
                continue
            self._answers[key] = answer
            size += _BYTES_PER_KEY + len(answer["text"] or "") + len(answer["error"] or "")
        self._groups.append((keys, size))
        self._bytes += size
        while self._bytes > self._most_bytes and len(self._groups) > 1:
            oldest, size = self._groups.popleft()
            self._bytes -= size
            for key in oldest:
                self._answers.pop(key, None)

    async def take(self, keys: list[bytes]) -> tuple[list[int], pa.Table, list[int]]:
        """Which of the keys have answers, and these (`TAKEN_COLUMNS`); and which nobody will answer any more.
        As soon as all have, or after some seconds if some have."""
        began = time.monotonic()
        places = self._kept(keys)
        kept = [i for i in np.flatnonzero(places >= 0).tolist() if keys[i] not in self._answers]
        others = sorted(set(range(len(keys))) - set(kept))
        while True:
            own = [i for i in others if keys[i] in self._answers]
            lost = [i for i in others if keys[i] not in self._answers and not self._is_claimed(keys[i])]
            known, waited = own + kept, time.monotonic() - began
            if lost or len(known) == len(keys) or waited >= (_SOME_SECONDS if known else _TAKE_SECONDS):
                answers = [self._answers[keys[i]] | _OF_THIS_SLICE for i in own]
                tables = [pa.Table.from_pylist(answers, _TAKEN)]
                if self._cache is not None and kept:
                    tables.append(_taken(self._cache.take(places[kept])))
                return known, pa.concat_tables(tables), lost
            await asyncio.sleep(_LOOK_SECONDS)  # a look at each put would be many more

    async def close(self) -> None:
        """Have new answers kept for other slices."""
        if self._cache is not None:
            await asyncio.to_thread(self._cache.close)

    async def _load(self) -> None:
        """Wait for what is kept, but not for long."""
        if self._cache is None:
            return
        if self._wait_until is None:
            self._wait_until = time.monotonic() + _LOAD_SECONDS
        while not self._cache.is_loaded and time.monotonic() < self._wait_until:
            await asyncio.sleep(_LOOK_SECONDS)

    def _kept(self, keys: list[bytes]) -> np.ndarray:
        """Where the cache has the keys' answers; -1 where it has none."""
        return self._cache.find(keys) if self._cache is not None else np.full(len(keys), -1)

    def _is_claimed(self, key: bytes) -> bool:
        claim = self._claimed.get(key)
        return claim is not None and time.monotonic() - self._seen[claim[0]] < _DEAD_SECONDS


def _taken(entries: pa.Table) -> pa.Table:
    given, made = entries.column("input_tokens"), entries.column("output_tokens")
    columns = {n: entries.column(n) for n in ANSWER_COLUMNS if n in entries.schema.names}
    columns |= {"cached": [True] * entries.num_rows, "saved_tokens": pc.add(given, made)}
    missing = {f.name: pa.nulls(entries.num_rows, f.type) for f in _TAKEN if f.name not in columns}
    return pa.table(columns | missing).select(_TAKEN.names).cast(_TAKEN)


#: Has rows answered, and tells each group of them, before it is delivered, with its `TOLD_COLUMNS`.
Ask = Callable[[Sequence[int], Callable[[Sequence[int], pa.Table], None]], None]


class DedupClient:
    """The actor, as one feeder sees it. For several threads."""

    def __init__(self, repeats: ActorHandle[Any], *, always: bool) -> None:
        """:param always: also where the answer could be another each time."""
        self._repeats = repeats
        self._always = always
        self._me = uuid.uuid4().hex
        threading.Thread(target=self._beat, name="ray-llm-repeats", daemon=True).start()

    def run(self, requests: Sequence[str], ask: Ask, copy: Callable[[Sequence[int], pa.Table], None]) -> None:
        """Have a block's requests answered, each kind of them once.

        :param ask: for rows that are this feeder's to have answered. It may leave some unanswered, for later.
        :param copy: delivers the answers that others got.
        """
        rows: dict[bytes, list[int]] = {}
        alone = []
        for row, request in enumerate(requests):
            if self._always or is_deterministic(request):
                rows.setdefault(request_key(request), []).append(row)
            else:
                alone.append(row)
        while alone or rows:
            mine = {rows[key].pop(0): key for key in self._claim(list(rows))}
            unanswered = self._ask([*alone, *mine], mine, ask)
            alone = []
            # What is left for later is so for all who ask it.
            rows = {key: others for key, others in rows.items() if others and key not in unanswered}
            rows = self._take(rows, copy)

    def _ask(self, rows: Sequence[int], mine: dict[int, bytes], ask: Ask) -> set[bytes]:
        """The keys of rows that stay unanswered."""
        left = set(mine.values())
        if not rows:
            return left

        def tell(answered: Sequence[int], answers: pa.Table) -> None:
            here = [i for i, row in enumerate(answered) if row in mine]
            keys = [mine[answered[i]] for i in here]
            self._repeats.put.remote(keys, answers.take(pa.array(here, pa.int64())))
            left.difference_update(keys)

        try:
            ask(rows, tell)
            return left
        finally:
            if left:
                self._repeats.release.remote(list(left))

    def _take(
        self, rows: dict[bytes, list[int]], copy: Callable[[Sequence[int], pa.Table], None]
    ) -> dict[bytes, list[int]]:
        """Deliver others' answers. Returns the rows that nobody will answer, and those that still wait."""
        import ray

        while rows:
            keys = list(rows)
            known, answers, lost = ray.get(self._repeats.take.remote(keys))
            if known:
                copies = [(row, place) for place, i in enumerate(known) for row in rows.pop(keys[i])]
                copy([row for row, _ in copies], answers.take(pa.array([place for _, place in copies])))
            if lost:
                break
        return rows

    def _claim(self, keys: list[bytes]) -> list[bytes]:
        import ray

        if not keys:
            return []
        mine = ray.get(self._repeats.claim.remote(self._me, uuid.uuid4().hex, keys))
        return [key for key, is_mine in zip(keys, mine, strict=True) if is_mine]

    def _beat(self) -> None:
        while True:
            self._repeats.heartbeat.remote(self._me)
            time.sleep(_BEAT_SECONDS)
