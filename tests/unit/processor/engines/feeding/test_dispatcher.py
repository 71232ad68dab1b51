"""Which rows are in which worker, when, and that each is answered once, whatever workers do."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.columns import GROUP_SCHEMA
from airflow_provider_raydatallm.processor.engines.feeding import dispatcher as module
from airflow_provider_raydatallm.processor.engines.feeding.dispatcher import Dispatcher
from airflow_provider_raydatallm.processor.engines.feeding.row import Row, call_table
from airflow_provider_raydatallm.processor.engines.feeding.row_budget import RowBudget
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import WorkerDiedError
from airflow_provider_raydatallm.processor.media.medium import Medium, from_array
from tests.support.waiting import wait_for


class Worker:
    """Answers when it is told to; its calls are one stream, as an own worker's."""

    has_one_stream = True
    process: dict[str, Any] = {}

    def __init__(self, name: str = "0", largest_call: int = 512) -> None:
        self.name, self.largest_call = name, largest_call
        self.calls: list[list[int]] = []  # lengths of the rows' prompts
        self.numbers: dict[int, int] = {}  # of rows, by the lengths of their prompts
        self.cancelled: list[int] = []
        self.silence = 0.0
        self.leaves: float | None = None
        self.streams: list[queue.Queue[Any]] = []

    def generate(self, rows: pa.Table) -> Iterator[pa.Table]:
        if self.has_one_stream and self.streams:
            self.end()
        stream: queue.Queue[Any] = queue.Queue()
        self.streams.append(stream)
        lengths = [len(tokens) for tokens in rows.column("tokens").to_pylist()]
        self.numbers |= dict(zip(lengths, rows.column("row").to_pylist(), strict=True))
        self.calls.append(lengths)
        while (said := stream.get()) is not None:
            if isinstance(said, Exception):
                raise said
            yield said

    def answer(self, *lengths: int, numbers: Sequence[int] = (), stream: int = -1) -> None:
        rows = [*(self.numbers[length] for length in lengths), *numbers]
        answer = {
            "text": "x", "finish_reason": "stop", "input_tokens": 1, "output_tokens": 1, "cached_tokens": 0,
            "engine_seconds": 0.1, "finished_at": 0.0,
        }  # fmt: skip
        table = pa.Table.from_pylist([{"row": row, **answer} for row in rows], schema=GROUP_SCHEMA)
        self.streams[stream].put(table)

    def end(self, error: Exception | None = None, stream: int = -1) -> None:
        self.streams[stream].put(error)

    def cancel(self, rows: Sequence[int]) -> None:
        self.cancelled += rows

    def leaves_in_s(self) -> float | None:
        return self.leaves

    def silent_s(self) -> float:
        return self.silence


class Desk:
    """A dispatcher and what it delivered, by the lengths of the rows' prompts."""

    def __init__(
        self,
        *workers: Worker,
        rows: int = 100,
        tokens: int = 10_000,
        batches: int | None = None,
        groups_adapters: bool = False,
        window: int = 1000,
    ) -> None:
        self.workers = list(workers)
        self.delivered: list[int] = []
        self.left: list[Row] = []
        self.deaths: list[list[int]] = []
        budget = RowBudget(rows, tokens, batches)
        self.dispatcher = Dispatcher(
            lambda has_rows: (self.workers, budget),
            on_group=lambda rows, group: self.delivered.extend(len(row.tokens) for row in rows),
            on_death=lambda rows: self.deaths.append(sorted(len(row.tokens) for row in rows)),
            on_left=self.left.extend,
            window_rows=window,
            groups_adapters=groups_adapters,
            silent_after_s=60,
        )

    def drain(self) -> list[Row]:
        """The rows that are left unanswered."""
        self.dispatcher.drain()
        return self.left


