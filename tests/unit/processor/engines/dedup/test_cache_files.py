"""Cached answers are found again, whichever jobs write, merge, remove or die meanwhile."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.addresses import EXTRA_SCHEMES
from airflow_provider_raydatallm.processor.engines.dedup import doubted_answers
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheFiles
from airflow_provider_raydatallm.processor.engines.dedup.cache_index import ENTRY_SCHEMA, CacheIndex
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import request_key
from airflow_provider_raydatallm.processor.storage import arrow_files
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.ledger import content_hash
from tests.support.answer_cache import DAY, MB, NOW, Cache, entries


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(EXTRA_SCHEMES, "memory")
    return str(tmp_path / "cache") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


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
    tmp_path: Path, caplog: pytest.LogCaptureFixture
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
    [line] = caplog.messages
    assert f"skipping 4 file(s) of {folder}" in line
    cache.files.compact(cache.files.read())
    assert (folder / "notes.txt").exists()  # a user's own


def test_planted_file_takes_no_more_memory_than_storage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(str(tmp_path))
    cache.files.write(entries({"a": "is a"}))
    schema = ENTRY_SCHEMA.with_metadata({"answer_space": "k"})
    large = entries({"b": "x" * (4 * MB)}).cast(schema)
    no_key = pa.Table.from_pylist([{"text": "x", "answered_at": NOW}], schema)
    for content in (
        arrow_files.encode(large, compress=True),
        arrow_files.encode(no_key, compress=False),
        arrow_files.encode(large.drop_columns(["text"]), compress=False),
        arrow_files.encode(large.set_column(1, "text", pa.array([1])), compress=False),
    ):
        cache.store.put(f"_answers-k/{NOW:012d}-{content_hash(content)}.arrow", content)
    assert cache.answers("a", "b") == ["is a", None]
    assert "skipping 4 file(s)" in caplog.text


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


def test_answers_of_a_time_that_golden_rows_spoke_against_are_no_slices(url: str) -> None:
    cache = Cache(url, model_source="m")
    for request, at in (("before", NOW - 100), ("then", NOW), ("late clock", NOW + 55), ("after", NOW + 200)):
        cache.files.write(entries({request: "is", "same": f"at {at}"}, at=at))
    doubted_answers.note(cache.store, "other", NOW - 1000, NOW + 1000)
    assert cache.answers("then", "same") == ["is", f"at {NOW + 200}"]
    doubted_answers.note(cache.store, "m", NOW - 10, NOW + 10)
    doubted_answers.note(cache.store, "m", NOW + 190, NOW + 210)
    assert cache.answers("before", "then", "late clock", "after") == ["is", None, None, None]
    assert cache.answers("same") == [f"at {NOW - 100}"]
    cache.now = NOW + 31 * DAY  # when there is nothing left that they could be about
    cache.files.compact(cache.files.read())
    assert "_doubted-answers" not in cache.store.names()


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


@pytest.mark.slow
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


@pytest.mark.slow
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
