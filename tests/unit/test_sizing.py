from __future__ import annotations

import pytest

from airflow_provider_raydatallm.processor.engines.vllm_arguments import check_arguments, sampling_defaults
from airflow_provider_raydatallm.processor.errors import SliceError
from airflow_provider_raydatallm.processor.sizing import (
    batches_in_flight,
    engine_batch_size,
    light_tasks,
    read_tasks,
)


@pytest.mark.parametrize(
    ("rows", "workers", "size"),
    [(1, 1, 16), (100, 1, 25), (4000, 1, 128), (1_000_000, 10, 128), (4000, 10, 100)],
)
def test_every_worker_gets_batches(rows: int, workers: int, size: int) -> None:
    assert engine_batch_size(rows, workers) == size


def test_batches_in_flight_cover_the_engines_appetite() -> None:
    for size in (1, 16, 128, 1024, 100_000):
        assert size * batches_in_flight(size) >= 1024


def test_tasks_around_the_engine_are_bounded() -> None:
    assert [read_tasks(u, 8) for u in (1, 10, 1000)] == [1, 10, 32]
    assert [light_tasks(c) for c in (1, 8, 100)] == [1, 2, 25]


def test_unknown_engine_argument_names_the_nearest() -> None:
    with pytest.raises(SliceError, match="did you mean 'max_model_len'"):
        check_arguments({"max_model_length": 1}, {})
    with pytest.raises(SliceError, match="did you mean 'temperature'"):
        check_arguments({}, {"temprature": 1})
    with pytest.raises(SliceError, match="use model_source"):
        check_arguments({"model": "x"}, {})
    check_arguments({"max_model_len": 1, "enforce_eager": True}, {"max_tokens": 1, "structured_outputs": {}})


def test_defaults_are_vllms_own() -> None:
    assert sampling_defaults(["temperature", "top_p", "seed"]) == {"temperature": 1.0, "top_p": 1.0}
