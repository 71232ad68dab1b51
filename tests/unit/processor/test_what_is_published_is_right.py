"""What was published wrong once, whole, and is right now: rules, stores, readers, crashes, swapped input,
gc."""

from __future__ import annotations

import datetime as dt
import os
import threading
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish import garbage, reconcile
from airflow_provider_raydatallm.processor.sinks import folder
from airflow_provider_raydatallm.processor.sinks.base import Newest
from airflow_provider_raydatallm.processor.sinks.folder import FolderSink
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import lease, versions
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from tests.support.in_process import InProcess, changed, job_of, run_in_process
from tests.support.marks import long
from tests.support.s3_dialect import Dialect
from tests.support.self_naming_rows import Killed, assert_own_answers, kill_after, published, write_rows

# 1. Rules


def test_other_timezone_is_another_question_whose_rows_are_never_mixed(tmp_path: Path) -> None:
    hours = [dt.datetime(2026, 1, 31, tzinfo=dt.UTC) + dt.timedelta(hours=h) for h in range(-12, 36)]
    at = pa.array(hours, pa.timestamp("us", "UTC"))
    write_rows(tmp_path / "in" / "a.parquet", [f"{h:%d %H}" for h in hours], at=at)
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", source__column="at")
    run_in_process(job)
    utc = [row["name"] for row in published(job)]
    new_york = changed(job, slice_timezone="America/New_York")
    with pytest.raises(SliceError, match=r"rerun.on_config_change='recompute'"):
        run_in_process(new_york)
    run_in_process(changed(new_york, rerun__on_config_change="recompute"))
    assert_own_answers(job)
    assert [row["name"] for row in published(job)] != utc


def test_half_finished_file_that_is_read_with_another_encoding_is_answered_anew(tmp_path: Path) -> None:
    text = "name\n" + "".join(f'"é{i}\nß"\n' for i in range(30))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(text.encode("utf-16"))
    wrong = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", source__encoding="latin-1")
    with pytest.raises((Killed, SliceError)):
        run_in_process(wrong, kill_after(12))
    right = changed(wrong, source__encoding="utf-16", rerun__on_input_change="recompute")
    run_in_process(right)
    assert_own_answers(right)
    assert published(right)[7]["name"] == "é7\nß"


# 2. Stores


@pytest.mark.slow
@pytest.mark.parametrize("refusal", ["condition", long("bare"), long("empty")])
def test_interrupted_slice_resumes_on_a_store_however_it_refuses(
    dialect: Dialect, tmp_path: Path, refusal: str
) -> None:
    dialect.refusal = refusal
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"s3://lake/{tmp_path.name}/out")
    with pytest.raises(Killed):
        run_in_process(job, kill_after(12))
    rest = InProcess()
    assert run_in_process(job, rest).outcome == "published"
    assert rest.answered <= 40 - 12 + 4
    assert_own_answers(job)


# 3. Readers


def test_readers_of_the_table_see_the_published_rows_and_no_others(tmp_path: Path) -> None:
    names = [f"row {i}" for i in range(40)] + ["fail"]
    write_rows(tmp_path / "in" / "a.parquet", names)
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", quality__max_attempts=1)
    run_in_process(job)
    run_in_process(changed(job, prompt="{name} again", rerun__on_config_change="recompute"))
    table = str(tmp_path / "out")
    files = f"read_parquet('{table}/**/*.parquet')"
    assert duckdb.sql(f"select count(*) from {files}").fetchall() == [(40,)]
    assert pl.scan_parquet(table).collect().height == 40
    assert len(pd.read_parquet(table)) == pq.read_table(table).num_rows == 40
    assert {p.name for p in Path(job.slice_path).iterdir() if p.suffix != ".parquet"} == {"_SUCCESS"}
    assert duckdb.sql(f"select __row from '{table}.quarantine/*/*.parquet'").fetchall() == [(41,)]


# 4. A crash between what is shown and what is decided


@pytest.mark.slow
@pytest.mark.parametrize("step", ["keep", "fence", "show", "_replace", "is_shown", "_complete"])
def test_crash_after_the_commit_shows_its_rows_at_the_next_run_whatever_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")
    run_in_process(job)
    other = changed(job, prompt="other {name}", rerun__on_config_change="recompute")

    owner: Any = reconcile if step == "_complete" else FolderSink
    original = getattr(owner, step)

    def die(*args: Any) -> Any:
        version = next(getattr(a, "version", a) for a in args if isinstance(a, Newest | versions.Version))
        if (version.number == 2) != (step == "keep"):  # what is kept is the version before
            raise Killed
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, die)
        with pytest.raises(Killed):
            run_in_process(other)
    assert {row["answer"] for row in published(job)} == {f"other row {i}" for i in range(40)}
    again = InProcess()
    with pytest.raises(SliceError, match="another configuration"):
        run_in_process(job, again)
    assert pq.read_table(job.slice_path, partitioning=None).column("answer")[0].as_py() == "other row 0"
    assert run_in_process(other, again).outcome == "unchanged"
    assert again.answered == 0


def run_until(job: SliceJob, name: str) -> tuple[threading.Thread, threading.Event, list[BaseException]]:
    """Starts a run that pauses before it places a file of that name, and waits until it does."""
    paused, resume = threading.Event(), threading.Event()
    errors: list[BaseException] = []
    place, me = Store.place, threading.local()

    def pausing(store: Store, source: Store, source_name: str, target: str) -> bool:
        if getattr(me, "late", False) and target.startswith(name):
            paused.set()
            assert resume.wait(60)
        return place(store, source, source_name, target)

    def run() -> None:
        me.late = True
        try:
            run_in_process(job)
        except BaseException as e:
            errors.append(e)

    Store.place = pausing  # type: ignore[method-assign]
    try:
        thread = threading.Thread(target=run)
        thread.start()
        assert paused.wait(60)
    finally:
        Store.place = place  # type: ignore[method-assign]
    return thread, resume, errors