def rows(*lengths: int, max_tokens: int | dict[int, int] = 16) -> list[Row]:
    """Rows that differ by the lengths of their prompts."""
    return [
        Row(
            0, i, tokens=np.zeros(n, np.int32), params="{}",
            max_tokens=max_tokens if isinstance(max_tokens, int) else max_tokens[n],
        )
        for i, n in enumerate(lengths)
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.02)
    monkeypatch.setattr(module, "_SMALLEST_CALL", 1)


def called(worker: Worker, *calls: list[int]) -> None:
    wait_for(lambda: worker.calls == list(calls), 30)


def test_place_of_a_finished_row_is_taken_while_a_long_one_takes_its_time() -> None:
    worker = Worker()
    desk = Desk(worker, rows=2)
    desk.dispatcher.hand_in(rows(1, 2, 3, 4))
    called(worker, [1, 2])
    worker.answer(1)
    called(worker, [1, 2], [3])
    worker.answer(3)
    called(worker, [1, 2], [3], [4])
    worker.answer(4)
    wait_for(lambda: desk.delivered == [1, 3, 4], 30)
    worker.answer(2)
    assert desk.drain() == []
    assert desk.delivered == [1, 3, 4, 2]


def test_fixed_batch_keeps_its_place_until_its_last_row_and_goes_as_a_whole() -> None:
    worker = Worker()
    desk = Desk(worker, batches=1)
    desk.dispatcher.hand_in(rows(1, 2), as_batch=True)
    desk.dispatcher.hand_in(rows(3, 4), as_batch=True)
    called(worker, [1, 2])
    worker.answer(1)
    time.sleep(0.1)
    assert worker.calls == [[1, 2]]
    worker.answer(2)
    called(worker, [1, 2], [3, 4])
    worker.answer(3, 4)
    assert desk.drain() == []


def test_longest_go_first_and_equal_ones_in_their_order() -> None:
    worker = Worker()
    desk = Desk(worker, rows=3)
    desk.workers.clear()
    desk.dispatcher.hand_in(rows(1, 2, 3, 4, 5, max_tokens={1: 5, 2: 9, 3: 5, 4: 5, 5: 7}))
    desk.workers.append(worker)
    called(worker, [2, 5, 1])
    worker.answer(2, 5, 1)
    called(worker, [2, 5, 1], [3, 4])


@pytest.mark.parametrize(
    ("grouped", "calls"), [(True, [[1, 4], [5, 2], [6, 3]]), (False, [[1, 2], [3, 4], [5, 6]])]
)
def test_rows_of_an_adapter_go_together_where_a_worker_cannot_hold_all(
    grouped: bool, calls: list[list[int]]
) -> None:
    worker = Worker()
    desk = Desk(worker, rows=2, groups_adapters=grouped)
    desk.workers.clear()
    mixed = rows(1, 2, 3, 4, 5, 6, max_tokens={1: 5, 2: 5, 3: 5, 4: 5, 5: 9 if grouped else 5, 6: 5})
    for row, adapter in zip(mixed, ["", "a", "b", "", "a", "b"], strict=True):
        row.adapter = adapter
    if grouped:
        mixed[5].max_tokens = 6
    desk.dispatcher.hand_in(mixed)
    desk.workers.append(worker)
    for sent in range(1, 4):
        called(worker, *calls[:sent])
        worker.answer(*calls[sent - 1])


def test_long_prompts_are_admitted_by_their_tokens_and_at_least_one() -> None:
    worker = Worker()
    desk = Desk(worker, tokens=100)
    desk.dispatcher.hand_in(rows(60, 61, 62, 500))
    called(worker, [60, 61])
    worker.answer(60)
    called(worker, [60, 61], [62])
    worker.answer(61)
    called(worker, [60, 61], [62], [500])


