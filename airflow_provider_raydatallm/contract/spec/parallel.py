"""The GPUs of a worker: how many its engine arguments ask for. Pure.

A *rank* is one copy of the model, spread over tensor x pipeline x context parallel GPUs. `data_parallel_size`
ranks share a worker: its AsyncLLM starts a process for each on its own node, and balances rows between them.
`enable_expert_parallel` divides the experts in another way among the same GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError

_SIZES = {
    "tensor": "tensor_parallel_size",
    "pipeline": "pipeline_parallel_size",
    "context": "prefill_context_parallel_size",
    "data": "data_parallel_size",
}


@dataclass(frozen=True)
class Parallel:
    """on_ray: Ray's executor starts an actor for each GPU, on any node; else all are on the worker's node."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    data: int = 1
    on_ray: bool = False

    @property
    def gpus_per_rank(self) -> int:
        return self.tensor * self.pipeline * self.context

    @property
    def gpus(self) -> int:
        return self.gpus_per_rank * self.data

    @property
    def gpus_on_one_node(self) -> int:
        return 1 if self.on_ray else self.gpus

    def __str__(self) -> str:
        sizes = {name: size for name in _SIZES if (size := getattr(self, name)) > 1} or {"tensor": 1}
        product = " x ".join(map(str, sizes.values()))
        total = f" = {prod(sizes.values())}" if len(sizes) > 1 else ""
        return f"{product}{total} GPUs ({' x '.join(sizes)} parallel)"


def read_parallel(engine_kwargs: Mapping[str, Any]) -> Parallel:
    """:raises SliceError: for a size that is not a whole number of 1 or more."""
    sizes = {}
    for size, name in _SIZES.items():
        value = engine_kwargs.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise SliceError(
                f"engine.kwargs[{name!r}] is {value!r}",
                kind="input",
                advice="Set it to a whole number of 1 or more",
            )
        sizes[size] = value or 1
    return Parallel(**sizes, on_ray=engine_kwargs.get("distributed_executor_backend") == "ray")
