from __future__ import annotations

import random

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.dedup.recent_answers import RecentAnswers

SCHEMA = pa.schema([("text", pa.string())])


def test_newest_answers_stay_at_their_positions_in_few_tables() -> None:
    rnd = random.Random(7)
    answers = RecentAnswers(SCHEMA, max_bytes=200_000)
    added: list[str] = []
    evicted: list[bytes] = []
    for _ in range(500):
        texts = [f"{len(added) + i}: {'x' * rnd.randrange(100)}" for i in range(rnd.randrange(1, 9))]
        assert answers.end == len(added)
        evicted += answers.append([t.encode() for t in texts], pa.table({"text": texts}, SCHEMA))
        added += texts
    assert evicted == [t.encode() for t in added[: len(evicted)]]
    positions = [rnd.randrange(len(evicted), len(added)) for _ in range(200)]
    assert answers.take(positions).column("text").to_pylist() == [added[i] for i in positions]
    assert answers.take([]).num_rows == 0
    assert 0.8 * 200_000 < sum(250 + len(t) for t in added[len(evicted) :]) < 200_000
    assert len(answers._parts) < 40
