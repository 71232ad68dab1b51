"""What went wrong once, whole: each test runs a slice in a way that published something wrong, failed for one
row, or paid for rows that could not be published. Rows name themselves, so that an answer shows whose it
is."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.input.plan import make_plan
from airflow_provider_raydatallm.processor.publish import reconcile
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store import garbage, lease, versions
from airflow_provider_raydatallm.reader import published_dataset, published_files
from tests.support.in_process import InProcess, changed, job_of, run_in_process
from tests.support.s3_dialect import Dialect


class Killed(Exception): ...


def kill_after(rows: int) -> InProcess:
    """A cluster that dies when so many rows are answered."""
    cluster = InProcess(batch=4)

    def die(batch: pa.Table) -> None:
        if cluster.answered >= rows:
            raise Killed

    cluster.before_batch = die
    return cluster


def write_rows(path: Path, names: list[str], **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"name": names, **columns}), path)


def published(job: SliceJob) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = published_dataset(job.slice_path).to_table().to_pylist()
    return rows


def assert_own_answers(job: SliceJob) -> None:
    rows = published(job)
    assert rows
    assert [row["answer"] for row in rows] == [row["name"] for row in rows]


# 1. Rules


def test_other_timezone_is_another_question_whose_rows_are_never_mixed(tmp_path: Path) -> None:
    hours = [dt.datetime(2026, 1, 31, tzinfo=dt.UTC) + dt.timedelta(hours=h) for h in range(-12, 36)]
    at = pa.array(hours, pa.timestamp("us", "UTC"))
    write_rows(tmp_path / "in" / "a.parquet", [f"{h:%d %H}" for h in hours], at=at)
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", slice_column="at")
    run_in_process(job)
    utc = [row["name"] for row in published(job)]
    new_york = changed(job, slice_timezone="America/New_York")
    with pytest.raises(SliceError, match="on_config_change='recompute'"):
        run_in_process(new_york)
    run_in_process(changed(new_york, on_config_change="recompute"))
    assert_own_answers(job)
    assert [row["name"] for row in published(job)] != utc


def test_half_finished_file_that_is_read_with_another_encoding_is_answered_anew(tmp_path: Path) -> None:
    text = "name\n" + "".join(f'"é{i}\nß"\n' for i in range(30))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(text.encode("utf-16"))
    wrong = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", csv_options={"encoding": "latin-1"}
    )
    with pytest.raises((Killed, SliceError)):
        run_in_process(wrong, kill_after(12))
    right = changed(wrong, csv_options={"encoding": "utf-16"}, on_input_change="recompute")
    run_in_process(right)
    assert_own_answers(right)
    assert published(right)[7]["name"] == "é7\nß"


# 2. Stores


@pytest.mark.parametrize("refusal", ["condition", "bare", "empty"])
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
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", max_row_attempts=1)
    run_in_process(job)
    run_in_process(changed(job, prompt="{name} again", on_config_change="recompute"))
    table = str(tmp_path / "out")
    files = f"read_parquet('{table}/**/*.parquet')"
    assert duckdb.sql(f"select count(*) from {files}").fetchall() == [(40,)]
    assert pl.scan_parquet(table).collect().height == 40
    assert pq.read_table(table).num_rows == 40
    assert {p.name for p in Path(job.slice_path).iterdir() if p.suffix != ".parquet"} == {"_SUCCESS"}
    assert duckdb.sql(f"select __row from '{table}.quarantine/*/*.parquet'").fetchall() == [(41,)]


# 4. A crash between what is shown and what is decided


@pytest.mark.parametrize("step", ["_keep", "_fence", "_show", "_complete"])
def test_crash_after_the_commit_shows_its_rows_at_the_next_run_whatever_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")
    run_in_process(job)
    other = changed(job, prompt="other {name}", on_config_change="recompute")

    original = getattr(reconcile, step)

    def die(folders: Any, version: versions.Version, *args: Any) -> None:
        if (version.number == 2) != (step == "_keep"):  # what is kept is the version before
            raise Killed
        original(folders, version, *args)

    with monkeypatch.context() as patch:
        patch.setattr(reconcile, step, die)
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


@pytest.mark.parametrize("step", ["part-000001", "_SUCCESS"])
def test_holder_that_wakes_up_after_another_configuration_published_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.5)
    monkeypatch.setattr(lease, "BEAT_SECONDS", 600.0)
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", on_config_change="recompute")
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
    run_in_process(changed(job, on_input_change="recompute"))
    assert_own_answers(job)
    assert published(job)[0]["name"] == "a00"


# 6. One bad row


def invalid_utf8(values: list[bytes]) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def test_bad_cells_cost_their_own_rows_only(tmp_path: Path) -> None:
    names = invalid_utf8([b"good", b"\xff\xfe", b"fine", b"well"])
    at = pa.array([0, 0, 2**62, 0], pa.int64()).cast(pa.timestamp("us"))
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"name": names, "at": at}), tmp_path / "in" / "a.parquet")
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", prompt="{name} {at}",
        max_quarantine_fraction=0.5,
    )  # fmt: skip
    report = run_in_process(job)
    assert (report.counts.succeeded, report.counts.quarantined) == (2, 2)
    table = published_dataset(job.slice_path).to_table()
    assert table.column("answer").to_pylist() == ["good 1970-01-01T00:00:00", "well 1970-01-01T00:00:00"]


@pytest.fixture
def postprocess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Returns the reference of a function with that body, over `row`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def define(body: str, name: str = "user_code") -> str:
        (tmp_path / f"{name}.py").write_text(f"def change(row):\n    {body}\n")
        sys.modules.pop(name, None)
        return f"{name}:change"

    return define


@pytest.mark.parametrize("bad", ['"\\ud800"', "2**70", "{1, 2}", "{float('nan'): 1}"])
def test_what_postprocess_cannot_return_costs_its_own_row_only(
    tmp_path: Path, postprocess: Callable[[str], str], bad: str
) -> None:
    good = '"x"' if bad.startswith('"') else "7"
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(20)])
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out",
        postprocess=postprocess(f'return {{"value": {bad} if row["name"] == "row 9" else {good}}}'),
    )  # fmt: skip
    report = run_in_process(job)
    assert (report.counts.succeeded, report.counts.quarantined) == (19, 1)


# 7. Refused before it is paid


def test_column_that_readers_know_by_another_type_is_published_or_refused_before_a_row_is_paid(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    names = pa.array([f"row {i}" for i in range(8)], pa.string_view())
    pq.write_table(pa.table({"name": names}), tmp_path / "in" / "a.parquet")
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")
    run_in_process(job)
    assert_own_answers(job)
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [2]), pa.array([[1, 2]] * 8, pa.list_(pa.float32(), 2))
    )
    pq.write_table(pa.table({"name": names, "t": tensor}), tmp_path / "in" / "a.parquet")
    cluster = InProcess()
    again = changed(job, output_path=f"{tmp_path}/out2")
    run_in_process(again, cluster)
    assert_own_answers(again)
    assert published(again)[0]["t"] == [1, 2]


def test_types_of_postprocess_that_change_are_published_or_cost_only_the_rows_that_differ(
    tmp_path: Path, postprocess: Callable[[str], str]
) -> None:
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    value = 'None if i < 5 else i if i < 20 else i / 2 if i < 38 else "x"'
    body = f'i = int(row["name"][4:]); return {{"value": {value}}}'
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", postprocess=postprocess(body))
    cluster = InProcess(batch=4)
    report = run_in_process(job, cluster)
    assert cluster.answered == 40
    assert (report.counts.succeeded, report.counts.quarantined) == (38, 2)
    values = [row["value"] for row in published(job)]
    assert values == [None] * 5 + [float(i) for i in range(5, 20)] + [i / 2 for i in range(20, 38)]


# 8. gc


def test_gc_leaves_a_live_run_alone_however_young_its_files_may_be(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")
    cluster = InProcess(batch=10)
    found: list[Any] = []

    def collect(batch: pa.Table) -> None:
        if cluster.answered == 20:
            found.extend(garbage.find_leftovers(job, days=0, stale_seconds=9))

    cluster.before_batch = collect
    assert run_in_process(job, cluster).outcome == "published"
    assert (found, cluster.answered) == ([], 40)


def test_run_that_gc_took_for_dead_loses_time_and_no_row(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")
    folders = versions.SliceFolders.open(job.paths)
    create_commit = versions.create_commit

    def collected_first(store: Store, number: int, body: dict[str, Any]) -> bool:
        if number == 1 and "void" not in body:
            garbage.remove_leftovers(folders)
        return create_commit(store, number, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "create_commit", collected_first)
        report = run_in_process(job)
    assert (report.outcome, report.published_version) == ("published", 2)
    assert_own_answers(job)


# 9. Open files


@pytest.mark.parametrize("on", ["disk", "s3"])
def test_open_file_never_becomes_that_of_another_version(
    tmp_path: Path, dialect: Dialect, monkeypatch: pytest.MonkeyPatch, on: str
) -> None:
    monkeypatch.setattr(reconcile, "COPY_TIMEOUT_SECONDS", 0.1)
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    output = f"{tmp_path}/out" if on == "disk" else f"s3://lake/{tmp_path.name}-{on}/out"
    job = job_of(input_path=f"{tmp_path}/in/", output_path=output, on_config_change="recompute")
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


# 10. Code in the input


def test_pickled_objects_in_the_input_run_no_code(tmp_path: Path) -> None:
    flag = tmp_path / "ran"
    program = f"""
