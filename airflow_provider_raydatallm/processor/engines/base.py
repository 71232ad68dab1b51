"""The interface between the pipeline and an engine: requests in, groups of answers out as they finish.

Requests have the columns `__unit` (int32), `__offset` (int64), `__request` (JSON text of messages,
sampling_params and perhaps an adapter) and, when a postprocess function needs the row, `__row` (JSON text).
Answers have `__unit`, `__offset`, `__row` if it came in, and `ANSWER_FIELDS`: one answer per request, in any
order. A request that fails for its own reason (its prompt is too long, the chat template refuses its
messages) has `error` set and does not affect others. An error of the engine itself is raised.

Delivered rows are durable: each delivery is the unit of resume. An engine that delivers finished rows before
their batch is done loses less when it dies.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.adapters.adapter import Adapter
from airflow_provider_raydatallm.processor.columns import ANSWER_FIELDS, is_unicode, storable
from airflow_provider_raydatallm.processor.ray_runtime.job_state import engine_is_starting
from airflow_provider_raydatallm.processor.sizing.facts import EnginePlan, Resources, Sizes, SizingInputs

if TYPE_CHECKING:
    import ray.data


class EngineGivenUpError(SliceError):
    """The engine died too often. Rows may be the reason."""


def answer_table(requests: pa.Table, **columns: Any) -> pa.Table:
    """The answers to requests, in their order.

    :param columns: arrays or lists of `ANSWER_FIELDS` by name; fields left out are null. A text that is not
        valid Unicode is its row's failure.
    """
    texts = columns.get("text")
    if isinstance(texts, list) and (
        broken := [i for i, text in enumerate(texts) if not is_unicode(text or "")]
    ):
        columns = dict(columns)
        failures = {"text": None, "error_type": "UnicodeError", "error": "the answer is not valid Unicode"}
        for name, value in failures.items():
            values = columns.get(name)
            columns[name] = list(values) if values is not None else [None] * requests.num_rows
            for i in broken:
                columns[name][i] = value
    if isinstance(errors := columns.get("error"), list):
        columns["error"] = [error and storable(error) for error in errors]
    table = requests.select([name for name in requests.schema.names if name != "__request"])
    for field in ANSWER_FIELDS:
        values = columns.get(field.name)
        nulls = pa.nulls(requests.num_rows, field.type)
        table = table.append_column(field.name, nulls if values is None else pa.array(values, field.type))
    return table


class AnswerSink(Protocol):
    """Takes answers out of the engine. Picklable: it is called wherever rows finish."""

    def __call__(self, answers: pa.Table) -> pa.Table:
        """Stores a group of answers. Returns a small table, for Ray Data to pass on: their number (`rows`),
        and the indices of those that are invalid (`invalid`)."""

    def record_death(self, rows: pa.Table) -> None:
        """Records the ids of rows that were in an engine when it died by itself."""

    def deliver_blocks(self, answers: ray.data.Dataset) -> ray.data.Dataset:
        """Stores each block of a dataset as a group, for engines whose answers are a dataset."""


class BlockFeeder(Protocol):
    """Answers and delivers the requests of blocks.

    :raises Exception: from each method, what kept rows from being delivered.
    """

    def __call__(self, requests: pa.Table, /) -> None:
        """Takes a block over, as soon as there is room."""

    def drain(self) -> None:
        """Waits until each row that was taken over is delivered, or left for another round."""


#: Opens a feeder, in the process that calls it. Picklable.
OpenFeeder = Callable[[AnswerSink], BlockFeeder]


class Engine(ABC):
    """Answers requests. Constructed in the driver, before any resource is used.

    An engine must have `resources`, `batch_size`, and either `answer_requests` or `feeders`. All else has a
    default, and is for engines that choose sizes or are shared.

    :raises SliceError: from the constructor, for arguments that cannot work.
    """

    #: Whether it supports `on_too_long` and `deduplicate`.
    supports_dedup = False
    #: Whether it shows models the images, or recordings, of rows (`__files`).
    supports_media = False
    #: Seconds that parts of its first worker's start took, by the names of `StartupSeconds`, where known.
    startup_seconds: Mapping[str, float] = {}
    #: Share of the answers' tokens that their prompts have in the same order: once it stopped, where known.
    repeated_share: float | None = None
    #: Name prefix of the actors that it shares with other jobs.
    shared_actor_prefix: str | None = None

    def __init__(self, job: SliceJob, rows: int) -> None:
        self.job = job
        self.rows = rows
        needs_dedup = {
            "on_too_long": job.quality.on_too_long != "quarantine",
            "deduplicate": job.engine.deduplicate,
        }
        if any(needs_dedup.values()) and not self.supports_dedup:
            names = " and ".join(name for name, is_set in needs_dedup.items() if is_set)
            raise SliceError(
                f"{names} needs engine 'vllm', and this slice's engine is {type(self).__name__}", kind="input"
            )
        if job.task.media is not None and not self.supports_media:
            raise SliceError(
                f"{job.task.media.argument} needs engine 'vllm', and this slice's engine is "
                f"{type(self).__name__}",
                kind="input",
            )
        #: What `choose_sizes` chose by, once it has.
        self.sizing_inputs: SizingInputs | None = None

    @property
    @abstractmethod
    def resources(self) -> Resources:
        """What must be free on the cluster, all at once, before it starts."""

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Rows that the engine takes at a time."""

    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        """A dataset whose execution answers and delivers all requests."""
        raise NotImplementedError

    @property
    def feeders(self) -> tuple[int, int] | None:
        """The fewest and the most feeders of an engine that answers blocks which they take; None for one that
        answers datasets."""
        return None

    def start_for_feeders(self, *, alone: bool = False) -> OpenFeeder:
        """Starts, unless it runs: then the feeders before are gone. Returns what opens a feeder.

        :param alone: whether there is one, which never changes.
        """
        raise NotImplementedError

    @property
    def engine_kwargs(self) -> Mapping[str, Any]:
        """The job's, with the values chosen in place of "auto"."""
        return self.job.engine.arguments

    @property
    def needs_past_throughput(self) -> bool:
        """Whether `choose_sizes` needs the throughput of earlier slices."""
        return False

    def needs_token_lengths(self, *, raised: bool) -> bool:
        """Whether `choose_sizes` needs a sample of how long rows are.

        :param raised: whether this engine replaces one whose length limit was too low.
        """
        return False

    @property
    def open_tokenizer(self) -> Callable[[], Any]:
        """Opens what measures rows (`feeding/token_lengths`), for engines that need it. Picklable."""
        raise NotImplementedError

    def choose_sizes(self, facts: SizingInputs) -> None:
        """Chooses what the job left to the provider ("auto")."""
        self.sizing_inputs = facts

    def use_adapters(self, adapters: Sequence[Adapter]) -> None:
        """Sets the LoRA adapters that requests name, before it starts."""
        raise SliceError(f"{type(self).__name__} takes no adapters", kind="input")

    def take_no_earlier_answers(self) -> None:  # noqa: B027
        """Answers all rows itself, whatever it could find of other slices: theirs were rejected."""

    def doubt_answers(self, since: float) -> None:  # noqa: B027
        """Gives no other slice what it answered since then (epoch seconds): golden rows speak against it."""

    def for_suspects(self, rows: int) -> Engine:
        """An engine for so many rows that were in engines when they died: itself, if it records none."""
        return self

    @property
    def resources_needed_now(self) -> Resources:
        """The part of `resources` that must be free before it starts: all, unless it is running already."""
        return self.resources

    @property
    def sizes(self) -> Sizes | None:
        """None for engines that do not run vLLM."""
        return None

    @property
    def block_rows(self) -> int:
        """Rows that travel together: a batch, unless the job sets `blocks`."""
        return math.ceil(self.rows / self.job.engine.blocks) if self.job.engine.blocks else self.batch_size

    @property
    def plan(self) -> EnginePlan:
        """How it would run by what is known now; `choose_sizes` changes it."""
        return EnginePlan(
            type(self).__name__,
            self.job.model_source,
            self.engine_kwargs,
            self.job.engine.gpu,
            self.resources,
            self.sizes,
        )

    @property
    def fewest_workers(self) -> int | None:
        """With which it begins, where it may have more with time; else None."""
        fewest, most = self.sizes.workers if self.sizes is not None else (1, 1)
        return fewest if fewest < most else None

    def gpus_held(self, workers: int | None) -> float | None:
        """GPUs that so many workers hold; None when that is not known, or they hold none."""
        return None

    @property
    def engine_to_keep(self) -> str | None:
        """Name of the running shared engine that this slice will use; None if there is none."""
        return None

    def blocking_engines(self) -> list[str]:
        """Engines that must stop before it can start, whatever is free."""
        return []

    def on_admitted(self) -> None:  # noqa: B027
        """Called when its resources are free, before another job can be admitted."""

    @property
    def needs_ray_data(self) -> bool:
        """Whether Ray Data reads for it, however few rows there are."""
        return self.feeders is None or self.job.engine.blocks is not None

    @property
    def is_ready(self) -> bool:
        """Whether it could answer now; False for engines whose readiness shows only with the first row."""
        return False

    def is_starting(self) -> bool:
        """Whether an engine that is not ready is on its way."""
        return engine_is_starting()

    def raise_if_broken(self) -> None:  # noqa: B027
        """Called every second while requests are answered; raises what broke the engine, if it is known."""

    def fit_workers(self, rows: int, wanted: int | None) -> Set[str]:
        """Called every second while requests are answered: further workers may start, and those may end that
        so few rows do not need. Returns the nodes that have none any more.

        :param rows: unfinished ones.
        :param wanted: workers that finish the slice in time; None: as many as it may have.
        """
        return frozenset()

    def stop(self) -> None:  # noqa: B027
        """Called when answering ends, for whatever reason."""
