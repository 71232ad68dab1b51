"""Engine `ray_data_llm`: how its rows become answers."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec_problems import describe_problems
from airflow_provider_raydatallm.processor.columns import ANSWER_FIELDS
from airflow_provider_raydatallm.processor.engines.ray_data_llm import (
    RayDataLLM,
    _to_answer,
    _to_request,
    _with_sampling_params,
)
from airflow_provider_raydatallm.processor.engines.vllm import engine_base
from tests.support.async_tests import async_test
from tests.support.in_process import job_of

_ROW = {
    "__unit": 1, "__offset": 2, "generated_text": "Law Firm", "num_input_tokens": 7,
    "num_generated_tokens": 3, "time_taken_llm": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("error", ["", "ValueError: too long"])
def test_answer_has_every_answer_field(error: str) -> None:
    answer = _to_answer({"row": {**_ROW, "__inference_error__": error}}, data_column="row")
    assert set(answer) == {"__unit", "__offset", *(field.name for field in ANSWER_FIELDS)}
    names = ("__unit", "__offset", "text", "input_tokens", "error_type")
    expected = (1, 2, None, None, "ValueError") if error else (1, 2, "Law Firm", 7, None)
    assert tuple(answer[name] for name in names) == expected


@async_test
async def test_parameters_of_a_row_reach_vllm_as_they_were_asked() -> None:
    """Through Arrow, where rows of a table all have the same fields."""
    asked = [{"logit_bias": {"42": 5.0}, "max_tokens": 3}, {"temperature": 0, "stop": ["a"]}]
    rows = [{"__request": json.dumps({"messages": [], "sampling_params": one})} for one in asked]
    table = pa.Table.from_pylist([_to_request(row) for row in rows])

    class Stage:
        async def udf(self, batch: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
            for row in batch:
                yield row

    got = [row["sampling_params"] async for row in _with_sampling_params(Stage)().udf(table.to_pylist())]
    assert got == [{"logit_bias": {42: 5.0}, "max_tokens": 3}, {"temperature": 0, "stop": ["a"]}]


@pytest.mark.parametrize(("given", "says"), [
    ({"engine": {"kind": "vllm", "processor": {"x": 1}}}, "engine.processor is for .*'ray_data_llm'"),
    ({"engine": "ray_data_llm", "quality": {"on_too_long": "truncate"}}, "on_too_long is for .*'vllm'"),
])  # fmt: skip
def test_arguments_of_the_other_engine_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as refused:
        job_of(input_path="in", output_path="out", **given)
    assert re.search(says, describe_problems(refused.value))


def engine(monkeypatch: pytest.MonkeyPatch, **engine_kwargs: Any) -> RayDataLLM:
    monkeypatch.setattr(engine_base, "vllm_is_cpu_build", lambda accelerator_type: False)
    given = {"kind": "ray_data_llm", "kwargs": engine_kwargs}
    return RayDataLLM(job_of(input_path="in", output_path="out", engine=given), 10)


def test_workers_of_several_gpus_may_span_nodes_as_by_ray_data_llms_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = engine(monkeypatch, tensor_parallel_size=4, distributed_executor_backend="mp")
    spread = engine(monkeypatch, tensor_parallel_size=4)
    assert [e.resources.gpus_on_one_node for e in (whole, spread)] == [4, 1]
    assert [e.resources.gpus for e in (whole, spread)] == [4, 4]


def test_gpus_that_ray_data_llm_would_not_reserve_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SliceError, match=r"2 GPUs \(data parallel\), and Ray Data LLM reserves only"):
        engine(monkeypatch, data_parallel_size=2)