@pytest.mark.slow
@pytest.mark.parametrize("step", ["part-000001", "_SUCCESS"])
def test_holder_that_wakes_up_after_another_configuration_published_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.5)
    monkeypatch.setattr(lease, "BEAT_SECONDS", 600.0)
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", rerun__on_config_change="recompute"
    )
    thread, resume, errors = run_until(job, step)
    other = changed(job, prompt="other {name}")
    assert run_in_process(other).published_version == 2
    resume.set()
    thread.join(60)
    assert not errors
    table = pq.read_table(job.slice_path, partitioning=None)
    assert set(table.column("answer").to_pylist()) == {f"other row {i}" for i in range(40)}
    again = InProcess()
    assert (run_in_process(other, again).outcome, again.answered) == ("unchanged", 0)


@pytest.mark.parametrize("number", [1, 2])
def test_lost_commit_is_an_error_and_its_number_is_never_used_again(tmp_path: Path, number: int) -> None:
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", rerun__on_config_change="recompute"
    )
    other = changed(job, prompt="other {name}")
    for one in (job, other)[:number]:
        run_in_process(one)
    Store(job.paths.metadata).remove(versions.commit_name(number))
    before = sorted(Path(job.slice_path).iterdir())
    cluster = InProcess()
    with pytest.raises(SliceError, match=r"no commit names that file|has no commit of it"):
        run_in_process(other, cluster)
    assert (cluster.answered, sorted(Path(job.slice_path).iterdir())) == (0, before)
    if number == 2:
        run_in_process(changed(other, rerun__force=True))
        assert {row["answer"] for row in published(job)} == {f"other row {i}" for i in range(40)}
        assert pq.read_table(job.slice_path, partitioning=None).num_rows == 40


# 5. Input


@pytest.mark.parametrize("on", ["disk", "s3"])
def test_input_that_was_swapped_and_swapped_back_is_noticed(
    tmp_path: Path, dialect: Dialect, on: str
) -> None:
    first, second = [f"a{i:02}" for i in range(40)], [f"b{i:02}" for i in range(40)]
    path, other, aside = (tmp_path / name for name in ("in/x.parquet", "other", "aside"))
    write_rows(path, first)
    write_rows(other, second)
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    assert path.stat().st_size == other.stat().st_size
    original = path.read_bytes()
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")
    store = Store(f"s3://lake/{tmp_path.name}/in")
    if on == "s3":
        job = changed(job, input_path=store.url)
        store.put("x.parquet", path.read_bytes())

    def swap(to: Path) -> None:
        if on == "s3":
            store.put("x.parquet", original if to == path else to.read_bytes())
        elif to == other:
            path.rename(aside)
            other.rename(path)
        else:
            path.rename(other)
            aside.rename(path)

    cluster = InProcess()
    infer = cluster.run_inference

    def swapped(*args: Any) -> None:
        swap(other)
        try:
            infer(*args)
        finally:
            swap(path)

    cluster.run_inference = swapped  # type: ignore[method-assign]
    with pytest.raises(SliceError, match="changed while the slice ran"):
        run_in_process(job, cluster)
    run_in_process(changed(job, rerun__on_input_change="recompute"))
    assert_own_answers(job)
    assert published(job)[0]["name"] == "a00"


# 8. gc


@pytest.mark.slow
def test_gc_leaves_a_live_run_alone_however_young_its_files_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.2)
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")
    cluster = InProcess(batch=10)
    found: list[Any] = []

    def collect(batch: pa.Table) -> None:
        if cluster.answered == 20:
            found.extend(garbage.find_leftovers(job.address, days=0, stale_seconds=2))

    cluster.before_batch = collect
    assert run_in_process(job, cluster).outcome == "published"
    assert (found, cluster.answered) == ([], 40)


def test_run_that_gc_took_for_dead_loses_time_and_no_row(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")
    folders = SliceFolders.open(job.paths)
    create_commit = versions.create_commit

    def taken_for_dead() -> garbage.Leftovers:
        return garbage.Leftovers(folders, 0, job.slice_key, lease.read_holder(folders.metadata))

    def collected_first(store: Store, number: int, body: dict[str, Any]) -> bool:
        if number == 1 and "void" not in body:
            while not garbage.remove_leftovers(taken_for_dead()):
                pass  # it has just beaten
        return create_commit(store, number, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "create_commit", collected_first)
        report = run_in_process(job)
    assert (report.outcome, report.published_version) == ("published", 2)
    assert_own_answers(job)


# 9. Open files


@pytest.mark.slow
@pytest.mark.parametrize("on", ["disk", "s3"])
def test_open_file_never_becomes_that_of_another_version(
    tmp_path: Path, dialect: Dialect, monkeypatch: pytest.MonkeyPatch, on: str
) -> None:
    monkeypatch.setattr(folder, "COPY_TIMEOUT_SECONDS", 0.1)
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    output = f"{tmp_path}/out" if on == "disk" else f"s3://lake/{tmp_path.name}-{on}/out"
    job = job_of(input_path=f"{tmp_path}/in/", output_path=output, rerun__on_config_change="recompute")
    run_in_process(job)
    [name] = [n for n in Store(job.slice_path).names() if n.endswith(".parquet")]
    store = Store(job.slice_path)
    with store.fs.open(store.path(name), "rb", block_size=64, cache_type="none") as f:
        content = f.read(8)
        run_in_process(changed(job, prompt="other {name}"))
        try:
            content += f.read()
        except FileNotFoundError:
            return
    assert pq.read_table(pa.BufferReader(content)).column("answer")[0].as_py() == "row 0"
