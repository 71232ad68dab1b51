"""A row is known by its file's content and the rule it is read by: never another row's answer."""

from __future__ import annotations

import contextlib
import datetime as dt
import gzip
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input import disk
from airflow_provider_raydatallm.processor.input.listing import get_input_file, list_input
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs
from tests.support.in_process import InProcess, changed, job_of, run_in_process
from tests.support.input_formats import WRITERS, write_input
from tests.support.s3 import moto_server

FORMATS = (*WRITERS, "csv.gz")
ROWS = 300


def plan_of(path: Path | str, **arguments: Any) -> Plan:
    return make_plan(job_of(**{"input_path": str(path), "output_path": "/elsewhere", **arguments}))


def ids_of(path: Path | str, **arguments: Any) -> list[str]:
    return [u.id for u in plan_of(path, **arguments).units]


def values_of(plan: Plan) -> list[str]:
    return [v for unit in plan.units for t in plan.read(unit) for v in t.column("x").to_pylist()]


def write(path: Path, value: str, name: str) -> None:
    """Writes files of the same size for values of the same length."""
    file = path.with_name(f"being-written.{name}")
    write_input(file, pa.table({"x": [value] * ROWS}))
    path.write_bytes(file.read_bytes())
    file.unlink()


# The rule


def test_rows_that_another_timezone_selects_are_other_rows(tmp_path: Path) -> None:
    """As many rows of the same file are of the day in each timezone, and none of them is the same."""
    hours = [dt.datetime(2026, 1, 31, tzinfo=dt.UTC) + dt.timedelta(hours=h) for h in range(-24, 48)]
    pq.write_table(pa.table({"at": pa.array(hours, pa.timestamp("us", tz="UTC"))}), tmp_path / "a.parquet")
    rules: list[dict[str, Any]] = [
        {"slice_timezone": "UTC"}, {"slice_timezone": "America/New_York"}, {"slice_key": "2026-02-01"},
        {"slice_timezone": "America/New_York", "slice_key": "2026-01-30"},
        {"source__slice_format": "%Y-%d-%m", "slice_key": "2026-31-01"},
    ]  # fmt: skip
    plans = [plan_of(tmp_path, source__column="at", **rule) for rule in rules]
    assert {p.rows for p in plans} == {24}
    assert len({u.id for p in plans for u in p.units}) == len(rules)


def test_rows_that_read_another_way_are_other_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("x;n,m\né;1,1\n".encode())
    ways: list[dict[str, Any]] = [
        {}, {"source__encoding": "latin-1"}, {"source__csv": {"delimiter": ";"}},
        {"source__csv": {"delimiter": ";"}, "source__column_types": {"n,m": "string"}},
        {"source__column_types": {"m": "int64"}},
    ]  # fmt: skip
    ids = [ids_of(tmp_path, **way) for way in ways]
    assert ids[2] == ids[3], "the type that a CSV column has anyway"
    assert len({unit for units in ids for unit in units}) == 4


def test_new_file_that_adds_a_column_leaves_the_rows_of_others_as_they_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    before = ids_of(tmp_path)
    pq.write_table(pa.table({"x": pa.array([2], pa.int32()), "more": ["y"]}), tmp_path / "b.parquet")
    assert ids_of(tmp_path)[:1] == before


