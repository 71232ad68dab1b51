"""What is wrong with a request, told before anything is spent. Pure: what is asked and what there is go in,
findings come out.

An error cannot work, or would wait for ever; a warning costs speed. Each has the numbers it is drawn from and
what to change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_raydatallm.contract.errors import Kind
from airflow_provider_raydatallm.processor.sizing.facts import ClusterFacts, EnginePlan, Resources, Sizes
from airflow_provider_raydatallm.processor.sizing.model_config import (
    UTILIZATION,
    ModelConfig,
    cache_bytes,
    row_length,
)
from airflow_provider_raydatallm.processor.sizing.sizes import fewest_blocks, is_saturated

#: GPUs that are joined by PCIe only.
_PCIE = {"T4", "L4", "A10G", "L40S", "RTX-PRO-6000"}
_GB = 1e9


@dataclass(frozen=True)
class Finding:
    """`code` is stable; `kind` is that of the failure it would be."""

    code: str
    severity: Literal["error", "warning"]
    message: str
    fix: str
    kind: Kind = "input"

    def __str__(self) -> str:
        return f"{self.message}. {self.fix} [{self.code}]"


def check_sizes(
    plan: EnginePlan, rows: int, shape: ModelConfig | None, cluster: ClusterFacts | None
) -> list[Finding]:
    """Everything that can be found, errors first. What is None is not known, and not checked.

    :param rows: that are left to answer.
    """
    sizes, engine_kwargs, accelerator_type = plan.sizes, plan.engine_kwargs, plan.accelerator_type
    found = [*_parallel(sizes, engine_kwargs, accelerator_type, shape, cluster)]
    if cluster is not None:
        found += _resources(plan.resources, accelerator_type, cluster)
        found += _memory(engine_kwargs, sizes, shape, cluster)
    if sizes is not None:
        found += _batches(sizes, rows)
    return sorted(found, key=lambda f: f.severity)


def _resources(needs: Resources, accelerator_type: str | None, cluster: ClusterFacts) -> Iterator[Finding]:
    there, most = cluster.resources, cluster.max_resources
    if most is None:
        return
    short = [
        f"{need:g} {name}s where the cluster has {there.get(name, 0):g}"
        + (f" and may grow to {most[name]:g}" if most.get(name, 0) > there.get(name, 0) else "")
        for name, need in (("CPU", needs.cpus), ("GPU", needs.gpus))
        if max(there.get(name, 0), most.get(name, 0)) < need
    ]
    if short:
        yield Finding(
            "cluster_too_small",
            "error",
            f"the cluster is too small: the slice needs {' and '.join(short)} ({needs.breakdown})",
            "Add nodes, or lower concurrency or the parallel sizes in engine_kwargs",
            "cluster",
        )
    kinds = sorted(
        k.removeprefix("accelerator_type:") for k in {*there, *most} if k.startswith("accelerator_type:")
    )
    if accelerator_type is not None and accelerator_type not in kinds:
        yield Finding(
            "no_such_accelerator",
            "error",
            f"accelerator_type is {accelerator_type!r} where the cluster has "
            f"{', '.join(kinds) or 'no accelerator'}",
            "Name one of those, or add nodes that have it",
            "cluster",
        )


def _parallel(
    sizes: Sizes | None,
    engine_kwargs: Mapping[str, Any],
    accelerator_type: str | None,
    shape: ModelConfig | None,
    cluster: ClusterFacts | None,
) -> Iterator[Finding]:
    tensor = int(engine_kwargs.get("tensor_parallel_size") or 1)
    layers = int(engine_kwargs.get("pipeline_parallel_size") or 1)
    if shape is not None and shape.heads % tensor:
        fitting = [n for n in (1, 2, 4, 8, 16) if shape.heads % n == 0]
        yield Finding(
            "heads_not_divisible",
            "error",
            f"tensor_parallel_size {tensor} does not divide the model's {shape.heads} attention heads",
            f"Set it to {', '.join(map(str, fitting))} in engine_kwargs",
        )
    if tensor > 1 and accelerator_type in _PCIE:
        yield Finding(
            "tensor_parallel_over_pcie",
            "warning",
            f"tensor_parallel_size {tensor} on {accelerator_type}, whose GPUs are joined by PCIe only: they "
            "will wait for each other in every layer",
            "If the model fits one GPU, set it to 1 and raise concurrency instead",
        )
    each = tensor * layers
    if cluster is not None and sizes is not None and sizes.gpus[0]:
        node = cluster.gpus_per_node
        if 0 < node < each and engine_kwargs.get("distributed_executor_backend") != "ray":
            yield Finding(
                "worker_over_nodes",
                "error",
                f"a worker needs {tensor} x {layers} = {each} GPUs (tensor x pipeline parallel) where a node "
                f"has {node}",
                "Lower the parallel sizes, or set distributed_executor_backend='ray' in engine_kwargs and "
                "engine='ray_data_llm'",
                "cluster",
            )


def _memory(
    engine_kwargs: Mapping[str, Any], sizes: Sizes | None, shape: ModelConfig | None, cluster: ClusterFacts
) -> Iterator[Finding]:
    if shape is None or cluster.gpu_bytes is None or sizes is None or not sizes.gpus[0]:
        return
    each = sizes.gpus[0] // sizes.workers[0]
    utilization = float(engine_kwargs.get("gpu_memory_utilization") or UTILIZATION)
    left = cache_bytes(shape, cluster.gpu_bytes, each, utilization)
    if left is None or shape.weight_bytes is None:
        return
    have = f"{each} GPU(s) of {cluster.gpu_bytes / _GB:.0f} GB x gpu_memory_utilization {utilization:g}"
    length = row_length(engine_kwargs, shape)
    row = length * shape.kv_bytes_per_token
    if left <= 0:
        yield Finding(
            "weights_over_memory",
            "error",
            f"the model's weights take {shape.weight_bytes / _GB:.0f} GB, and a worker has {have}",
            "Raise tensor_parallel_size in engine_kwargs, or take a quantized model (fp8 halves the weights)",
            "gpu_memory",
        )
    elif left < row and engine_kwargs.get("max_model_len") != -1:  # for which vLLM takes what fits
        yield Finding(
            "cache_under_one_row",
            "error",
            f"beside the weights a worker has {left / _GB:.1f} GB for its cache, and one row of "
            f"max_model_len {length:,} takes {row / _GB:.1f} GB ({have})",
            "Lower max_model_len ('auto' takes what the rows need), or raise tensor_parallel_size, in "
            "engine_kwargs",
            "gpu_memory",
        )


def _batches(sizes: Sizes, rows: int) -> Iterator[Finding]:
    if not is_saturated(sizes.batch_size, sizes.batches, sizes.max_num_seqs) and rows > sizes.max_num_seqs:
        yield Finding(
            "engine_not_saturated",
            "warning",
            f"batch_size {sizes.batch_size} x max_concurrent_batches {sizes.batches} = "
            f"{sizes.batch_size * sizes.batches} rows in flight, fewer than the {sizes.max_num_seqs} that a "
            "worker can run at once",
            "Leave max_concurrent_batches out, or raise it",
        )
    if sizes.block_rows > sizes.batch_size and rows > sizes.batch_size:
        yield Finding(
            "blocks_over_batch_size",
            "warning",
            f"blocks of {sizes.block_rows:,} rows are larger than batch_size {sizes.batch_size}: a worker "
            "takes, repeats and releases a whole block",
            f"Raise blocks to {math.ceil(rows / sizes.batch_size)}, or leave it out",
        )
    most, tasks = sizes.workers[1], -(-rows // max(sizes.batch_size, sizes.block_rows))
    if 0 < tasks < most:
        yield Finding(
            "fewer_tasks_than_workers",
            "warning",
            f"{rows:,} rows in batches of {sizes.batch_size} are {tasks} task(s) for {most} workers: some "
            "start for nothing",
            "Lower concurrency or batch_size",
        )
    elif tasks < fewest_blocks(most, varied=False) and most > 1:
        yield Finding(
            "few_tasks",
            "warning",
            f"{tasks} tasks for {most} workers, fewer than 2 for each: they will end at different times",
            "Lower batch_size or concurrency",
        )
