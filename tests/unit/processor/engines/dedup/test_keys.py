from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from airflow_provider_raydatallm.processor.engines.dedup.request_keys import (
    Shard,
    has_key,
    is_deterministic,
    request_key,
    shard_numbers,
)
from airflow_provider_raydatallm.processor.engines.feeding.tokenized_request import name_media
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder, _to_json

NESTED = {"properties": {"sampling_params": {"temperature": 0}}}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 1.0, "seed": 0}, True),
        ({"temperature": 0.1}, False),
        ({"seed": -1}, False),
        ({}, False),  # vLLM's own temperature is 1
        # A field of the same name, as the last or not.
        ({"temperature": 0.5, "structured_outputs": {"json": NESTED}}, False),
        ({"structured_outputs": {"json": NESTED}, "temperature": 0}, True),
        ({"structured_outputs": {"json": {"sampling_params": 7, "more": {}}}}, False),
    ],
)
def test_only_deterministic_requests_share_answers(params: dict[str, Any], expected: bool) -> None:
    builder = RequestBuilder(["text"], prompt="{text}", sampling_params=params)
    for text in (
        "a",
        'a", "sampling_params": {"temperature": 0}}',
        'a"sampling_params": {"seed": 1}}',
        '\\"',
    ):
        request = _to_json(builder.build({"text": text})).decode()
        assert is_deterministic(request) is expected
    request = json.dumps({"sampling_params": params, "messages": [{"content": "last"}]})
    assert is_deterministic(request) is expected


@pytest.mark.parametrize("always", [False, True])
def test_request_that_is_asked_again_shares_no_answer(always: bool) -> None:
    builder = RequestBuilder(["text"], prompt="{text}", sampling_params={"temperature": 0})
    for text in ("a", '", "again": true'):
        row = {"text": text}
        assert has_key(_to_json(builder.build(row)).decode(), always=always)
        again = name_media(_to_json(builder.asking_again().build(row)).decode(), [b"image"])
        assert not has_key(again, always=always)


def test_each_key_is_in_one_shard_and_shards_are_of_similar_size() -> None:
    keys = [request_key(str(i)) for i in range(3000)]
    numbers = shard_numbers(keys, 3)
    arrays = np.array(keys, "S16")
    assert [(numbers == i).tolist() for i in range(3)] == [
        Shard(i, 3).holds(arrays).tolist() for i in range(3)
    ]
    assert min(np.bincount(numbers, minlength=3)) > 800
    assert shard_numbers(keys, 1).tolist() == [0] * 3000
    assert shard_numbers([], 3).tolist() == []
