"""Feeders: processes on CPUs that do everything around an engine's workers.

A feeder takes blocks of requests, as many as it has room for. It has requests tokenized as the engine does
it, has workers generate (`dispatcher`), and delivers rows as they finish, whatever block they came in: no row
waits for another. `feeder_pool` brings it blocks.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import (
    CARRIED_ROW_FIELD,
    FILES_FIELD,
    describe_error,
    storable,
)
from airflow_provider_raydatallm.processor.engines.base import AnswerSink, answer_table
from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import COPIED_COLUMNS
from airflow_provider_raydatallm.processor.engines.feeding.active_feeders import ActiveFeeders
from airflow_provider_raydatallm.processor.engines.feeding.copies import Copies
from airflow_provider_raydatallm.processor.engines.feeding.dispatcher import SUSPECT_DEATHS, Dispatcher
from airflow_provider_raydatallm.processor.engines.feeding.row import Row, RowDispatcher, RowRequest, ids_of
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
_TICK_SECONDS = 0.5


@dataclass(frozen=True)
class FeederSetup:
    """What all feeders of a slice have in common.

    open_tokenizer, open_workers: of the engine. budget: of each worker. window_rows: `Dispatcher`.
    active_feeders: share the workers.
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
    window_rows: int
    active_feeders: ActiveFeeders
    suspect_keys: SuspectKeys
    postpone_over: int | None = None
    dedup: Callable[[], DedupClient] | None = None
    shared_workers: int | None = None
    groups_adapters: bool = False
    silent_after_s: float = SILENT_SECONDS


