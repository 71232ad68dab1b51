"""What a feeder does with the rows of many blocks, of which some wait for others or reach no worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.columns import GROUP_SCHEMA
from airflow_provider_raydatallm.processor.engines.dedup import client as client_module
from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import ADDED_SCHEMA
from airflow_provider_raydatallm.processor.engines.feeding import copies, dispatcher
from airflow_provider_raydatallm.processor.engines.feeding import feeder as module
from airflow_provider_raydatallm.processor.engines.feeding.feeder import Feeder, FeederSetup, _cut
from airflow_provider_raydatallm.processor.engines.feeding.isolation import SuspectFeeder
from airflow_provider_raydatallm.processor.engines.feeding.row import Row, RowRequest
from airflow_provider_raydatallm.processor.engines.feeding.row_budget import RowBudget
from airflow_provider_raydatallm.processor.engines.feeding.tokenized_request import TokenizedRequest
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import WorkerDiedError, add_worker_name
from airflow_provider_raydatallm.processor.media.cells import MediaFile, to_array
from tests.support.images import BAD_IMAGES, image_file
from tests.support.slice_jobs import slice_job
from tests.support.waiting import in_thread, wait_for


class Sink:
    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self.deaths: list[list[int]] = []

    def __call__(self, answers: pa.Table) -> pa.Table:
        self.answers += answers.to_pylist()
        return pa.table({"rows": [answers.num_rows], "invalid": [[]]})

    def record_death(self, rows: pa.Table) -> None:
        self.deaths.append(rows.column("__offset").to_pylist())

    @property
    def texts(self) -> dict[int, str]:
        """Of each row; none may be delivered twice."""
        by_row = {answer["__offset"]: answer["text"] for answer in self.answers}
        assert len(by_row) == len(self.answers)
        return by_row


class Worker:
    """Answers a row by its request at once; those that begin with "long" when they may, "deadly" by dying,
    and "mute" never."""

    name, has_one_stream, largest_call = "0", False, 512
    process: dict[str, Any] = {}

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_end = threading.Event()

    def generate(self, rows: pa.Table) -> Iterator[pa.Table]:
        requests = dict(zip(rows.column("row").to_pylist(), rows.column("params").to_pylist(), strict=True))
        self.asked += requests.values()
        long = {row: request for row, request in requests.items() if request.startswith("long")}
        yield self._answers(
            {row: r for row, r in requests.items() if not r.startswith(("long", "deadly", "mute"))}
        )
        if any(request.startswith("deadly") for request in requests.values()):
            raise WorkerDiedError(by_itself=True)
        if long:
            assert self.may_end.wait(60)
            yield self._answers(long)

    def _answers(self, requests: dict[int, str]) -> pa.Table:
        said = [{"row": row, "text": f"to {request}"} for row, request in requests.items()]
        return add_worker_name(pa.Table.from_pylist(said, schema=GROUP_SCHEMA), self.name)

    def cancel(self, rows: Sequence[int]) -> None: ...

    def leaves_in_s(self) -> float | None:
        return None

    def silent_s(self) -> float:
        return 0.0


class Desk:
    """A feeder with a worker. Requests are words: "bad" has no tokens, and "postponed" too many."""

    def __init__(
        self,
        *,
        budget: RowBudget | None = None,
        dedup: Any = None,
        kind: type[Feeder] = Feeder,
        **fields: Any,
    ) -> None:
        self.sink, self.worker = Sink(), Worker()
        self.suspect_keys: set[bytes] = set()
        self.named: list[str] = []
        options: Any = {
            "active_feeders": SimpleNamespace(place=lambda feeder, has_rows: (0, 1)),
            "suspect_keys": SimpleNamespace(read=lambda: self.suspect_keys, add=self.suspect_keys.update),
            "open_tokenizer": lambda: self._tokenize,
            "open_workers": lambda feeder: SimpleNamespace(ready=lambda: [self.worker]),
        }
        self.feeder = kind(
            FeederSetup(
                slice_job(**fields), deliver=self.sink, budget=budget or RowBudget(50, 10_000),
                window_rows=100, postpone_over=10, dedup=dedup, **options,
            )
        )  # fmt: skip

    def take(self, *requests: str, first: int = 0) -> None:
        self.feeder(block(*requests, first=first))

    def _tokenize(self, texts: Sequence[str]) -> list[TokenizedRequest]:
        self.named += texts
        return [
            TokenizedRequest(error=ValueError("no template")) if text.startswith("bad") else
            TokenizedRequest([1], text, total_tokens=99 if text.startswith("postponed") else 2)
            for text in texts
        ]  # fmt: skip


def block(*requests: str, first: int = 0) -> pa.Table:
    rows = len(requests)
    offsets = pa.array(range(first, first + rows), pa.int64())
    return pa.table({"__unit": pa.array([0] * rows, pa.int32()), "__offset": offsets, "__request": requests})


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    for timed in (dispatcher, module):
        monkeypatch.setattr(timed, "_TICK_SECONDS", 0.02)
    monkeypatch.setattr(client_module, "_SEND_SECONDS", 0.1)
    # Requests are words, which are the same requests where they are the same words.
    monkeypatch.setattr(DedupClient, "key", lambda self, request: request.encode().ljust(16)[:16])


@pytest.fixture
def alone() -> Any:
    return partial(DedupClient.alone, always=True)


def test_no_row_waits_for_a_long_one_of_any_block() -> None:
    desk = Desk()
    for first in range(0, 2000, 100):
        desk.take("long", *(f"{row}" for row in range(first + 1, first + 100)), first=first)
    wait_for(lambda: len(desk.worker.asked) == 2000, 60)
    wait_for(lambda: len(desk.sink.answers) == 1980, 60)
    drained: list[Any] = []
    draining = in_thread(desk.feeder.drain, drained)
    assert not drained
    desk.worker.may_end.set()
    draining.join(60)
    assert drained == [None]
    assert desk.sink.texts == {row: "to long" if row % 100 == 0 else f"to {row}" for row in range(2000)}


def test_block_is_taken_over_when_there_is_room_for_its_rows() -> None:
    desk = Desk(budget=RowBudget(10, 10_000))
    desk.take(*["long"] * 110)  # 10 in the worker
    more: list[Any] = []
    taking = in_thread(partial(desk.take, "a"), more)
    taking.join(0.2)
    assert taking.is_alive()
    desk.worker.may_end.set()
    taking.join(60)
    assert more == [None]


def test_what_keeps_rows_from_being_delivered_ends_the_drain_and_later_blocks() -> None:
    desk = Desk()

    def fail(answers: pa.Table) -> pa.Table:
        raise OSError("the disk is full")

    desk.feeder._deliver = fail  # type: ignore[assignment]
    desk.take("a")
    with pytest.raises(OSError, match="the disk is full"):
        desk.feeder.drain()
    with pytest.raises(OSError, match="the disk is full"):
        desk.take("b")


def test_identical_requests_are_inferred_once_whatever_blocks_they_are_of(alone: Any) -> None:
    desk = Desk(dedup=alone)
    desk.take("long", "a", "a", "b")
    desk.take("long", "b", "c", first=4)
    wait_for(lambda: len(desk.sink.answers) == 3, 60)
    desk.worker.may_end.set()
    desk.feeder.drain()
    assert sorted(desk.worker.asked) == ["a", "b", "c", "long"]
    expected = ["long", "a", "a", "b", "long", "b", "c"]
    assert desk.sink.texts == {row: f"to {request}" for row, request in enumerate(expected)}


def test_requests_that_a_feeder_claimed_that_is_gone_are_inferred_by_another(alone: Any) -> None:
    client = alone()
    gone, other = ("a feeder", "a call"), client._coordinators[0]
    key = client.key("a")
    assert other.call("claim", *gone, key)() == [True]
    desk = Desk(dedup=lambda: client)
    desk.take("a", "b", "a")
    wait_for(lambda: desk.sink.texts == {1: "to b"}, 60)
    other.call("release", "a call", key)()
    desk.feeder.drain()
    assert desk.sink.texts == {0: "to a", 1: "to b", 2: "to a"}
    assert sorted(desk.worker.asked) == ["a", "b"]


def test_request_that_fails_is_tried_for_the_next_row_with_it_and_then_fails_them_all(alone: Any) -> None:
    desk = Desk(dedup=alone)
    desk.take("bad", "bad", "bad", "a")
    desk.feeder.drain()
    errors = {answer["__offset"]: answer["error"] for answer in desk.sink.answers}
    assert errors == {0: "ValueError: no template", 1: "ValueError: no template",
                      2: "ValueError: no template", 3: None}  # fmt: skip
    assert desk.named.count("bad") == 2


def test_postponed_request_is_left_with_all_rows_that_wait_for_it(alone: Any) -> None:
    desk = Desk(dedup=alone)
    desk.take("postponed", "postponed", "a")
    desk.feeder.drain()
    assert desk.sink.texts == {2: "to a"}
    assert desk.sink.deaths == []
    assert desk.feeder._dedup is not None
    assert desk.feeder._dedup.claim([b"postponed".ljust(16)])  # by whoever answers it


def test_rows_with_the_request_of_one_that_killed_engines_are_suspects_with_it(alone: Any) -> None:
    desk = Desk(dedup=alone)
    desk.take("a", "deadly", "deadly")
    desk.feeder.drain()
    assert desk.sink.texts == {0: "to a"}
    # Each as if it had been in two engines; only one was.
    assert desk.sink.deaths == [[1], [1], [2], [2]]
    assert desk.worker.asked.count("deadly") == 2
    desk.take("deadly", "b", first=3)
    desk.feeder.drain()
    assert desk.sink.deaths[4:] == [[3], [3]]
    assert desk.worker.asked.count("deadly") == 2


def test_rows_that_no_worker_answers_make_no_suspects_and_are_left_with_their_twins(alone: Any) -> None:
    desk = Desk(dedup=alone)
    desk.take("mute", "mute", "a")
    desk.feeder.drain()
    assert desk.sink.texts == {2: "to a"}
    assert (desk.sink.deaths, desk.suspect_keys) == ([], set())


def test_row_that_kills_the_engine_alone_fails_and_others_are_answered() -> None:
    desk = Desk(kind=SuspectFeeder)
    desk.take("a", "deadly", "b")
    desk.feeder.drain()
    assert desk.sink.texts == {0: "to a", 1: None, 2: "to b"}
    [error] = [answer["error_type"] for answer in desk.sink.answers if answer["__offset"] == 1]
    assert error == "EngineKilledByRow"


@pytest.mark.parametrize(("bound", "value"), [("_MOST_ROWS", 2), ("_MOST_BYTES", 8)])
def test_rows_that_wait_for_answers_are_bounded(
    monkeypatch: pytest.MonkeyPatch, alone: Any, bound: str, value: int
) -> None:
    monkeypatch.setattr(copies, bound, value)
    desk = Desk(dedup=alone)
    desk.take("long", "long", "long")
    more: list[Any] = []
    taking = in_thread(partial(desk.take, "a"), more)
    taking.join(0.2)
    assert taking.is_alive()
    desk.worker.may_end.set()
    taking.join(60)
    assert more == [None]


def test_error_of_the_coordinators_ends_the_drain(alone: Any) -> None:
    client = alone()

    def fail(keys: Sequence[bytes]) -> Any:
        raise OSError("no coordinator")

    client.wait_for_answers = fail
    desk = Desk(dedup=lambda: client)
    desk.take("a", "a")
    with pytest.raises(OSError, match="no coordinator"):
        desk.feeder.drain()


def test_each_row_gets_its_own_answer_and_its_input_row() -> None:
    desk = Desk()
    rows = block("x", "y", "z").append_column("__row", pa.array(["{}", '{"a":1}', "[]"]))
    desk.feeder(rows)
    desk.feeder.drain()
    assert [(answer["__row"], answer["text"]) for answer in sorted(desk.sink.answers, key=_offset)] == [
        ("{}", "to x"), ('{"a":1}', "to y"), ("[]", "to z"),
    ]  # fmt: skip


def test_answers_are_shared_as_they_were_delivered() -> None:
    added: dict[bytes, Any] = {}
    desk = Desk()
    desk.feeder._dedup = SimpleNamespace(  # type: ignore[assignment]
        add_answers=lambda keys, answers: added.update(
            zip(keys, answers.select(ADDED_SCHEMA.names).to_pylist(), strict=True)
        )
    )
    made = [Row(i, i, tokens=[1], params="{}", max_tokens=1, key=k) for i, k in enumerate((b"k", None, b"l"))]
    desk.feeder._deliver_group(made, pa.table({"row": range(3), "text": ["0", "1", "2"]}))
    assert {key: answer["text"] for key, answer in added.items()} == {b"k": "0", b"l": "2"}


def _offset(answer: dict[str, Any]) -> int:
    offset: int = answer["__offset"]
    return offset


def test_rows_with_bad_images_fail_and_others_are_sent_with_their_pixels() -> None:
    desk = Desk(images__column="photo", images__max_pixels=1000)
    sent: list[Row] = []
    desk.feeder._dispatcher = SimpleNamespace(  # type: ignore[assignment]
        wait_for_room=lambda: None, hand_in=lambda rows, as_batch: sent.extend(rows)
    )
    good, other, broken = image_file(seed=1), image_file(8, 8, seed=2), BAD_IMAGES["truncated"]
    cell_files = [[good], [broken], [MediaFile(None, "/etc/passwd")], [good, other], [good]]
    files = [[f if isinstance(f, MediaFile) else MediaFile(f) for f in row] for row in cell_files]
    texts = ['{"messages":[],"sampling_params":{}}'] * 5
    desk.feeder(block(*texts).append_column("__files", to_array(files)))
    failed = desk.sink.answers
    assert [answer["__offset"] for answer in failed] == [2, 1]
    elsewhere, damaged = (answer["error"] for answer in failed)
    assert elsewhere == "InvalidMedia: '/etc/passwd' is below none of images.sources"
    assert damaged.startswith("InvalidMedia: the image is damaged")
    assert [row.offset for row in sent] == [0, 3, 4]
    assert [[medium.shape for medium in row.media] for row in sent] == [
        [(27, 36, 3)], [(27, 36, 3), (8, 8, 3)], [(27, 36, 3)],
    ]  # fmt: skip
    assert sent[0].weight == 1 + 27 * 36 * 3 // 64
    # The same image makes the same request, another one another.
    assert desk.named[0] == desk.named[-1] != desk.named[2]
    assert [len(json.loads(text)["media"]) for text in desk.named] == [1, 1, 2, 1]


def test_rows_are_cut_by_their_number_and_by_that_of_their_images() -> None:
    def cut(*images: int) -> list[int]:
        rows = [RowRequest(0, i, "", files=[b""] * count) for i, count in enumerate(images)]
        cuts = [*_cut(rows)]
        assert [row for some in cuts for row in some] == rows
        return [len(some) for some in cuts]

    assert cut() == []
    assert cut(*[0] * 600) == [256, 256, 88]
    assert cut(*[1] * 40) == [16, 16, 8]
    assert cut(10, 6, 1, 40, 3, 3) == [2, 1, 1, 2]
