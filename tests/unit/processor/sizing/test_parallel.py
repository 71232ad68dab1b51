from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.parallel import Parallel, read_parallel
from airflow_provider_raydatallm.processor.sizing.parallel import (
    Placement,
    check_worker_starts_it_all,
    placement,
)

RAY = {"distributed_executor_backend": "ray"}


@pytest.mark.parametrize(
    ("kwargs", "gpus", "on_one_node", "text"),
    [
        ({}, 1, 1, "1 GPUs (tensor parallel)"),
        ({"tensor_parallel_size": None, "pipeline_parallel_size": 2}, 2, 2, "2 GPUs (pipeline parallel)"),
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, 16, 16,
         "8 x 2 = 16 GPUs (tensor x pipeline parallel)"),
        ({"tensor_parallel_size": 2, "data_parallel_size": 4, "enable_expert_parallel": True}, 8, 8,
         "2 x 4 = 8 GPUs (tensor x data parallel)"),
        ({"tensor_parallel_size": 2, "prefill_context_parallel_size": 2, "decode_context_parallel_size": 2},
         4, 4, "2 x 2 = 4 GPUs (tensor x context parallel)"),
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 2, **RAY}, 16, 1,
         "8 x 2 = 16 GPUs (tensor x pipeline parallel)"),
    ],
)  # fmt: skip
def test_gpus_of_a_worker_are_the_product_of_its_parallel_sizes(
    kwargs: dict[str, Any], gpus: int, on_one_node: int, text: str
) -> None:
    parallel = read_parallel(kwargs)
    assert (parallel.gpus, parallel.gpus_on_one_node, str(parallel)) == (gpus, on_one_node, text)


@pytest.mark.parametrize("size", [0, -1, 1.5, "2", True])
def test_size_that_is_no_whole_number_is_refused(size: Any) -> None:
    with pytest.raises(SliceError, match=r"engine.kwargs\['data_parallel_size'\] is .*whole number"):
        read_parallel({"data_parallel_size": size})


@pytest.mark.parametrize(
    "kwargs",
    [
        {"data_parallel_size": 4, "data_parallel_size_local": 4, "data_parallel_backend": "mp"},
        {"data_parallel_size": 2, "tensor_parallel_size": 2, "enable_expert_parallel": True},
        {"data_parallel_external_lb": False, "data_parallel_rank": None, "nnodes": 1},
        {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, **RAY},
    ],
)
def test_what_one_process_can_start_is_accepted(kwargs: dict[str, Any]) -> None:
    check_worker_starts_it_all(kwargs, on_cpu=False)


@pytest.mark.parametrize(
    ("kwargs", "on_cpu", "message"),
    [
        ({"data_parallel_rank": 0}, False, "data_parallel_rank'] is 0: this is for servers behind a load"),
        ({"data_parallel_hybrid_lb": True}, False, "balances its ranks itself"),
        ({"data_parallel_size": 4, "data_parallel_size_local": 2}, False,
         "is 2: nobody starts the other ranks of data_parallel_size 4. Omit it"),
        ({"data_parallel_size": 4, "data_parallel_backend": "ray"}, False, "has not reserved. Omit it"),
        ({"nnodes": 2}, False, "is 2: this needs vLLM started by hand on the other nodes. Set distrib"),
        ({"distributed_executor_backend": "external_launcher"}, False, "that torchrun starts"),
        (RAY, True, "has no CPUs as devices"),
        ({"data_parallel_size": 2, **RAY}, False, "all 2 ranks of data_parallel_size would take the same"),
    ],
)  # fmt: skip
def test_what_one_process_cannot_start_is_refused(kwargs: Any, on_cpu: bool, message: str) -> None:
    with pytest.raises(SliceError) as e:
        check_worker_starts_it_all(kwargs, on_cpu=on_cpu)
    assert (e.value.kind, message in str(e.value)) == ("input", True)


def test_worker_on_one_node_holds_its_gpus_itself() -> None:
    place = placement(Parallel(tensor=2, data=4), on_cpu=False, accelerator_type="H100")
    assert place == Placement({"num_cpus": 1, "num_gpus": 8, "accelerator_type": "H100"})
    assert placement(Parallel(data=2), on_cpu=True, accelerator_type=None) == Placement({"num_cpus": 2})


def test_worker_on_several_nodes_has_a_group_of_single_gpus() -> None:
    place = placement(Parallel(tensor=2, pipeline=2, on_ray=True), on_cpu=False, accelerator_type="H100")
    assert place.actor == {"num_cpus": 1, "num_gpus": 0}
    gpu = {"GPU": 1, "accelerator_type:H100": 0.001}
    assert place.bundles == [gpu | {"CPU": 1}, gpu, gpu, gpu]
