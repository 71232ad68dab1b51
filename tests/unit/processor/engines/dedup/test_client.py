from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import ADDED_SCHEMA
from tests.support.dedup_block import answer_block


def test_only_feeder_of_a_slice_runs_identical_requests_once_without_an_actor() -> None:
    client, inferred, copied = DedupClient.alone(always=False), [], {}
    names = ["a", "b", "a", "c", "b", "a"]
    requests = [json.dumps({"messages": [n], "sampling_params": {"temperature": 0}}) for n in names]

    def infer(rows: Sequence[int], keys: Sequence[bytes | None]) -> list[int]:
        inferred.extend(names[row] for row in rows)
        columns = {n: pa.nulls(len(rows)) for n in ADDED_SCHEMA.names}
        columns["text"] = [f"is {names[row]}" for row in rows]
        client.add_answers([key for key in keys if key is not None], pa.table(columns))
        return []

    def copy(rows: Sequence[int], answers: pa.Table) -> None:
        copied.update(zip(rows, answers.column("text").to_pylist(), strict=True))

    answer_block(client, requests, infer, copy)
    assert inferred == ["a", "b", "c"]
    assert copied == {2: "is a", 5: "is a", 4: "is b"}
