"""What is kept of answers is found again, whoever writes, merges, removes, dies or breaks meanwhile."""

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
from airflow_provider_raydatallm.processor.columns import ENTRY_SCHEMA
from airflow_provider_raydatallm.processor.engines.dedup import coordinator
from airflow_provider_raydatallm.processor.engines.dedup.answer_cache import AnswerCache, check_address
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheFiles, CacheNamespace
from airflow_provider_raydatallm.processor.engines.dedup.cache_index import CacheIndex
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import (
    SENT_COLUMNS,
    DedupCoordinator,
    request_key,
)
from airflow_provider_raydatallm.processor.storage import Store

MB = 1 << 20
DAY = 86_400
NOW = 1_800_000_000


def entries(texts: dict[str, str], at: int = NOW) -> pa.Table:
    """What was answered to some requests."""
    rows = [
        {"key": request_key(asked), "text": text, "finish_reason": "stop", "shortened": False,
         "input_tokens": 3, "output_tokens": 2, "answered_at": at}
        for asked, text in texts.items()
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, ENTRY_SCHEMA)


def told(*texts: str, **columns: list[Any]) -> pa.Table:
    """What an engine tells of its answers."""
    made: dict[str, list[Any]] = {name: [None] * len(texts) for name in SENT_COLUMNS}
    made |= {"text": list(texts), "finish_reason": ["stop"] * len(texts), "shortened": [False] * len(texts)}
    made |= {"input_tokens": [3] * len(texts), "output_tokens": [2] * len(texts), **columns}
    fields = {f.name: f.type for f in ENTRY_SCHEMA}
    return pa.table({n: pa.array(v, fields.get(n, pa.string())) for n, v in made.items()})


def answers_in(tables: Sequence[pa.Table], *asked: str) -> list[str | None]:
    index = CacheIndex(tables)
    places = index.find([request_key(a) for a in asked])
    found = iter(index.take(places[places >= 0]).column("text").to_pylist())
    return [next(found) if place >= 0 else None for place in places]


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "kept") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


class Kept:
    """The files of a key space, and a clock."""

    def __init__(self, url: str, **given: Any) -> None:
        self.space = CacheNamespace(
            **{"url": url, "key": "k", "max_bytes": 64 * MB, "max_days": 30.0} | given
        )
        self.now = NOW
        self.files = CacheFiles(self.space, now=lambda: self.now)
        self.store = Store(url)

    @property
    def names(self) -> list[str]:
        return self.store.names(f"_answers-{self.space.key}")

    def asked(self, *requests: str) -> list[str | None]:
        return answers_in(list(self.files.read().values()), *requests)


# In memory


def test_what_is_looked_up_is_what_was_put_and_the_newest_of_it() -> None:
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
        # As they come from files, and from parts of such.
        tables.append(pa.Table.from_pylist(rows, ENTRY_SCHEMA).slice(1))
    tables = [*tables, ENTRY_SCHEMA.empty_table()]
    expected: dict[bytes, tuple[int, str]] = {}
    for row in pa.concat_tables(tables).to_pylist():
        expected[row["key"]] = max(expected.get(row["key"], (-1, "")), (row["answered_at"], row["text"]))
    index = CacheIndex(tables)
    places = index.find(keys)
    assert [place >= 0 for place in places] == [key in expected for key in keys]
    there = [key for key in keys if key in expected]
    found = index.take(places[places >= 0])
    assert found.column("key").to_pylist() == there
    assert found.column("text").to_pylist() == [expected[key][1] for key in there]
    assert len(index) == index.entries().num_rows == len(expected)


def test_nothing_is_known_of_nothing() -> None:
    index = CacheIndex([])
    assert index.find([]).tolist() == []
    assert index.find([request_key("a")]).tolist() == [-1]
    assert index.take(index.find([])).num_rows == index.entries().num_rows == 0


# In storage


def test_answers_are_read_by_others_of_the_same_key_space_only(url: str) -> None:
    Kept(url).files.write(entries({"a": "is a", "b": "is b"}))
    assert Kept(url).asked("b", "c", "a") == ["is b", None, "is a"]
    assert Kept(url, key="other").asked("a") == [None]


