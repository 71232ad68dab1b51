"""The one interface between the pipeline and whatever answers its requests.

An engine takes a dataset of requests and delivers answered rows in groups, as they finish. Nothing else in
the pipeline knows which engine answers.

Requests have the columns `__unit` (int32), `__offset` (int64), `__request` (JSON text of messages and
sampling_params) and, when a postprocess function wants the row, `__row` (JSON text). Answers have `__unit`,
`__offset`, `__row` if it came in, and `ANSWER_FIELDS`. One answer for each request, in any order. A request
that fails for its own reason (a prompt that is too long, a chat template that refuses its messages) has
`error` set and keeps no other from being answered; what breaks the engine itself is raised.

Rows are safe from the moment they are delivered: what an engine delivers at once is the grain of resume. One
that delivers groups of finished rows before their batch is done loses less when it dies.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.columns import ANSWER_FIELDS
from airflow_provider_raydatallm.processor.ray_runtime.job_state import engine_is_starting
from airflow_provider_raydatallm.processor.sizing.facts import Resources, Sizes, SizingInputs

if TYPE_CHECKING:
    import ray.data


def answer_table(requests: pa.Table, **columns: Any) -> pa.Table:
    """The answers to requests, in their order: arrays or lists of `ANSWER_FIELDS` by name, null where not
    given."""
    kept = [n for n in requests.schema.names if n != "__request"]
    made = [
        pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(requests.num_rows, f.type)
        for f in ANSWER_FIELDS
    ]
    return pa.table(
        [*(requests.column(n) for n in kept), *made], names=[*kept, *(f.name for f in ANSWER_FIELDS)]
    )


class AnswerSink(Protocol):
    """Takes answers out of the engine. Picklable: it goes wherever rows finish."""

    def __call__(self, answers: pa.Table) -> pa.Table:
        """Have a group of answers kept; returns a small table that says how many, for Ray Data to pass on."""

    def deliver_blocks(self, answers: ray.data.Dataset) -> ray.data.Dataset:
        """The same for an engine whose answers are a dataset: each of its blocks is a group."""


class Engine(ABC):
    """Answers requests. Constructed in the driver, before anything is spent.

    :raises SliceError: from the constructor, for arguments that cannot work.
    """

    #: Whether it follows `on_too_long`, and answers rows that ask the same once.
    supports_dedup = False

    def __init__(self, job: SliceJob, rows: int) -> None:
        self.job = job
        self.rows = rows
        asked = {"on_too_long": job.on_too_long != "quarantine", "deduplicate": job.deduplicate}
        if any(asked.values()) and not self.supports_dedup:
            names = " and ".join(name for name, is_asked in asked.items() if is_asked)
            raise SliceError(
                f"{names}: that is for engine 'vllm', and the slice's is {type(self).__name__}", kind="input"
            )
        #: Whether sizes were chosen by the cluster.
        self.sizes_chosen = False

    @property
    def engine_kwargs(self) -> Mapping[str, Any]:
        """The job's, with what was chosen in place of "auto"."""
        return self.job.engine_kwargs

    @property
    def needs_past_throughput(self) -> bool:
        """Whether `fit` is to be told how fast earlier slices were."""
        return False

    def needs_token_lengths(self, *, raised: bool) -> bool:
        """Whether `fit` is to be told how long rows are."""
        return False

    def choose_sizes(self, facts: SizingInputs) -> None:
        """Choose what was left to the provider."""
        self.sizes_chosen = True

    @property
    @abstractmethod
    def resources(self) -> Resources: ...

    @property
    def resources_needed_now(self) -> Resources:
        """Of its resources, what must be free now: all, unless the engine is there already."""
        return self.resources

    #: Seconds that its first worker's start took, by the names of `report.Start`, as far as they are known.
    startup_seconds: Mapping[str, float] = {}

    #: How the names of the actors begin that it has with other jobs.
    shared_actor_prefix: str | None = None

    @property
    def engine_to_keep(self) -> str | None:
        """Name of the running shared engine that this slice will use; None if there is none."""
        return None

    def on_admitted(self) -> None:  # noqa: B027
        """Called when there is room for what it needs, and before another job's turn."""

    def blocking_engines(self) -> list[str]:
        """What keeps it from being started, whatever is free."""
        return []

    @property
    def sizes(self) -> Sizes | None:
        """None when the engine's own are not of this kind."""
        return None

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Rows that are handed to the engine together."""

    def gpus_held(self, workers: int | None) -> float | None:
        """GPUs that so many workers hold; None when that is not known, or there are none."""
        return None

    @property
    def block_rows(self) -> int:
        """Rows that travel together: a batch, unless blocks were asked for."""
        return math.ceil(self.rows / self.job.blocks) if self.job.blocks else self.batch_size

    @abstractmethod
    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        """A dataset that, when it is executed, has all requests answered and delivered."""

    @property
    def is_ready(self) -> bool:
        """Whether there is an engine that could answer; False where only its first row tells."""
        return False

    def raise_if_broken(self) -> None:  # noqa: B027
        """Called every second while requests are answered; raises what broke the engine, if it knows."""

    def is_starting(self) -> bool:
        """Whether an engine that is not there yet is on its way."""
        return engine_is_starting()

    def stop(self) -> None:  # noqa: B027
        """Called when requests are answered no more, whatever ended it."""