def test_rows_of_a_worker_that_died_go_to_another_and_its_answers_count_once() -> None:
    one, two = Worker("1"), Worker("2")
    desk = Desk(one, rows=4)
    desk.dispatcher.hand_in(rows(1, 2, 3))
    called(one, [1, 2, 3])
    one.answer(1)
    wait_for(lambda: desk.delivered == [1], 30)
    desk.workers[:] = [two]
    one.end(WorkerDiedError(by_itself=True))
    called(two, [2, 3])
    assert desk.deaths == [[2, 3]]
    two.answer(2, 3)
    assert desk.drain() == []
    assert sorted(desk.delivered) == [1, 2, 3]


def test_row_that_was_in_two_engines_when_they_died_is_left_and_others_are_not() -> None:
    worker = Worker()
    desk = Desk(worker)
    desk.dispatcher.hand_in(rows(1, 2))
    called(worker, [1, 2])
    second = desk.workers[0] = Worker()
    worker.end(WorkerDiedError(by_itself=True))
    called(second, [1, 2])
    second.answer(1)
    wait_for(lambda: desk.delivered == [1], 30)
    second.end(WorkerDiedError(by_itself=True))
    [left] = desk.drain()
    assert len(left.tokens) == 2
    assert desk.deaths == [[1, 2], [2]]


def test_death_for_which_no_row_can_be_the_reason_makes_no_suspects() -> None:
    desk = Desk(Worker())
    desk.dispatcher.hand_in(rows(1))
    for _ in range(2):
        [worker] = desk.workers
        called(worker, [1])
        desk.workers[0] = Worker()
        worker.end(WorkerDiedError(by_itself=False))
    [worker] = desk.workers
    called(worker, [1])
    worker.answer(1)
    assert desk.drain() == []
    assert desk.deaths == []


def test_rows_of_a_silent_worker_are_asked_elsewhere_and_the_first_answer_counts() -> None:
    one, two = Worker("1"), Worker("2")
    desk = Desk(one)
    handed_in = rows(1, 2)
    desk.dispatcher.hand_in(handed_in)
    called(one, [1, 2])
    desk.workers.append(two)
    one.silence = 61
    called(two, [1, 2])
    assert all(row.asked_again for row in handed_in)
    two.answer(1)
    wait_for(lambda: one.cancelled == [one.numbers[1]], 30)
    one.answer(1, 2)  # it wakes up
    wait_for(lambda: two.cancelled == [two.numbers[2]], 30)
    assert desk.drain() == []
    assert desk.delivered == [1, 2]
    assert one.calls == [[1, 2]]  # and gets no more rows while it is silent


def test_worker_whose_node_leaves_finishes_its_rows_and_gets_no_more() -> None:
    one, two = Worker("1"), Worker("2")
    desk = Desk(one)
    handed_in = rows(1, 2)
    desk.dispatcher.hand_in(handed_in)
    called(one, [1, 2])
    one.leaves = 110
    desk.workers.append(two)
    time.sleep(1)
    desk.dispatcher.hand_in(rows(3))
    called(two, [3])
    one.answer(1)
    wait_for(lambda: desk.delivered == [1], 30)
    assert not any(row.asked_again for row in handed_in)
    one.leaves = 19
    called(two, [3], [2])
    two.answer(2, 3)
    wait_for(lambda: one.cancelled == [one.numbers[2]], 30)
    assert desk.drain() == []
    assert one.calls == [[1, 2]]


def test_worker_whose_node_stays_after_all_gets_rows_again() -> None:
    one, two = Worker("1"), Worker("2")
    desk = Desk(one, two, rows=1)
    one.leaves = 110
    time.sleep(1)
    desk.dispatcher.hand_in(rows(1, 2))
    called(two, [1])
    one.leaves = None
    called(one, [2])
    one.answer(2)
    two.answer(1)
    assert desk.drain() == []


def test_workers_whose_nodes_all_leave_get_rows_as_long_as_they_are_there() -> None:
    worker = Worker()
    desk = Desk(worker)
    worker.leaves = 10
    time.sleep(1)
    desk.dispatcher.hand_in(rows(1))
    called(worker, [1])
    worker.answer(1)
    assert desk.drain() == []
    assert worker.calls == [[1]]


