"""Object stores answer in different ways, and lose answers: what a request did is settled by looking."""

from __future__ import annotations

import threading
import time

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage import filesystem
from airflow_provider_raydatallm.processor.storage import store as store_module
from airflow_provider_raydatallm.processor.storage.filesystem import waiting_briefly
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from tests.support.marks import long
from tests.support.s3_dialect import Dialect

#: How stores refuse a conditional put: as AWS does, without an element, without a body.
REFUSALS = ["condition", "bare", "empty"]


@pytest.fixture
def store(s3_store: Store) -> Store:
    return s3_store


@pytest.mark.slow
@pytest.mark.parametrize("refusal", REFUSALS)
def test_create_never_replaces_however_the_store_refuses(
    store: Store, dialect: Dialect, refusal: str
) -> None:
    dialect.refusal = refusal
    assert store.create("a", b"one")
    assert not store.create("a", b"two")
    assert store.read("a") == b"one"
    assert store.create("a", b"one")


@pytest.mark.parametrize("refusal", REFUSALS)
def test_writer_whose_answer_was_lost_finds_its_own_file(
    store: Store, dialect: Dialect, refusal: str
) -> None:
    dialect.refusal, dialect.lost_answers = refusal, 1
    assert store.create("a", b"mine")
    assert not store.create("a", b"another's")


def test_conflict_is_tried_again(store: Store, dialect: Dialect) -> None:
    dialect.conflicts = 2
    assert store.create("a", b"mine")
    assert store.read("a") == b"mine"


def test_conflict_that_never_ends_is_an_error_with_the_path(store: Store, dialect: Dialect) -> None:
    dialect.conflicts = -1
    with pytest.raises(SliceError, match=r": cannot write lake/.*/a") as e:
        store.create("a", b"mine")
    assert e.value.kind == "transient"
    assert store.read("a") is None


def test_store_that_forbids_writing_is_an_error_with_the_path_at_once(store: Store, dialect: Dialect) -> None:
    dialect.forbidden = -1
    for write in (store.create, store.put):
        dialect.requests.clear()
        with pytest.raises(SliceError, match=r"access was denied.*: cannot write lake/.*/a"):
            write("a", b"mine")
        assert [method for method, _ in dialect.requests][:2] in (["PUT", "GET"], ["PUT"])
        assert len(dialect.requests) <= 2


@pytest.mark.slow
def test_throttled_store_is_asked_again(store: Store, dialect: Dialect) -> None:
    dialect.throttled = 1
    assert store.create("a", b"mine")


@pytest.mark.slow
@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("trouble", ["", "conflicts", "lost_answers", long("throttled")])
def test_of_two_creators_at_once_exactly_one_wins(
    store: Store, dialect: Dialect, refusal: str, trouble: str
) -> None:
    dialect.refusal, dialect.latency_s = refusal, 0.01
    for number in range(4):
        if trouble:
            setattr(dialect, trouble, 1)
        wins: list[bytes] = []

        def write(data: bytes, name: str = f"file-{number}", wins: list[bytes] = wins) -> None:
            if store.create(name, data):
                wins.append(data)

        threads = [threading.Thread(target=write, args=(data,)) for data in (b"one", b"two")]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert [store.read(f"file-{number}")] == wins


def test_placing_takes_two_requests_and_fails_without_its_source(store: Store, dialect: Dialect) -> None:
    staged = Store(f"{store.url}.staged")
    staged.put("f", b"rows")
    dialect.requests.clear()
    assert store.place(staged, "f", "part")
    assert [method for method, _ in dialect.requests] == ["HEAD", "PUT"]
    assert store.read("part") == b"rows"
    assert staged.read("f") == b"rows"
    with pytest.raises(FileNotFoundError):
        store.place(staged, "none", "other")
    assert store.names() == ["part"]


def test_source_that_vanishes_before_the_copy_is_told_as_gone(
    store: Store, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "_size", lambda self, name: 4 if name == "f" else None)
    with pytest.raises(FileNotFoundError):
        store.place(store, "f", "part")


