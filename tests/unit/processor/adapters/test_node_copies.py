"""Copies of adapters: named by content, whole, one of each on a node, whatever happens to the originals."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.adapters import node_copies
from airflow_provider_raydatallm.processor.adapters.adapter import CONFIG, WEIGHTS, Adapter, lora_ids
from airflow_provider_raydatallm.processor.adapters.node_copies import copy_adapter, copy_of
from airflow_provider_raydatallm.processor.storage.store import Store
from tests.support.adapters import write_adapter


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ray-llm-adapters"


def adapter_of(url: str, digest: str) -> Adapter:
    return Adapter("mine", url, digest, rank=4)


def test_copy_is_named_by_its_content_wherever_that_lies(tmp_path: Path, copies: Path) -> None:
    first, second = (write_adapter(tmp_path / name) for name in "ab")
    (second / "README.md").write_text("not a file that vLLM reads")
    digest, copy = copy_adapter("a", str(first))
    assert copy_adapter("b", str(second)) == (digest, copy)
    assert (copy.parent, copy.name) == (copies, digest)
    assert {f.name for f in copy.iterdir()} == {CONFIG, WEIGHTS}
    (second / CONFIG).write_text("{}")
    assert copy_adapter("b", str(second))[0] != digest


def test_copy_outlives_what_replaces_its_adapter_and_no_other_node_gets_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_adapter(tmp_path / "a")
    digest, copy = copy_adapter("mine", str(source))
    before = (copy / CONFIG).read_text()
    (source / CONFIG).write_text("{}")
    assert copy_of(adapter_of(str(source), digest)) == copy
    assert (copy / CONFIG).read_text() == before
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "other-node"))
    with pytest.raises(SliceError, match=r"adapter 'mine' .* was replaced since this run read it") as e:
        copy_of(adapter_of(str(source), digest))
    assert e.value.kind == "transient"


def test_damaged_copy_is_made_again(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "a")
    digest, copy = copy_adapter("mine", str(source))
    whole = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(whole[:-1])
    assert copy_of(adapter_of(str(source), digest)) == copy
    assert (copy / WEIGHTS).read_bytes() == whole


@pytest.mark.parametrize("lost", [CONFIG, WEIGHTS])
def test_folder_without_one_of_the_files_is_refused(tmp_path: Path, lost: str, copies: Path) -> None:
    source = write_adapter(tmp_path / "a")
    (source / lost).unlink()
    with pytest.raises(SliceError, match=re.escape(f"adapter 'mine' ({source})") + f".*{lost}") as e:
        copy_adapter("mine", str(source))
    assert e.value.kind == "model"
    assert list(copies.glob("*")) == []


def _copy(url: str, barrier: Any, done: Any) -> None:
    barrier.wait()
    done.put(copy_adapter("mine", url))


def test_processes_that_copy_at_once_make_one_copy(tmp_path: Path, copies: Path) -> None:
    source = write_adapter(tmp_path / "a")
    context = multiprocessing.get_context("fork")
    barrier, done = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_copy, args=(str(source), barrier, done)) for _ in range(4)]
    for process in processes:
        process.start()
    results = {done.get(timeout=30) for _ in processes}
    for process in processes:
        process.join()
    [(digest, _)] = results
    assert [folder.name for folder in copies.iterdir()] == [digest]


@pytest.mark.slow
def test_object_store_is_read_once_until_its_files_are_replaced(
    tmp_path: Path, s3_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_adapter(tmp_path / "a")
    for name in (CONFIG, WEIGHTS):
        s3_store.put_file(name, source / name)
    reads: list[Store] = []
    copy = node_copies._copy
    monkeypatch.setattr(node_copies, "_copy", lambda store, root: (reads.append(store), copy(store, root))[1])
    first = copy_adapter("mine", s3_store.url)
    assert copy_adapter("mine", s3_store.url) == first == copy_adapter("mine", str(source))
    assert [store.is_s3 for store in reads] == [True, False]
    s3_store.put(CONFIG, b"{}")
    assert copy_adapter("mine", s3_store.url) != first


def test_what_nobody_used_for_long_is_removed(tmp_path: Path, copies: Path) -> None:
    _, old = copy_adapter("a", str(write_adapter(tmp_path / "a")))
    _, used = copy_adapter("b", str(write_adapter(tmp_path / "b", r=5)))
    killed, running = copies / "_tmp-killed", copies / "_tmp-running"
    running.mkdir()
    killed.mkdir()
    for folder, days in ((old, 31), (used, 29), (killed, 2)):
        os.utime(folder, (time.time() - days * 86400,) * 2)
    _, new = copy_adapter("c", str(write_adapter(tmp_path / "c", r=6)))
    assert set(copies.iterdir()) == {used, running, new}


def test_numbers_of_adapters_come_from_their_content_and_differ() -> None:
    digests = [f"{i:032x}" for i in range(5)]
    ids = lora_ids(digests)
    assert ids == lora_ids(reversed(digests))
    assert sorted(ids.values()) == [1, 2, 3, 4, 5] or len(set(ids.values())) == 5
    assert all(0 < number < 2**31 for number in lora_ids(["f" * 32, "e" * 32]).values())
    same_number = ["0" * 32, "0" * 15 + "1" * 17]
    assert len(set(lora_ids(same_number).values())) == 2
