"""Feeders: a Ray Data actor pool on CPUs that does everything around an engine's workers.

A feeder holds many blocks of requests at once, a mostly waiting thread for each. It has requests tokenized
as the engine does it, has workers generate (`dispatcher`), and delivers rows of any block as they finish.
"""

from __future__ import annotations

import inspect
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import FILES_FIELD, describe_error, storable
from airflow_provider_raydatallm.processor.engines.base import AnswerSink, answer_table
from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import COPIED_COLUMNS
from airflow_provider_raydatallm.processor.engines.feeding.active_feeders import ActiveFeeders
from airflow_provider_raydatallm.processor.engines.feeding.dispatcher import SUSPECT_DEATHS, Dispatcher
from airflow_provider_raydatallm.processor.engines.feeding.row import Row, RowDispatcher
from airflow_provider_raydatallm.processor.engines.feeding.row_budget import RowBudget, workers_of_feeder
from airflow_provider_raydatallm.processor.engines.feeding.suspect_keys import SuspectKeys
from airflow_provider_raydatallm.processor.engines.feeding.tokenized_request import (
    OpenTokenizer,
    TokenizedRequest,
    name_media,
)
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import OpenWorkerPool, Worker
from airflow_provider_raydatallm.processor.media import cells
from airflow_provider_raydatallm.processor.media.medium import Medium
from airflow_provider_raydatallm.processor.media.reader import MediaReader

#: Rows that are tokenized at once: the first reach an engine before the last of a block are tokenized.
_TOKENIZED_ROWS = 256
#: Images of such rows, at most, unless a row has more: decoded, each takes megabytes.
_DECODED_IMAGES = 16
#: Seconds without a sign of life, after which a worker's rows are asked elsewhere. A step may take long.
SILENT_SECONDS = 120.0


@dataclass(frozen=True)
class FeederSetup:
    """What all feeders of a slice have in common.

    open_tokenizer, open_workers: of the engine. budget: of each worker. active_feeders: share the workers.
    suspect_keys: of requests that were in engines when they died: identical ones are not sent after them.
    postpone_over: rows with more tokens (prompt plus max_tokens) are left to an engine with a higher limit.
    dedup: opens what runs identical requests once. shared_workers: of an engine whose workers are behind one
    address. groups_adapters, silent_after_s: `Dispatcher`.
    """

    job: SliceJob
    open_tokenizer: OpenTokenizer
    open_workers: OpenWorkerPool
    deliver: AnswerSink
    budget: RowBudget
    active_feeders: ActiveFeeders
    suspect_keys: SuspectKeys
    postpone_over: int | None = None
    dedup: Callable[[], DedupClient] | None = None
    shared_workers: int | None = None
    groups_adapters: bool = False
    silent_after_s: float = SILENT_SECONDS


