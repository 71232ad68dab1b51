"""Publishing on a local folder, without Ray: what readers see, and when."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor import storage as store_module
from airflow_provider_raydatallm.processor.input.plan import make_plan
from airflow_provider_raydatallm.processor.publish import publication
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.fragments import put_fragment
from airflow_provider_raydatallm.reader import published_dataset, published_files
from tests.support.in_process import InProcess, answer_fixed, changed, job_of
from tests.support.in_process import run_in_process as run


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    for f in range(3):
        table = pa.table({"name": [f"{f}-{i}" for i in range(100)], "x": range(100)})
        pq.write_table(table, tmp_path / "in" / f"{f}.parquet", row_group_size=40)
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")


def names(job: SliceJob) -> set[str]:
    return {p.name for p in Path(job.slice_path).iterdir()}


def run_killed_in(step: Callable[..., Any], job: SliceJob, cluster: InProcess | None = None) -> list[Any]:
    """A run that dies in a step; returns the arguments of the calls of the step."""
    calls: list[Any] = []

    def die(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        raise OSError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{step.__module__}.{step.__qualname__}", die)
        with pytest.raises(OSError, match="killed"):
            run(job, cluster)
    return calls


ALL = [f"{f}-{i}" for f in range(3) for i in range(100)]


def test_slice_is_one_file_with_its_manifest_and_nothing_else(job: SliceJob) -> None:
    run(job)
    assert names(job) == {
        "part-00000.parquet", "_SUCCESS", "_manifest.json", "_report.json", "_versions",
    }  # fmt: skip
    folder = Path(job.slice_path)
    manifest = json.loads((folder / "_manifest.json").read_text())
    data = (folder / "part-00000.parquet").read_bytes()
    assert manifest["files"] == [
        {"path": "part-00000.parquet", "rows": 300, "bytes": len(data),
         "sha256": hashlib.sha256(data).hexdigest()},
    ]  # fmt: skip
    table = pq.read_table(folder, partitioning=None)
    assert table.column("answer").to_pylist() == table.column("name").to_pylist() == ALL
    assert table.schema.field("x").type == pa.int64()


def test_success_is_written_last(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    put = Store.put
    monkeypatch.setattr(Store, "put", lambda self, name, data: (written.append(name), put(self, name, data)))
    run(job)
    top = [n for n in written if "/" not in n]
    assert top == ["_manifest.json", "_report.json", "_SUCCESS"]


@pytest.mark.parametrize(
    "given", [{"file_per_input": True}, {"max_file_bytes": 1 << 20}], ids=["per input", "by size"]
)
def test_several_files_carry_their_version_and_read_in_order(
    job: SliceJob, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "max_file_bytes" in given:  # the least that can be set is more than this test wants to write
        job = job.model_copy(update={"max_file_bytes": 2000})
    else:
        job = changed(job, **given)
    run(job)
    files = published_files(job.slice_path)
    assert len(files) > 2
    assert all(Path(f).name.startswith("part-000001-") for f in files)
    assert published_dataset(job.slice_path).to_table().column("answer").to_pylist() == ALL
    assert pq.read_table(job.slice_path, partitioning=None).column("answer").to_pylist() == ALL
    if job.file_per_input:
        assert [pq.read_metadata(f).num_rows for f in files] == [100, 100, 100]

    run(job.model_copy(update={"force_rerun": True}))
    again = published_files(job.slice_path)
    assert all(Path(f).name.startswith("part-000002-") for f in again)
    assert {Path(f).name for f in again} == {n for n in names(job) if n.startswith("part-")}
    run(changed(job, force_rerun=True, file_per_input=False, max_file_bytes=1 << 30))
    assert {n for n in names(job) if n.startswith("part-")} == {"part-00000.parquet"}


def test_old_version_stays_readable_until_the_new_one_is_published(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job)
    other = changed(job, prompt="new {name}", on_config_change="recompute")
    seen: list[Any] = []

    def look(batch: pa.Table) -> None:
        table = pq.read_table(job.slice_path, partitioning=None)
        seen.append((table.column("answer").to_pylist() == ALL, "_SUCCESS" in names(job)))

    run(other, InProcess(batch=100, before_batch=look))
    assert seen
    assert set(seen) == {(True, True)}
    assert published_dataset(job.slice_path).to_table().column("answer").to_pylist() == [
        f"new {a}" for a in ALL
    ]


def test_kept_versions_can_be_read_and_are_removed_in_their_turn(job: SliceJob) -> None:
    def prompt(text: str) -> SliceJob:
        return changed(job, prompt=text + " {name}", on_config_change="recompute", keep_versions=1)

    for text in ("one", "two", "three"):
        run(prompt(text))

    def first(**version: int) -> Any:
        return published_dataset(job.slice_path, **version).head(1).column("answer")[0].as_py()

    assert first() == "three 0-0"
    assert first(version=2) == "two 0-0"
    with pytest.raises(FileNotFoundError, match=r"version 1 of .* is not kept; the newest is 3"):
        first(version=1)
    assert pq.read_table(job.slice_path, partitioning=None).num_rows == 300


def test_nothing_published_is_told(job: SliceJob) -> None:
    with pytest.raises(FileNotFoundError, match="no slice is published"):
        published_files(job.slice_path)


def test_folder_of_somebody_else_is_not_touched(job: SliceJob) -> None:
    folder = Path(job.slice_path)
    folder.mkdir(parents=True)
    (folder / "precious.parquet").write_bytes(b"x")
    with pytest.raises(SliceError, match=r"precious\.parquet"):
        run(job)
    assert names(job) == {"precious.parquet"}


def test_sealed_slice_publishes_what_was_sealed(job: SliceJob) -> None:
    """Fragments that a late writer puts after the seal change nothing."""
    [(_, name, *_)] = run_killed_in(Store.replace, job)
    assert name == "part-00000.parquet"
    store = Store(job.slice_path)
    [folder] = [n for n in store.names("_checkpoint") if n.startswith("v")]
    plan = make_plan(job)
    late = pa.table(
        {"__unit": pa.array([0], pa.int32()), "__offset": pa.array([0], pa.int64()), "answer": ["late"],
         "__input_tokens": [1], "__output_tokens": [1]},
    )  # fmt: skip
    for epoch in (0, 9):
        put_fragment(store, f"_checkpoint/{folder}", "rows", late, [u.id for u in plan.units], epoch)
    cluster = InProcess()
    run(job, cluster)
    assert cluster.answered == 0
    assert pq.read_table(job.slice_path, partitioning=None).column("answer").to_pylist() == ALL


def test_row_without_an_answer_is_never_published(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last guard: what a seal names must be one answer for each row."""
    store = Store(job.slice_path)
    run_killed_in(Store.replace, job)
    [folder] = [n for n in store.names("_checkpoint") if n.startswith("v")]
    [seal] = [n for n in store.names(f"_checkpoint/{folder}") if n.startswith("seal-")]
    body = store.read_document(f"_checkpoint/{folder}/{seal}")
    body["fragments"].pop()
    store.remove(f"_checkpoint/{folder}/{seal}")
    store.create_document(f"_checkpoint/{folder}/{seal}", body)
    with pytest.raises(SliceError, match=r"and \d+ answers and 0 failures for them"):
        run(job)
    assert all(n.startswith("_") for n in names(job))


