"""What a feeder tells of rows that reach no worker: those that wait for the same request must hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.feeding.feeder import Feeder


class Sink:
    def __init__(self) -> None:
        self.answers: list[pa.Table] = []
        self.deaths: list[list[int]] = []

    def __call__(self, answers: pa.Table) -> pa.Table:
        self.answers.append(answers)
        return answers

    def record_death(self, rows: pa.Table) -> None:
        self.deaths.append(rows.column("__offset").to_pylist())


class Dedup:
    def __init__(self) -> None:
        self.added: dict[bytes, str] = {}

    def add_answers(self, keys: Sequence[bytes], answers: pa.Table) -> None:
        self.added |= dict(zip(keys, answers.column("error_type").to_pylist(), strict=True))


def feeder() -> Any:
    made: Any = Feeder.__new__(Feeder)
    made._deliver, made._dedup = Sink(), Dedup()
    return made


def block(rows: int) -> pa.Table:
    return pa.table({"__unit": pa.array([0] * rows, pa.int32()), "__offset": range(rows)})


def test_request_that_cannot_be_tokenized_fails_its_row_and_settles_its_claim() -> None:
    made = feeder()
    errors = [(2, b"key", ValueError("no template")), (0, None, KeyError("role"))]
    made._deliver_errors(block(3), errors)
    [answers] = made._deliver.answers
    assert answers.column("__offset").to_pylist() == [2, 0]
    assert answers.column("error").to_pylist() == ["ValueError: no template", "KeyError: 'role'"]
    assert made._dedup.added == {b"key": "ValueError"}


def test_rows_with_the_request_of_a_suspect_are_suspects_though_they_were_not_sent() -> None:
    made = feeder()
    texts = ["a", "b", "a", "c", "b"]
    made._record_twins(block(5), texts, [0, 3], known={0, 3})
    assert made._deliver.deaths == [[2], [2]]  # as if it had been in two engines
    made = feeder()
    made._record_twins(block(5), texts, [3], known={3})
    assert made._deliver.deaths == []