def test_new_file_that_changes_a_columns_type_makes_other_rows_of_all(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    before = ids_of(tmp_path)
    pq.write_table(pa.table({"x": pa.array([2], pa.int64())}), tmp_path / "b.parquet")
    assert not set(before) & set(ids_of(tmp_path))


def test_stored_plan_has_the_same_units(tmp_path: Path) -> None:
    for day in ("2026-01-31", "2026-01-30"):
        (tmp_path / f"ds={day}").mkdir()
        pq.write_table(pa.table({"x": ["a", "b"], day: [1, 2]}), tmp_path / f"ds={day}" / "a.parquet")
    plan = plan_of(tmp_path, source__column="ds")
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert [u.id for u in again.units] == [u.id for u in plan.units]


@pytest.mark.parametrize("policy", ["extend", "recompute"])
def test_changed_rule_never_publishes_a_row_with_another_rows_answer(tmp_path: Path, policy: str) -> None:
    hours = [dt.datetime(2026, 1, 31, tzinfo=dt.UTC) + dt.timedelta(hours=h) for h in range(-24, 48)]
    table = pa.table({"at": pa.array(hours, pa.timestamp("us", tz="UTC")), "name": [str(h) for h in hours]})
    pq.write_table(table, tmp_path / "in.parquet")
    job = job_of(
        input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out", source__column="at",
        rerun__on_config_change="recompute", rerun__on_input_change=policy,
    )  # fmt: skip
    run_in_process(job)
    with contextlib.suppress(SliceError):
        run_in_process(changed(job, slice_timezone="America/New_York"))
    _check_own_answers(job)


def test_half_finished_slice_whose_encoding_was_wrong_answers_all_rows_again(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("name\n" + "".join(f"é{i}\n" for i in range(40)))
    job = job_of(
        input_path=f"{tmp_path}/in.csv", output_path=f"{tmp_path}/out", rerun__on_input_change="recompute",
        source__encoding="latin-1",
    )  # fmt: skip

    def die(batch: pa.Table) -> None:
        if batch.column("__offset")[0].as_py() >= 20:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        run_in_process(job, InProcess(before_batch=die))
    cluster = InProcess()
    run_in_process(changed(job, source__encoding="utf-8"), cluster)
    _check_own_answers(job)
    assert cluster.answered == 40


# The file, on a disk


@pytest.mark.parametrize("name", FORMATS)
def test_file_that_took_the_path_of_another_is_never_read_for_it(tmp_path: Path, name: str) -> None:
    """Both have the same size and modification time, and swap places again and again."""
    path, other, spare = tmp_path / f"in.{name}", tmp_path / "other", tmp_path / "spare"
    write(path, "aaaa", name)
    write(other, "bbbb", name)
    for file in (path, other):
        os.utime(file, ns=(10**18, 10**18))
    assert path.stat().st_size == other.stat().st_size
    plan = plan_of(path)
    assert values_of(plan) == ["aaaa"] * ROWS

    def swap() -> None:
        path.rename(spare)
        other.rename(path)
        spare.rename(other)

    swap()
    with pytest.raises(SliceError, match="changed while the slice ran") as caught:
        values_of(plan)
    assert caught.value.kind == "transient"
    assert list_input(job_of(input_path=str(path), output_path="/o")).hash != plan.input_hash
    swap()
    assert values_of(plan) == ["aaaa"] * ROWS
    assert _read_while(swap, plan) == {"aaaa", "changed"}


@pytest.mark.parametrize("name", FORMATS)
def test_plan_is_made_of_the_files_that_were_listed(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"in.{name}"
    write(path, "aaaa", name)
    job = job_of(input_path=str(path), output_path="/elsewhere")
    listing = list_input(job)
    write(tmp_path / "other", "bbbb", name)
    (tmp_path / "other").rename(path)
    with pytest.raises(SliceError, match="changed while the slice ran"):
        make_plan(job, listing)
    path.unlink()
    with pytest.raises(SliceError, match="changed while the slice ran"):
        make_plan(job, listing)


def test_parquet_file_rewritten_in_place_is_noticed_by_its_footer(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    for value in ("aaaa", "bbbb"):
        write(path, value, "parquet")
        os.utime(path, ns=(10**18, 10**18))
        if value == "aaaa":
            plan = plan_of(path)
    plan.check_unchanged(plan.units)  # the disk says nothing
    with pytest.raises(SliceError, match="changed while the slice ran"):
        values_of(plan)
    assert not {u.id for u in plan.units} & set(ids_of(path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parquet", "csv.gz"])
def test_no_row_leaves_a_file_that_is_written_to_while_it_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"in.{name}"
    if name == "parquet":
        pq.write_table(pa.table({"x": ["aaaa"] * 20_000}), path)
    else:
        path.write_bytes(gzip.compress(("x\n" + "aaaa\n" * 5_000_000).encode(), compresslevel=1))
    plan = plan_of(path)
    tables = plan.read(plan.units[0])
    next(tables)
    with path.open("r+b") as file:
        file.write(b"PAR1" if name == "parquet" else b"\x1f\x8b")  # the same bytes
    with pytest.raises(SliceError, match="changed while the slice ran"):
        next(tables)


def test_hard_link_or_other_permissions_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    write(path, "aaaa", "csv")
    plan = plan_of(path)
    os.link(path, tmp_path / "link")
    path.chmod(0o600)
    plan.check_unchanged(plan.units)
    assert values_of(plan) == ["aaaa"] * ROWS


def test_symbolic_link_is_the_file_that_it_leads_to(tmp_path: Path) -> None:
    target, link = tmp_path / "_versions" / "file", tmp_path / "100% ü.csv"
    target.parent.mkdir()
    write(target, "aaaa", "csv")
    link.symlink_to(target)
    plan = plan_of(tmp_path)
    plan.check_unchanged(plan.units)
    assert values_of(plan) == ["aaaa"] * ROWS
    target.write_text("x\nbbbb")
    with pytest.raises(SliceError, match="changed while the slice ran"):
        values_of(plan)
    target.unlink()
    with pytest.raises(SliceError, match=r"100% ü\.csv is a link to .*/_versions/file, which does not exist"):
        plan_of(tmp_path)


def test_inodes_count_only_where_the_file_system_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.csv"
    path.touch()
    number = f"{os.major(path.stat().st_dev)}:{os.minor(path.stat().st_dev)}"
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(disk, "_MOUNTS", mounts)

    def version() -> str:
        monkeypatch.setattr(disk, "_has_stable_inodes", {})
        return get_input_file(open_fs("/")[0], str(path)).version

    keeps, does_not = f"{path.stat().st_mtime_ns}-{path.stat().st_ino}", str(path.stat().st_mtime_ns)
    for line, expected in [
        (f"1 0 {number} / / rw shared:1 - ext4 /dev/x rw", keeps),
        (f"1 0 {number} / / rw - fuse.sshfs host rw", does_not),
        ("1 0 0:99 / / rw - btrfs /dev/x rw", keeps),
        (f"1 0 0:99 / / rw - ext4 x rw\n2 1 0:98 / {tmp_path} rw - 9p x rw", does_not),
        ("", does_not),
    ]:
        mounts.write_text(line)
        assert version() == expected
    mounts.unlink()
    assert version() == does_not


# The file, on S3


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with moto_server() as address, pytest.MonkeyPatch.context() as env:
        for name, value in {
            "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():  # fmt: skip
            env.setenv(name, value)
        fs, _ = open_fs("s3://identity")
        fs.mkdir("identity")
        yield "identity"
        type(fs).clear_instance_cache()


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_object_that_was_replaced_is_never_read_for_the_planned_one(
    bucket: str, tmp_path: Path, name: str
) -> None:
    fs, path = open_fs(f"s3://{bucket}/in.{name}")
    contents = []
    for value in ("aaaa", "bbbb"):
        write(tmp_path / "file", value, name)
        contents.append((tmp_path / "file").read_bytes())
    turns = itertools.cycle(contents)
    fs.pipe_file(path, next(turns))
    plan = plan_of(f"s3://{path}")
    assert values_of(plan) == ["aaaa"] * ROWS
    fs.pipe_file(path, next(turns))
    with pytest.raises(SliceError, match="changed while the slice ran") as caught:
        values_of(plan)
    assert caught.value.kind == "transient"
    fs.pipe_file(path, next(turns))
    assert values_of(plan) == ["aaaa"] * ROWS
    client = fs.__class__(use_listings_cache=False, skip_instance_cache=True)
    assert _read_while(lambda: client.pipe_file(path, next(turns)), plan) == {"aaaa", "changed"}


@pytest.mark.slow
def test_narrow_column_of_a_wide_object_costs_its_own_bytes(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, path = open_fs(f"s3://{bucket}/wide.parquet")
    wide = {f"w{i}": pa.array([os.urandom(500) for _ in range(4000)]) for i in range(8)}
    table = pa.table({"before": wide["w0"], "x": [f"row {i}" for i in range(4000)], **wide})
    pq.write_table(table, tmp_path / "wide.parquet", row_group_size=1000)
    fs.put_file(str(tmp_path / "wide.parquet"), path)
    plan = plan_of(f"s3://{path}")
    reads: list[int] = []
    file_class = type(fs.open(path))
    fetch = file_class._fetch_range

    def count(file: Any, start: int, end: int) -> bytes:
        reads.append(end - start)
        data: bytes = fetch(file, start, end)
        return data

    monkeypatch.setattr(file_class, "_fetch_range", count)
    values = [v for unit in plan.units for t in plan.read(unit, ["x"]) for v in t.column("x").to_pylist()]
    assert values == table.column("x").to_pylist()
    footers = len(plan.units) * (64 << 10)
    assert sum(reads) < footers + 100_000 < fs.size(path) / 40
    reads.clear()
    next(plan.read(plan.units[0]))
    assert len(reads) == 2, "columns that lie beside each other take one read, after the footer's"


def _read_while(swap: Callable[[], None], plan: Plan) -> set[str]:
    """What reading gave while another thread swapped the file: its values, or "changed" (both)."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            swap()

    outcomes: set[str] = set()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        for turn in itertools.count():
            if (turn >= 40 and len(outcomes) > 1) or time.monotonic() > deadline:
                break
            try:
                outcomes |= set(values_of(plan))
            except SliceError as e:
                outcomes.add("changed" if "changed while the slice ran" in str(e) else f"{e.kind}: {e}")
    finally:
        stop.set()
        thread.join()
    return outcomes


def _check_own_answers(job: SliceJob) -> None:
    """The stub engine repeats the prompt, which is the name."""
    table = pq.read_table(job.slice_path, partitioning=None)
    assert table.num_rows
    assert table.column("answer").to_pylist() == table.column("name").to_pylist()