def test_row_that_is_overdue_in_a_living_worker_is_asked_of_another() -> None:
    one, two = Worker("1"), Worker("2")
    desk = Desk(one)
    [row] = handed_in = rows(1)
    desk.dispatcher.hand_in(handed_in)
    called(one, [1])
    desk.workers[:] = [two]
    desk.dispatcher.hand_in(rows(2, 3))
    called(two, [2, 3])
    desk.workers.append(one)
    desk.dispatcher._deadlines.add([1.6], [1])
    row.sent_at -= 123
    time.sleep(0.1)
    assert two.calls == [[2, 3]]  # two minutes, and 0.4 s for each of its 16 tokens
    row.sent_at -= 5
    called(two, [2, 3], [1])  # though the first has fewer rows
    assert one.calls == [[1]]
    two.answer(1, 2, 3)
    assert desk.drain() == []
    wait_for(lambda: one.cancelled == [one.numbers[1]], 30)


def test_silence_of_the_only_worker_is_waited_out() -> None:
    worker = Worker()
    desk = Desk(worker)
    desk.dispatcher.hand_in(rows(1))
    called(worker, [1])
    worker.silence = 61
    time.sleep(0.1)
    worker.silence = 0
    worker.answer(1)
    assert desk.drain() == []
    assert worker.calls == [[1]]


def test_answers_to_rows_that_were_not_asked_or_are_answered_already_are_ignored() -> None:
    worker = Worker()
    desk = Desk(worker)
    desk.dispatcher.hand_in(rows(1, 2))
    called(worker, [1, 2])
    worker.answer(1, numbers=[4711])
    worker.answer(1)
    worker.answer(2)
    assert desk.drain() == []
    assert desk.delivered == [1, 2]


def test_row_that_no_worker_ever_answers_is_left() -> None:
    worker = Worker()
    desk = Desk(worker)
    desk.dispatcher.hand_in(rows(1))
    for calls in range(1, 5):
        called(worker, *[[1]] * calls)
        worker.end()
    [left] = desk.drain()
    assert len(left.tokens) == 1
    assert desk.deaths == []


def test_calls_that_are_no_stream_end_each_for_itself() -> None:
    worker = Worker(largest_call=1)
    worker.has_one_stream = False
    desk = Desk(worker)
    desk.dispatcher.hand_in(rows(1, 2))
    wait_for(lambda: sorted(worker.calls) == [[1], [2]], 30)
    [died] = worker.calls[0]
    worker.streams[0].put(WorkerDiedError(by_itself=False))
    wait_for(lambda: worker.calls[2:] == [[died]], 30)  # the other call goes on
    for length, stream in ((died, 2), (3 - died, 1)):
        worker.answer(length, stream=stream)
        worker.end(stream=stream)
    assert desk.drain() == []
    assert sorted(desk.delivered) == [1, 2]


def test_what_keeps_an_answer_from_being_delivered_is_raised_to_all_that_wait() -> None:
    worker = Worker()
    desk = Desk(worker)

    def fail(rows: Sequence[Row], group: pa.Table) -> None:
        raise OSError("the disk is full")

    desk.dispatcher._on_group = fail
    desk.dispatcher.hand_in(rows(1, 2))
    wait_for(lambda: len(worker.numbers) == 2, 30)
    worker.answer(1)
    for wait in (desk.dispatcher.drain, desk.dispatcher.wait_for_room):
        with pytest.raises(OSError, match="the disk is full"):
            wait()
    with pytest.raises(OSError, match="the disk is full"):
        desk.dispatcher.hand_in(rows(3))


