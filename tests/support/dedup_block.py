"""A block of requests through a `DedupClient`, as feeders do it, without feeders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient

#: Answers rows of the block, and adds the answers to keys; these are aligned with the rows. Returns the rows
#: that it leaves.
Infer = Callable[[Sequence[int], Sequence[bytes | None]], Collection[int]]
#: Takes copies: rows of the block and their answers, in the same order.
Copy = Callable[[Sequence[int], pa.Table], None]


def answer_block(client: DedupClient, requests: Sequence[str], infer: Infer, copy: Copy) -> None:
    keys = [client.key(request) for request in requests]
    waiting: dict[bytes, list[int]] = {}
    for row, key in enumerate(keys):
        if key is not None:
            waiting.setdefault(key, []).append(row)
    rows = [row for row, key in enumerate(keys) if key is None]
    while rows or waiting:
        rows += [waiting[key].pop(0) for key in waiting.keys() & client.claim(list(waiting))]
        if rows:
            left = infer(rows := sorted(rows), [keys[row] for row in rows])
            client.send_answers()
            client.release(released := {key for row in left if (key := keys[row]) is not None})
            waiting = {key: rows for key, rows in waiting.items() if key not in released}
        rows = []
        waiting = {key: same for key, same in waiting.items() if same}
        lost: list[bytes] = []
        while waiting and not lost:
            answered, answers, lost = client.wait_for_answers(list(waiting))
            copies = [(row, place) for place, key in enumerate(answered) for row in waiting.pop(key)]
            if copies:
                copy([row for row, _ in copies], answers.take(pa.array([p for _, p in copies], pa.int64())))