class Feeder:
    """Each of its threads takes a block."""

    def __init__(self, setup: FeederSetup) -> None:
        self._setup = setup
        self._deliver = setup.deliver
        self._tokenizer = setup.open_tokenizer()
        self._media = MediaReader(setup.job) if setup.job.task.media is not None else None
        self._name = uuid.uuid4().hex[:12]
        self._pool = setup.open_workers(self._name)
        self._dedup = setup.dedup() if setup.dedup is not None else None
        # One block at a time is tokenized, in the order of the input.
        self._intake = threading.Lock()
        self._dispatcher = self._new_dispatcher()

    def _new_dispatcher(self) -> RowDispatcher:
        return Dispatcher(
            self._workers,
            on_group=self._deliver_group,
            on_death=self._record_death,
            groups_adapters=self._setup.groups_adapters,
            silent_after_s=self._setup.silent_after_s,
        )

    def __call__(self, requests: pa.Table) -> pa.Table:
        """Answers and delivers the requests of a block."""
        texts = requests.column("__request").to_pylist()
        ids = requests.drop_columns(["__request"])
        files: Sequence[Sequence[bytes]] = [()] * len(texts)
        if self._media is not None:
            ids, texts, files = self._read_media(self._media, ids, texts)
        infer = partial(self._infer, ids, texts, files)
        if self._dedup is None:
            infer(range(len(texts)), [None] * len(texts))
        else:
            self._dedup.run(
                texts, infer, lambda rows, answers: self._deliver_copies(_take(ids, rows), answers)
            )
        return pa.table({"rows": [requests.num_rows]})

    def _workers(self, has_rows: bool) -> tuple[Sequence[Worker], RowBudget]:
        ready, setup = self._pool.ready(), self._setup
        place, feeders = setup.active_feeders.place(self._name, has_rows)
        if setup.shared_workers is not None:
            return ready, setup.budget.share(feeders / setup.shared_workers)
        mine = workers_of_feeder(ready, place, feeders)
        return mine, setup.budget.share(max(1, feeders * len(mine) / max(1, len(ready))))

    def _read_media(
        self, reader: MediaReader, block: pa.Table, texts: Sequence[str]
    ) -> tuple[pa.Table, list[str], list[list[bytes]]]:
        """Returns the rows whose files can be read, their requests, which then name these by their content,
        and the files. Delivers the others."""
        contents = reader.read(cells.from_array(block.column(FILES_FIELD.name)))
        block = block.drop_columns([FILES_FIELD.name])
        self._deliver_errors(
            block, [(i, None, c) for i, c in enumerate(contents) if isinstance(c, Exception)]
        )
        files = {i: content for i, content in enumerate(contents) if isinstance(content, list)}
        named = [name_media(texts[i], content) for i, content in files.items()]
        return _take(block, list(files)), named, list(files.values())

    def _infer(
        self,
        block: pa.Table,
        texts: Sequence[str],
        files: Sequence[Sequence[bytes]],
        rows: Sequence[int],
        keys: Sequence[bytes | None],
    ) -> Collection[int]:
        """Returns the rows left unanswered."""
        left: list[int] = []
        suspects: list[int] = []
        in_work = []
        is_batch = self._setup.budget.batches is not None
        with self._intake:
            suspect_keys = self._setup.suspect_keys.read() if self._dedup is not None else set()
            for places in [slice(None)] if is_batch and rows else _cut(rows, files):
                self._dispatcher.wait_for_room()
                some, their_keys = rows[places], keys[places]
                waiting: list[Row] = []
                failed: list[tuple[int, bytes | None, Exception]] = []
                tokenized = self._tokenizer([texts[row] for row in some])
                decoded = self._decode([files[row] for row in some])
                for row, key, request, media in zip(some, their_keys, tokenized, decoded, strict=True):
                    if request.error is not None:
                        failed.append((row, key, request.error))
                    elif isinstance(media, Exception):
                        failed.append((row, key, media))
                    elif key in suspect_keys:
                        suspects.append(row)
                    elif self._is_postponed(request):
                        left.append(row)
                    else:
                        waiting.append(_row(block, row, request, key, media))
                self._deliver_errors(block, failed)
                in_work.append(self._dispatcher.hand_in(waiting, as_batch=is_batch))
        not_sent = set(suspects)
        keys_of_suspects: set[bytes] = set()
        for handed_in in in_work:
            for unanswered in self._dispatcher.wait(handed_in):
                if unanswered.deaths < SUSPECT_DEATHS:
                    left.append(unanswered.index)
                    continue
                suspects.append(unanswered.index)
                if unanswered.key is not None:
                    keys_of_suspects.add(unanswered.key)
        if self._dedup is not None:
            self._setup.suspect_keys.add(keys_of_suspects)
            self._record_twins(block, texts, suspects, known=set(suspects) - not_sent)
        return [*left, *suspects]

    def _decode(self, files: Sequence[Sequence[bytes]]) -> Sequence[Sequence[Medium] | Exception]:
        return self._media.decode(files) if self._media is not None else [()] * len(files)

    def _record_twins(
        self, block: pa.Table, texts: Sequence[str], suspects: Sequence[int], known: set[int]
    ) -> None:
        """Makes suspects of the rows with the request of one, which were not sent.

        :param known: those of the suspects that were in the engines.
        """
        requests = {texts[row] for row in suspects}
        twins = [i for i, text in enumerate(texts) if text in requests and i not in known]
        for _ in range(SUSPECT_DEATHS if twins else 0):
            self._deliver.record_death(_take(block, twins))

    def _is_postponed(self, request: TokenizedRequest) -> bool:
        limit = self._setup.postpone_over
        return request.error is None and limit is not None and request.total_tokens > limit

    def _deliver_errors(self, block: pa.Table, failed: Sequence[tuple[int, bytes | None, Exception]]) -> None:
        if failed:
            rows, keys, errors = zip(*failed, strict=True)
            answers = self._deliver_new(
                _take(block, rows),
                finished_at=[time.time()] * len(failed),
                error_type=[type(e).__name__ for e in errors],
                error=[storable(f"{type(e).__name__}: {describe_error(e)}") for e in errors],
            )
            self._share(keys, answers)

    def _deliver_group(self, rows: Sequence[Row], group: pa.Table) -> None:
        order = sorted(range(len(rows)), key=lambda i: id(rows[i].block))
        rows, group = [rows[i] for i in order], group.take(pa.array(order, pa.int64()))
        ids = pa.concat_tables(
            _take(of_block[0].block, [row.index for row in of_block])
            for _, of in groupby(rows, key=lambda row: id(row.block))
            for of_block in [list(of)]
        )
        answers = self._deliver_new(
            ids,
            shortened=[row.shortened for row in rows],
            asked_again=[row.asked_again for row in rows],
            **{name: group.column(name).combine_chunks() for name in group.schema.names if name != "row"},
        )
        self._share([row.key for row in rows], answers)

    def _share(self, keys: Sequence[bytes | None], answers: pa.Table) -> None:
        """Gives answers to the rows with the same requests."""
        if self._dedup is not None:
            keyed = [i for i, key in enumerate(keys) if key is not None]
            shared = answers if len(keyed) == len(keys) else _take(answers, keyed)
            self._dedup.add_answers([key for key in keys if key is not None], shared)

    def _deliver_new(self, ids: pa.Table, **columns: Any) -> pa.Table:
        no, zeros = np.zeros(ids.num_rows, bool), np.zeros(ids.num_rows, np.int64)
        counters = {"deduplicated": no, "cached": no, "asked_again": no, "saved_tokens": zeros}
        answers = answer_table(ids, **{**counters, **columns})
        [invalid] = self._deliver(answers).column("invalid").to_pylist()
        is_invalid = np.isin(np.arange(answers.num_rows), invalid)
        return answers.append_column("is_invalid", pa.array(is_invalid))

    def _deliver_copies(self, ids: pa.Table, answers: pa.Table) -> None:
        zeros = [0] * ids.num_rows
        self._deliver(
            answer_table(
                ids,
                deduplicated=pc.invert(answers.column("cached").combine_chunks()),
                input_tokens=zeros,
                output_tokens=zeros,
                cached_tokens=zeros,
                asked_again=[False] * ids.num_rows,
                finished_at=[time.time()] * ids.num_rows,
                **{name: answers.column(name).combine_chunks() for name in COPIED_COLUMNS},
            )
        )

    def _record_death(self, rows: Sequence[Row]) -> None:
        self._deliver.record_death(pa.concat_tables(_take(row.block, [row.index]) for row in rows))


def _cut(rows: Sequence[int], files: Sequence[Sequence[bytes]]) -> Iterator[slice]:
    """The places of rows that are tokenized, and decoded, at once."""
    start = images = 0
    for place, row in enumerate(rows):
        images += len(files[row])
        if place - start >= _TOKENIZED_ROWS or (images > _DECODED_IMAGES and place > start):
            yield slice(start, place)
            start, images = place, len(files[row])
    if start < len(rows):
        yield slice(start, len(rows))


def _row(
    block: pa.Table,
    index: int,
    request: TokenizedRequest,
    key: bytes | None,
    media: Sequence[Medium],
) -> Row:
    return Row(
        block,
        index,
        tokens=np.asarray(request.tokens, np.int32),
        params=request.params,
        adapter=request.adapter,
        max_tokens=request.max_tokens,
        media=media,
        key=key,
        shortened=request.shortened,
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
