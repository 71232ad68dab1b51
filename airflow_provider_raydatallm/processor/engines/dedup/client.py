"""The `DedupCoordinator` as one feeder uses it: claim, infer, copy."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.contract import fingerprint
from airflow_provider_raydatallm.processor.engines.base import OnAnswers

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: The coordinator takes a feeder without a heartbeat for 60 s for dead.
_HEARTBEAT_SECONDS = 10.0

#: Infers rows, and calls back with each group of answers (`ADDED_COLUMNS`) before it is delivered.
Infer = Callable[[Sequence[int], Sequence[bytes | None]], Any]


def request_key(request: str) -> bytes:
    return hashlib.blake2b(request.encode(), digest_size=16).digest()


def is_deterministic(request: str) -> bool:
    """Whether sampling would give the same answer again: it is greedy, or has a seed."""
    return fingerprint.is_deterministic(json.loads(request)["sampling_params"])


class DedupClient:
    """Thread-safe."""

    def __init__(self, coordinators: Sequence[ActorHandle[Any]], *, always: bool) -> None:
        """:param always: deduplicate also requests whose sampling is not deterministic."""
        self._coordinator = coordinators[0]
        self._always = always
        self._feeder = uuid.uuid4().hex
        threading.Thread(target=self._send_heartbeats, name="ray-llm-dedup", daemon=True).start()

    def run(self, requests: Sequence[str], infer: Infer, copy: OnAnswers) -> None:
        """Answers a block's requests, identical ones once.

        :param infer: for rows that this feeder claimed. It may leave rows unanswered, for a later round.
        :param copy: delivers answers (`COPIED_COLUMNS`) that exist already.
        """
        rows_by_key: dict[bytes, list[int]] = {}
        unique: list[int] = []
        for row, request in enumerate(requests):
            if self._always or is_deterministic(request):
                rows_by_key.setdefault(request_key(request), []).append(row)
            else:
                unique.append(row)
        while unique or rows_by_key:
            claimed = {rows_by_key[key].pop(0): key for key in self._claim(list(rows_by_key))}
            unanswered = self._infer_claimed([*unique, *claimed], claimed, infer)
            unique = []
            # If a row is postponed, all rows with its request are.
            rows_by_key = {k: rows for k, rows in rows_by_key.items() if rows and k not in unanswered}
            rows_by_key = self._copy_answers(rows_by_key, copy)

    def _claim(self, keys: list[bytes]) -> list[bytes]:
        import ray

        if not keys:
            return []
        is_mine = ray.get(self._coordinator.claim.remote(self._feeder, uuid.uuid4().hex, keys))
        return [key for key, mine in zip(keys, is_mine, strict=True) if mine]

    def _infer_claimed(self, rows: Sequence[int], claimed: dict[int, bytes], infer: Infer) -> set[bytes]:
        """Returns the keys of rows that stay unanswered."""
        if not rows:
            return set()
        left = {claimed[row] for row in infer(rows, [claimed.get(row) for row in rows]) if row in claimed}
        if left:
            self._coordinator.release.remote(list(left))
        return left

    def add_answers(self, keys: Sequence[bytes], answers: pa.Table) -> None:
        self._coordinator.add_answers.remote(list(keys), answers)

    def _copy_answers(self, rows_by_key: dict[bytes, list[int]], copy: OnAnswers) -> dict[bytes, list[int]]:
        """Copies until all rows are answered, or some keys are lost. Returns the remaining rows."""
        import ray

        lost: list[int] = []
        while rows_by_key and not lost:
            keys = list(rows_by_key)
            known, answers, lost = ray.get(self._coordinator.wait_for_answers.remote(keys))
            if known:
                copies = [(row, i) for i, key in enumerate(known) for row in rows_by_key.pop(keys[key])]
                copy([row for row, _ in copies], answers.take(pa.array([i for _, i in copies])))
        return rows_by_key

    def _send_heartbeats(self) -> None:
        while True:
            self._coordinator.heartbeat.remote(self._feeder)
            time.sleep(_HEARTBEAT_SECONDS)