import os, pickle, sys
import pyarrow as pa, pyarrow.parquet as pq
import ray.data
from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType
class Evil:
    def __reduce__(self):
        return os.system, ("touch {flag}",)
payload = pickle.dumps(Evil())
column = pa.ExtensionArray.from_storage(ArrowPythonObjectType(), pa.array([payload] * 4, pa.large_binary()))
os.makedirs("{tmp_path}/in")
pq.write_table(pa.table({{"name": ["a", "b", "c", "d"], "x": column}}), "{tmp_path}/in/a.parquet")
from tests.support.in_process import job_of, run_in_process
for prompt in ("{{name}}", "{{name}} {{x}}"):
    try:
        run_in_process(job_of(input_path="{tmp_path}/in/", output_path="{tmp_path}/out", prompt=prompt))
    except Exception as e:
        print(e)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert not flag.exists()
    assert "x" in result.stdout


# 11. Hostile files


def test_commit_that_names_files_outside_the_slice_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(4)])
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", on_config_change="recompute")
    run_in_process(job)
    metadata = Store(job.paths.metadata)
    body = metadata.read_document(versions.commit_name(1))
    (tmp_path / "secret").write_text("secret")
    for change in (
        {"files": [{**body["files"][0], "name": "../../secret"}]},
        {"staged": "../../.."},
        {"plan": "../../secret"},
        {"quarantine": [{**body["files"][0], "name": "quarantine-000001-00000-of-00001-../../x.parquet"}]},
    ):
        metadata.remove(versions.commit_name(1))
        metadata.create_document(versions.commit_name(1), {**body, **change})
        for read in (lambda: published_files(job.slice_path), lambda: run_in_process(job)):
            with pytest.raises(SliceError, match="names files that no version has"):
                read()


