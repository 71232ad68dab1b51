"""How Ray places the GPUs of a worker, and what it cannot start. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.parallel import Parallel, read_parallel

#: Each node has 1.0 of its accelerator type, however many GPUs it has.
_TYPE_SHARE = 0.001
_BALANCED_OUTSIDE = (
    "is for servers behind a load balancer; a worker starts and balances its ranks itself",
    "Leave it out",
)
_OMIT_IT = "Omit it: a worker has all its ranks on its node; for more nodes raise engine.workers"
#: Arguments that leave a part of the engine to processes that nobody starts here.
_NEEDS_OTHERS = {
    "data_parallel_rank": _BALANCED_OUTSIDE,
    "data_parallel_start_rank": _BALANCED_OUTSIDE,
    "data_parallel_external_lb": _BALANCED_OUTSIDE,
    "data_parallel_hybrid_lb": _BALANCED_OUTSIDE,
    "data_parallel_multi_port_external_lb": _BALANCED_OUTSIDE,
    "nnodes": (
        "needs vLLM started by hand on the other nodes",
        "Set distributed_executor_backend='ray' instead",
    ),
}


def check_worker_starts_it_all(engine_kwargs: Mapping[str, Any], *, on_cpu: bool) -> None:
    """:raises SliceError: for arguments with which one worker would wait for ever, or hold GPUs that nobody
    counts."""
    parallel = read_parallel(engine_kwargs)

    def refuse(name: str, why: str, advice: str) -> SliceError:
        return SliceError(
            f"engine.kwargs[{name!r}] is {engine_kwargs[name]!r}: {why}", kind="input", advice=advice
        )

    for name, (why, advice) in _NEEDS_OTHERS.items():
        value = engine_kwargs.get(name)
        if value is not None and value is not False and (name, value) != ("nnodes", 1):  # rank 0 is a rank
            raise refuse(name, f"this {why}", advice)
    if engine_kwargs.get("data_parallel_size_local") not in (None, parallel.data):
        raise refuse(
            "data_parallel_size_local",
            f"nobody starts the other ranks of data_parallel_size {parallel.data}",
            _OMIT_IT,
        )
    if engine_kwargs.get("data_parallel_backend") == "ray":
        raise refuse(
            "data_parallel_backend",
            "vLLM would then take GPUs that this slice has not reserved",
            _OMIT_IT,
        )
    executor = engine_kwargs.get("distributed_executor_backend")
    if executor == "external_launcher":
        why = "it waits for processes that torchrun starts"
        raise refuse("distributed_executor_backend", why, "Omit it")
    if parallel.on_ray and on_cpu:
        why = "vLLM's Ray executor has no CPUs as devices"
        raise refuse("distributed_executor_backend", why, "Omit it")
    if parallel.on_ray and parallel.data > 1:
        raise refuse(
            "distributed_executor_backend",
            f"all {parallel.data} ranks of data_parallel_size would take the same GPUs",
            "Omit it if a worker fits one node; else omit data_parallel_size, and raise engine.workers",
        )


@dataclass(frozen=True)
class Placement:
    """What Ray reserves for a worker.

    actor: resource options of its actor. bundles: of a placement group (PACK) with the actor in the first
    bundle; without any, the actor itself holds the GPUs.
    """

    actor: Mapping[str, Any]
    bundles: list[dict[str, float]] = field(default_factory=list)


def placement(parallel: Parallel, *, on_cpu: bool, accelerator_type: str | None) -> Placement:
    """A worker's place: with Ray's executor a group of bundles of one GPU each, as vLLM expects it."""
    if on_cpu:
        return Placement({"num_cpus": parallel.gpus})
    if not parallel.on_ray:
        gpus = {"num_gpus": parallel.gpus, "accelerator_type": accelerator_type}
        return Placement({"num_cpus": 1, **gpus})
    bundle = {"GPU": 1.0} | type_share(accelerator_type)
    return Placement({"num_cpus": 1, "num_gpus": 0}, [bundle | {"CPU": 1.0}, *[bundle] * (parallel.gpus - 1)])


def type_share(accelerator_type: str | None) -> dict[str, float]:
    """The part of a bundle that selects nodes with an accelerator type."""
    return {f"accelerator_type:{accelerator_type}": _TYPE_SHARE} if accelerator_type is not None else {}
