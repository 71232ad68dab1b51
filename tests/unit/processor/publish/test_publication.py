"""Publishing on a local folder, without Ray: what readers see, and when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor import version_build
from airflow_provider_raydatallm.processor.publish import commit, stage
from airflow_provider_raydatallm.processor.storage import disk
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.file_names import PROGRESS
from airflow_provider_raydatallm.processor.store.ledger import Pieces
from airflow_provider_raydatallm.reader import published_dataset, published_files
from tests.support.in_process import InProcess, answer_fixed, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import (
    answers,
    checkpoint_folders,
    files_below,
    metadata,
    newest,
    parts,
    shown,
    staged_marker,
)


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    for f in range(3):
        table = pa.table({"name": [f"{f}-{i}" for i in range(100)], "x": range(100)})
        pq.write_table(table, tmp_path / "in" / f"{f}.parquet", row_group_size=40)
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")


def run_killed_in(module: Any, step: str, job: SliceJob, cluster: InProcess | None = None) -> None:
    """A run that dies where a module would take a step."""

    def die(*args: Any, **kwargs: Any) -> None:
        raise OSError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, step, die)
        with pytest.raises(OSError, match="killed"):
            run(job, cluster)


ALL = [f"{f}-{i}" for f in range(3) for i in range(100)]


def test_slice_is_its_files_and_the_marker_and_the_rest_lies_beside_the_table(job: SliceJob) -> None:
    run(job)
    [part] = parts(job)
    assert shown(job) == {part.name, "_SUCCESS"}
    [file] = newest(job).files
    assert (file.name, file.rows, file.bytes) == (part.name, 300, part.stat().st_size)
    assert file.sha256 == hashlib.sha256(part.read_bytes()).hexdigest()
    assert files_below(metadata(job)) - {f"staged/{staged_marker(job)}"} == {
        "commits/commit-000001.json", versions.complete_name(newest(job).staged), "plans/plan-0...",
        "reports/report-000001.json",
    }  # fmt: skip
    table = pq.read_table(job.slice_path, partitioning=None)
    assert table.column("answer").to_pylist() == table.column("name").to_pylist() == ALL
    assert table.schema.field("x").type == pa.int64()
    assert pq.read_table(job.output_path).num_rows == 300  # the whole table


@pytest.mark.slow
def test_success_is_shown_last_and_goes_first(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    place, remove_file = Store.place, Store.remove_file

    def note(step: str, store: Store, name: str) -> None:
        if store.root == job.slice_path:
            steps.append(f"{step} {name.partition('-00')[0]}")

    def placed(self: Store, source: Store, source_name: str, name: str) -> bool:
        note("show", self, name)
        return place(self, source, source_name, name)

    def removed(self: Store, name: str) -> None:
        note("remove", self, name)
        remove_file(self, name)

    monkeypatch.setattr(Store, "place", placed)
    monkeypatch.setattr(Store, "remove_file", removed)
    run(job)
    run(changed(job, rerun__force=True))
    first = ["show part", "show _SUCCESS"]
    assert steps == [*first, "remove _SUCCESS", "remove part", *first]


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [{"publish__file_per_input": True}, {"publish__max_file_bytes": 1 << 20}],
    ids=["per input", "by size"],
)
def test_several_files_carry_their_version_and_read_in_order(
    job: SliceJob, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "publish__max_file_bytes" in given:  # the least that can be set is more than this test wants to write
        job = job.changed(publish={"max_file_bytes": 2000})
    else:
        job = changed(job, **given)
    run(job)
    files = published_files(job.slice_path)
    assert len(files) > 2
    assert all(Path(f).name.startswith("part-000001-") for f in files)
    assert published_dataset(job.slice_path).to_table().column("answer").to_pylist() == ALL
    assert pq.read_table(job.slice_path, partitioning=None).column("answer").to_pylist() == ALL
    if job.publish.file_per_input:
        assert [pq.read_metadata(f).num_rows for f in files] == [100, 100, 100]
        assert [f.input for f in newest(job).files] == [f"{job.input_path}{f}.parquet" for f in range(3)]
    else:
        assert {f.input for f in newest(job).files} == {None}

    run(job.changed(rerun={"force": True}))
    again = published_files(job.slice_path)
    assert all(Path(f).name.startswith("part-000002-") for f in again)
    assert [Path(f) for f in again] == parts(job)
    run(changed(job, rerun__force=True, publish__file_per_input=False, publish__max_file_bytes=1 << 30))
    assert len(parts(job)) == 1


@pytest.mark.slow
def test_old_version_stays_readable_until_the_new_one_is_published(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job)
    other = changed(job, prompt="new {name}", rerun__on_config_change="recompute")
    seen: list[Any] = []

    def look(batch: pa.Table) -> None:
        table = pq.read_table(job.slice_path, partitioning=None)
        seen.append((table.column("answer").to_pylist() == ALL, "_SUCCESS" in shown(job)))

    run(other, InProcess(batch=100, before_batch=look))
    assert seen
    assert set(seen) == {(True, True)}
    assert published_dataset(job.slice_path).to_table().column("answer").to_pylist() == [
        f"new {a}" for a in ALL
    ]


@pytest.mark.slow
def test_kept_versions_can_be_read_and_are_removed_in_their_turn(job: SliceJob) -> None:
    def prompt(text: str) -> SliceJob:
        return changed(
            job, prompt=text + " {name}", rerun__on_config_change="recompute", publish__keep_versions=1
        )

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
    assert shown(job) == {"precious.parquet"}
    assert [path.name for path in metadata(job).rglob("*")] == [PROGRESS]  # why it failed


def test_file_that_is_too_large_for_one_copy_becomes_several_that_name_their_input(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_MAX_FILE_BYTES", 2000)
    run(changed(job, publish__file_per_input=True))
    files = newest(job).files
    assert len(files) > 3
    assert len({f.input for f in files}) == 3
    assert [f.input for f in files] == sorted(str(f.input) for f in files)
    assert answers(job) == ALL


def test_row_without_an_answer_is_never_published(job: SliceJob) -> None:
    """The last guard: each row of a part has one answer or one error."""

    class Forgets(InProcess):
        def run_tasks(self, function: Any, inputs: Iterable[Any], timeout: float) -> Iterable[Any]:
            parts = [replace(part, answered=self.forget_first(part.answered)) for part in inputs]
            return super().run_tasks(function, parts, timeout)

        def forget_first(self, pieces: Pieces) -> Pieces:
            rest = pieces.numbers > 0
            return Pieces(pieces.names, pieces.numbers[rest], pieces.ranges[rest], pieces.rows[rest])

    with pytest.raises(SliceError, match=r"90 are answered and 0 have failed"):
        run(changed(job, publish__file_per_input=True), Forgets())
    assert shown(job) == set()


def test_disk_that_is_full_fails_with_the_path_and_resumes(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk.shutil, "copyfileobj", full)
        with pytest.raises(SliceError, match=r"No space left.*: cannot write .*/staged/.*/part-0") as e:
            run(job)
    assert e.value.kind == "transient"
    assert e.value.failure.advice[0] == "Free space there and run the slice again"
    cluster = InProcess()
    assert run(job, cluster).counts.resumed == 300
    assert cluster.answered == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["recompute", "forced", "retry", "extend"])
def test_run_that_dies_between_its_file_and_its_commit_answers_nothing_again(
    job: SliceJob, tmp_path: Path, mode: str
) -> None:
    """The moment in which files are staged that no commit names."""
    add = pa.table({"name": [f"fail {i}" for i in range(20)], "x": range(20)})
    pq.write_table(add, tmp_path / "in" / "bad.parquet")
    run(job)
    if mode == "extend":
        pq.write_table(pa.table({"name": ["more"], "x": [1]}), tmp_path / "in" / "more.parquet")
    again = changed(
        job,
        **{
            "recompute": {"prompt": "new {name}", "rerun__on_config_change": "recompute"},
            "forced": {"rerun__force": True, "source__max_rows": None},
            "retry": {"rerun__retry_quarantined": True},
            "extend": {"rerun__on_input_change": "extend"},
        }[mode],
    )
    # Without other answers the new file would be the old one, to the byte.
    engine = {"answer": answer_fixed} if mode in ("forced", "retry") else {}
    first, second = InProcess(**engine), InProcess(**engine)
    run_killed_in(version_build, "commit", again, first)
    assert first.answered > 0
    report = run(again, second)
    assert (report.outcome, second.answered) == ("published", 0)
    assert published_dataset(job.slice_path).count_rows() == report.counts.succeeded
    assert checkpoint_folders(job) == []
    assert files_below(metadata(job) / "staged") == {staged_marker(job)}


def test_run_that_dies_between_its_commit_and_the_table_is_shown_by_the_next(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_killed_in(commit, "reconcile", job)
    assert shown(job) == set()
    assert published_dataset(job.slice_path).count_rows() == 300  # our reader follows the commit
    cluster = InProcess()
    assert run(job, cluster).outcome == "unchanged"
    assert (cluster.answered, answers(job)) == (0, ALL)
    assert checkpoint_folders(job) == []


def test_checkpoint_that_a_dying_run_left_is_removed_by_the_next(job: SliceJob) -> None:
    run_killed_in(version_build, "remove_checkpoints", job)
    assert "_SUCCESS" in shown(job)
    assert len(checkpoint_folders(job)) == 1
    cluster = InProcess()
    assert run(job, cluster).outcome == "unchanged"
    assert cluster.answered == 0
    assert checkpoint_folders(job) == []
