"""The answer cache beside a running slice: what it stores, finds and survives."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.dedup import coordinator
from airflow_provider_raydatallm.processor.engines.dedup.answer_cache import AnswerCache, check_address
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheFiles
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import (
    ADDED_SCHEMA,
    COPIED_SCHEMA,
    DedupCoordinator,
)
from airflow_provider_raydatallm.processor.engines.dedup.messages import pack, unpack
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import Shard, request_key, shard_numbers
from tests.support.answer_cache import DAY, MB, NOW, Cache, entries, namespace, new_answers, open_cache
from tests.support.async_tests import async_test


def test_good_answers_of_a_slice_are_stored_for_the_next(tmp_path: Path) -> None:
    first = open_cache(tmp_path)
    first.add([request_key("a"), request_key("b")], new_answers("is a", "?", error=[None, "too long"]))
    first.add([request_key("c")], new_answers("is cut", finish_reason=["length"]))
    first.add([request_key("d")], new_answers("is invalid", is_invalid=[True]))
    assert (first.find([request_key("a")]) < 0).all()  # the coordinator has this slice's own
    first.close()
    second = open_cache(tmp_path)
    assert (second.find([request_key(a) for a in "abcd"]) >= 0).tolist() == [True, False, True, False]
    [answer] = second.entries_at(second.find([request_key("a")])).to_pylist()
    assert (answer["text"], answer["input_tokens"], answer["output_tokens"]) == ("is a", 3, 2)


def test_truncated_answer_that_needs_a_shape_is_not_stored(tmp_path: Path) -> None:
    first = open_cache(tmp_path, keep_truncated=False)
    answers = new_answers("{", "{}", "{ }", finish_reason=["length", "stop", None])
    first.add([request_key(a) for a in "abc"], answers)
    first.close()
    second = open_cache(tmp_path)
    assert (second.find([request_key(a) for a in "abc"]) >= 0).tolist() == [False, True, True]


def test_vectors_of_another_size_are_neither_kept_nor_found(tmp_path: Path) -> None:
    def add(size: int, *requests: str) -> None:
        cache = open_cache(tmp_path)  # of a provider that did not check them
        numbers = pa.array([[0.5] * size] * len(requests), pa.list_(pa.float32()))
        cache.add([request_key(r) for r in requests], new_answers(*requests, numbers=numbers))
        cache.close()

    add(8, "a", "b")
    add(16, "c")
    cache = open_cache(tmp_path, numbers=16)
    assert (cache.find([request_key(r) for r in "abc"]) >= 0).tolist() == [False, False, True]
    both = pa.array([[0.5] * 8, [0.5] * 16, None], pa.list_(pa.float32()))
    cache.add([request_key(r) for r in "def"], new_answers(*"def", numbers=both))
    cache.close()
    later = open_cache(tmp_path)
    assert (later.find([request_key(r) for r in "def"]) >= 0).tolist() == [False, True, False]


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
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("where the folder should be")
    cache = open_cache(tmp_path / "file" / "cache")
    for request in "ab":
        cache.add([request_key(request)], new_answers(f"is {request}"))
        cache._flush()
    cache.close()
    assert cache.find([request_key("a")]).tolist() == [-1]
    [line] = caplog.messages
    assert "NotADirectoryError" in line
    assert line.endswith("The slice continues without it")


def test_unknown_address_is_refused_at_the_start() -> None:
    with pytest.raises(SliceError, match=r"engine.cache: .* s4:// are not accepted.*Give an address such"):
        check_address("s4://lake")
    assert AnswerCache.open(namespace("s4://lake")) is None


@async_test
async def test_request_answered_by_another_slice_is_not_inferred(tmp_path: Path) -> None:
    Cache(str(tmp_path)).files.write(entries({"a": "is a", "b": "is b"}, at=2 * NOW))
    dedup = DedupCoordinator(namespace(tmp_path))
    a, b, c = (request_key(k) for k in "abc")
    assert await dedup.claim("one", "1", c + a) == [True, False]
    await dedup.add_answers("2", c, pack(new_answers("is c"), ADDED_SCHEMA))
    known, copies, lost = await dedup.wait_for_answers(a + c + b)
    by_key = dict(zip(known, unpack(copies, COPIED_SCHEMA).to_pylist(), strict=True))
    assert (sorted(by_key), lost) == ([0, 1, 2], [])
    assert [by_key[i]["text"] for i in range(3)] == ["is a", "is c", "is b"]
    assert [by_key[i]["cached"] for i in range(3)] == [True, False, True]
    assert [by_key[i]["saved_tokens"] for i in range(3)] == [5, 0, 5]
    await dedup.close()
    assert (open_cache(tmp_path).find([request_key("c")]) >= 0).all()


@async_test
async def test_each_shard_has_its_part_of_the_cache_and_together_they_store_all(tmp_path: Path) -> None:
    for i in range(20):  # so many files that they are merged
        Cache(str(tmp_path)).files.write(entries({f"old {i}": f"is {i}", f"at {i}": "x"}, at=2 * NOW + i))
    old, new = ([request_key(f"{age} {i}") for i in range(20)] for age in ("old", "new"))
    shards = [DedupCoordinator(namespace(tmp_path), Shard(i, 3)) for i in range(3)]
    of_old, of_new = shard_numbers(old, 3), shard_numbers(new, 3)
    for i, shard in enumerate(shards):
        is_mine = await shard.claim("one", "1", b"".join(old))
        assert [not mine for mine in is_mine] == (
            of_old == i
        ).tolist()  # it has those of its shard, no others
        keys = [key for key, number in zip(new, of_new, strict=True) if number == i]
        answers = new_answers(*["is new"] * len(keys))
        await shard.add_answers("2", b"".join(keys), pack(answers, ADDED_SCHEMA))
        await shard.close()
    later = open_cache(tmp_path)
    assert (later.find([*old, *new]) >= 0).all()


@async_test
async def test_slice_waits_for_the_cache_to_load_but_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cache(str(tmp_path)).files.write(entries({"a": "is a", "b": "is b"}, at=2 * NOW))
    may_read = threading.Event()
    read = CacheFiles.read

    def slow(self: CacheFiles, shard: Shard) -> dict[str, pa.Table]:
        assert may_read.wait(60)
        return read(self, shard)

    monkeypatch.setattr(CacheFiles, "read", slow)
    dedup = DedupCoordinator(namespace(tmp_path))
    claiming = asyncio.ensure_future(dedup.claim("one", "1", request_key("a")))
    await asyncio.sleep(0)  # it begins to wait
    monkeypatch.setattr(coordinator, "_LOAD_SECONDS", 0.0)
    late = DedupCoordinator(namespace(tmp_path))
    assert await late.claim("one", "1", request_key("a")) == [True]  # without the cache
    assert not claiming.done()
    may_read.set()
    assert await asyncio.wait_for(claiming, 60) == [False]
    assert late._cache is not None
    assert late._cache._loaded.wait(60)
    assert await late.claim("one", "2", request_key("b")) == [False]  # the cache has loaded by now


@async_test
async def test_slice_continues_when_the_cache_fails_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: CacheFiles, shard: Shard) -> None:
        raise RuntimeError("no such bucket")

    monkeypatch.setattr(CacheFiles, "read", broken)
    dedup = DedupCoordinator(namespace(tmp_path))
    assert await dedup.claim("one", "1", request_key("a")) == [True]
    await dedup.add_answers("2", request_key("a"), pack(new_answers("is a"), ADDED_SCHEMA))
    assert (await dedup.wait_for_answers(request_key("a")))[0] == [0]
    await dedup.close()
    assert "no such bucket" in caplog.text
