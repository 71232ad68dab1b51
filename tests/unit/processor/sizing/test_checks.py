from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.parallel import read_parallel
from airflow_provider_raydatallm.processor.sizing.checks import (
    Finding,
    check_request,
    check_sizes,
    raise_errors,
)
from airflow_provider_raydatallm.processor.sizing.facts import ClusterFacts, EnginePlan, Resources, Sizes
from airflow_provider_raydatallm.processor.sizing.model_config import ModelConfig, parse_model_config
from tests.support.llama import LLAMA_8B, LLAMA_70B, MIXTRAL

EIGHT_H100 = ClusterFacts({"CPU": 64, "GPU": 8, "accelerator_type:H100": 1}, {}, 8, 80_000_000_000)


AWQ = {**LLAMA_8B, "quantization_config": {"quant_method": "awq"}}


def findings(
    *, workers: tuple[int, int] = (1, 1), batch_size: int | None = 128, batches: int = 32, seqs: int = 1024,
    block_rows: int = 0, rows: int = 100_000, accelerator: str | None = None,
    shape: ModelConfig | None = None, cluster: ClusterFacts | None = EIGHT_H100, cpus: float = 6,
    **kwargs: Any,
) -> list[Finding]:  # fmt: skip
    each = read_parallel(kwargs).gpus
    gpus = (workers[0] * each, workers[1] * each)
    in_flight = batches * (batch_size or 128)
    sizes = Sizes(workers, gpus, batch_size, in_flight, seqs, block_rows or batch_size or 2048)
    needs = Resources(cpus=cpus, gpus=gpus[0], breakdown="parts")
    plan = EnginePlan("VllmEngine", "m", kwargs, accelerator, needs, sizes)
    return check_sizes(plan, rows, shape or parse_model_config(LLAMA_8B, kwargs), cluster)


def test_run_that_fits_has_no_findings() -> None:
    assert findings() == []
    assert findings(workers=(2, 8), accelerator="H100") == []
    assert findings(batch_size=None, workers=(4, 4), rows=5) == []
    assert findings(quantization="fp8") == []
    assert findings(quantization="awq_marlin", shape=parse_model_config(AWQ, {})) == []


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"cpus": 65}, "cluster_too_small", "65 CPUs where the cluster has 64 (parts)"),
        ({"workers": (9, 9)}, "cluster_too_small", "9 GPUs where the cluster has 8"),
        ({"accelerator": "L4"}, "no_such_accelerator", "'L4' where the cluster has H100"),
        ({"tensor_parallel_size": 3}, "heads_not_divisible", "3 does not divide the model's 32 attention"),
        (
            {"tensor_parallel_size": 8, "pipeline_parallel_size": 2,
             "cluster": ClusterFacts({"CPU": 128, "GPU": 16}, {}, 8)},
            "worker_over_nodes", "8 x 2 = 16 GPUs (tensor x pipeline parallel) where a node has 8",
        ),
        (
            {"data_parallel_size": 16, "shape": parse_model_config(MIXTRAL, {}),
             "cluster": ClusterFacts({"CPU": 128, "GPU": 16}, {}, 8)},
            "worker_over_nodes", "16 GPUs (data parallel) where a node has 8",
        ),
        (
            {"shape": parse_model_config(MIXTRAL, {"dtype": "float32"}), "data_parallel_size": 2},
            "weights_over_memory", "weights take 97 GB, and a data-parallel rank has 1 GPU(s) of 80 GB",
        ),
        ({"quantization": "awq"}, "quantization_of_other_weights", "the model's weights are not quantized"),
        (
            {"shape": parse_model_config(AWQ, {}), "quantization": "fp8"},
            "quantization_of_other_weights", "'fp8', and the model's weights are quantized by awq",
        ),
        (
            {"shape": parse_model_config(LLAMA_70B, {})},
            "weights_over_memory", "weights take 141 GB, and a worker has 1 GPU(s) of 80 GB",
        ),
        (
            {"shape": parse_model_config(LLAMA_70B, {}), "tensor_parallel_size": 2, "max_model_len": 131_072,
             "gpu_memory_utilization": 0.95},
            "cache_under_one_row", "3.3 GB for its cache, and one row of max_model_len 131,072 takes 42.9 GB",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "_" in value else None,
)  # fmt: skip
def test_what_cannot_work_is_an_error_with_its_numbers(
    changes: dict[str, Any], code: str, message: str
) -> None:
    [finding] = findings(**changes)
    assert (finding.code, finding.severity) == (code, "error")
    assert message in finding.message
    with pytest.raises(SliceError) as raised:
        raise_errors([finding])
    assert raised.value.failure.text == f"{finding.message}. {finding.fix}"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"batch_size": 16, "batches": 8}, "engine_not_saturated", "128 rows in flight in a worker"),
        ({"batch_size": None, "rows": 3, "workers": (1, 4)}, "fewer_rows_than_workers", "3 row(s) for 4"),
        ({"rows": 300, "workers": (1, 4)}, "fewer_tasks_than_workers", "batches of 128 are 3 task(s) for 4"),
        ({"rows": 128 * 7, "workers": (4, 4), "seqs": 256}, "few_tasks", "7 tasks for 4 workers"),
        (
            {"accelerator": "L4", "tensor_parallel_size": 2, "cluster": None},
            "tensor_parallel_over_pcie", "2 on L4, whose GPUs are connected by PCIe only",
        ),
        ({"data_parallel_size": 2}, "data_parallel_without_experts", "2 for a model without experts"),
        (
            {"block_rows": 2500, "batches": 64},
            "blocks_over_batch_size", "blocks of 2,500 rows are larger than engine.batch_size 128",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "_" in value else None,
)  # fmt: skip
def test_what_costs_speed_is_a_warning(changes: dict[str, Any], code: str, message: str) -> None:
    [finding] = findings(**changes)
    assert (finding.code, finding.severity) == (code, "warning")
    assert message in str(finding)
    raise_errors([finding])


