"""Rows that ask the same are answered once, whichever feeders they come to.

Feeders claim requests by their keys in one actor, have the engine answer those that are theirs, and take the
others' answers from it. Nobody waits for a feeder that waits: each puts the answers to all that it claimed
before it takes any. What is lost (the actor's memory, a feeder that died, an answer that was forgotten) is
asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: Columns of an answer that are the same for all who ask.
ANSWER_COLUMNS = ("text", "finish_reason", "shortened", "error_type", "error")

#: Answers that are kept, the newest, by their size; and what a key takes beside.
_BYTES = 256 << 20
_BYTES_PER_KEY = 200
#: Seconds between two signs of life of a feeder, and after which one that gives none has died.
_BEAT_SECONDS = 10.0
_DEAD_SECONDS = 60.0
#: For how long the actor keeps a feeder that takes answers, before it has it ask again.
_TAKE_SECONDS = 5.0


def key_of(request: str) -> bytes:
    return hashlib.blake2b(request.encode(), digest_size=16).digest()


def is_decided(request: str) -> bool:
    """Whether the answer would be the same again: greedy sampling, or a seed."""
    params = json.loads(request)["sampling_params"]
    return params.get("temperature") == 0 or params.get("seed") is not None


class Repeats:
    """The actor."""

    def __init__(self, most_bytes: int = _BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._claimed: dict[bytes, str] = {}
        self._answers: dict[bytes, tuple[pa.Table, int]] = {}
        self._groups: deque[tuple[list[bytes], int]] = deque()
        self._seen: dict[str, float] = {}
        self._put = asyncio.Condition()

    async def beat(self, feeder: str) -> None:
        self._seen[feeder] = time.monotonic()

    async def claim(self, feeder: str, keys: list[bytes]) -> list[bool]:
        """Which of the keys are this feeder's to have answered: those that nobody has or had."""
        self._seen[feeder] = time.monotonic()
        mine = [key not in self._answers and not self._is_claimed(key) for key in keys]
        self._claimed.update({key: feeder for key, is_mine in zip(keys, mine, strict=True) if is_mine})
        return mine

    async def release(self, keys: list[bytes]) -> None:
        """Give up what was claimed and not answered."""
        for key in keys:
            self._claimed.pop(key, None)
        async with self._put:
            self._put.notify_all()

    async def put(self, keys: list[bytes], answers: pa.Table) -> None:
        """:param answers: `ANSWER_COLUMNS`, a row for each key."""
        for row, key in enumerate(keys):
            self._claimed.pop(key, None)
            self._answers[key] = (answers, row)
        size = answers.nbytes + _BYTES_PER_KEY * len(keys)
        self._groups.append((keys, size))
        self._bytes += size
        while self._bytes > self._most_bytes and len(self._groups) > 1:
            oldest, size = self._groups.popleft()
            self._bytes -= size
            for key in oldest:
                self._answers.pop(key, None)
        async with self._put:
            self._put.notify_all()

    async def take(self, keys: list[bytes]) -> tuple[list[int], pa.Table | None, list[int]]:
        """Which of the keys have answers, and these; and which nobody will answer any more. As soon as there
        are some, or after a few seconds."""
        until = time.monotonic() + _TAKE_SECONDS
        while True:
            known = [i for i, key in enumerate(keys) if key in self._answers]
            lost = [i for i, k in enumerate(keys) if k not in self._answers and not self._is_claimed(k)]
            if known or lost or time.monotonic() >= until:
                rows = [self._answers[keys[i]] for i in known]
                tables = [table.slice(row, 1) for table, row in rows]
                return known, pa.concat_tables(tables).combine_chunks() if tables else None, lost
            async with self._put:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._put.wait(), max(0.0, until - time.monotonic()))

    def _is_claimed(self, key: bytes) -> bool:
        feeder = self._claimed.get(key)
        return feeder is not None and time.monotonic() - self._seen[feeder] < _DEAD_SECONDS


#: Has rows answered, and tells each group of them, before it is delivered, with its `ANSWER_COLUMNS`.
Ask = Callable[[Sequence[int], Callable[[Sequence[int], pa.Table], None]], None]


class Once:
    """The actor, as one feeder sees it. For several threads."""

    def __init__(self, repeats: ActorHandle[Any], *, always: bool) -> None:
        """:param always: also where the answer could be another each time."""
        self._repeats = repeats
        self._always = always
        self._me = uuid.uuid4().hex
        threading.Thread(target=self._beat, name="ray-llm-repeats", daemon=True).start()

    def answer(
        self, requests: Sequence[str], ask: Ask, copy: Callable[[Sequence[int], pa.Table], None]
    ) -> None:
        """Have a block's requests answered, each kind of them once.

        :param ask: for rows that are this feeder's to have answered. It may leave some unanswered, for later.
        :param copy: delivers the answers that others got.
        """
        rows: dict[bytes, list[int]] = {}
        alone = []
        for row, request in enumerate(requests):
            if self._always or is_decided(request):
                rows.setdefault(key_of(request), []).append(row)
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
        mine = ray.get(self._repeats.claim.remote(self._me, keys))
        return [key for key, is_mine in zip(keys, mine, strict=True) if is_mine]

    def _beat(self) -> None:
        while True:
            self._repeats.beat.remote(self._me)
            time.sleep(_BEAT_SECONDS)
