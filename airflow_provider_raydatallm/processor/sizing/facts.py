"""Inputs and results of choosing sizes, in the order of their use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ClusterFacts:
    """The cluster's resources, by Ray's names.

    max_resources: the autoscaler's upper bounds; {} without an autoscaler, None when unknown.
    gpu_bytes: memory of the smallest GPU. node_memory: bytes of the largest node that Ray hands out; 0 when
    unknown. gpus_by_type: GPUs of the nodes with an accelerator type.
    """

    resources: Mapping[str, float]
    max_resources: Mapping[str, float] | None = field(default_factory=dict)
    gpus_per_node: int = 0
    gpu_bytes: int | None = None
    node_memory: float = 0
    gpus_by_type: Mapping[str, float] = field(default_factory=dict)

    def gpus_of(self, accelerator_type: str | None) -> float:
        """Returns the GPUs that a slice can use, including those that the autoscaler can add, if known."""
        if accelerator_type is not None and not self.max_resources:
            return self.gpus_by_type.get(accelerator_type, 0)
        return max(self.resources.get("GPU", 0), (self.max_resources or {}).get("GPU", 0))


@dataclass(frozen=True)
class TokenLengthSample:
    """tokens: prompt plus longest answer of each sampled row. positions: the model's maximum; None when its
    files do not give it."""

    tokens: Sequence[int]
    positions: int | None = None


@dataclass(frozen=True)
class PastThroughput:
    """Throughput of an earlier slice of the table. rows_per_s is per worker and counts inferred rows only:
    the cache hits of one slice say nothing about the next. engine_start is in seconds."""

    slice_key: str
    rows_per_s: float
    engine_start: float


@dataclass(frozen=True)
class SizingInputs:
    """Everything that sizes are chosen by; None is unknown.

    limit_raised: the engine replaces one whose length limit was too low for the rows left.
    """

    cluster: ClusterFacts | None
    lengths: TokenLengthSample | None = None
    past_throughput: PastThroughput | None = None
    limit_raised: bool = False


@dataclass(frozen=True)
class Sizes:
    """Sizes of an engine whose workers run vLLM.

    workers, gpus: minimum and maximum. batch_size: None where rows are admitted one by one. rows_in_flight:
    in each worker, at most. max_num_seqs: rows that a worker runs at once in all its ranks, as far as known
    before it starts. block_rows: rows that travel together.
    """

    workers: tuple[int, int]
    gpus: tuple[int, int]
    batch_size: int | None
    rows_in_flight: int
    max_num_seqs: int
    block_rows: int


@dataclass(frozen=True)
class Resources:
    """Logical CPUs and GPUs that the engine and its stages need at once in order to start.

    gpus_on_one_node: how many of the GPUs must be on the same node: those of a worker. memory: in bytes, of
    each worker that is to have so much of its node's.
    """

    cpus: float
    gpus: float
    breakdown: str
    gpus_on_one_node: int = 1
    memory: tuple[int, ...] = ()


@dataclass(frozen=True)
class EnginePlan:
    """How an engine will run, as far as known: what `plan`, the checks and admission read.

    name: the engine's class. engine_kwargs: with chosen values in place of "auto". sizes: None for an engine
    that does not run vLLM.
    """

    name: str
    model_source: str
    engine_kwargs: Mapping[str, Any]
    accelerator_type: str | None
    resources: Resources
    sizes: Sizes | None