def test_worker_of_rays_executor_may_span_nodes() -> None:
    wide = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
    assert findings(cluster=ClusterFacts({"CPU": 128, "GPU": 16}, {}, 8), **wide) == []


def test_ranks_that_share_the_experts_fit_where_a_copy_each_would_not() -> None:
    mixtral = parse_model_config(MIXTRAL, {})
    assert [f.code for f in findings(shape=mixtral)] == ["weights_over_memory"]
    assert findings(shape=mixtral, data_parallel_size=8, enable_expert_parallel=True) == []


def test_cluster_that_may_grow_is_big_enough() -> None:
    grows = ClusterFacts({"CPU": 4}, {"CPU": 64, "GPU": 8}, 0)
    assert findings(cluster=grows, workers=(8, 8)) == []
    [short] = findings(cluster=grows, workers=(9, 9))
    assert "9 GPUs where the cluster has 0 and may grow to 8" in short.message
    assert findings(cluster=ClusterFacts({"CPU": 1}, None), workers=(99, 99)) == []  # bounds are not known


def test_errors_come_first_and_all_are_raised() -> None:
    every = findings(workers=(9, 9), tensor_parallel_size=3, batch_size=16, batches=8)
    assert [f.severity for f in every] == ["error", "error", "warning"]
    with pytest.raises(SliceError) as e:
        raise_errors(every)
    assert "attention heads" in e.value.failure.sentence
    assert "the cluster is too small" in e.value.failure.sentence
    assert list(e.value.failure.advice) == [f.fix for f in every[:2]]


def test_prompt_without_a_column_is_a_warning() -> None:
    (finding,) = check_request([], 4000)
    assert (finding.code, finding.severity) == ("rows_ask_the_same", "warning")
    assert "all 4,000 rows ask the same" in finding.message
    assert check_request(["Company"], 4000) == check_request([], 1) == []
