"""Checks a run before it starts. Pure: sizes, model and cluster in, findings out.

An error cannot work or would wait for ever; a warning costs speed. Each has its numbers and the setting to
change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Kind, joined
from airflow_provider_raydatallm.contract.spec.parallel import read_parallel
from airflow_provider_raydatallm.processor.sizing.facts import ClusterFacts, EnginePlan, Resources, Sizes
from airflow_provider_raydatallm.processor.sizing.model_config import (
    UTILIZATION,
    ModelConfig,
    cache_bytes,
    read_model_config,
    row_length,
)
from airflow_provider_raydatallm.processor.sizing.sizes import fewest_blocks

#: GPUs connected by PCIe only.
_PCIE_ONLY = {"T4", "L4", "A10G", "L40S", "RTX-PRO-6000"}
#: Quantizations that vLLM never takes for one another.
_QUANTIZATIONS = ("awq", "gptq", "fp8")
_GB = 1e9


@dataclass(frozen=True)
class Finding:
    """`code` is stable; `kind` is the kind of the failure that it predicts."""

    code: str
    severity: Literal["error", "warning"]
    message: str
    fix: str
    kind: Kind = "input"

    def __str__(self) -> str:
        return joined([self.message, f"{self.fix} [{self.code}]"])


def check_sizes(
    plan: EnginePlan, rows: int, shape: ModelConfig | None, cluster: ClusterFacts | None
) -> list[Finding]:
    """Returns all findings, errors first. None is unknown and not checked.

    :param rows: rows left to answer.
    """
    sizes, engine_kwargs, accelerator_type = plan.sizes, plan.engine_kwargs, plan.accelerator_type
    findings = [*_check_parallel(sizes, engine_kwargs, accelerator_type, shape, cluster)]
    findings += _check_quantization(engine_kwargs, shape)
    if cluster is not None:
        findings += _check_resources(plan.resources, accelerator_type, cluster)
        findings += _check_memory(engine_kwargs, sizes, shape, cluster)
    if sizes is not None:
        findings += _check_batches(sizes, rows)
    return sorted(findings, key=lambda f: f.severity)


def _check_resources(
    needs: Resources, accelerator_type: str | None, cluster: ClusterFacts
) -> Iterator[Finding]:
    current, maximum = cluster.resources, cluster.max_resources
    if maximum is None:
        return
    short = [
        f"{need:g} {name}s where the cluster has {current.get(name, 0):g}"
        + (f" and may grow to {maximum[name]:g}" if maximum.get(name, 0) > current.get(name, 0) else "")
        for name, need in (("CPU", needs.cpus), ("GPU", needs.gpus))
        if max(current.get(name, 0), maximum.get(name, 0)) < need
    ]
    if short:
        message = f"the cluster is too small: the slice needs {' and '.join(short)} ({needs.breakdown})"
        fix = "Add nodes, or lower engine.workers or the parallel sizes in engine.kwargs"
        yield Finding("cluster_too_small", "error", message, fix, "cluster")
    prefix = "accelerator_type:"
    types = sorted(name.removeprefix(prefix) for name in {*current, *maximum} if name.startswith(prefix))
    if accelerator_type is not None and accelerator_type not in types:
        available = ", ".join(types) or "no accelerator"
        message = f"engine.accelerator is {accelerator_type!r} where the cluster has {available}"
        fix = "Set it to one of those, or add nodes that have it"
        yield Finding("no_such_accelerator", "error", message, fix, "cluster")


def _check_parallel(
    sizes: Sizes | None,
    engine_kwargs: Mapping[str, Any],
    accelerator_type: str | None,
    shape: ModelConfig | None,
    cluster: ClusterFacts | None,
) -> Iterator[Finding]:
    parallel = read_parallel(engine_kwargs)
    tensor = parallel.tensor
    if shape is not None and shape.heads % tensor:
        message = f"tensor_parallel_size {tensor} does not divide the model's {shape.heads} attention heads"
        divisors = ", ".join(str(n) for n in (1, 2, 4, 8, 16) if shape.heads % n == 0)
        yield Finding("heads_not_divisible", "error", message, f"Set it to {divisors} in engine.kwargs")
    if tensor > 1 and accelerator_type in _PCIE_ONLY:
        message = f"tensor_parallel_size {tensor} on {accelerator_type}, whose GPUs are connected by PCIe "
        message += "only: they wait for each other in every layer"
        fix = "If the model fits one GPU, set it to 1 and raise engine.workers instead"
        yield Finding("tensor_parallel_over_pcie", "warning", message, fix)
    if parallel.data > 1 and shape is not None and shape.parameters and not shape.expert_parameters:
        message = f"data_parallel_size {parallel.data} for a model without experts: its ranks are "
        message += "independent copies, which one process feeds"
        fix = "Omit it, and raise engine.workers instead: each worker then has a process of its own"
        yield Finding("data_parallel_without_experts", "warning", message, fix)
    node_gpus = cluster.gpus_per_node if cluster is not None and sizes is not None and sizes.gpus[0] else 0
    if 0 < node_gpus < parallel.gpus_on_one_node:
        message = f"a worker needs {parallel} where a node has {node_gpus}"
        fix = "Lower the parallel sizes, or set distributed_executor_backend='ray' in engine.kwargs"
        if parallel.data > 1:
            fix = "Lower data_parallel_size, and raise engine.workers instead"
        yield Finding("worker_over_nodes", "error", message, fix, "cluster")


def _check_quantization(engine_kwargs: Mapping[str, Any], shape: ModelConfig | None) -> Iterator[Finding]:
    asked = str(engine_kwargs.get("quantization") or "").removesuffix("_marlin")
    if shape is None or asked not in _QUANTIZATIONS or shape.quantization == asked:
        return
    if shape.quantization in _QUANTIZATIONS:
        message = f"quantization is {asked!r}, and the model's weights are quantized by {shape.quantization}"
        fix = "Omit quantization in engine.kwargs: vLLM reads it from the model"
    elif shape.quantization is None and asked != "fp8":
        message = f"quantization is {asked!r}, and the model's weights are not quantized"
        fix = f"Use a model that was quantized by {asked}, or 'fp8', which vLLM does as it loads one"
    else:
        return
    yield Finding("quantization_of_other_weights", "error", message, fix)


def _check_memory(
    engine_kwargs: Mapping[str, Any], sizes: Sizes | None, shape: ModelConfig | None, cluster: ClusterFacts
) -> Iterator[Finding]:
    if shape is None or cluster.gpu_bytes is None or sizes is None or not sizes.gpus[0]:
        return
    parallel = read_parallel(engine_kwargs)
    utilization = float(engine_kwargs.get("gpu_memory_utilization") or UTILIZATION)
    cache = cache_bytes(shape, cluster.gpu_bytes, parallel, utilization)
    weights = shape.rank_weight_bytes(parallel)
    if cache is None or weights is None:
        return
    holder = "a worker" if parallel.data == 1 else "a data-parallel rank"
    memory = f"{parallel.gpus_per_rank} GPU(s) of {cluster.gpu_bytes / _GB:.0f} GB x gpu_memory_utilization "
    memory += f"{utilization:g}"
    length = row_length(engine_kwargs, shape)
    row = length * shape.kv_bytes_per_token
    if cache <= 0:
        message = f"the model's weights take {weights / _GB:.0f} GB, and {holder} has {memory}"
        fix = "Raise tensor_parallel_size in engine.kwargs, or use a quantized model (fp8 halves the weights)"
        yield Finding("weights_over_memory", "error", message, fix, "gpu_memory")
    elif cache < row and engine_kwargs.get("max_model_len") != -1:  # with -1 vLLM uses the length that fits
        message = f"besides the weights {holder} has {cache / _GB:.1f} GB for its cache, and one row of "
        message += f"max_model_len {length:,} takes {row / _GB:.1f} GB ({memory})"
        fix = "In engine.kwargs, lower max_model_len ('auto' fits the rows) or raise tensor_parallel_size"
        yield Finding("cache_under_one_row", "error", message, fix, "gpu_memory")


def _check_batches(sizes: Sizes, rows: int) -> Iterator[Finding]:
    if sizes.rows_in_flight < sizes.max_num_seqs < rows:
        message = f"{sizes.rows_in_flight:,} rows in flight in a worker are fewer than the "
        message += f"{sizes.max_num_seqs:,} that it can run at once"
        yield Finding("engine_not_saturated", "warning", message, "Omit max_concurrent_batches, or raise it")
    workers = sizes.workers[1]
    if sizes.batch_size is None:
        if 0 < rows < workers:
            message = f"{rows:,} row(s) for {workers} workers: some would have nothing to do"
            yield Finding("fewer_rows_than_workers", "warning", message, "Lower engine.workers")
        return
    if sizes.block_rows > sizes.batch_size and rows > sizes.batch_size:
        message = (
            f"blocks of {sizes.block_rows:,} rows are larger than engine.batch_size {sizes.batch_size}: a "
        )
        message += "worker takes, retries and releases a whole block"
        fix = f"Raise engine.blocks to {math.ceil(rows / sizes.batch_size)}, or omit it"
        yield Finding("blocks_over_batch_size", "warning", message, fix)
    tasks = -(-rows // max(sizes.batch_size, sizes.block_rows))
    if 0 < tasks < workers:
        message = f"{rows:,} rows in batches of {sizes.batch_size} are {tasks} task(s) for {workers} "
        message += "workers: some would have nothing to do"
        yield Finding(
            "fewer_tasks_than_workers", "warning", message, "Lower engine.workers or engine.batch_size"
        )
    elif tasks < fewest_blocks(workers, varied=False) and workers > 1:
        message = f"{tasks} tasks for {workers} workers, fewer than 2 each: they will end at different times"
        yield Finding("few_tasks", "warning", message, "Lower engine.batch_size or engine.workers")


def preflight_findings(plan: EnginePlan, rows: int, cluster: ClusterFacts | None) -> list[Finding]:
    """Returns everything that is wrong with a run.

    :param rows: rows left to answer.
    :param cluster: None to skip checks that need one.
    """
    model = read_model_config(plan.model_source, plan.engine_kwargs) if plan.sizes is not None else None
    return check_sizes(plan, rows, model, cluster)


def check_request(columns: Sequence[str], rows: int) -> list[Finding]:
    """:param columns: input columns that a row's request needs."""
    if columns or rows < 2:
        return []
    message = f"no column enters the request, so all {rows:,} rows ask the same"
    fix = "Name columns in the prompt as {column}: other braces stay as they are"
    return [Finding("rows_ask_the_same", "warning", message, fix)]


def raise_errors(findings: Sequence[Finding]) -> None:
    """:raises SliceError: with all errors among the findings, of the first one's kind."""
    errors = [f for f in findings if f.severity == "error"]
    if errors:
        raise SliceError(
            "; ".join(one.message for one in errors),
            kind=errors[0].kind,
            advice=[one.fix for one in errors],
        )
