"""One writer wins, files appear whole, damage is noticed: on a disk, in memory, and the races for real."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.addresses import EXTRA_SCHEMES
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage import disk
from airflow_provider_raydatallm.processor.storage import store as store_module
from airflow_provider_raydatallm.processor.storage.filesystem import waiting_briefly
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from tests.support.paths import ROOT


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv(EXTRA_SCHEMES, "memory")
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


@pytest.mark.slow
def test_of_many_creators_exactly_one_wins(tmp_path: Path) -> None:
    assert _race_rounds("ours", tmp_path / "race", 500) == [1] * 500
    assert len(list((tmp_path / "race").iterdir())) == 500


@pytest.mark.slow
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


def test_damaged_file_is_kept_under_another_name(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.put("c/x.json", b"bad")
    store.keep_damaged_file("c/x.json", "it is bad", "it is made again")
    [aside] = store.names("c")
    assert aside.startswith("_damaged-")
    assert caplog.messages == [f"it is bad; it is kept as {store.path('c/' + aside)}, and it is made again"]
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
    store.remove_file("b")
    store.remove_file("b")
    assert store.names() == []


def test_listed_files_go_and_no_others(store: Store) -> None:
    store.remove_all([])
    for name in ("a/b/1", "a/b/2", "a/3", "c/4"):
        store.put(name, b"1")
    store.remove_all(["a/b/1", "a/b/2", "c/4", "c/gone", "gone/5"])
    assert store.tree("") == ["a/3"]
    assert (store.names(), store.names("a")) == (["a"], ["3"])


def test_placed_file_is_the_staged_one_and_placing_it_again_changes_nothing(store: Store) -> None:
    staged = Store(f"{store.url}/beside")
    staged.put("1/f", b"rows")
    assert store.place(staged, "1/f", "ds=1/part")
    assert store.place(staged, "1/f", "ds=1/part") is not store.is_local
    staged.remove("1/f")
    assert store.read("ds=1/part") == b"rows"


def test_placing_fails_without_its_source(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        store.place(store, "none", "a/part")
    assert store.names("a") == []


def test_placing_never_changes_another_file(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.put("f", b"rows")
    store.put("part", b"another's")
    assert not store.place(store, "f", "part")
    assert store.read("part") == b"another's"


def test_placing_outlives_the_removal_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, link, removals = Store(str(tmp_path)), os.link, [1, 2, 3]
    store.put("f", b"rows")

    def removed_before(source: Path, target: Path) -> None:
        if removals.pop():
            os.rmdir(target.parent)
        link(source, target)

    monkeypatch.setattr(os, "link", removed_before)
    removals.insert(0, 0)
    assert store.place(store, "f", "ds=1/part")
    assert store.read("ds=1/part") == b"rows"


def test_link_to_a_file_elsewhere_is_not_placed(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    os.symlink("/etc/hostname", tmp_path / "f")
    with pytest.raises(SliceError, match="f is not a regular file"):
        store.place(store, "f", "part")
    assert store.names() == ["f"]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EPERM, "no hard links"),
        (errno.EOPNOTSUPP, "no hard links"),
        (errno.EXDEV, "different file systems"),
        (errno.EMLINK, "2 names already"),
    ],
)
def test_disk_that_cannot_link_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    store = Store(str(tmp_path))
    store.put("f", b"rows")
    os.link(tmp_path / "f", tmp_path / "g")

    def refuse(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(SliceError, match=f"cannot link .*/f to .*/part: .*{advice}") as e:
        store.place(store, "f", "part")
    assert e.value.kind == "input"


_PLACE_AS_ANOTHER = """
import os, sys
from airflow_provider_raydatallm.processor.storage.store import Store
store = Store(sys.argv[1])
os.setgid(int(sys.argv[2]))
os.setgroups([])
os.setuid(12345)
os.umask(0o002)
try:
    print(store.place(store, "f", "part"))
except Exception as e:
    print(type(e).__name__, e.kind, e)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