def test_disk_that_is_full_fails_with_the_path_and_resumes(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module.shutil, "copyfileobj", full)
        with pytest.raises(SliceError, match=r"cannot write .*part-00000\.parquet: No space left") as e:
            run(job)
    assert e.value.kind == "transient"
    cluster = InProcess()
    assert run(job, cluster).counts.resumed == 300
    assert cluster.answered == 0


@pytest.mark.parametrize("mode", ["recompute", "forced", "retry", "extend"])
def test_run_that_dies_between_its_file_and_its_commit_answers_nothing_again(
    job: SliceJob, tmp_path: Path, mode: str
) -> None:
    """The one moment in which the folder holds a file that no commit names."""
    add = pa.table({"name": [f"fail {i}" for i in range(20)], "x": range(20)})
    pq.write_table(add, tmp_path / "in" / "bad.parquet")
    run(job)
    if mode == "extend":
        pq.write_table(pa.table({"name": ["more"], "x": [1]}), tmp_path / "in" / "more.parquet")
    again = changed(
        job,
        **{
            "recompute": {"prompt": "new {name}", "on_config_change": "recompute"},
            "forced": {"force_rerun": True, "max_rows": None},
            "retry": {"retry_quarantined": True},
            "extend": {"on_input_change": "extend"},
        }[mode],
    )
    # Without other answers the new file would be the old one, to the byte.
    engine = {"answer": answer_fixed} if mode in ("forced", "retry") else {}
    first, second = InProcess(**engine), InProcess(**engine)
    run_killed_in(publication.Publication._commit, again, first)
    assert first.answered > 0
    report = run(again, second)
    assert (report.outcome, second.answered) == ("published", 0)
    assert published_dataset(job.slice_path).count_rows() == report.counts.succeeded
    assert not (Path(job.slice_path) / "_checkpoint").exists()


def test_checkpoint_that_a_dying_run_left_is_removed_by_the_next(job: SliceJob) -> None:
    run_killed_in(versions.remove_checkpoints, job)
    assert (Path(job.slice_path) / "_SUCCESS").exists()
    cluster = InProcess()
    assert run(job, cluster).outcome == "unchanged"
    assert cluster.answered == 0
    assert not (Path(job.slice_path) / "_checkpoint").exists()


@pytest.mark.parametrize("given", [{"retry_quarantined": True}, {"max_row_attempts": 3}])
def test_sealed_slice_pays_for_no_row_that_it_could_not_publish(
    job: SliceJob, tmp_path: Path, given: dict[str, Any]
) -> None:
    """Failed rows are tried again before the seal or in the next version, never in between."""
    pq.write_table(pa.table({"name": ["fail"], "x": [1]}), tmp_path / "in" / "bad.parquet")
    run_killed_in(Store.replace, job)
    cluster = InProcess()
    report = run(changed(job, **given), cluster)
    assert cluster.answered == 0
    assert (report.counts.succeeded, report.counts.quarantined) == (300, 1)
