"""Cached answers are found again, whichever jobs write, merge, remove, die or break meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.engines.dedup import coordinator
from airflow_provider_raydatallm.processor.engines.dedup.answer_cache import AnswerCache, check_address
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheFiles, CacheNamespace
from airflow_provider_raydatallm.processor.engines.dedup.cache_index import ENTRY_SCHEMA, CacheIndex
from airflow_provider_raydatallm.processor.engines.dedup.client import request_key
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import ADDED_COLUMNS, DedupCoordinator
from airflow_provider_raydatallm.processor.storage import Store
from tests.support.async_tests import async_test

MB = 1 << 20
DAY = 86_400
NOW = 1_800_000_000


def entries(texts: dict[str, str], at: int = NOW) -> pa.Table:
    """:param texts: of answers, by request."""
    rows = [
        {"key": request_key(request), "text": text, "finish_reason": "stop", "shortened": False,
         "input_tokens": 3, "output_tokens": 2, "answered_at": at}
        for request, text in texts.items()
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, ENTRY_SCHEMA)


def new_answers(*texts: str, **columns: list[Any]) -> pa.Table:
    """As an engine adds them."""
    values: dict[str, list[Any]] = {name: [None] * len(texts) for name in ADDED_COLUMNS}
    values |= {"text": list(texts), "finish_reason": ["stop"] * len(texts), "shortened": [False] * len(texts)}
    values |= {"input_tokens": [3] * len(texts), "output_tokens": [2] * len(texts), **columns}
    fields = {f.name: f.type for f in ENTRY_SCHEMA}
    return pa.table({n: pa.array(v, fields.get(n, pa.string())) for n, v in values.items()})


def answers_in(tables: Sequence[pa.Table], *requests: str) -> list[str | None]:
    index = CacheIndex(tables)
    positions = index.find([request_key(r) for r in requests])
    texts = iter(index.entries_at(positions[positions >= 0]).column("text").to_pylist())
    return [next(texts) if position >= 0 else None for position in positions]


def namespace(url: Path | str, **options: Any) -> CacheNamespace:
    return CacheNamespace(**{"url": str(url), "key": "k", "max_bytes": 64 * MB, "max_days": 30.0} | options)


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "cache") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


class Cache:
    """The files of a namespace, and a clock."""

    def __init__(self, url: str, **options: Any) -> None:
        self.namespace = namespace(url, **options)
        self.now = NOW
        self.files = CacheFiles(self.namespace, now=lambda: self.now)
        self.store = Store(url)

    @property
    def names(self) -> list[str]:
        return self.store.names(f"_answers-{self.namespace.key}")

    def answers(self, *requests: str) -> list[str | None]:
        return answers_in(list(self.files.read().values()), *requests)


# In memory


def test_index_finds_the_newest_entry_of_each_key() -> None:
    random = np.random.default_rng(7)
    # Keys that begin alike, and that end in zeros.
    keys = [bytes(k) for k in random.integers(0, 3, (400, 16), np.uint8)]
    keys += [k[:n] + bytes(16 - n) for n, k in enumerate(keys[:16])]
    tables = []
    for _ in range(9):
        rows = []
        for key in {keys[i] for i in random.integers(0, len(keys), 60)}:
            at, text = int(random.integers(0, 10**6)), uuid.uuid4().hex
            rows.append({"key": key, "text": text, "answered_at": at})
        # As they come from files, and from parts of them.
        tables.append(pa.Table.from_pylist(rows, ENTRY_SCHEMA).slice(1))
    tables = [*tables, ENTRY_SCHEMA.empty_table()]
    expected: dict[bytes, tuple[int, str]] = {}
    for row in pa.concat_tables(tables).to_pylist():
        expected[row["key"]] = max(expected.get(row["key"], (-1, "")), (row["answered_at"], row["text"]))
    index = CacheIndex(tables)
    positions = index.find(keys)
    assert [position >= 0 for position in positions] == [key in expected for key in keys]
    known = [key for key in keys if key in expected]
    entries = index.entries_at(positions[positions >= 0])
    assert entries.column("key").to_pylist() == known
    assert entries.column("text").to_pylist() == [expected[key][1] for key in known]
    assert len(index) == index.all_entries().num_rows == len(expected)


def test_empty_index_finds_nothing() -> None:
    index = CacheIndex([])
    assert index.find([]).tolist() == []
    assert index.find([request_key("a")]).tolist() == [-1]
    assert index.entries_at(index.find([])).num_rows == index.all_entries().num_rows == 0


# In storage


def test_answers_are_shared_within_their_namespace_only(url: str) -> None:
    Cache(url).files.write(entries({"a": "is a", "b": "is b"}))
    assert Cache(url).answers("b", "c", "a") == ["is b", None, "is a"]
    assert Cache(url, key="other").answers("a") == [None]


def test_damaged_and_foreign_files_are_skipped_with_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, other = Cache(str(tmp_path)), Cache(str(tmp_path), key="other")
    names = [cache.files.write(entries({a: f"is {a}"})) for a in "abc"]
    foreign = other.files.write(entries({"d": "of another model"}))
    folder = tmp_path / "_answers-k"
    (folder / names[0]).write_bytes((folder / names[0]).read_bytes()[:-9])
    flipped = bytearray((folder / names[1]).read_bytes())
    flipped[len(flipped) // 2] ^= 1
    (folder / names[1]).write_bytes(flipped)
    (tmp_path / "_answers-other" / foreign).rename(folder / foreign)
    (folder / "notes.txt").write_text("mine")
    (folder / "_tmp-half").write_bytes(b"what a killed writer left")
    assert cache.answers(*"abcd") == [None, None, "is c", None]
    [line] = capsys.readouterr().err.splitlines()
    assert f"skipping 4 file(s) of {folder}" in line
    cache.files.compact(cache.files.read())
    assert (folder / "notes.txt").exists()  # a user's own


def test_oldest_files_are_removed_over_the_limit(url: str) -> None:
    cache = Cache(url, max_bytes=MB)
    for i in range(12):
        cache.files.write(entries({f"{i}": "x" * 150_000}, at=NOW + i))
    assert [a is not None for a in cache.answers(*map(str, range(12)))] == [False] * 6 + [True] * 6
    cache.files.remove_expired()
    assert len(cache.names) == 6
    cache.files.write(entries({"12": "y"}, at=NOW + 12))
    assert cache.answers("12", "11", "0") == ["y", "x" * 150_000, None]


def test_old_answers_expire_also_in_unused_namespaces(url: str) -> None:
    cache, gone = Cache(url), Cache(url, key="gone")
    gone.files.write(entries({"a": "is a"}))
    cache.files.write(entries({"a": "is a"}, at=NOW))
    mixed = pa.concat_tables([entries({"b": "is b"}, at=NOW), entries({"c": "is c"}, at=NOW + 9 * DAY)])
    cache.files.write(mixed)
    cache.now = NOW + 30 * DAY
    assert cache.answers(*"abc") == ["is a", "is b", "is c"]
    cache.now += 1
    assert cache.answers(*"abc") == [None, None, "is c"]
    cache.files.compact(cache.files.read())
    assert (len(cache.names), gone.names) == (1, [])
    cache.now += 9 * DAY
    cache.files.compact(cache.files.read())
    assert cache.names == []


def write_many(cache: Cache, count: int = 20) -> list[str]:
    """So many small files."""
    for i in range(count):
        cache.files.write(entries({f"{i}": f"is {i}", "same": f"the {i}th"}, at=NOW + i))
    return [f"{i}" for i in range(count)]


def test_merging_small_files_loses_nothing(url: str) -> None:
    cache = Cache(url)
    requests = write_many(cache)
    before = cache.files.read()
    cache.files.compact(before)
    assert len(cache.names) == 1
    assert cache.answers(*requests, "same") == [f"is {r}" for r in requests] + ["the 19th"]
    cache.files.compact(before)  # of another job, which had read the same files
    assert len(cache.names) == 1
    cache.files.compact(cache.files.read())
    assert len(cache.names) == 1


def test_merged_files_stay_under_the_size_limit(url: str) -> None:
    cache = Cache(url, max_bytes=8 * MB)
    for i in range(20):
        cache.files.write(entries({f"{i}": "x" * 300_000}, at=NOW + i))
    cache.files.compact(cache.files.read())
    sizes = [f.size for f in cache.store.files("_answers-k")]
    assert len(sizes) == 7
    assert max(sizes) < 1.01 * MB


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(22))
def test_kill_while_merging_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    cache = Cache(str(tmp_path))
    requests = write_many(cache)
    done = 0

    def killed_at(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            nonlocal done
            if done == step:
                raise Killed
            done += 1
            return work(*given)

        return run

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(Store, "create", killed_at(Store.create))
        patch.setattr(Store, "remove", killed_at(Store.remove))
        cache.files.compact(cache.files.read())
    assert done == min(step, 21)  # one file is written, and 20 are removed
    assert cache.answers(*requests, "same") == [f"is {r}" for r in requests] + ["the 19th"]


def test_reader_finds_answers_of_files_that_are_merged_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(str(tmp_path))
    requests = write_many(cache)
    read = CacheFiles._read
    tables = cache.files.read()
    first = threading.Lock()

    def read_after_they_went(self: CacheFiles, name: str) -> pa.Table | None:
        if first.acquire(blocking=False):
            cache.files.compact(tables)
            went.set()
        assert went.wait(60)
        return read(self, name)

    went = threading.Event()
    monkeypatch.setattr(CacheFiles, "_read", read_after_they_went)
    assert cache.answers(*requests) == [f"is {r}" for r in requests]


def write_and_merge(url: str, me: int, barrier: Any) -> None:
    """A process among others."""
    cache = Cache(url)
    barrier.wait(60)
    for i in range(12):
        cache.files.write(entries({f"{me}-{i}": f"{me} says {i}", "same": "same"}))
        if i % 4 == 3:
            cache.files.compact(cache.files.read())


def test_concurrent_writers_and_merges_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    url = str(tmp_path)
    others = [context.Process(target=write_and_merge, args=(url, n, barrier)) for n in range(3)]
    for process in others:
        process.start()
    for process in others:
        process.join(120)
    assert [p.exitcode for p in others] == [0, 0, 0]
    expected = {f"{n}-{i}": f"{n} says {i}" for n in range(3) for i in range(12)}
    assert Cache(url).answers(*expected) == list(expected.values())
    assert len(Cache(url).names) < 36


# Beside a slice


def open_cache(url: Path, **options: Any) -> AnswerCache:
    """Returns it loaded."""
    cache = AnswerCache.open(namespace(url, **options))
    assert cache is not None
    assert cache._loaded.wait(60)
    return cache


def test_good_answers_of_a_slice_are_stored_for_the_next(tmp_path: Path) -> None:
    first = open_cache(tmp_path)
    first.add([request_key("a"), request_key("b")], new_answers("is a", "?", error=[None, "too long"]))
    first.add([request_key("c")], new_answers("is cut", finish_reason=["length"]))
    assert (first.find([request_key("a")]) < 0).all()  # the coordinator has this slice's own
    first.close()
    second = open_cache(tmp_path)
    assert (second.find([request_key(a) for a in "abc"]) >= 0).tolist() == [True, False, True]
    [answer] = second.entries_at(second.find([request_key("a")])).to_pylist()
    assert (answer["text"], answer["input_tokens"], answer["output_tokens"]) == ("is a", 3, 2)


def test_truncated_answer_that_needs_a_shape_is_not_stored(tmp_path: Path) -> None:
    first = open_cache(tmp_path, keep_truncated=False)
    answers = new_answers("{", "{}", "{ }", finish_reason=["length", "stop", None])
    first.add([request_key(a) for a in "abc"], answers)
    first.close()
    second = open_cache(tmp_path)
    assert (second.find([request_key(a) for a in "abc"]) >= 0).tolist() == [False, True, True]


def test_forced_slice_replaces_stored_answers(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path))
    cache.files.write(entries({"a": "before"}, at=NOW - 400 * DAY))
    forced = open_cache(tmp_path, read_existing=False, max_days=10_000.0)
    assert (forced.find([request_key("a")]) < 0).all()
    forced.add([request_key("a")], new_answers("now"))
    forced.close()
    later = open_cache(tmp_path, max_days=10_000.0)
    assert later.entries_at(later.find([request_key("a")])).column("text").to_pylist() == ["now"]


def test_answers_are_stored_while_the_slice_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = threading.Event()
    write = CacheFiles.write

    def noted(self: CacheFiles, table: pa.Table) -> str:
        name = write(self, table)
        put.set()
        return name

    monkeypatch.setattr(CacheFiles, "write", noted)
    cache = open_cache(tmp_path, max_bytes=MB)
    cache.add([request_key("a")], new_answers("x" * MB))  # enough for a file
    assert put.wait(60)
    cache.close()


def test_slow_store_limits_pending_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes, store_responds, sizes = threading.Event(), threading.Event(), []
    write = CacheFiles.write

    def late(self: CacheFiles, table: pa.Table) -> str:
        sizes.append(table.nbytes)
        writes.set()
        assert store_responds.wait(60)
        return write(self, table)

    monkeypatch.setattr(CacheFiles, "write", late)
    cache = open_cache(tmp_path, max_bytes=8 * MB)  # files of a MiB
    for n in range(100):
        cache.add([request_key(str(n))], new_answers("x" * (MB // 10)))
        assert n != 10 or writes.wait(60)  # enough for a file
    store_responds.set()
    cache.close()
    assert sum(sizes) < 6 * MB
    assert max(sizes) <= 1.2 * MB
    assert len(cache._files.read()) == len(sizes) > 3


def test_unreachable_storage_costs_one_warning_and_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("where the folder should be")
    cache = open_cache(tmp_path / "file" / "cache")
    for request in "ab":
        cache.add([request_key(request)], new_answers(f"is {request}"))
        cache._flush()
    cache.close()
    assert cache.find([request_key("a")]).tolist() == [-1]
    [line] = capsys.readouterr().err.splitlines()
    assert "NotADirectoryError" in line
    assert line.endswith("The slice continues without it")


def test_unknown_address_is_refused_at_the_start() -> None:
    with pytest.raises(SliceError, match=r"answer_cache: s4://lake cannot be opened: .*Give an address such"):
        check_address("s4://lake")
    assert AnswerCache.open(namespace("s4://lake")) is None


@async_test
async def test_request_answered_by_another_slice_is_not_inferred(tmp_path: Path) -> None:
    Cache(str(tmp_path)).files.write(entries({"a": "is a", "b": "is b"}, at=2 * NOW))
    dedup = DedupCoordinator(namespace(tmp_path))
    a, b, c = (request_key(k) for k in "abc")
    assert await dedup.claim("one", "1", [c, a]) == [True, False]
    await dedup.add_answers([c], new_answers("is c"))
    known, copies, lost = await dedup.wait_for_answers([a, c, b])
    by_key = dict(zip(known, copies.to_pylist(), strict=True))
    assert (sorted(by_key), lost) == ([0, 1, 2], [])
    assert [by_key[i]["text"] for i in range(3)] == ["is a", "is c", "is b"]
    assert [by_key[i]["cached"] for i in range(3)] == [True, False, True]
    assert [by_key[i]["saved_tokens"] for i in range(3)] == [5, 0, 5]
    await dedup.close()
    assert (open_cache(tmp_path).find([request_key("c")]) >= 0).all()


@async_test
async def test_slice_waits_for_the_cache_to_load_but_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cache(str(tmp_path)).files.write(entries({"a": "is a", "b": "is b"}, at=2 * NOW))
    may_read = threading.Event()
    read = CacheFiles.read

    def slow(self: CacheFiles) -> dict[str, pa.Table]:
        assert may_read.wait(60)
        return read(self)

    monkeypatch.setattr(CacheFiles, "read", slow)
    dedup = DedupCoordinator(namespace(tmp_path))
    claiming = asyncio.ensure_future(dedup.claim("one", "1", [request_key("a")]))
    await asyncio.sleep(0)  # it begins to wait
    monkeypatch.setattr(coordinator, "_LOAD_SECONDS", 0.0)
    late = DedupCoordinator(namespace(tmp_path))
    assert await late.claim("one", "1", [request_key("a")]) == [True]  # without the cache
    assert not claiming.done()
    may_read.set()
    assert await asyncio.wait_for(claiming, 60) == [False]
    assert late._cache is not None
    assert late._cache._loaded.wait(60)
    assert await late.claim("one", "2", [request_key("b")]) == [False]  # the cache has loaded by now


@async_test
async def test_slice_continues_when_the_cache_fails_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: CacheFiles) -> None:
        raise RuntimeError("no such bucket")

    monkeypatch.setattr(CacheFiles, "read", broken)
    dedup = DedupCoordinator(namespace(tmp_path))
    assert await dedup.claim("one", "1", [request_key("a")]) == [True]
    await dedup.add_answers([request_key("a")], new_answers("is a"))
    assert (await dedup.wait_for_answers([request_key("a")]))[0] == [0]
    await dedup.close()
    assert "no such bucket" in capsys.readouterr().err