class Feeder:
    """Thread-safe. An instance is called with a block; `drain` comes after the last one."""

    def __init__(self, setup: FeederSetup) -> None:
        self._setup = setup
        self._deliver = setup.deliver
        self._tokenizer = setup.open_tokenizer()
        self._media = MediaReader(setup.job) if setup.job.task.media is not None else None
        self._name = uuid.uuid4().hex[:12]
        self._pool = setup.open_workers(self._name)
        self._dedup = setup.dedup() if setup.dedup is not None else None
        self._copies = None
        if self._dedup is not None:
            self._copies = Copies(self._dedup, deliver=self._deliver_copies, on_lost=self._take_in)
        # One block at a time is taken in, in the order of the input.
        self._intake = threading.Lock()
        self._tokenizing = threading.Lock()
        self._dispatcher = self._new_dispatcher()

    def _new_dispatcher(self) -> RowDispatcher:
        return Dispatcher(
            self._workers,
            on_group=self._deliver_group,
            on_death=self._record_death,
            on_left=self._leave,
            window_rows=self._setup.window_rows,
            groups_adapters=self._setup.groups_adapters,
            silent_after_s=self._setup.silent_after_s,
        )

    def __call__(self, requests: pa.Table) -> None:
        """Takes the rows of a block over, as soon as there is room.

        :raises Exception: what kept earlier rows from being delivered.
        """
        rows = self._read_media(requests)
        with self._intake:
            if self._copies is not None:
                self._copies.wait_for_room()
            self._take_in(rows)

    def drain(self) -> None:
        """Waits until each row is delivered, or left for another round.

        :raises Exception: what kept rows from being delivered.
        """
        has_copies = True
        while has_copies:
            # Copies become rows in work when their answers are lost, and never the other way round.
            has_copies = self._copies is not None and not self._copies.wait_until_empty(_TICK_SECONDS)
            self._dispatcher.drain()
            if self._dedup is not None:
                self._dedup.send_answers()

    def _workers(self, has_rows: bool) -> tuple[Sequence[Worker], RowBudget]:
        ready, setup = self._pool.ready(), self._setup
        place, feeders = setup.active_feeders.place(self._name, has_rows)
        if setup.shared_workers is not None:
            return ready, setup.budget.share(feeders / setup.shared_workers)
        mine = workers_of_feeder(ready, place, feeders)
        return mine, setup.budget.share(max(1, feeders * len(mine) / max(1, len(ready))))

    def _read_media(self, block: pa.Table) -> list[RowRequest]:
        """Returns a block's rows: with media, those whose files can be read. Their requests name these by
        their content. Delivers the others."""
        rows = _rows_of(block)
        if self._media is None:
            return rows
        contents = self._media.read(cells.from_array(block.column(FILES_FIELD.name)))
        readable: list[RowRequest] = []
        failed: list[tuple[RowRequest, Exception]] = []
        for row, content in zip(rows, contents, strict=True):
            if isinstance(content, Exception):
                failed.append((row, content))
            else:
                row.text, row.files = name_media(row.text, content), content
                readable.append(row)
        self._deliver_errors(failed)
        return readable

    def _take_in(self, rows: Sequence[RowRequest]) -> None:
        """Has rows answered, identical requests once."""
        sent = self._claim(rows) if self._dedup is not None else rows
        is_batch = self._setup.budget.batches is not None
        for some in [sent] if is_batch and sent else _cut(sent):
            self._dispatcher.wait_for_room()
            waiting: list[Row] = []
            failed: list[tuple[RowRequest, Exception]] = []
            postponed: list[RowRequest] = []
            with self._tokenizing:
                tokenized = self._tokenizer([row.text for row in some])
                decoded = self._decode([row.files for row in some])
            for row, request, media in zip(some, tokenized, decoded, strict=True):
                if request.error is not None:
                    failed.append((row, request.error))
                elif isinstance(media, Exception):
                    failed.append((row, media))
                elif self._is_postponed(request):
                    postponed.append(row)
                else:
                    waiting.append(_in_work(row, request, media))
            self._deliver_errors(failed)
            self._give_up([row.key for row in postponed])
            self._dispatcher.hand_in(waiting, as_batch=is_batch)

    def _claim(self, rows: Sequence[RowRequest]) -> list[RowRequest]:
        """Returns the rows that this feeder is to infer. Those with the same requests wait for their answers,
        and so do those whose requests were claimed before."""
        assert self._dedup is not None
        assert self._copies is not None
        unique: list[RowRequest] = []
        by_key: dict[bytes, list[RowRequest]] = {}
        for row in rows:
            row.key = self._dedup.key(row.text)
            if row.key is None:
                unique.append(row)
            else:
                by_key.setdefault(row.key, []).append(row)
        claimed = self._dedup.claim(list(by_key))
        # After the claim: who leaves a suspect tells of it before its key can be claimed again.
        suspects = claimed & self._setup.suspect_keys.read() if claimed else set()
        first: list[RowRequest] = []
        for key, same in by_key.items():
            if key in suspects:
                self._record_twins(same)
                continue
            if key in claimed:
                first.append(same[0])
                same = same[1:]
            if same:
                self._copies.add(key, same)
        self._give_up(suspects)
        return [*unique, *first]

    def _leave(self, rows: Sequence[Row]) -> None:
        """Takes rows that are left unanswered."""
        if self._dedup is None or self._copies is None:
            return
        suspects = {r.key for r in rows if r.deaths >= SUSPECT_DEATHS and r.key is not None}
        self._setup.suspect_keys.add(suspects)
        self._record_twins(self._copies.take(suspects))
        self._give_up([row.key for row in rows])

    def _give_up(self, keys: Iterable[bytes | None]) -> None:
        """No row with one of these keys is answered in this round."""
        claimed = [key for key in keys if key is not None]
        if claimed and self._dedup is not None and self._copies is not None:
            self._copies.take(claimed)
            self._dedup.release(claimed)

    def _record_twins(self, rows: Sequence[RowRequest]) -> None:
        """Makes suspects of rows that were not sent, with the request of one."""
        for _ in range(SUSPECT_DEATHS if rows else 0):
            self._deliver.record_death(ids_of(rows))

    def _decode(self, files: Sequence[Sequence[bytes]]) -> Sequence[Sequence[Medium] | Exception]:
        return self._media.decode(files) if self._media is not None else [()] * len(files)

    def _is_postponed(self, request: TokenizedRequest) -> bool:
        limit = self._setup.postpone_over
        return request.error is None and limit is not None and request.total_tokens > limit

    def _deliver_errors(self, failed: Sequence[tuple[RowRequest, Exception]]) -> None:
        if failed:
            rows, errors = zip(*failed, strict=True)
            answers = self._deliver_new(
                rows,
                finished_at=[time.time()] * len(failed),
                error_type=[type(e).__name__ for e in errors],
                error=[storable(f"{type(e).__name__}: {describe_error(e)}") for e in errors],
            )
            self._share([row.key for row in rows], answers)

    def _deliver_group(self, rows: Sequence[Row], group: pa.Table) -> None:
        answers = self._deliver_new(
            rows,
            shortened=[row.shortened for row in rows],
            asked_again=[row.asked_again for row in rows],
            **{name: group.column(name).combine_chunks() for name in group.schema.names if name != "row"},
        )
        self._share([row.key for row in rows], answers)

    def _share(self, keys: Sequence[bytes | None], answers: pa.Table) -> None:
        """Gives answers to the rows with the same requests."""
        if self._dedup is not None:
            keyed = [i for i, key in enumerate(keys) if key is not None]
            shared = answers if len(keyed) == len(keys) else answers.take(pa.array(keyed, pa.int64()))
            self._dedup.add_answers([key for key in keys if key is not None], shared)

    def _deliver_new(self, rows: Sequence[Row | RowRequest], **columns: Any) -> pa.Table:
        no, zeros = np.zeros(len(rows), bool), np.zeros(len(rows), np.int64)
        counters = {"deduplicated": no, "cached": no, "asked_again": no, "saved_tokens": zeros}
        answers = answer_table(ids_of(rows), **{**counters, **columns})
        [invalid] = self._deliver(answers).column("invalid").to_pylist()
        is_invalid = np.isin(np.arange(answers.num_rows), invalid)
        return answers.append_column("is_invalid", pa.array(is_invalid))

    def _deliver_copies(self, rows: Sequence[RowRequest], answers: pa.Table) -> None:
        zeros = [0] * len(rows)
        self._deliver(
            answer_table(
                ids_of(rows),
                deduplicated=pc.invert(answers.column("cached").combine_chunks()),
                input_tokens=zeros,
                output_tokens=zeros,
                cached_tokens=zeros,
                asked_again=[False] * len(rows),
                finished_at=[time.time()] * len(rows),
                **{name: answers.column(name).combine_chunks() for name in COPIED_COLUMNS},
            )
        )

    def _record_death(self, rows: Sequence[Row]) -> None:
        self._deliver.record_death(ids_of(rows))


