"""Which rows are found to kill an engine, and how many deaths that takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.columns import GROUP_SCHEMA
from airflow_provider_raydatallm.processor.engines.feeding.isolation import Isolation
from airflow_provider_raydatallm.processor.engines.feeding.row import Row
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import WorkerDiedError
from airflow_provider_raydatallm.processor.media.medium import Medium, from_array


class Worker:
    """Dies of rows whose prompts are as long as `deadly`, after it answered those before them."""

    process = {"node_id": "n", "pid": 1}

    def __init__(self, *deadly: int, ends: Sequence[bool] = ()) -> None:
        self.deadly = deadly
        self.calls: list[list[int]] = []
        self._ends = list(ends)  # of the next calls: deaths of their node

    def generate(self, rows: pa.Table) -> Iterator[pa.Table]:
        lengths = [len(tokens) for tokens in rows.column("tokens").to_pylist()]
        self.calls.append(lengths)
        if self._ends and self._ends.pop(0):
            raise WorkerDiedError(by_itself=False)
        for number, length in zip(rows.column("row").to_pylist(), lengths, strict=True):
            if length in self.deadly:
                raise WorkerDiedError(by_itself=True)
            yield pa.Table.from_pylist([{"row": number}], schema=GROUP_SCHEMA)


def isolate(worker: Any, *lengths: int) -> tuple[list[int], list[int]]:
    """The lengths of the prompts that are answered, and of those that are found to kill the engine."""
    answered: list[int] = []
    culprits: list[int] = []
    isolation = Isolation(
        lambda: [worker],
        on_group=lambda rows, group: answered.extend(len(row.tokens) for row in rows),
        on_culprit=lambda row: culprits.append(len(row.tokens)),
    )
    rows = [Row(0, i, tokens=np.zeros(n, np.int32), params="{}", max_tokens=1) for i, n in enumerate(lengths)]
    isolation.hand_in(rows)
    return answered, culprits


def test_only_the_row_that_kills_the_engine_alone_is_found_by_two_deaths() -> None:
    worker = Worker(77)
    answered, culprits = isolate(worker, *range(2, 100))
    assert culprits == [77]
    assert sorted(answered) == [n for n in range(2, 100) if n != 77]
    deaths = [call for call in worker.calls if 77 in call]
    assert len(deaths) == 2
    assert deaths[-1] == [77]


def test_each_of_several_is_found() -> None:
    answered, culprits = isolate(Worker(5, 6, 50), *range(2, 60))
    assert sorted(culprits) == [5, 6, 50]
    assert len(answered) == 55


def test_innocent_rows_are_answered_by_few_calls() -> None:
    worker = Worker()
    answered, culprits = isolate(worker, *range(2, 66))
    assert (len(answered), culprits, len(worker.calls)) == (64, [], 3)  # one of them of one token


@pytest.mark.parametrize("lengths", [[5], [5, 6]])
def test_engine_that_dies_of_anything_ends_the_run_and_finds_no_row(lengths: list[int]) -> None:
    worker = Worker(1, *lengths)
    with pytest.raises(SliceError, match="also of a request of one token: no row is the reason") as e:
        isolate(worker, *lengths)
    assert (e.value.kind, e.value.log) == ("engine", worker.process)
    assert worker.calls == [[1]]


def test_engine_that_breaks_for_good_with_a_row_ends_the_run_without_blaming_it() -> None:
    worker = Worker(5)

    def break_with(rows: pa.Table) -> Iterator[pa.Table]:
        if [len(tokens) for tokens in rows.column("tokens").to_pylist()] == [5]:
            worker.deadly = (1, 5)
        return Worker.generate(worker, rows)

    worker.generate = break_with  # type: ignore[method-assign]
    with pytest.raises(SliceError, match="no row is the reason"):
        isolate(worker, 4, 5)


def test_death_of_a_node_is_nobodys_doing() -> None:
    worker = Worker(ends=[False, True, False])
    assert isolate(worker, 5, 6) == ([5, 6], [])
    assert worker.calls == [[1], [5, 6], [5, 6]]


def test_death_of_a_node_while_the_engine_is_checked_does_not_end_the_run() -> None:
    worker = Worker(ends=[True])
    assert isolate(worker, 5) == ([5], [])
    assert worker.calls == [[1], [1], [5]]


def test_rows_with_the_request_of_one_that_kills_the_engine_are_found_without_another_death() -> None:
    worker = Worker(5)
    answered, culprits = isolate(worker, *[5] * 40, *range(6, 30), *[5] * 40)
    assert (len(culprits), len(answered)) == (80, 24)
    assert sum(5 in call for call in worker.calls) == 2


def test_answers_to_rows_that_were_not_asked_or_are_answered_already_are_ignored() -> None:
    worker = Worker()

    def repeat(rows: pa.Table) -> Iterator[pa.Table]:
        for group in Worker.generate(worker, rows):
            foreign = group.set_column(0, GROUP_SCHEMA.field(0), pa.array([4711], pa.int32()))
            yield pa.concat_tables([foreign, group, group])
            yield group

    worker.generate = repeat  # type: ignore[method-assign]
    assert isolate(worker, 5, 6) == ([5, 6], [])


def test_row_whose_answer_came_before_the_engine_died_is_no_reason() -> None:
    worker = Worker()

    def die_late(rows: pa.Table) -> Iterator[pa.Table]:
        yield from Worker.generate(worker, rows)
        if rows.num_rows == 1:
            raise WorkerDiedError(by_itself=True)

    worker.generate = die_late  # type: ignore[method-assign]
    assert isolate(worker, 5, 5) == ([5, 5], [])
    assert isolate(worker, 5) == ([5], [])


def test_rows_that_a_living_engine_leaves_unanswered_are_left_and_not_asked_again() -> None:
    worker = Worker()

    def leave(rows: pa.Table) -> Iterator[pa.Table]:
        worker.calls.append([len(tokens) for tokens in rows.column("tokens").to_pylist()])
        return iter(())

    worker.generate = leave  # type: ignore[method-assign]
    workers: Any = [worker]
    isolation = Isolation(lambda: workers, on_group=lambda *_: None, on_culprit=lambda _: None)
    rows = [Row(0, 0, tokens=np.zeros(5, np.int32), params="{}", max_tokens=1)]
    isolation.hand_in(rows)
    assert worker.calls == [[1], [5]]


def test_row_with_the_prompt_of_a_deadly_one_and_another_image_is_asked_all_the_same() -> None:
    def row(index: int, pixel: bytes) -> Row:
        image = Medium("image", (1, 1, 3), pixel * 3)
        return Row(0, index, tokens=np.zeros(2, np.int32), params="{}", max_tokens=1, media=[image])

    class DiesOfWhite(Worker):
        def generate(self, rows: pa.Table) -> Iterator[pa.Table]:
            shown = from_array(rows.column("media")) if "media" in rows.schema.names else []
            self.deadly = (2,) if any(bytes(m.data) == b"w" * 3 for media in shown for m in media) else ()
            return super().generate(rows)

    worker = DiesOfWhite()
    answered: list[int] = []
    culprits: list[int] = []
    isolation = Isolation(
        lambda: [worker],
        on_group=lambda rows, group: answered.extend(row.offset for row in rows),
        on_culprit=lambda row: culprits.append(row.offset),
    )
    isolation.hand_in([row(0, b"b"), row(1, b"w"), row(2, b"w"), row(3, b"g")])
    assert (answered[-2:], culprits) == ([0, 3], [1, 2])
