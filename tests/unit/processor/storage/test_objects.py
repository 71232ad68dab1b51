"""A listing of an object store: what people stored, and nothing that only stands for a folder."""

from __future__ import annotations

import uuid

import pytest

from airflow_provider_raydatallm.contract.addresses import EXTRA_SCHEMES
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs
from airflow_provider_raydatallm.processor.storage.objects import list_objects
from airflow_provider_raydatallm.processor.storage.store import File, Store
from tests.support.s3_dialect import Dialect


def put(store: Store, key: str, body: bytes) -> None:
    bucket, root, _ = store.fs.split_path(store.root)
    store.fs.call_s3("put_object", Bucket=bucket, Key=f"{root}/{key}", Body=body)


@pytest.fixture
def full_store(s3_store: Store) -> Store:
    for marker in ("", "a/", "a/b/", "a/c", "x_$folder$", "a/x_$folder$", "empty/"):
        put(s3_store, marker, b"")
    for key in ("1.csv", "a/2.csv", "a/b/3.csv", "a/c/4.csv", "a//5.csv", "a/c.d"):
        put(s3_store, key, b"rows")
    put(s3_store, "a/_SUCCESS", b"")
    return s3_store


@pytest.mark.slow
def test_objects_that_stand_for_folders_are_nothing_at_any_depth(full_store: Store) -> None:
    found = list_objects(full_store.fs, full_store.root, deep=True)
    assert sorted("/".join(e.parts) for e in found) == [
        "1.csv", "a//5.csv", "a/2.csv", "a/_SUCCESS", "a/b/3.csv", "a/c.d", "a/c/4.csv",
    ]  # fmt: skip
    level = list_objects(full_store.fs, full_store.root)
    assert sorted((*e.parts, e.is_folder) for e in level) == [("1.csv", False), ("a", True), ("empty", True)]
    below = list_objects(full_store.fs, full_store.root, ["a"])
    assert sorted((*e.parts, e.is_folder) for e in below) == [
        ("", True), ("2.csv", False), ("_SUCCESS", False), ("b", True), ("c", True), ("c.d", False),
    ]  # fmt: skip
    assert [e.parts for e in list_objects(full_store.fs, full_store.root, ["a", ""])] == [("5.csv",)]
    assert full_store.files("a") == [
        File("2.csv", 4), File("_SUCCESS", 0), File("b", 0), File("c", 0), File("c.d", 4),
    ]  # fmt: skip


def test_object_that_holds_something_is_no_marker_whatever_its_name(full_store: Store) -> None:
    put(full_store, "a/b/", b"rows")
    put(full_store, "x_$folder$", b"rows")
    found = {"/".join(e.parts) for e in list_objects(full_store.fs, full_store.root, deep=True)}
    assert {"a/b/", "x_$folder$"} <= found


@pytest.mark.slow
def test_listing_of_many_pages_is_whole(s3_store: Store, dialect: Dialect) -> None:
    for number in range(1005):
        put(s3_store, f"{number % 7}/{number}", b"x")
    dialect.requests.clear()
    assert len(list_objects(s3_store.fs, s3_store.root, deep=True)) == 1005
    assert len(dialect.requests) == 2


def test_any_other_store_lists_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXTRA_SCHEMES, "memory")
    fs, root = open_fs(f"memory://{uuid.uuid4().hex}")
    for name, body in {"a/1.csv": b"x", "a/b/2.csv": b"x", "3.csv": b"x", "y_$folder$": b""}.items():
        fs.pipe_file(f"{root}/{name}", body)
    deep = list_objects(fs, root, deep=True)
    assert sorted(e.parts for e in deep) == [("3.csv",), ("a", "1.csv"), ("a", "b", "2.csv")]
    level = list_objects(fs, root)
    assert sorted((e.parts, e.is_folder) for e in level) == [(("3.csv",), False), (("a",), True)]
    assert [e.parts for e in list_objects(fs, root, ["a", "b"])] == [("2.csv",)]
