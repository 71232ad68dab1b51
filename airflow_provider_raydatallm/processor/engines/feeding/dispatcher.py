"""Keeps workers full: sends a feeder's rows to them as others finish.

Whoever hands rows in goes on: what is unfinished is this one's account. A thread sends waiting rows wherever
a worker has room, the longest first where their `max_tokens` differ, so that a row that takes long holds one
place and nothing else. What a worker did not answer when it died is sent again, and so are the rows of a
silent worker: the first answer counts. A worker whose node leaves finishes what it has. A row that was in two
engines when they died is left for an engine of its own (`isolation`).
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.feeding.row import Row, call_table
from airflow_provider_raydatallm.processor.engines.feeding.row_budget import RowBudget
from airflow_provider_raydatallm.processor.engines.feeding.row_deadlines import RowDeadlines
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import Worker, WorkerDiedError

#: A row that was in so many engines when they died by themselves is a suspect.
SUSPECT_DEATHS = 2
#: A row that came back so often without an answer for other reasons is left unanswered.
_MOST_RETURNS = 4
#: Tokens of the rows that wait to be sent, at most: where prompts are long, fewer rows wait.
_WINDOW_TOKENS = 8_000_000
#: Fewer rows wait for more room in a worker, unless there are no more.
_SMALLEST_CALL = 16
_TICK_SECONDS = 0.5
#: Before a worker's node leaves: what it has not answered by then is asked elsewhere.
_LAST_SECONDS = 20.0

#: The ready workers that a feeder uses, and its share of each; is told whether rows wait to be sent.
ReadyWorkers = Callable[[bool], tuple[Sequence[Worker], RowBudget]]


@dataclass(eq=False)
class _Link:
    """Rows that end together: all that a feeder has in a worker with one stream, else those of a call."""

    worker: Worker
    rows: dict[int, Row] = field(default_factory=dict)
    tokens: int = 0
    open_calls: int = 0
    is_dead: bool = False
    died_by_itself: bool = False


class Dispatcher:
    """Thread-safe."""

    def __init__(
        self,
        workers: ReadyWorkers,
        *,
        on_group: Callable[[Sequence[Row], pa.Table], None],
        on_death: Callable[[Sequence[Row]], None],
        on_left: Callable[[Sequence[Row]], None],
        window_rows: int,
        groups_adapters: bool = False,
        silent_after_s: float,
    ) -> None:
        """
        :param workers: never waits.
        :param on_group: delivers finished rows, with their columns of `GROUP_SCHEMA`.
        :param on_death: records rows that were in an engine that died by itself.
        :param on_left: takes rows that are left unanswered.
        :param window_rows: that wait to be sent, at most: among them the longest go first. A long row that is
            found late ends late.
        :param groups_adapters: whether rows of the same adapter go one after the other: a worker that has not
            room for all of them would load them again and again.
        :param silent_after_s: without a sign of life, after which a worker's rows are asked elsewhere.
        """
        self._workers, self._on_group = workers, on_group
        self._on_death, self._on_left = on_death, on_left
        self._window_rows = window_rows
        self._silent_after_s, self._groups_adapters = silent_after_s, groups_adapters
        self._numbers = itertools.count()
        # By adapter, where they are grouped; then longest first, then in the order of numbers.
        self._queue: list[tuple[str, int, int, list[Row]]] = []
        self._queued_rows = self._queued_tokens = 0
        self._links: list[_Link] = []
        #: Workers that get no rows now.
        self._closed: set[Worker] = set()
        #: Rows that were handed in, and are neither delivered nor left.
        self._unsettled = 0
        self._deadlines = RowDeadlines()
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="ray-llm-dispatch", daemon=True).start()

    def wait_for_room(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._has_room)
            self._raise_error()

    def hand_in(self, rows: Sequence[Row], *, as_batch: bool = False) -> None:
        batch = object() if as_batch else None
        with self._changed:
            self._raise_error()
            self._unsettled += len(rows)
            for row in rows:
                row.batch = batch
            self._push(rows)
            self._changed.notify_all()

    def drain(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._unsettled)
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # The queue, under the lock

    @property
    def _has_room(self) -> bool:
        return self._queued_rows < self._window_rows and self._queued_tokens < _WINDOW_TOKENS

    def _push(self, rows: Sequence[Row], *, first: bool = False) -> None:
        """Rows of a batch are one entry."""
        entries: dict[Any, list[Row]] = {}
        for row in rows:
            entries.setdefault(row.batch or row, []).append(row)
            self._queued_tokens += row.weight
            row.is_queued = True
        for entry in entries.values():
            adapter = entry[0].adapter if self._groups_adapters and not first else ""
            order = -(1 << 62) if first else -max(row.max_tokens for row in entry)
            heapq.heappush(self._queue, (adapter, order, next(self._numbers), entry))
        self._queued_rows += len(rows)

    def _take(self, worker: Worker, room: int, tokens: int) -> list[Row]:
        """Takes waiting rows for a worker: about so many, with so many tokens, and at least one entry."""
        taken: list[Row] = []
        avoided = []
        while self._queue and len(taken) < room and tokens > 0:
            entry = heapq.heappop(self._queue)
            waiting = entry[-1]
            rows = [row for row in waiting if not row.is_done]
            if any(row.avoid is worker for row in rows):
                avoided.append(entry)
                continue
            self._queued_rows -= len(waiting)
            tokens -= sum(row.weight for row in rows)
            taken += rows
            for row in waiting:
                self._queued_tokens -= row.weight
                row.is_queued = False
        for entry in avoided:
            heapq.heappush(self._queue, entry)
        return taken

    # Sending

    def _run(self) -> None:
        try:
            checked_at = time.monotonic()
            while True:
                workers, share = self._workers(bool(self._queue))
                with self._changed:
                    if self._error is not None:
                        return
                    if time.monotonic() - checked_at >= _TICK_SECONDS:
                        checked_at = time.monotonic()
                        self._ask_again(workers)
                    in_work = {worker: self._rows_in(worker) for worker in workers}
                    has_sent = [self._send(w, share) for w in sorted(workers, key=in_work.__getitem__)]
                    if any(has_sent):
                        self._changed.notify_all()  # whoever waits for room
                    else:
                        self._changed.wait(_TICK_SECONDS)
        except BaseException as e:
            self._fail(e)

    def _rows_in(self, worker: Worker) -> int:
        return sum(len(link.rows) for link in self._links if link.worker is worker)

    def _send(self, worker: Worker, share: RowBudget) -> bool:
        """Sends waiting rows to a worker that has room. Returns whether it did."""
        links = [link for link in self._links if link.worker is worker]
        is_dead = worker.has_one_stream and any(link.is_dead for link in links)
        if not self._queue or is_dead or worker in self._closed:
            return False
        if share.batches is not None:
            batches = {row.batch for link in links for row in link.rows.values()}
            rows = self._take(worker, 1, share.tokens) if len(batches) < share.batches else []
        else:
            room = min(worker.largest_call, share.rows - self._rows_in(worker))
            tokens = share.tokens - sum(link.tokens for link in links)
            enough = max(
                1,
                min(self._queued_rows, worker.largest_call, share.rows, max(_SMALLEST_CALL, share.rows // 8)),
            )
            rows = self._take(worker, room, tokens) if room >= enough else []
        if not rows:
            return False
        link = links[0] if worker.has_one_stream and links else _Link(worker)
        if link not in self._links:
            self._links.append(link)
        self._start_call(link, rows)
        return True

    def _start_call(self, link: _Link, rows: Sequence[Row]) -> None:
        numbers = [next(self._numbers) for _ in rows]
        sent = dict(zip(numbers, rows, strict=True))
        call = call_table(sent)
        now = time.monotonic()
        for number, row in sent.items():
            row.sent_at = now
            link.rows[number] = row
            link.tokens += row.weight
        link.open_calls += 1
        threading.Thread(target=self._read, args=(link, call), name="ray-llm-answers", daemon=True).start()

    def _ask_again(self, workers: Sequence[Worker]) -> None:
        """Has rows of workers that are silent or about to leave, and overdue rows, answered by others too."""
        all_workers = {*workers, *(link.worker for link in self._links)}
        silent = {worker for worker in all_workers if worker.silent_s() >= self._silent_after_s}
        leaving = {worker: s for worker in all_workers if (s := worker.leaves_in_s()) is not None}
        lost = silent | {worker for worker, seconds in leaving.items() if seconds <= _LAST_SECONDS}
        # Those that leave go on where there is no other.
        self._closed = silent | leaving.keys() if set(workers) - silent - leaving.keys() else silent
        limits, now = self._deadlines.seconds(), time.monotonic()
        elsewhere = self._asked_again_in(link for link in self._links if link.worker not in lost)
        again: list[Row] = []
        for link in self._links:
            if not set(workers) - self._closed - lost - {link.worker}:
                continue
            is_in_lost = link.worker in lost
            for row in link.rows.values():
                is_overdue = limits is not None and now - row.sent_at > limits[0] + limits[1] * row.max_tokens
                is_lost = is_in_lost and row not in elsewhere
                if (is_lost or (is_overdue and not row.asked_again)) and not row.is_queued:
                    row.asked_again = row.is_queued = True
                    row.avoid = link.worker
                    again.append(row)
        self._push(again, first=True)

    @staticmethod
    def _asked_again_in(links: Iterable[_Link]) -> set[Row]:
        """Only these can be in several workers."""
        return {row for link in links for row in link.rows.values() if row.asked_again}

    # Answers

    def _read(self, link: _Link, call: pa.Table) -> None:
        """Delivers what a call brings."""
        try:
            try:
                for group in link.worker.generate(call):
                    self._deliver(link, group)
            except WorkerDiedError as e:
                with self._changed:
                    link.is_dead, link.died_by_itself = True, link.died_by_itself or e.by_itself
            self._end_call(link)
        except BaseException as e:
            self._fail(e)

    def _deliver(self, link: _Link, group: pa.Table) -> None:
        """Delivers the rows of a group that were asked and have no answer yet."""
        answered: dict[Row, int] = {}
        with self._changed:
            for place, number in enumerate(group.column("row").to_pylist()):
                row = self._drop(link, number)
                if row is not None and not row.is_done:
                    row.is_done, row.media = True, ()
                    answered[row] = place
            self._cancel_elsewhere(answered)
            self._deadlines.add(*(group.column(n).to_pylist() for n in ("engine_seconds", "output_tokens")))
            self._changed.notify_all()
        if answered:
            is_whole = len(answered) == group.num_rows
            places = pa.array(answered.values(), pa.int64())
            self._on_group(list(answered), group if is_whole else group.take(places))
            self._settle(len(answered))

    def _drop(self, link: _Link, number: int) -> Row | None:
        row = link.rows.pop(number, None)
        if row is not None:
            link.tokens -= row.weight
        return row

    def _cancel_elsewhere(self, answered: dict[Row, int]) -> None:
        if not any(row.asked_again for row in answered):
            return
        for link in self._links:
            numbers = [number for number, row in link.rows.items() if row in answered]
            for number in numbers:
                self._drop(link, number)
            if numbers:
                link.worker.cancel(numbers)

    def _settle(self, rows: int) -> None:
        with self._changed:
            self._unsettled -= rows
            if not self._unsettled:
                self._changed.notify_all()

    def _end_call(self, link: _Link) -> None:
        """Sends again what is unanswered, once no other call has more of the link's answers."""
        with self._changed:
            link.open_calls -= 1
            if link.open_calls:
                return
            rows = [row for row in link.rows.values() if not row.is_done]
        if rows and link.died_by_itself:
            self._on_death(rows)
        with self._changed:
            if link.open_calls or link not in self._links:  # a call that began meanwhile settles the rows
                return
            self._links.remove(link)
            rows = [row for row in link.rows.values() if not row.is_done]
            elsewhere = self._asked_again_in(self._links)
            left: list[Row] = []
            again: list[Row] = []
            for row in rows:
                row.deaths += link.died_by_itself
                row.returns += not link.died_by_itself
                row.avoid = None
                if not row.is_queued and row not in elsewhere:
                    is_left = row.deaths >= SUSPECT_DEATHS or row.returns >= _MOST_RETURNS
                    (left if is_left else again).append(row)
            self._push(again, first=True)
            self._changed.notify_all()
        if left:
            self._on_left(left)
            self._settle(len(left))

    def _fail(self, error: BaseException) -> None:
        """Ends all waits with this error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