def test_copy_whose_answer_was_lost_counts_when_its_source_is_gone_meanwhile(
    store: Store, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asks again by itself: the second request finds no source, as another run went on."""
    store.put("f", b"rows")
    request, store_request = Store._request_copy, store._request_copy

    def acts_then_fails(self: Store, source: str, target: str) -> None:
        store_request(source, target)
        self.remove("f")
        request(self, source, target)

    monkeypatch.setattr(Store, "_request_copy", acts_then_fails)
    assert store.place(store, "f", "part")
    assert store.read("part") == b"rows"


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["lost_answers", "lost_copies", "throttled"])
def test_placing_survives_trouble(store: Store, dialect: Dialect, trouble: str) -> None:
    store.put("f", b"rows")
    setattr(dialect, trouble, 1)
    assert store.place(store, "f", "part")
    assert store.read("part") == b"rows"


@pytest.mark.slow
def test_copy_lands_after_its_client_is_gone(store: Store, dialect: Dialect) -> None:
    """What a fence has to wait for: the store does not forget what it was asked."""
    store.put("f", b"rows")
    dialect.copy_delay_s, dialect.lost_copies = 0.5, -1
    placing = threading.Thread(target=lambda: store.place(store, "f", "part"), daemon=True)
    placing.start()
    time.sleep(0.2)
    assert store.read("part") is None
    time.sleep(0.8)
    assert store.read("part") == b"rows"
    dialect.lost_copies = 0
    placing.join(30)


def test_file_over_the_limit_of_one_copy_is_refused_before(
    store: Store, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_MAX_COPY_BYTES", 3)
    store.put("f", b"rows")
    with pytest.raises(SliceError, match=r"/f has 4 bytes, .* at most 3 bytes.*publish.max_file_bytes") as e:
        store.place(store, "f", "part")
    assert e.value.kind == "input"


def test_listing_is_one_request_for_each_thousand_files_of_the_folder(store: Store, dialect: Dialect) -> None:
    for number in range(3):
        store.put(f"a/{number}", b"12")
    store.put("a/b/c", b"1")
    dialect.requests.clear()
    assert store.files("none") == []
    assert len(dialect.requests) == 1
    assert [*store.files("a")] == [("0", 2), ("1", 2), ("2", 2), ("b", 0)]
    assert len(dialect.requests) == 2
    assert store.names() == ["a"]


def test_listing_follows_pages(store: Store, dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        store.put(f"a/{number}", b"1")
    call = store.fs.call_s3
    monkeypatch.setattr(store.fs, "call_s3", lambda *args, **kwargs: call(*args, MaxKeys=2, **kwargs))
    dialect.requests.clear()
    assert store.names("a") == ["0", "1", "2", "3", "4"]
    assert len(dialect.requests) == 3


def test_a_file_is_removed_by_one_request(store: Store, dialect: Dialect) -> None:
    store.put("a/f", b"1")
    dialect.requests.clear()
    store.remove_file("a/f")
    store.remove_file("a/f")
    assert len(dialect.requests) == 2
    assert store.names("a") == []


def test_first_bytes_take_one_request_and_an_empty_file_has_none(store: Store, dialect: Dialect) -> None:
    store.put("f", b"1234")
    store.put("empty", b"")
    dialect.requests.clear()
    assert store.read_start("f", 2) == b"12"
    assert store.read_start("f", 1 << 30) == b"1234"
    assert store.read("f") == b"1234"
    assert [method for method, _ in dialect.requests] == ["GET"] * 3
    assert store.read_start("empty", 2) == b""
    with pytest.raises(FileNotFoundError):
        store.read_start("none", 2)


def test_large_object_is_read_no_further_than_its_limit(store: Store, dialect: Dialect) -> None:
    store.put("f", b"x" * (3 << 20))
    dialect.sent_bytes = 0
    with pytest.raises(CorruptFileError, match="more than 1,000 bytes"):
        store.read("f", 1000)
    assert dialect.sent_bytes < 10_000
    store.put("empty", b"")
    assert store.read("empty") == b""


@pytest.mark.slow
@pytest.mark.parametrize("total_s", [None, 0.3])
def test_store_that_never_ends_its_answer_is_given_up_in_time(
    store: Store, dialect: Dialect, monkeypatch: pytest.MonkeyPatch, total_s: float | None
) -> None:
    monkeypatch.setattr(filesystem, "_BRIEF_SECONDS", 0.3)
    with waiting_briefly(total_s):
        brief = Store(store.url)
    dialect.latency_s = 60
    before = time.monotonic()
    for ask in (lambda: brief.read("f"), lambda: brief.names(""), lambda: brief.details("")):
        with pytest.raises(SliceError, match=r"cannot (read|list)"):
            ask()
    assert time.monotonic() - before < 20
