"""One writer wins, files appear whole, damage is noticed: on a disk, in memory, and the races for real."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor import storage as store_module
from airflow_provider_raydatallm.processor.storage import CorruptFileError, Store


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}")


def test_create_never_replaces(store: Store) -> None:
    assert store.create("a/b", b"one")
    assert not store.create("a/b", b"two")
    assert store.read("a/b") == b"one"
    assert store.names("a") == ["b"]


def test_put_that_is_tried_again_finds_its_own_file(store: Store) -> None:
    assert store.create("a", b"mine")
    assert store.create("a", b"mine")


def _race(create: str, folder: str, rounds: int, barrier: Any, wins: Any) -> None:
    store = Store(folder)
    for i in range(rounds):
        mine = f"{os.getpid()}-{i}".encode()
        barrier.wait()
        if create == "ours":
            won = store.create(f"file-{i}", mine)
        else:
            try:
                store.fs.pipe_file(store.path(f"file-{i}"), mine, mode="create")
                won = True
            except FileExistsError:
                won = False
        if won:
            with wins.get_lock():
                wins[i] += 1


def _race_rounds(create: str, folder: Path, rounds: int, writers: int = 3) -> list[int]:
    """How many writers won each round."""
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    barrier, wins = context.Barrier(writers), context.Array("i", rounds)
    arguments = (create, str(folder), rounds, barrier, wins)
    processes = [context.Process(target=_race, args=arguments) for _ in range(writers)]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
    return list(wins)


def test_of_many_creators_exactly_one_wins(tmp_path: Path) -> None:
    assert _race_rounds("ours", tmp_path / "race", 500) == [1] * 500
    assert len(list((tmp_path / "race").iterdir())) == 500


def test_the_race_is_one_that_the_filesystems_own_create_loses(tmp_path: Path) -> None:
    """It looks first and writes then. On a busy machine that takes more than one try to see."""
    assert any(set(_race_rounds("fsspec's", tmp_path / str(i), 300)) != {1} for i in range(30))


def test_documents_notice_damage(store: Store) -> None:
    store.create_document("d.json", {"rows": [1, 2, 3], "text": "ä"})
    assert store.read_document("d.json") == {"rows": [1, 2, 3], "text": "ä"}
    assert store.read_document("none.json") is None
    data = store.read("d.json") or b""
    for damaged in (data.replace(b"[1, 2", b"[1, 3"), data[:-5], b"", b"[]", b"{}", b"\xff"):
        store.put("d.json", damaged)
        with pytest.raises(CorruptFileError, match=r"d\.json is damaged"):
            store.read_document("d.json")


def test_damaged_file_is_kept_under_another_name(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.put("c/x.json", b"bad")
    store.keep_damaged_file("c/x.json", "it is bad", "it is made again")
    [aside] = store.names("c")
    assert aside.startswith("_damaged-")
    said = capsys.readouterr()
    assert said.err == f"warning: it is bad; it is kept as {store.path('c/' + aside)}, and it is made again\n"
    assert said.out == ""  # which is the report's
    store.keep_damaged_file("c/none.json", "it is gone", "it is made again")


def test_listings_and_removal(store: Store) -> None:
    assert (store.names(), store.files("none")) == ([], [])
    store.put("b", b"12")
    store.put("a/c", b"1")
    assert store.names() == ["a", "b"]
    assert [(f.name, f.size) for f in store.files("a")] == [("c", 1)]
    store.remove("a")
    store.remove("a")
    assert store.names() == ["b"]


def test_file_is_replaced_in_one_step_after_the_last_check(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"new")
    store.put("part", b"old")

    def lost() -> None:
        raise SliceError("lost", kind="input")

    with pytest.raises(SliceError, match="lost"):
        store.replace("part", source, lost, expected=store.version("part"))
    assert store.read("part") == b"old"
    store.replace("part", source, lambda: None, expected=store.version("part"))
    assert store.read("part") == b"new"
    assert store.names() == (["part", "source"] if store.is_local else ["part"])


def test_publisher_that_hangs_in_its_last_step_is_told_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_REPLACE_WAIT_SECONDS", 0.2)
    store, source = Store(str(tmp_path / "s")), tmp_path / "source"
    source.write_bytes(b"new")

    def while_another_publishes() -> None:
        with pytest.raises(SliceError, match="has been about to publish"):
            Store(store.url).replace("part", source, lambda: None, expected=None)

    store.replace("part", source, while_another_publishes, expected=None)
    assert store.read("part") == b"new"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EDQUOT])
def test_failing_disk_is_told_with_the_path_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = Store(str(tmp_path))
    store.put("f", b"old")

    def full(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(os, "link", full)
    for write in (store.put, store.create):
        with pytest.raises(SliceError, match=f"cannot write .*/[fg]: {os.strerror(number)}.*again") as e:
            write("g" if write == store.create else "f", b"new")
        assert e.value.kind == "transient"
    assert store.read("f") == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_json_that_does_not_parse_is_an_error_not_absence(store: Store) -> None:
    store.put("x.json", b"{")
    with pytest.raises(json.JSONDecodeError):
        store.read_json("x.json")
    assert store.read_json("y.json") is None