def test_files_that_are_damaged_or_not_its_own_are_left_out_with_one_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, other = Kept(str(tmp_path)), Kept(str(tmp_path), key="other")
    names = [kept.files.write(entries({a: f"is {a}"})) for a in "abc"]
    foreign = other.files.write(entries({"d": "of another model"}))
    folder = tmp_path / "_answers-k"
    (folder / names[0]).write_bytes((folder / names[0]).read_bytes()[:-9])
    flipped = bytearray((folder / names[1]).read_bytes())
    flipped[len(flipped) // 2] ^= 1
    (folder / names[1]).write_bytes(flipped)
    (tmp_path / "_answers-other" / foreign).rename(folder / foreign)
    (folder / "notes.txt").write_text("mine")
    (folder / "_tmp-half").write_bytes(b"what a killed writer left")
    assert kept.asked(*"abcd") == [None, None, "is c", None]
    [line] = capsys.readouterr().err.splitlines()
    assert f"4 file(s) of {folder} are left out" in line
    kept.files.tidy(kept.files.read())
    assert (folder / "notes.txt").exists()  # somebody else's


def test_oldest_files_go_first_when_there_are_too_many(url: str) -> None:
    kept = Kept(url, max_bytes=MB)
    for i in range(12):
        kept.files.write(entries({f"{i}": "x" * 150_000}, at=NOW + i))
    assert [a is not None for a in kept.asked(*map(str, range(12)))] == [False] * 6 + [True] * 6
    kept.files.drop()
    assert len(kept.names) == 6
    kept.files.write(entries({"12": "y"}, at=NOW + 12))
    assert kept.asked("12", "11", "0") == ["y", "x" * 150_000, None]


def test_answers_are_forgotten_when_they_are_old_also_of_models_that_nobody_asks(url: str) -> None:
    kept, gone = Kept(url), Kept(url, key="gone")
    gone.files.write(entries({"a": "is a"}))
    kept.files.write(entries({"a": "is a"}, at=NOW))
    mixed = pa.concat_tables([entries({"b": "is b"}, at=NOW), entries({"c": "is c"}, at=NOW + 9 * DAY)])
    kept.files.write(mixed)
    kept.now = NOW + 30 * DAY
    assert kept.asked(*"abc") == ["is a", "is b", "is c"]
    kept.now += 1
    assert kept.asked(*"abc") == [None, None, "is c"]
    kept.files.tidy(kept.files.read())
    assert (len(kept.names), gone.names) == (1, [])
    kept.now += 9 * DAY
    kept.files.tidy(kept.files.read())
    assert kept.names == []


def many(kept: Kept, count: int = 20) -> list[str]:
    """So many small files."""
    for i in range(count):
        kept.files.write(entries({f"{i}": f"is {i}", "same": f"the {i}th"}, at=NOW + i))
    return [f"{i}" for i in range(count)]


def test_small_files_are_merged_and_nothing_is_lost(url: str) -> None:
    kept = Kept(url)
    asked = many(kept)
    before = kept.files.read()
    kept.files.tidy(before)
    assert len(kept.names) == 1
    assert kept.asked(*asked, "same") == [f"is {a}" for a in asked] + ["the 19th"]
    kept.files.tidy(before)  # of another job, which had read the same files
    assert len(kept.names) == 1
    kept.files.tidy(kept.files.read())
    assert len(kept.names) == 1


def test_merged_files_are_no_larger_than_they_may_be(url: str) -> None:
    kept = Kept(url, max_bytes=8 * MB)
    for i in range(20):
        kept.files.write(entries({f"{i}": "x" * 300_000}, at=NOW + i))
    kept.files.tidy(kept.files.read())
    sizes = [f.size for f in kept.store.files("_answers-k")]
    assert len(sizes) == 7
    assert max(sizes) < 1.01 * MB


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(22))
def test_whoever_is_killed_while_merging_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    kept = Kept(str(tmp_path))
    asked = many(kept)
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
        kept.files.tidy(kept.files.read())
    assert done == min(step, 21)  # one file is made, and 20 go
    assert kept.asked(*asked, "same") == [f"is {a}" for a in asked] + ["the 19th"]


