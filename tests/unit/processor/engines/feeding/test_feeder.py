"""What a feeder tells of rows that reach no worker: those that wait for the same request must hear of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.engines.feeding.feeder import Feeder, _cut
from airflow_provider_raydatallm.processor.engines.feeding.row import Row
from airflow_provider_raydatallm.processor.engines.feeding.row_budget import RowBudget
from airflow_provider_raydatallm.processor.engines.feeding.tokenized_request import TokenizedRequest
from airflow_provider_raydatallm.processor.media.cells import MediaFile, to_array
from airflow_provider_raydatallm.processor.media.reader import MediaReader
from tests.support.images import BAD_IMAGES, image_file
from tests.support.slice_jobs import slice_job


class Sink:
    def __init__(self) -> None:
        self.answers: list[pa.Table] = []
        self.deaths: list[list[int]] = []

    def __call__(self, answers: pa.Table) -> pa.Table:
        self.answers.append(answers)
        return pa.table({"rows": [answers.num_rows], "invalid": [[]]})

    def record_death(self, rows: pa.Table) -> None:
        self.deaths.append(rows.column("__offset").to_pylist())


class Dedup:
    def __init__(self) -> None:
        self.added: dict[bytes, str] = {}

    def add_answers(self, keys: Sequence[bytes], answers: pa.Table) -> None:
        self.added |= dict(zip(keys, answers.column("error_type").to_pylist(), strict=True))


def feeder() -> Any:
    made: Any = Feeder.__new__(Feeder)
    made._deliver, made._dedup, made._media = Sink(), Dedup(), None
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


class Unanswered:
    """Dispatches rows that come back without an answer after so many deaths of engines."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths
        self.sent: list[int] = []

    def wait_for_room(self) -> None: ...

    def hand_in(self, rows: Sequence[Row], *, as_batch: bool) -> Sequence[Row]:
        self.sent += [row.index for row in rows]
        return rows

    def wait(self, rows: Sequence[Row]) -> Sequence[Row]:
        for row in rows:
            row.deaths = self.deaths
        return rows


@pytest.mark.parametrize(("deaths", "recorded"), [(2, [[1], [1]]), (1, [])])
def test_only_rows_that_were_in_dying_engines_make_others_suspects(
    deaths: int, recorded: list[list[int]]
) -> None:
    made = feeder()
    keys: set[bytes] = set()
    suspect_keys = SimpleNamespace(read=lambda: keys, add=keys.update)
    made._setup = SimpleNamespace(budget=RowBudget(10, 100), postpone_over=None, suspect_keys=suspect_keys)
    made._intake = threading.Lock()
    made._dispatcher = Unanswered(deaths)
    made._tokenizer = lambda texts: [TokenizedRequest([1], total_tokens=2) for _ in texts]
    texts = ["a", "a", "b"]
    assert made._infer(block(3), texts, [()] * 3, [0, 2], [b"a", b"b"]) == [0, 2]
    assert made._deliver.deaths == recorded
    made._infer(block(3), texts, [()] * 3, [0], [b"a"])  # of another block
    assert made._dispatcher.sent == ([0, 2] if deaths == 2 else [0, 2, 0])


def test_each_row_of_a_group_gets_its_own_answer_whatever_block_it_is_of() -> None:
    made = feeder()
    blocks = [block(4), block(4).set_column(0, "__unit", pa.array([7] * 4, pa.int32()))]
    places = [(1, 3), (0, 2), (1, 0), (0, 1), (1, 2)]
    rows = [
        Row(blocks[i], row, tokens=[1], params="{}", max_tokens=1, key=f"{i} {row}".encode())
        for i, row in places
    ]
    texts = [f"{7 * i} {row}" for i, row in places]
    shared: dict[bytes, str] = {}

    def add_answers(keys: Sequence[bytes], answers: pa.Table) -> None:
        shared.update(zip(keys, answers.column("text").to_pylist(), strict=True))

    made._dedup = SimpleNamespace(add_answers=add_answers)
    made._deliver_group(rows, pa.table({"row": range(5), "text": texts}))
    [answers] = made._deliver.answers
    assert len(answers) == 5
    for row in answers.to_pylist():
        assert row["text"] == f"{row['__unit']} {row['__offset']}"
    assert shared == {row.key: text for row, text in zip(rows, texts, strict=True)}


def test_rows_with_bad_images_fail_and_others_are_sent_with_their_pixels() -> None:
    made = feeder()
    made._dedup = None
    made._media = MediaReader(slice_job(images__column="photo", images__max_pixels=1000))
    made._setup = SimpleNamespace(budget=RowBudget(10, 100), postpone_over=None, suspect_keys=None)
    made._intake = threading.Lock()
    sent: list[Row] = []
    made._dispatcher = SimpleNamespace(
        wait_for_room=lambda: None, hand_in=lambda rows, as_batch: sent.extend(rows), wait=lambda rows: []
    )
    named: list[str] = []

    def tokenize(texts: Sequence[str]) -> list[TokenizedRequest]:
        named.extend(texts)
        return [TokenizedRequest([1], total_tokens=2) for _ in texts]

    made._tokenizer = tokenize
    good, other, broken = image_file(seed=1), image_file(8, 8, seed=2), BAD_IMAGES["truncated"]
    cell_files = [[good], [broken], [MediaFile(None, "/etc/passwd")], [good, other], [good]]
    files = [[f if isinstance(f, MediaFile) else MediaFile(f) for f in row] for row in cell_files]
    texts = ['{"messages":[],"sampling_params":{}}'] * 5
    requests = block(5).append_column("__request", pa.array(texts)).append_column("__files", to_array(files))
    assert made(requests).to_pylist() == [{"rows": 5}]
    failed = pa.concat_tables(made._deliver.answers)
    assert failed.column("__offset").to_pylist() == [2, 1]
    elsewhere, damaged = failed.column("error").to_pylist()
    assert elsewhere == "InvalidMedia: '/etc/passwd' is below none of images.sources"
    assert damaged.startswith("InvalidMedia: the image is damaged")
    assert [row.block.column("__offset").to_pylist()[row.index] for row in sent] == [0, 3, 4]
    assert [[medium.shape for medium in row.media] for row in sent] == [
        [(27, 36, 3)], [(27, 36, 3), (8, 8, 3)], [(27, 36, 3)],
    ]  # fmt: skip
    assert sent[0].weight == 1 + 27 * 36 * 3 // 64
    # The same image makes the same request, another one another.
    assert named[0] == named[-1] != named[2]
    assert [len(json.loads(text)["media"]) for text in named] == [1, 1, 2, 1]


def test_rows_are_cut_by_their_number_and_by_that_of_their_images() -> None:
    def cut(*images: int) -> list[int]:
        rows = range(len(images))
        places = [*_cut(rows, [[b""] * count for count in images])]
        assert [row for place in places for row in rows[place]] == [*rows]
        return [len(rows[place]) for place in places]

    assert cut() == []
    assert cut(*[0] * 600) == [256, 256, 88]
    assert cut(*[1] * 40) == [16, 16, 8]
    assert cut(10, 6, 1, 40, 3, 3) == [2, 1, 1, 2]
