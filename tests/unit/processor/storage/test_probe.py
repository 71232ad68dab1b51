"""A store that cannot do what publishing relies on is refused with the reason; one that can is tried once."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import fsspec
import pytest

from airflow_provider_raydatallm.contract.addresses import EXTRA_SCHEMES
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage import probe
from airflow_provider_raydatallm.processor.storage.probe import REMEMBERED, check_store
from airflow_provider_raydatallm.processor.storage.store import Store
from tests.support.s3_dialect import Dialect


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_store_is_tried_once_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv(EXTRA_SCHEMES, "memory")
    store = Store(f"{tmp_path}/new" if where == "disk" else f"memory://{uuid.uuid4().hex}")
    check_store(store)
    assert store.names() == [REMEMBERED]
    remembered = store.read(REMEMBERED)
    monkeypatch.setattr(Store, "create", None)
    check_store(store)
    store.put(REMEMBERED, b"damaged")
    monkeypatch.undo()
    check_store(store)
    assert store.read(REMEMBERED) not in (remembered, b"damaged")


def test_folder_that_is_new_to_a_store_is_tried_and_remembered_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, one, other = (Store(f"{tmp_path}/{name}") for name in ("staging", "table", "quarantine"))
    placed: list[str] = []
    place = Store.place

    def seen(self: Store, source: Store, source_name: str, name: str) -> bool:
        placed.append(self.url)
        return place(self, source, source_name, name)

    monkeypatch.setattr(Store, "place", seen)
    check_store(store, one)
    placed.clear()
    check_store(store, one)
    assert placed == []
    check_store(store, one, other)
    assert placed == [other.url]
    check_store(store, one)
    check_store(store, other)
    assert placed == [other.url]
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [REMEMBERED]


@pytest.mark.slow
@pytest.mark.parametrize("refusal", ["condition", "bare", "empty"])
def test_object_store_passes_however_it_refuses_and_is_asked_once_again(
    s3_store: Store, dialect: Dialect, refusal: str
) -> None:
    dialect.refusal = refusal
    check_store(s3_store)
    assert s3_store.names() == [REMEMBERED]
    assert len(dialect.requests) < 50
    dialect.requests.clear()
    check_store(s3_store)
    assert [method for method, _ in dialect.requests] == ["GET"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lack", "value", "why"),
    [
        (
            "ignores_condition",
            True,
            "only if it does not exist, and a second writer replaced the first's file",
        ),
        ("races", True, r"only if it does not exist, and [2-4] of 4 writers at once"),
        ("conflicts", -1, "only if it does not exist, and .*: cannot write"),
        ("stale_listings", -1, r"list new files at once, and a listing did not show one \d"),
    ],
)
def test_object_store_that_lacks_something_is_refused(
    s3_store: Store, dialect: Dialect, monkeypatch: pytest.MonkeyPatch, lack: str, value: object, why: str
) -> None:
    monkeypatch.setattr(probe, "_WATCH_SECONDS", 0.2)
    setattr(dialect, lack, value)
    with pytest.raises(
        SliceError, match=rf"{s3_store.url} cannot hold tables: the store has to .*{why}"
    ) as e:
        check_store(s3_store)
    assert e.value.kind == "input"
    setattr(dialect, lack, type(value)(0))  # type: ignore[call-arg]
    assert s3_store.names() == [] or lack == "stale_listings"
    check_store(s3_store)


def test_disk_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(SliceError, match=r"no hard links") as e:
        check_store(Store(str(tmp_path)))
    assert e.value.kind == "input"
    assert list(tmp_path.iterdir()) == []


def test_store_that_fails_is_not_said_to_lack_something(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a file where the folder should be")
    with pytest.raises(SliceError, match=r"Not a directory: cannot write ") as e:
        check_store(Store(f"{tmp_path}/t"))
    assert e.value.kind == "transient"


def test_client_that_looks_first_and_writes_then_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Simple(fsspec.AbstractFileSystem):
        protocol = "simple"

    fsspec.register_implementation("simple", Simple, clobber=True)
    monkeypatch.setenv(EXTRA_SCHEMES, "simple")
    monkeypatch.setattr(Simple, "cat_file", lambda self, path, **_: (_ for _ in ()).throw(FileNotFoundError))
    with pytest.raises(SliceError, match="its client looks first and writes then"):
        check_store(Store("simple://x"))
