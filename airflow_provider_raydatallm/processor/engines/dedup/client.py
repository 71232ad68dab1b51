"""The `DedupCoordinator`s as one feeder uses them: claim, infer, copy."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.dedup.coordinator import (
    ADDED_COLUMNS,
    ADDED_SCHEMA,
    COPIED_SCHEMA,
)
from airflow_provider_raydatallm.processor.engines.dedup.handles import (
    ActorCoordinator,
    Coordinator,
    LocalCoordinator,
)
from airflow_provider_raydatallm.processor.engines.dedup.messages import join_keys, pack, unpack
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import (
    is_deterministic,
    request_key,
    shard_numbers,
)

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: A coordinator takes a feeder without a heartbeat for 60 s for dead.
_HEARTBEAT_SECONDS = 10.0
#: Answers are sent when a block is answered, and at the latest after this time: from all feeders together, a
#: coordinator can take about a thousand calls a second.
_SEND_SECONDS = 3.0

#: Answers rows of a block; keys are aligned with rows, None for rows that are not deduplicated. Blocks until
#: they are answered, and the answers to keys passed to `add_answers`. Returns the rows left unanswered, for a
#: later round.
Infer = Callable[[Sequence[int], Sequence[bytes | None]], Collection[int]]
#: Delivers copies: rows of the block and their answers (`COPIED_COLUMNS`), in the same order.
Copy = Callable[[Sequence[int], pa.Table], None]


class DedupClient:
    """Thread-safe. Each block needs a thread of its own: it waits for rows of other blocks."""

    def __init__(self, coordinators: Sequence[Coordinator], *, always: bool) -> None:
        """:param coordinators: one for each shard, in the order of their indices.
        :param always: deduplicate also requests whose sampling is not deterministic.
        """
        self._coordinators = coordinators
        self._always = always
        self._feeder = uuid.uuid4().hex
        self._added: list[tuple[Sequence[bytes], pa.Table]] = []  # not yet sent
        self._lock = threading.Lock()
        for send, seconds in (
            (self._send_heartbeats, _HEARTBEAT_SECONDS),
            (self._send_answers, _SEND_SECONDS),
        ):
            threading.Thread(target=_repeat, args=(send, seconds), name="ray-llm-dedup", daemon=True).start()

    @classmethod
    def of_actors(cls, actors: Sequence[ActorHandle[Any]], *, always: bool) -> DedupClient:
        return cls([ActorCoordinator(actor) for actor in actors], always=always)

    @classmethod
    def alone(cls, *, always: bool) -> DedupClient:
        """For the only feeder of a slice, which needs no actor."""
        return cls([LocalCoordinator()], always=always)

    def run(self, requests: Sequence[str], infer: Infer, copy: Copy) -> None:
        """Answers a block's requests, identical ones once."""
        rows_by_key: dict[bytes, list[int]] = {}
        unique: list[int] = []
        for row, request in enumerate(requests):
            if self._always or is_deterministic(request):
                rows_by_key.setdefault(request_key(request), []).append(row)
            else:
                unique.append(row)
        while unique or rows_by_key:
            postponed = self._infer_claimed(unique, rows_by_key, infer)
            unique = []
            # If a row is postponed, all rows with its request are.
            rows_by_key = {k: rows for k, rows in rows_by_key.items() if rows and k not in postponed}
            self._copy_answers(rows_by_key, copy)

    def add_answers(self, keys: Sequence[bytes], answers: pa.Table) -> None:
        """Shares answers with the rows that wait for them. Does not wait.

        :param answers: `ADDED_COLUMNS`, a row for each key. A key's first answer stays.
        """
        if keys:
            answers = answers.select(ADDED_COLUMNS).cast(ADDED_SCHEMA)
            with self._lock:
                self._added.append((keys, answers))

    def _send_answers(self) -> None:
        with self._lock:
            added, self._added = self._added, []
        if added:
            keys = [key for some, _ in added for key in some]
            answers = pa.concat_tables([table for _, table in added])
            call = uuid.uuid4().hex
            for coordinator, places in self._split(keys):
                part = answers.take(pa.array(places)) if len(places) < len(keys) else answers
                joined = join_keys(keys[i] for i in places)
                coordinator.call("add_answers", call, joined, pack(part, ADDED_SCHEMA))

    def _infer_claimed(
        self, unique: Sequence[int], rows_by_key: dict[bytes, list[int]], infer: Infer
    ) -> set[bytes]:
        """Claims keys, and infers a row of each. Removes these rows. Returns the keys of those postponed."""
        call = uuid.uuid4().hex
        unanswered = set(rows_by_key)
        try:
            claimed = self._claim(call, list(rows_by_key))
            unanswered = set(claimed)
            rows = [*unique, *(rows_by_key[key].pop(0) for key in claimed)]
            if rows:
                keys = [*(None for _ in unique), *claimed]
                postponed = set(infer(rows, keys))
                unanswered = {
                    k for row, k in zip(rows, keys, strict=True) if k is not None and row in postponed
                }
                self._send_answers()
            return unanswered
        finally:
            released = list(unanswered)
            for coordinator, places in self._split(released):
                coordinator.call("release", call, join_keys(released[i] for i in places))

    def _claim(self, call: str, keys: Sequence[bytes]) -> list[bytes]:
        parts = [(c, [keys[i] for i in places]) for c, places in self._split(keys)]
        claims = [c.call("claim", self._feeder, call, join_keys(part)) for c, part in parts]
        return [
            key
            for (_, part), is_mine in zip(parts, claims, strict=True)
            for key, mine in zip(part, is_mine(), strict=True)
            if mine
        ]

    def _copy_answers(self, rows_by_key: dict[bytes, list[int]], copy: Copy) -> None:
        """Copies until all rows are answered, or some keys are lost. Removes the rows that it answers."""
        any_lost = False
        while rows_by_key and not any_lost:
            keys = list(rows_by_key)
            parts = [(c, [keys[i] for i in places]) for c, places in self._split(keys)]
            rows: list[int] = []
            tables: list[pa.Table] = []
            waits = [c.call("wait_for_answers", join_keys(part)) for c, part in parts]
            for (_, part), result in zip(parts, waits, strict=True):
                known, answers, lost = result()
                any_lost = any_lost or bool(lost)
                takes: list[int] = []
                for place, i in enumerate(known):
                    copies = rows_by_key.pop(part[i])
                    rows += copies
                    takes += [place] * len(copies)
                tables.append(unpack(answers, COPIED_SCHEMA).take(pa.array(takes, pa.int64())))
            if rows:
                copy(rows, pa.concat_tables(tables))

    def _split(self, keys: Sequence[bytes]) -> Iterator[tuple[Coordinator, list[int]]]:
        """The coordinators that have some of the keys, and the indices of these."""
        shards = shard_numbers(keys, len(self._coordinators))
        for shard in np.unique(shards).tolist():
            yield self._coordinators[shard], np.flatnonzero(shards == shard).tolist()

    def _send_heartbeats(self) -> None:
        for coordinator in self._coordinators:
            coordinator.call("heartbeat", self._feeder)


def _repeat(work: Callable[[], None], seconds: float) -> None:
    while True:
        work()
        time.sleep(seconds)