@pytest.mark.parametrize(("window", "tokens"), [(2, 100), (100, 4)])
def test_window_of_waiting_rows_is_bounded(monkeypatch: pytest.MonkeyPatch, window: int, tokens: int) -> None:
    monkeypatch.setattr(module, "_WINDOW_TOKENS", tokens)
    worker = Worker()
    desk = Desk(worker, rows=1, window=window)
    desk.dispatcher.hand_in(rows(1, 2, 3))
    called(worker, [1])
    waiting = threading.Thread(target=desk.dispatcher.wait_for_room, daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    worker.answer(1)
    waiting.join(30)
    assert not waiting.is_alive()


def test_fixed_batch_goes_as_a_whole_again_when_its_worker_died() -> None:
    worker = Worker()
    desk = Desk(worker, batches=1)
    desk.dispatcher.hand_in(rows(1, 2, 3), as_batch=True)
    called(worker, [1, 2, 3])
    worker.answer(1)
    wait_for(lambda: desk.delivered == [1], 30)
    second = desk.workers[0] = Worker()
    worker.end(WorkerDiedError(by_itself=False))
    called(second, [2, 3])
    second.answer(2, 3)
    assert desk.drain() == []


@pytest.mark.slow
def test_rows_of_a_second_silent_worker_are_asked_of_a_third() -> None:
    one, two, three = Worker("1"), Worker("2"), Worker("3")
    desk = Desk(one)
    desk.dispatcher.hand_in(rows(1))
    called(one, [1])
    desk.workers.append(two)
    one.silence = 61
    called(two, [1])
    desk.workers.append(three)
    time.sleep(0.1)
    assert three.calls == []  # the second one lives
    two.silence = 61
    called(three, [1])
    time.sleep(0.1)
    three.answer(1)
    assert desk.drain() == []
    assert (one.calls, two.calls, three.calls) == ([[1]], [[1]], [[1]])


def test_row_of_two_workers_that_die_at_once_is_left_once() -> None:
    one, two = Worker("1"), Worker("2")
    desk = Desk(one)
    [row, _] = handed_in = rows(1, 2)
    row.deaths = 1
    desk.dispatcher.hand_in(handed_in)
    called(one, [1, 2])
    desk.workers.append(two)
    one.silence = 61
    called(two, [1, 2])
    both = threading.Barrier(2)

    def record(rows: Sequence[Row]) -> None:
        both.wait(30)

    desk.dispatcher._on_death = record
    two.answer(2)
    wait_for(lambda: one.cancelled, 30)
    desk.workers[:] = []
    for worker in (one, two):
        worker.end(WorkerDiedError(by_itself=True))
    assert desk.drain() == [row]
    time.sleep(0.1)
    assert desk.left == [row]


@pytest.mark.slow
def test_silent_worker_gets_no_rows_and_keeps_no_place_of_those_that_others_answered() -> None:
    one, two = Worker("1"), Worker("2")
    desk = Desk(one, rows=1)
    desk.dispatcher.hand_in(rows(1))
    called(one, [1])
    desk.workers.append(two)
    one.silence = 61
    called(two, [1])
    two.answer(1)
    wait_for(lambda: one.cancelled, 30)
    desk.dispatcher.hand_in(rows(2, 3))
    called(two, [1], [2])
    time.sleep(0.1)
    assert one.calls == [[1]]
    one.silence = 0
    called(one, [1], [3])
    two.answer(2)
    one.answer(3)
    assert desk.drain() == []


@pytest.mark.slow
def test_row_that_waits_to_be_asked_again_is_not_queued_a_second_time_when_its_worker_dies() -> None:
    one, two = Worker("1"), Worker("2")
    desk = Desk(one, rows=1)
    desk.dispatcher.hand_in(rows(1, 2))
    called(one, [1])
    desk.workers.append(two)
    called(two, [2])
    one.silence = 61
    wait_for(lambda: desk.dispatcher._queued_rows == 1, 30)
    desk.workers.remove(one)
    one.end(WorkerDiedError(by_itself=True))
    wait_for(lambda: len(desk.dispatcher._links) == 1, 30)
    assert (desk.deaths, desk.dispatcher._queued_rows) == ([[1]], 1)
    two.answer(2)
    called(two, [2], [1])
    two.answer(1)
    assert desk.drain() == []
    assert desk.dispatcher._queued_rows == 0


@pytest.mark.slow
def test_worker_of_which_one_call_says_that_it_died_gets_no_more_rows() -> None:
    worker = Worker()
    desk = Desk(worker)
    desk.dispatcher.hand_in(rows(1))
    called(worker, [1])
    gate = threading.Event()
    deliver = desk.dispatcher._on_group

    def wait_then_deliver(rows: Sequence[Row], group: pa.Table) -> None:
        gate.wait(30)
        deliver(rows, group)

    desk.dispatcher._on_group = wait_then_deliver
    worker.answer(1)  # its call does not end before this is delivered
    desk.dispatcher.hand_in(rows(2))
    called(worker, [1], [2])
    worker.end(WorkerDiedError(by_itself=True))
    wait_for(lambda: any(link.is_dead for link in desk.dispatcher._links), 30)
    desk.dispatcher.hand_in(rows(3))
    time.sleep(0.1)
    assert worker.calls == [[1], [2]]
    desk.workers[0] = Worker()
    gate.set()
    wait_for(lambda: desk.workers[0].numbers.keys() == {2, 3}, 30)
    desk.workers[0].answer(2, 3)
    assert desk.drain() == []
    assert desk.deaths == [[2]]  # one death, however many calls there were


def test_rows_wait_for_room_for_several_while_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SMALLEST_CALL", 2)
    worker = Worker()
    desk = Desk(worker, rows=3)
    desk.dispatcher.hand_in(rows(1, 2, 3, 4, 5, 6))
    called(worker, [1, 2, 3])
    worker.answer(1)
    time.sleep(0.1)
    assert worker.calls == [[1, 2, 3]]
    worker.answer(2)
    called(worker, [1, 2, 3], [4, 5])
    worker.answer(3)  # the last one has no other to wait for
    called(worker, [1, 2, 3], [4, 5], [6])
    worker.answer(4, 5, 6)
    assert desk.drain() == []


def test_worker_with_the_fewest_rows_gets_the_next() -> None:
    one, two = Worker("1"), Worker("2")
    desk = Desk(one)
    desk.dispatcher.hand_in(rows(1))
    called(one, [1])
    desk.workers.append(two)
    desk.dispatcher.hand_in(rows(2))
    called(two, [2])
    one.answer(1)
    two.answer(2)
    assert desk.drain() == []


def test_images_count_by_their_memory_and_are_let_go_when_their_row_is_answered() -> None:
    worker = Worker()
    desk = Desk(worker, tokens=1000)
    waiting = rows(1, 2, 3, 4)
    image = Medium("image", (100, 100, 3), bytes(30_000))  # as much as 468 tokens
    shown = [
        Row(row.unit, row.offset, tokens=row.tokens, params="{}", max_tokens=16, media=[image])
        for row in waiting
    ]
    desk.dispatcher.hand_in(shown)
    called(worker, [1, 2, 3])  # the third begins before the limit
    worker.answer(1, 2)
    called(worker, [1, 2, 3], [4])
    assert [len(row.media) for row in shown] == [0, 0, 1, 1]
    worker.answer(3, 4)
    assert desk.drain() == []


def test_call_holds_the_media_of_each_row() -> None:
    plain, shown = rows(1, 2)
    shown.media = [Medium("image", (1, 2, 3), b"abcdef"), Medium("image", (1, 1, 3), b"xyz")]
    table = call_table({7: plain, 9: shown})
    assert [[(m.shape, bytes(m.data)) for m in row] for row in from_array(table.column("media"))] == [
        [], [((1, 2, 3), b"abcdef"), ((1, 1, 3), b"xyz")],
    ]  # fmt: skip
    assert "media" not in call_table({7: plain}).schema.names