@pytest.mark.skipif(
    Path("/proc/sys/fs/protected_hardlinks").read_text().strip() != "1",
    reason="the kernel lets all users link",
)
@pytest.mark.parametrize("can_write", [True, False])
def test_file_of_another_user_is_placed_where_the_group_may_write_it_and_refused_elsewhere(
    tmp_path: Path, can_write: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="ray-llm-users-", dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        (Path(folder) / "f").write_bytes(b"rows")
        os.chown(Path(folder) / "f", 0, 4242)
        os.chmod(Path(folder) / "f", 0o664 if can_write else 0o644)
        command = [sys.executable, "-c", _PLACE_AS_ANOTHER, folder, "4242"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr == ""
    if can_write:
        assert done.stdout == "True\n"
    else:
        assert re.match(
            r"SliceError input cannot link .*/f to .*/part: Operation not permitted: the file belongs to "
            r"user root \(0\), and this is user 12345: .* as one user, or with a common group and umask 002",
            done.stdout,
        )


def test_create_reads_back_whatever_error_it_ends_with(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network disk answers a link that it made with an error when it was asked twice."""
    link, pipe = os.link, store.fs.pipe_file

    def linked_and_lost(source: object, target: object) -> None:
        link(source, target)  # type: ignore[arg-type]
        raise OSError(errno.EIO, "lost")

    def piped_and_lost(*args: Any, **kwargs: Any) -> None:
        pipe(*args, **kwargs)
        raise RuntimeError("an error type of some store")

    monkeypatch.setattr(os, "link", linked_and_lost)
    monkeypatch.setattr(store.fs, "pipe_file", piped_and_lost)
    assert store.create("a", b"mine")
    assert not store.create("a", b"another's")


@pytest.mark.parametrize("what", ["read", "read_start", "files"])
def test_store_that_fails_to_read_is_told_with_the_path(
    store: Store, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise PermissionError("Access Denied")

    store.put("f", b"1")
    for method in ("cat_file", "ls", "info"):
        monkeypatch.setattr(store.fs, method, fail)
    monkeypatch.setattr(store_module, "open", fail, raising=False)
    with pytest.raises(SliceError, match=r"^Access Denied: cannot (read|list) .*/f\. .*again") as e:
        getattr(store, what)("f", *([1] if what == "read_start" else []))
    assert e.value.kind == "transient"


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
        with pytest.raises(SliceError, match=f"^{os.strerror(number)}: cannot write .*/[fg]. .*again") as e:
            write("g" if write == store.create else "f", b"new")
        assert e.value.kind == "transient"
    assert store.read("f") == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


# What others put there


@pytest.mark.parametrize(("make", "what"), [
    (os.mkfifo, "a FIFO"), (lambda path: path.symlink_to("/dev/zero"), "a link"),
    (lambda path: path.symlink_to("real"), "a link"), (Path.mkdir, "a folder"),
    (lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), "a socket"),
])  # fmt: skip
def test_what_is_no_regular_file_is_never_read_nor_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], what: str
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    (tmp_path / "real").write_bytes(b"x")
    make(Path("f"))
    store = Store(str(tmp_path))
    for read in (store.read, store.read_document, store.sha256, store.open, lambda n: store.read_start(n, 9)):
        with pytest.raises(CorruptFileError, match=f"f is damaged: it is {what}"):
            read("f")
    assert not store.create("f", b"mine")


def test_document_that_is_too_long_is_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("f", b"12345")
    assert (store.read("f", 5), store.read_start("f", 3), store.read_start("f", 9)) == (
        b"12345", b"123", b"12345",
    )  # fmt: skip
    for read in (store.read, store.read_json, store.read_document):
        with pytest.raises(CorruptFileError, match="it has more than 4 bytes"):
            read("f", 4)
    assert not store.create("f", b"12")


@pytest.mark.parametrize("document", ["[" * 100_000, '{"body": ' + "[" * 100_000, '{"body": 1' + "0" * 5000])
def test_document_that_no_parser_ends_is_damaged(store: Store, document: str) -> None:
    store.put("f", document.encode())
    with pytest.raises(CorruptFileError):
        store.read_document("f")


@pytest.mark.parametrize("link", ["", "a", "a/b"])
def test_no_link_in_a_folder_is_followed(tmp_path: Path, link: str) -> None:
    other, own = tmp_path / "other", tmp_path / "own"
    for folder in (other, own):
        Store(str(folder)).put("a/b/c", b"x")
    shutil.rmtree(own / link)
    (own / link).symlink_to(other / link)
    store, whole = Store(str(own), may_be_link=False), Store(str(other))
    for ask in (
        lambda: store.read("a/b/c"), lambda: store.open("a/b/c"), lambda: store.names("a/b"),
        lambda: store.files("a/b"), lambda: store.tree("a/b"), lambda: store.details("a/b"),
        lambda: store.put("a/b/d", b""), lambda: store.create("a/b/d", b""),
        lambda: store.place(whole, "a/b/c", "a/b/d"), lambda: whole.place(store, "a/b/c", "d"),
        lambda: store.remove_file("a/b/c"), lambda: store.remove("a/b/c"),
        lambda: store.remove_empty("a/b/c"),
        lambda: store.remove_scratch("a/b"), lambda: store.keep_damaged_file("a/b/c", "why", "then"),
    ):  # fmt: skip
        with pytest.raises(SliceError, match="is a link to"):
            ask()
    assert whole.tree("") == ["a/b/c"]
    if link:
        store.remove(link)
        assert not os.path.lexists(own / link)
    else:
        assert Store(str(own)).read("a/b/c") == b"x"
    assert whole.read("a/b/c") == b"x"


def test_disk_is_left_alone_when_the_time_is_over(tmp_path: Path) -> None:
    with waiting_briefly(0):
        store = Store(str(tmp_path))
    with pytest.raises(SliceError, match="in time"):
        store.files("")


@pytest.mark.parametrize("write", ["put", "create", "put_file"])
def test_file_is_written_though_others_remove_what_is_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    store, source = Store(str(tmp_path / "a")), tmp_path / "source"
    source.write_bytes(b"x")
    removed: list[bool] = []

    def then_removed(original: Callable[..., None], *args: Any, **named: Any) -> None:
        original(*args, **named)
        if not removed:
            removed.append(True)
            store.remove_scratch()

    monkeypatch.setattr(disk, "write", partial(then_removed, disk.write))
    monkeypatch.setattr(disk, "copy", partial(then_removed, disk.copy))
    getattr(store, write)("f", source if write == "put_file" else b"x")
    assert (store.read("f"), os.listdir(tmp_path / "a"), removed) == (b"x", ["f"], [True])


def test_json_that_does_not_parse_is_an_error_not_absence(store: Store) -> None:
    store.put("x.json", b"{")
    with pytest.raises(json.JSONDecodeError):
        store.read_json("x.json")
    assert store.read_json("y.json") is None
