"""The `DedupCoordinator`s as one feeder uses them: claim, infer, copy.

A feeder has the requests that it claimed inferred without waiting for any other, so that feeders do not wait
for each other in a circle.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    has_key,
    request_key,
    shard_numbers,
)

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: A coordinator takes a feeder without a heartbeat for 60 s for dead.
_HEARTBEAT_SECONDS = 10.0
#: Answers are sent when a feeder has no other rows in work, and at the latest after this time: from all
#: feeders together, a coordinator can take about a thousand calls a second.
_SEND_SECONDS = 3.0


class DedupClient:
    """Thread-safe."""

    def __init__(self, coordinators: Sequence[Coordinator], *, always: bool) -> None:
        """:param coordinators: one for each shard, in the order of their indices.
        :param always: deduplicate also requests whose sampling is not deterministic.
        """
        self._coordinators = coordinators
        self._always = always
        self._feeder = uuid.uuid4().hex
        self._added: list[tuple[Sequence[bytes], pa.Table]] = []  # not yet sent
        #: By the keys that are claimed and have no answer: the call that claimed them.
        self._claims: dict[bytes, str] = {}
        self._lock = threading.Lock()
        for send, seconds in (
            (self._send_heartbeats, _HEARTBEAT_SECONDS),
            (self.send_answers, _SEND_SECONDS),
        ):
            threading.Thread(target=_repeat, args=(send, seconds), name="ray-llm-dedup", daemon=True).start()

    @classmethod
    def of_actors(cls, actors: Sequence[ActorHandle[Any]], *, always: bool) -> DedupClient:
        return cls([ActorCoordinator(actor) for actor in actors], always=always)

    @classmethod
    def alone(cls, *, always: bool) -> DedupClient:
        """For the only feeder of a slice, which needs no actor."""
        return cls([LocalCoordinator()], always=always)

    def key(self, request: str) -> bytes | None:
        """None for a request that is answered each time."""
        return request_key(request) if has_key(request, always=self._always) else None

    def claim(self, keys: Sequence[bytes]) -> set[bytes]:
        """Returns those of the keys that this feeder is to infer; the others are answered, or inferred by
        some feeder."""
        if not keys:
            return set()
        call = uuid.uuid4().hex
        parts = [(c, [keys[i] for i in places]) for c, places in self._split(keys)]
        claims = [c.call("claim", self._feeder, call, join_keys(part)) for c, part in parts]
        claimed = {
            key
            for (_, part), is_mine in zip(parts, claims, strict=True)
            for key, mine in zip(part, is_mine(), strict=True)
            if mine
        }
        with self._lock:
            self._claims |= dict.fromkeys(claimed, call)
        return claimed

    def release(self, keys: Iterable[bytes]) -> None:
        """Gives up claimed keys that are left unanswered."""
        by_call: dict[str, list[bytes]] = {}
        with self._lock:
            for key in keys:
                if (call := self._claims.pop(key, None)) is not None:
                    by_call.setdefault(call, []).append(key)
        for call, released in by_call.items():
            for coordinator, places in self._split(released):
                coordinator.call("release", call, join_keys(released[i] for i in places))

    def add_answers(self, keys: Sequence[bytes], answers: pa.Table) -> None:
        """Shares answers with the rows that wait for them. Does not wait.

        :param answers: `ADDED_COLUMNS`, a row for each key. A key's first answer stays.
        """
        if keys:
            answers = answers.select(ADDED_COLUMNS).cast(ADDED_SCHEMA)
            with self._lock:
                self._added.append((keys, answers))
                for key in keys:
                    self._claims.pop(key, None)

    def send_answers(self) -> None:
        """Sends what was added. Does not wait."""
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

    def wait_for_answers(self, keys: Sequence[bytes]) -> tuple[list[bytes], pa.Table, list[bytes]]:
        """Waits some seconds for answers, unless some are lost. Returns the keys that have one, their answers
        (`COPIED_COLUMNS`), and the keys that nobody infers any more."""
        parts = [(c, [keys[i] for i in places]) for c, places in self._split(keys)]
        waits = [c.call("wait_for_answers", join_keys(part)) for c, part in parts]
        answered: list[bytes] = []
        lost: list[bytes] = []
        tables: list[pa.Table] = []
        for (_, part), result in zip(parts, waits, strict=True):
            known, answers, their_lost = result()
            answered += [part[i] for i in known]
            tables.append(unpack(answers, COPIED_SCHEMA))
            lost += [part[i] for i in their_lost]
        return answered, pa.concat_tables(tables), lost

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
