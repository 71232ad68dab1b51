"""facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Resources:
    """Logical CPUs and GPUs that must be there at once for the engine and its stages to start."""

    cpus: float
    gpus: float
    breakdown: str


@dataclass(frozen=True)
class Sizes:
    """Of an engine whose workers run vLLM.

    workers, gpus: the fewest and the most. batches: in flight in a worker. max_num_seqs: rows that a worker
    runs at once, as far as is known before it starts. block_rows: rows that travel together.
    """

    workers: tuple[int, int]
    gpus: tuple[int, int]
    batch_size: int
    batches: int
    max_num_seqs: int
    block_rows: int


@dataclass(frozen=True)
class EnginePlan:
    """How an engine will run, by what is known so far; the value that checks and `plan` read.

    :param name: the engine's class.
    :param engine_kwargs: with the values chosen in place of "auto".
    :param sizes: None for an engine that does not run vLLM.
    """

    name: str
    model_source: str
    engine_kwargs: Mapping[str, Any]
    accelerator_type: str | None
    resources: Resources
    sizes: Sizes | None


@dataclass(frozen=True)
class ClusterFacts:
    """What a cluster has, as Ray names it; `most` is what its autoscaler may grow it to, {} without one and
    None where that is not known. gpu_bytes: memory of its smallest GPU."""

    resources: Mapping[str, float]
    max_resources: Mapping[str, float] | None = field(default_factory=dict)
    gpus_per_node: int = 0
    gpu_bytes: int | None = None
    #: GPUs of the nodes that have an accelerator of that type.
    gpus_by_type: Mapping[str, float] = field(default_factory=dict)

    def gpus_of(self, accelerator_type: str | None) -> float:
        """What a slice may have, with what the autoscaler may bring as far as that is known."""
        if accelerator_type is not None and not self.max_resources:
            return self.gpus_by_type.get(accelerator_type, 0)
        return max(self.resources.get("GPU", 0), (self.max_resources or {}).get("GPU", 0))


@dataclass(frozen=True)
class TokenLengthSample:
    """tokens: of prompt and longest answer, of each row that was looked at. positions: the most that the
    model has places for; None where its files do not say."""

    tokens: Sequence[int]
    positions: int | None = None


@dataclass(frozen=True)
class PastThroughput:
    """What an earlier slice of the table showed. rows_per_s is of one worker, and of rows that it was asked:
    what a cache had of one slice says nothing of the next."""

    slice_key: str
    rows_per_s: float
    engine_start: float


@dataclass(frozen=True)
class SizingInputs:
    """What sizes are chosen by; what is None is not known.

    raised: the rows left are those that were over the limit of the engine before.
    """

    cluster: ClusterFacts | None
    lengths: TokenLengthSample | None = None
    past_throughput: PastThroughput | None = None
    limit_raised: bool = False
