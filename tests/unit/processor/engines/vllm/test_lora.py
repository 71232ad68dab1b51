"""vLLM's arguments for adapters."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.adapters.adapter import Adapter
from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.engines.vllm.lora import lora_arguments
from tests.support.in_process import job_of


def adapters(*ranks: int) -> list[Adapter]:
    return [Adapter(f"n{i}", f"/{i}", f"{i:032x}", rank) for i, rank in enumerate(ranks)]


@pytest.mark.parametrize(
    ("ranks", "own", "expected"),
    [
        ((16,), {}, (16, 1, 1)),
        ((4, 17, 1), {}, (32, 3, 3)),
        ((512,) * 6, {}, (512, 4, 6)),
        ((8,) * 40, {}, (8, 4, 32)),
        ((8,) * 40, {"max_loras": 35}, (8, 35, 35)),
        ((8,), {"max_lora_rank": 64, "max_cpu_loras": 9}, (64, 1, 9)),
    ],
)
def test_arguments_hold_the_adapters_of_a_slice(
    ranks: tuple[int, ...], own: dict[str, Any], expected: tuple[int, ...]
) -> None:
    arguments = lora_arguments(adapters(*ranks), own, on_cpu=False)
    assert arguments.pop("enable_lora") is True
    assert tuple(arguments.values()) == expected


def test_place_of_rows_without_an_adapter_stays_empty_on_a_cpu() -> None:
    assert lora_arguments(adapters(8, 8), {"max_loras": 1}, on_cpu=True)["max_loras"] == 3


def test_rank_that_the_jobs_own_argument_does_not_hold_is_refused_by_name() -> None:
    with pytest.raises(SliceError, match=r"'max_lora_rank'.* is 16, and adapter 'n1' .* has rank 32"):
        lora_arguments(adapters(8, 32), {"max_lora_rank": 16}, on_cpu=False)


def test_engine_for_suspects_has_the_adapters_too() -> None:
    engine = VllmEngine(job_of(engine="vllm", input_path="in", output_path="out"), 10)
    assert "enable_lora" not in engine._worker_arguments()
    engine.use_adapters(adapters(8))
    for one in (engine, engine.for_suspects(3)):
        assert one._worker_arguments()["enable_lora"] is True
        assert one._adapters == adapters(8)
    assert "enable_lora" not in engine.engine_kwargs  # the answer cache knows adapters by the requests
