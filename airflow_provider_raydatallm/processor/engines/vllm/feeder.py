"""Feeders: a Ray Data actor pool on CPUs that does everything around vLLM.

A feeder takes a block of requests, applies the chat template, tokenizes, has a worker generate, and delivers
rows in groups as they finish. When a worker dies, only the rows that it did not finish are generated again.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.columns import describe_error, storable
from airflow_provider_raydatallm.processor.engines.base import AnswerSink, answer_table
from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import ADDED_COLUMNS, COPIED_COLUMNS
from airflow_provider_raydatallm.processor.engines.vllm.tokenizer import PromptTokenizer, TokenizedRequest
from airflow_provider_raydatallm.processor.engines.vllm.worker_pool import OpenWorkerPool

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: After so many deaths of the engine under one batch, the batch counts as their cause.
MAX_DEATHS = 3


class Feeder:
    """Each of its threads takes a block."""

    def __init__(
        self,
        job: SliceJob,
        open_workers: OpenWorkerPool,
        deliver: AnswerSink,
        shorten_to: int | None,
        postpone_over: int | None,
        coordinators: Sequence[ActorHandle[Any]],
    ) -> None:
        """:param shorten_to: tokens of a prompt plus max_tokens; longer prompts are shortened.
        :param postpone_over: rows with more such tokens are left to an engine with a higher limit.
        :param coordinators: `DedupCoordinator`s by shard, to answer identical requests once; may be empty.
        """
        self._tokenizer = PromptTokenizer(job, shorten_to)
        self._postpone_over = postpone_over
        self._deliver = deliver
        self._workers = open_workers()
        self._dedup = DedupClient(coordinators, always=bool(job.deduplicate)) if coordinators else None

    def __call__(self, requests: pa.Table) -> pa.Table:
        """Answers and delivers the requests of a block."""
        texts = requests.column("__request").to_pylist()

        def infer(rows: Sequence[int], keys: Sequence[bytes | None]) -> Collection[int]:
            return self._infer(
                requests, {row: texts[row] for row in rows}, dict(zip(rows, keys, strict=True))
            )

        def copy(rows: Sequence[int], answers: pa.Table) -> None:
            self._deliver_copies(_take(requests, rows), answers)

        if self._dedup is None:
            infer(range(len(texts)), [None] * len(texts))
        else:
            self._dedup.run(texts, infer, copy)
        return pa.table({"rows": [requests.num_rows]})

    def _infer(
        self, requests: pa.Table, texts: dict[int, str], keys: dict[int, bytes | None]
    ) -> Collection[int]:
        """Returns the rows that are postponed.

        :param texts: by row.
        """
        tokenized = dict(zip(texts, self._tokenizer(list(texts.values())), strict=True))

        def deliver(rows: Sequence[int], **columns: Any) -> None:
            no, zeros = [False] * len(rows), [0] * len(rows)
            answers = answer_table(
                _take(requests, rows), deduplicated=no, cached=no, saved_tokens=zeros, **columns
            )
            if self._dedup is not None:
                keyed = {i: key for i, row in enumerate(rows) if (key := keys[row]) is not None}
                self._dedup.add_answers(
                    list(keyed.values()), _take(answers.select(ADDED_COLUMNS), list(keyed))
                )
            self._deliver(answers)

        if errors := {row: t.error for row, t in tokenized.items() if t.error is not None}:
            deliver(
                list(errors),
                finished_at=[time.time()] * len(errors),
                error_type=[type(e).__name__ for e in errors.values()],
                error=[storable(f"{type(e).__name__}: {describe_error(e)}") for e in errors.values()],
            )
        deaths = 0
        postponed = {row for row, t in tokenized.items() if row not in errors and self._is_postponed(t)}
        remaining = [row for row in tokenized if row not in errors and row not in postponed]
        while remaining:
            batch = pa.table(
                {
                    "tokens": pa.array([tokenized[row].tokens for row in remaining], pa.list_(pa.int32())),
                    "params": pa.array([tokenized[row].params for row in remaining]),
                }
            )
            finished: set[int] = set()
            with self._workers.least_busy(len(remaining)) as worker:
                process = worker.process
                for group in worker.generate(batch):
                    rows = [remaining[i] for i in group.column("row").to_pylist()]
                    finished.update(rows)
                    columns = {n: group.column(n).combine_chunks() for n in group.schema.names if n != "row"}
                    deliver(rows, shortened=[tokenized[row].shortened for row in rows], **columns)
            remaining = [row for row in remaining if row not in finished]
            deaths += bool(remaining)
            if deaths >= MAX_DEATHS:
                raise SliceError(
                    f"the engine died {deaths} times while it answered the same {len(remaining)} row(s)",
                    kind="engine",
                    log=process,
                )
        return postponed

    def _is_postponed(self, request: TokenizedRequest) -> bool:
        return self._postpone_over is not None and request.total_tokens > self._postpone_over

    def _deliver_copies(self, requests: pa.Table, answers: pa.Table) -> None:
        zeros = [0] * requests.num_rows
        self._deliver(
            answer_table(
                requests,
                deduplicated=pc.invert(answers.column("cached").combine_chunks()),
                input_tokens=zeros,
                output_tokens=zeros,
                cached_tokens=zeros,
                finished_at=[time.time()] * requests.num_rows,
                **{name: answers.column(name).combine_chunks() for name in COPIED_COLUMNS},
            )
        )


def feeder_pool(actors: tuple[int, int], threads: int) -> dict[str, Any]:
    """`map_batches` arguments for a pool of actors that take several blocks at once.

    :param actors: the fewest and the most.
    :param threads: blocks that an actor takes at once.
    """
    from ray.data import ActorPoolStrategy

    strategy: Any = ActorPoolStrategy
    # Ray adds an actor only when as many blocks wait as are in work.
    waiting = 2 if actors[0] == actors[1] else max(2, threads)
    options = {
        "min_size": actors[0],
        "max_size": actors[1],
        "max_tasks_in_flight_per_actor": threads + waiting,
        "enable_true_multi_threading": True,
    }
    if "max_concurrent_calls_per_actor" in inspect.signature(strategy.__init__).parameters:
        return {"compute": strategy(**options, max_concurrent_calls_per_actor=threads)}
    return {"compute": strategy(**options), "max_concurrency": threads}  # Ray 2.58


def _take(table: pa.Table, rows: Sequence[int]) -> pa.Table:
    return table.take(pa.array(rows, pa.int64()))
