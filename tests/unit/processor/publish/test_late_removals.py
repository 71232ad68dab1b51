"""Whoever comes late to remove what runs left removes nothing that a later run wrote and paid for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor import version_build
from airflow_provider_raydatallm.processor.publish import garbage
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import lease as lease_module
from airflow_provider_raydatallm.processor.store.file_names import CHECKPOINT
from airflow_provider_raydatallm.processor.store.lease import LEASE, LeaseHolder
from tests.support.in_process import InProcess, job_of
from tests.support.in_process import run_in_process as run
from tests.support.self_naming_rows import Killed, kill_after
from tests.support.slice_files import checkpoint_folders, metadata

ROWS, NEW_ROWS, PAID = 20, 40, 20


@pytest.fixture(autouse=True)
def soon_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "STALE_SECONDS", 0.3)  # less than between two beats


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    add_file(tmp_path, "a", ROWS)
    return job_of(input_path=f"{tmp_path}/in", output_path=f"{tmp_path}/out", rerun__on_input_change="extend")


def add_file(folder: Path, name: str, rows: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(pa.table({"name": [f"{name}{i}" for i in range(rows)]}), folder / f"in/{name}.parquet")


def fragments(job: SliceJob) -> set[str]:
    return {path.name for folder in checkpoint_folders(job) for path in folder.glob("*.arrow")}


def dies(job: SliceJob, rows: int = PAID) -> None:
    with pytest.raises(Killed):
        run(job, kill_after(rows))


def once(then: Callable[[], None]) -> Callable[[], None]:
    todo = [then]
    return lambda: todo.pop()() if todo else None


def successor(job: SliceJob, tmp_path: Path) -> Callable[[], set[str]]:
    """A run that takes over, answers rows of new input and dies. It returns its fragments."""

    def go() -> set[str]:
        before = fragments(job)
        add_file(tmp_path, "b", NEW_ROWS)
        dies(job)
        return fragments(job) - before

    return go


@pytest.mark.parametrize("tidied", [True, False], ids=["by a no-op run", "by nobody"])
def test_run_that_is_slow_after_its_commit_removes_nothing_of_the_next(
    job: SliceJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tidied: bool
) -> None:
    commit, paid = version_build.commit, set[str]()

    def meanwhile() -> None:
        if tidied:
            assert run(job).outcome == "unchanged"
        paid.update(successor(job, tmp_path)())

    then = once(meanwhile)

    def slow(*args: Any, **options: Any) -> Any:
        version = commit(*args, **options)
        then()
        return version

    monkeypatch.setattr(version_build, "commit", slow)
    assert run(job).outcome == "published"
    assert paid
    assert paid <= fragments(job)
    cluster = InProcess()
    assert (run(job, cluster).outcome, cluster.answered) == ("published", NEW_ROWS - PAID)


def tidy_by_run(job: SliceJob) -> None:
    assert run(job).outcome == "published"


def tidy_by_no_op(job: SliceJob) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(version_build, "remove_checkpoints", lambda *args: die())
        with pytest.raises(Killed):
            run(job)
    assert run(job).outcome == "unchanged"


def tidy_by_gc(job: SliceJob) -> None:
    dies(job, 8)
    for found in garbage.find_leftovers(job.address, 0, stale_seconds=0):
        garbage.remove_leftovers(found)


def die() -> None:
    raise Killed


@pytest.mark.parametrize("tidy", [tidy_by_run, tidy_by_no_op, tidy_by_gc])
def test_who_sleeps_before_the_first_removal_removes_nothing_of_the_next(
    job: SliceJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tidy: Callable[[SliceJob], None]
) -> None:
    """After the last look at the lease, that is."""
    paid = set[str]()
    then = once(lambda: paid.update(successor(job, tmp_path)()))

    def late(remove: Callable[[Store, str], None]) -> Callable[[Store, str], None]:
        def removes(store: Store, name: str) -> None:
            if name.startswith(f"{CHECKPOINT}/"):
                then()
            remove(store, name)

        return removes

    for step in ("remove", "remove_file"):
        monkeypatch.setattr(Store, step, late(getattr(Store, step)))
    tidy(job)
    assert paid
    assert paid <= fragments(job)
    assert run(job).outcome == "published"


def left_long_ago(job: SliceJob) -> garbage.Leftovers:
    dies(job)
    then = time.time() - 8 * 86400
    for path in metadata(job).rglob("*"):
        os.utime(path, (then, then))
    [found] = garbage.find_leftovers(job.address, 7, stale_seconds=0)
    return found


def test_gc_leaves_a_run_alone_that_continued_after_it_looked(job: SliceJob, tmp_path: Path) -> None:
    add_file(tmp_path, "b", NEW_ROWS)
    found = left_long_ago(job)
    removed = []

    def collect(batch: pa.Table) -> None:
        before = fragments(job)
        removed.append(garbage.remove_leftovers(found, 7))
        assert fragments(job) == before

    cluster = InProcess(before_batch=collect)
    assert run(job, cluster).outcome == "published"
    assert (cluster.answered, set(removed)) == (ROWS + NEW_ROWS - PAID, {False})


def test_gc_leaves_what_a_run_wrote_after_it_looked_and_the_next_continues(
    job: SliceJob, tmp_path: Path
) -> None:
    add_file(tmp_path, "b", NEW_ROWS)
    found = left_long_ago(job)
    dies(job)
    before = fragments(job)
    assert not garbage.remove_leftovers(found, 7)
    assert fragments(job) == before
    cluster = InProcess()
    assert (run(job, cluster).outcome, cluster.answered) == ("published", ROWS + NEW_ROWS - 2 * PAID)


def test_gc_takes_over_from_the_holder_that_it_watched_and_from_no_other(job: SliceJob) -> None:
    dies(job, 8)
    store = Store(job.paths.metadata)
    store.put(f"{LEASE}/epoch-000007", b'{"holder": "killed"}')
    store.put(f"{LEASE}/epoch-000008", b'{"holder": "another"}')
    watched, other = LeaseHolder(store, 7), LeaseHolder(store, 8)
    [found] = garbage.find_leftovers(job.address, 0, stale_seconds=0)
    assert (found.is_dead(other), found.is_dead(watched)) == (True, False)
    assert garbage.remove_leftovers(found)
    assert not (metadata(job) / LEASE).exists()