def test_reader_whose_files_are_merged_meanwhile_finds_what_they_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(str(tmp_path))
    asked = many(kept)
    read = CacheFiles._read
    tables = kept.files.read()
    first = threading.Lock()

    def read_after_they_went(self: CacheFiles, name: str) -> pa.Table | None:
        if first.acquire(blocking=False):
            kept.files.tidy(tables)
            went.set()
        assert went.wait(60)
        return read(self, name)

    went = threading.Event()
    monkeypatch.setattr(CacheFiles, "_read", read_after_they_went)
    assert kept.asked(*asked) == [f"is {a}" for a in asked]


def write_and_merge(url: str, me: int, barrier: Any) -> None:
    """A process among others."""
    kept = Kept(url)
    barrier.wait(60)
    for i in range(12):
        kept.files.write(entries({f"{me}-{i}": f"{me} says {i}", "same": "same"}))
        if i % 4 == 3:
            kept.files.tidy(kept.files.read())


def test_many_at_once_write_and_merge_and_nothing_is_lost(tmp_path: Path) -> None:
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
    assert Kept(url).asked(*expected) == list(expected.values())
    assert len(Kept(url).names) < 36


# Beside a slice


def space(tmp_path: Path, **given: Any) -> CacheNamespace:
    return CacheNamespace(
        **{"url": str(tmp_path), "key": "k", "max_bytes": 64 * MB, "max_days": 30.0} | given
    )


def opened(of: CacheNamespace) -> AnswerCache:
    """Loaded."""
    cache = AnswerCache.open(of)
    assert cache is not None
    assert cache._loaded.wait(60)
    return cache


def test_good_answers_of_a_slice_are_there_for_the_next(tmp_path: Path) -> None:
    first = opened(space(tmp_path))
    first.add([request_key("a"), request_key("b")], told("is a", "?", error=[None, "too long"]))
    first.add([request_key("c")], told("is cut", finish_reason=["length"]))
    assert (first.find([request_key("a")]) < 0).all()  # this slice remembers it by itself
    first.close()
    second = opened(space(tmp_path))
    assert (second.find([request_key(a) for a in "abc"]) >= 0).tolist() == [True, False, True]
    [found] = second.take(second.find([request_key("a")])).to_pylist()
    assert (found["text"], found["input_tokens"], found["output_tokens"]) == ("is a", 3, 2)


def test_answer_that_may_have_lost_its_shape_is_not_kept(tmp_path: Path) -> None:
    first = opened(space(tmp_path, keep_cut=False))
    answers = told("{", "{}", "{ }", finish_reason=["length", "stop", None])
    first.add([request_key(a) for a in "abc"], answers)
    first.close()
    second = opened(space(tmp_path))
    assert (second.find([request_key(a) for a in "abc"]) >= 0).tolist() == [False, True, True]


def test_slice_that_is_forced_to_ask_again_replaces_what_is_kept(tmp_path: Path) -> None:
    kept = Kept(str(tmp_path))
    kept.files.write(entries({"a": "before"}, at=NOW - 400 * DAY))
    forced = opened(space(tmp_path, read=False, max_days=10_000.0))
    assert (forced.find([request_key("a")]) < 0).all()
    forced.add([request_key("a")], told("now"))
    forced.close()
    later = opened(space(tmp_path, max_days=10_000.0))
    assert later.take(later.find([request_key("a")])).column("text").to_pylist() == ["now"]


def test_answers_are_put_while_the_slice_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = threading.Event()
    write = CacheFiles.write

    def noted(self: CacheFiles, table: pa.Table) -> str:
        name = write(self, table)
        put.set()
        return name

    monkeypatch.setattr(CacheFiles, "write", noted)
    cache = opened(space(tmp_path, max_bytes=MB))
    cache.add([request_key("a")], told("x" * MB))  # enough for a file
    assert put.wait(60)
    cache.close()