def _rows_of(block: pa.Table) -> list[RowRequest]:
    columns = [block.column(name).to_pylist() for name in ("__unit", "__offset", "__request")]
    if CARRIED_ROW_FIELD.name in block.schema.names:
        columns.append(block.column(CARRIED_ROW_FIELD.name).to_pylist())
    return [RowRequest(*values) for values in zip(*columns, strict=True)]


def _cut(rows: Sequence[RowRequest]) -> Iterator[Sequence[RowRequest]]:
    """Rows that are tokenized, and decoded, at once."""
    start = images = 0
    for place, row in enumerate(rows):
        images += len(row.files)
        if place - start >= _TOKENIZED_ROWS or (images > _DECODED_IMAGES and place > start):
            yield rows[start:place]
            start, images = place, len(row.files)
    if start < len(rows):
        yield rows[start:]


def _in_work(row: RowRequest, request: TokenizedRequest, media: Sequence[Medium]) -> Row:
    return Row(
        row.unit,
        row.offset,
        tokens=np.asarray(request.tokens, np.int32),
        params=sys.intern(request.params),  # mostly one for all rows
        adapter=request.adapter,
        max_tokens=request.max_tokens,
        media=media,
        carried=row.carried,
        key=row.key,
        shortened=request.shortened,
    )