@pytest.mark.parametrize("damage", ["other file", "structure", "extension"])
def test_planted_plan_leads_to_no_other_file(tmp_path: Path, damage: str) -> None:
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    write_rows(tmp_path / "secret.parquet", [f"secret {i}" for i in range(40)])
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")
    with pytest.raises(Killed):
        run_in_process(job, kill_after(12))
    store = Store(job.paths.metadata)
    [name] = [f"checkpoint/{n}" for n in store.tree("checkpoint") if "/plan-" in n]
    body = store.read_document(name)
    if damage == "other file":
        secret = make_plan(changed(job, input_path=f"{tmp_path}/secret.parquet")).to_json()
        body["input_files"], body["url"] = secret["input_files"], secret["url"]
    elif damage == "structure":
        del body["headers"]
    else:
        kind = pa.opaque(pa.string(), "x", "y")
        body["schema"] = base64.b64encode(pa.schema([("name", kind)]).serialize()).decode()
    store.remove(name)
    store.create_document(name, body)
    run_in_process(job)
    assert_own_answers(job)
    assert published(job)[0]["name"] == "row 0"


# 12. Addresses and schemas


@pytest.mark.parametrize(
    "address", ["http://example.com/out", "simplecache::s3://lake/out", "s3://KEY:SECRET@lake/out"]
)
def test_addresses_that_send_requests_elsewhere_are_refused_and_no_secret_is_shown(address: str) -> None:
    with pytest.raises(pydantic.ValidationError) as e:
        job_of(input_path="/in", output_path=address)
    assert "SECRET" not in str(e.value.errors(include_input=False, include_context=False))


def test_answers_of_an_open_schema_are_published_as_they_are(tmp_path: Path) -> None:
    answers = ['{"a": 1, "b": [2, null]}', "{}", '{"c": {"d": "e"}}']
    write_rows(tmp_path / "in" / "a.parquet", answers)
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", output_schema={"type": "object"}
    )
    run_in_process(job)
    assert [json.loads(row["answer"]) for row in published(job)] == [json.loads(a) for a in answers]


@pytest.mark.parametrize(
    "schema", [{"$ref": "http://127.0.0.1:1/x.json"}, {"properties": {"a": {"$ref": "file:///etc/passwd"}}}]
)
def test_schema_that_refers_to_another_place_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError, match="ref"):
        job_of(input_path="/in", output_path="/data/out", output_schema=schema)