def test_store_that_does_not_answer_is_waited_for_with_a_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, sizes = threading.Event(), []
    write = CacheFiles.write

    def late(self: CacheFiles, table: pa.Table) -> str:
        sizes.append(table.nbytes)
        assert answers.wait(60)
        return write(self, table)

    monkeypatch.setattr(CacheFiles, "write", late)
    cache = opened(space(tmp_path, max_bytes=8 * MB))  # files of a MiB
    for n in range(100):
        cache.add([request_key(str(n))], told("x" * (MB // 10)))
    answers.set()
    cache.close()
    assert sum(sizes) < 6 * MB
    assert max(sizes) <= 1.2 * MB
    assert len(cache._files.read()) == len(sizes) > 3


def test_storage_that_is_away_costs_one_line_and_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("where the folder should be")
    cache = opened(space(tmp_path / "file" / "kept"))
    for asked in "ab":
        cache.add([request_key(asked)], told(f"is {asked}"))
        cache._flush()
    cache.close()
    assert cache.find([request_key("a")]).tolist() == [-1]
    [line] = capsys.readouterr().err.splitlines()
    assert "NotADirectoryError" in line
    assert line.endswith("The slice goes on without it")


def test_address_that_no_store_has_is_refused_before_anything_is_spent() -> None:
    with pytest.raises(SliceError, match=r"answer_cache: s4://lake cannot be opened: .*Give an address such"):
        check_address("s4://lake")
    assert AnswerCache.open(CacheNamespace("s4://lake", "k", MB, 1.0)) is None


def test_request_that_another_slice_asked_is_nobodys_to_answer(tmp_path: Path) -> None:
    Kept(str(tmp_path)).files.write(entries({"a": "is a", "b": "is b"}, at=2 * NOW))

    async def play() -> None:
        hub = DedupCoordinator(space(tmp_path))
        a, b, c = (request_key(k) for k in "abc")
        assert await hub.claim("one", "1", [c, a]) == [True, False]
        await hub.put([c], told("is c"))
        known, found, lost = await hub.take([a, c, b])
        by_key = dict(zip(known, found.to_pylist(), strict=True))
        assert (sorted(by_key), lost) == ([0, 1, 2], [])
        assert [by_key[i]["text"] for i in range(3)] == ["is a", "is c", "is b"]
        assert [by_key[i]["cached"] for i in range(3)] == [True, False, True]
        assert [by_key[i]["saved_tokens"] for i in range(3)] == [5, 0, 5]
        await hub.close()

    asyncio.run(play())
    assert (opened(space(tmp_path)).find([request_key("c")]) >= 0).all()


def test_slice_waits_for_what_is_kept_but_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Kept(str(tmp_path)).files.write(entries({"a": "is a", "b": "is b"}, at=2 * NOW))
    may_read = threading.Event()
    read = CacheFiles.read

    def slow(self: CacheFiles) -> dict[str, pa.Table]:
        assert may_read.wait(60)
        return read(self)

    monkeypatch.setattr(CacheFiles, "read", slow)

    async def play() -> None:
        hub = DedupCoordinator(space(tmp_path))
        claiming = asyncio.ensure_future(hub.claim("one", "1", [request_key("a")]))
        await asyncio.sleep(0)  # it begins to wait
        monkeypatch.setattr(coordinator, "_LOAD_SECONDS", 0.0)
        late = DedupCoordinator(space(tmp_path))
        assert await late.claim("one", "1", [request_key("a")]) == [True]  # it goes without
        assert not claiming.done()
        may_read.set()
        assert await asyncio.wait_for(claiming, 60) == [False]
        assert late._cache is not None
        assert late._cache._loaded.wait(60)
        assert await late.claim("one", "2", [request_key("b")]) == [False]  # and with it from then on

    asyncio.run(play())


def test_cache_that_breaks_before_it_is_there_is_gone_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: CacheFiles) -> None:
        raise RuntimeError("no such bucket")

    monkeypatch.setattr(CacheFiles, "read", broken)

    async def play() -> None:
        hub = DedupCoordinator(space(tmp_path))
        assert await hub.claim("one", "1", [request_key("a")]) == [True]
        await hub.put([request_key("a")], told("is a"))
        assert (await hub.take([request_key("a")]))[0] == [0]
        await hub.close()

    asyncio.run(play())
    assert "no such bucket" in capsys.readouterr().err
