"""The behaviour of every kind of sink, through real commits of small slices."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish import garbage
from airflow_provider_raydatallm.processor.publish.published import current_report, published_report
from airflow_provider_raydatallm.processor.publish.reconcile import reconcile
from airflow_provider_raydatallm.processor.publish.restore import restore_version
from airflow_provider_raydatallm.processor.sinks import kinds
from airflow_provider_raydatallm.processor.sinks.base import Newest, SourceGoneError, UnknownVersionError
from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.sinks.reading import kept_versions
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.versions import Commits, commit_name
from airflow_provider_raydatallm.reader import published_dataset
from tests.support.in_process import InProcess, answer_fixed, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import files_below, folders_of, metadata, newest
from tests.unit.processor.sinks.stages import FolderStage, NotWholeError, Stage, ToyStage

NAMES = [f"{f}-{i}" for f in range(2) for i in range(9)]
#: Methods of a store that change something.
CHANGES = ("create", "put", "put_file", "place", "remove", "remove_file", "remove_empty")


class Killed(BaseException): ...


@pytest.fixture(params=[FolderStage, ToyStage], ids=["folder", "toy"])
def stage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stage:
    found: Stage = request.param()
    monkeypatch.setitem(kinds.KINDS, kinds.DEFAULT, found.kind)
    return found


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    folder = tmp_path / "in"
    folder.mkdir()
    for f in range(2):
        rows = pa.table({"name": [name for name in NAMES if name.startswith(f"{f}-")] + ["fail"]})
        pq.write_table(rows, folder / f"{f}.parquet")
    return job_of(
        input_path=f"{folder}/", output_path=f"{tmp_path}/lake/out", rerun__on_config_change="recompute",
        publish__file_per_input=True,
    )  # fmt: skip


def asked(job: SliceJob, text: str, **given: Any) -> SliceJob:
    """Another question; it still lets one row of each file fail."""
    return changed(job, prompt=f"{{name}} {text}", **given)


def answered(text: str) -> list[str]:
    return [f"{name} {text}" for name in NAMES]


def answers(table: pa.Table) -> list[str]:
    found: list[str] = table.column("answer").to_pylist()
    return found


def answers_if_whole(stage: Stage, job: SliceJob) -> list[str] | None:
    try:
        return answers(stage.read(job))
    except NotWholeError:
        return None


def commit_only(job: SliceJob, stage: Stage) -> None:
    """Commits a version that nobody shows."""
    show, shown = stage.kind.show, Commits.list(folders_of(job).metadata).highest

    def show_older(sink: Any, version: Newest) -> bool:
        if version.version.number > shown:
            raise Killed
        return show(sink, version)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.kind, "show", show_older)
        with pytest.raises(Killed):
            run(job)


def strike(*_: Any) -> None:
    raise Killed


@contextmanager
def before_request(
    number: int, act: Callable[[], Any], then: Callable[[], Any] = lambda: None
) -> Iterator[list[str]]:
    """Acts once, before the request of that number (from 1) that changes something. Yields the requests.

    :param then: is called before each later request, once `act` has ended.
    """
    seen: list[str] = []
    acted = threading.Event()
    lock = threading.Lock()

    def around(method: str) -> Callable[..., Any]:
        original = getattr(Store, method)

        def request(store: Store, *args: Any, **kwargs: Any) -> Any:
            with lock:
                seen.append(method)
                is_it = len(seen) == number
            if acted.is_set():
                then()
            if is_it:
                act()
                acted.set()
            return original(store, *args, **kwargs)

        return request

    with pytest.MonkeyPatch.context() as patch:
        for method in CHANGES:
            patch.setattr(Store, method, around(method))
        yield seen


def each_request(
    job: SliceJob, act: Callable[[], Any], then: Callable[[], Any] = lambda: None
) -> Iterator[None]:
    """Reconciles the same slice again and again, each time acting before another request; yields after each.
    The folders are as they were before."""
    lake = Path(job.output_path).parent
    before = lake.parent / "before"
    shutil.copytree(lake, before)
    for number in range(1, 100):
        shutil.rmtree(lake)
        shutil.copytree(before, lake)
        with before_request(number, act, then) as seen, suppress(Killed):
            reconcile(folders_of(job))
        yield
        if len(seen) < number:
            return
    raise AssertionError("too many requests")


def test_first_version_is_shown_whole_with_its_quarantine_beside_it(stage: Stage, job: SliceJob) -> None:
    report = run(job)
    assert (report.counts.succeeded, report.counts.quarantined) == (18, 2)
    assert answers(stage.read(job)) == NAMES
    assert stage.read_quarantine(job).column("name").to_pylist() == ["fail", "fail"]
    assert open_sink(folders_of(job)).is_shown(newest(job))
    assert current_report(job) is not None
    assert answers(published_dataset(job.slice_path).to_table()) == NAMES


def test_newer_version_replaces_the_one_before_which_is_kept(stage: Stage, job: SliceJob) -> None:
    for text in ("one", "two", "three"):
        run(asked(job, text))
        assert answers(stage.read(job)) == answered(text)
    assert [v.number for v in kept_versions(folders_of(job))] == [3, 2]
    assert answers(published_dataset(job.slice_path, version=2).to_table()) == answered("two")
    with pytest.raises(FileNotFoundError, match="is not kept; the newest is 3"):
        published_dataset(job.slice_path, version=1)


def test_version_that_is_shown_again_changes_nothing(stage: Stage, job: SliceJob) -> None:
    run(asked(job, "one"))
    run(asked(job, "two"))
    before = files_below(Path(job.output_path).parent)
    for _ in range(2):
        assert (reconcile(folders_of(job)) or newest(job)).number == 2
    cluster = InProcess()
    assert (run(asked(job, "two"), cluster).outcome, cluster.answered) == ("unchanged", 0)
    assert files_below(Path(job.output_path).parent) == before
    assert answers(stage.read(job)) == answered("two")


def test_slice_without_rows_is_a_table_without_rows(stage: Stage, job: SliceJob) -> None:
    for file in Path(job.input_path).iterdir():
        pq.write_table(pa.table({"name": pa.array([], pa.string())}), file)
    empty = changed(job, source__on_empty="publish")
    for _ in range(2):
        assert run(empty).counts.planned == 0
        assert stage.read(job).num_rows == 0
        assert "answer" in stage.read(job).column_names
        assert newest(job).number == 1


def test_first_version_that_is_shown_after_a_crash_at_any_request_is_there_once(
    stage: Stage, job: SliceJob
) -> None:
    commit_only(job, stage)
    for _ in each_request(job, strike):
        assert answers_if_whole(stage, job) in (None, NAMES)
        assert reconcile(folders_of(job)) is not None
        assert answers(stage.read(job)) == NAMES
        assert stage.read_quarantine(job).num_rows == 2


def test_version_that_replaces_another_after_a_crash_at_any_request_is_there_once(
    stage: Stage, job: SliceJob
) -> None:
    run(asked(job, "one"))
    commit_only(asked(job, "two"), stage)
    for _ in each_request(job, strike):
        assert answers_if_whole(stage, job) in (None, answered("one"), answered("two"))
        assert answers(published_dataset(job.slice_path).to_table()) == answered("two")
        assert reconcile(folders_of(job)) is not None
        assert answers(stage.read(job)) == answered("two")
        assert stage.read_quarantine(job).num_rows == 2
        assert answers(published_dataset(job.slice_path, version=1).to_table()) == answered("one")


def test_reader_during_a_replacement_gets_one_whole_version_or_an_error(stage: Stage, job: SliceJob) -> None:
    run(asked(job, "one"))
    commit_only(asked(job, "two"), stage)
    seen: list[Any] = []

    def look() -> None:
        seen.append(answers_if_whole(stage, job))
        assert answers(published_dataset(job.slice_path).to_table()) == answered("two")

    for _ in each_request(job, look):
        assert answers(stage.read(job)) == answered("two")
    assert answered("one") in seen
    assert answered("two") in seen
    assert all(found in (None, answered("one"), answered("two")) for found in seen)


def test_process_that_sleeps_before_any_request_shows_nothing_over_a_newer_version(
    stage: Stage, job: SliceJob
) -> None:
    commit_only(asked(job, "one"), stage)

    show = stage.kind.show

    def show_newer(sink: Any, version: Newest) -> bool:
        return version.version.number == 1 or show(sink, version)

    def publish() -> None:
        with pytest.MonkeyPatch.context() as patch:  # the first version stays staged, as far as it is
            patch.setattr(stage.kind, "show", show_newer)
            run(asked(job, "two"))
        assert answers(stage.read(job)) == answered("two")

    def look() -> None:
        assert answers_if_whole(stage, job) in (None, answered("two"))

    for _ in each_request(job, publish, look):
        if newest(job).number == 2:
            assert answers(stage.read(job)) == answered("two")
            assert published_report(job.paths) == current_report(asked(job, "two"))


def test_older_version_is_refused_once_a_newer_one_is_shown(stage: Stage, job: SliceJob) -> None:
    run(asked(job, "one"))
    old = newest(job)
    run(asked(job, "two"))
    for is_complete in (False, True):
        late = Newest(old, is_complete, is_first=True, before=None, is_newest=lambda: False)
        with pytest.raises((SourceGoneError, UnknownVersionError)):
            open_sink(folders_of(job)).show(late)
    assert answers(stage.read(job)) == answered("two")
    assert not open_sink(folders_of(job)).is_shown(old)


def test_file_that_is_gone_is_damage_and_the_slice_is_built_again(
    stage: Stage, job: SliceJob, caplog: pytest.LogCaptureFixture
) -> None:
    run(job)
    stage.lose(job, newest(job))
    assert not open_sink(folders_of(job)).is_shown(newest(job))
    assert current_report(job) is None
    assert run(job).published_version == 2
    assert "of version 1 in" in caplog.text
    assert "is gone" in caplog.text
    assert answers(stage.read(job)) == NAMES


def test_file_of_another_size_is_damage(
    stage: Stage, job: SliceJob, caplog: pytest.LogCaptureFixture
) -> None:
    run(job)
    path = stage.shown_file(job, newest(job))
    path.write_bytes(path.read_bytes()[:-1])
    assert current_report(job) is None
    assert run(job).published_version == 2
    assert "bytes and was committed with" in caplog.text
    assert answers(stage.read(job)) == NAMES


def test_other_content_is_damage_to_who_asks_for_it(stage: Stage, job: SliceJob) -> None:
    run(job)
    path = stage.shown_file(job, newest(job))
    content = bytearray(path.read_bytes())
    content[20] ^= 0x40
    path.write_bytes(bytes(content))
    assert run(job).outcome == "unchanged"  # a listing does not tell
    assert run(changed(job, rerun__verify="content")).published_version == 2
    assert answers(stage.read(job)) == NAMES


def test_kept_version_is_restored_with_its_quarantine(stage: Stage, job: SliceJob) -> None:
    run(asked(job, "one"))
    old = newest(job)
    run(asked(job, "two"))
    version = restore_version(job.address, 1)
    assert (version.number, version.body["base"]) == (3, 2)
    assert answers(stage.read(job)) == answered("one")
    assert stage.read_quarantine(job).num_rows == 2
    assert [f.sha256 for f in version.all_files] == [f.sha256 for f in old.all_files]
    assert run(asked(job, "one")).outcome == "unchanged"


def test_quarantine_that_is_answered_later_is_empty_beside_the_new_version(
    stage: Stage, job: SliceJob
) -> None:
    run(job)
    cluster = InProcess(answer=answer_fixed)
    report = run(changed(job, rerun__retry_quarantined=True), cluster)
    assert (cluster.answered, report.counts.quarantined) == (2, 0)
    assert stage.read(job).num_rows == 20
    assert not list(Path(job.paths.quarantine).glob("*"))


def test_number_of_a_version_whose_commit_is_lost_is_never_used_again(stage: Stage, job: SliceJob) -> None:
    run(asked(job, "one"))
    run(asked(job, "two"))
    (metadata(job) / commit_name(2)).unlink()
    with pytest.raises(SliceError, match="a newer commit is lost"):
        run(asked(job, "two"))
    assert answers(stage.read(job)) == answered("two")
    assert run(asked(job, "three", rerun__force=True)).published_version == 3
    assert answers(stage.read(job)) == answered("three")


def test_slice_whose_only_commit_is_lost_is_refused(stage: Stage, job: SliceJob) -> None:
    run(job)
    (metadata(job) / commit_name(1)).unlink()
    with pytest.raises(SliceError, match="has no commit of it"):
        run(job)


def test_files_of_others_before_the_first_version_are_refused(stage: Stage, job: SliceJob) -> None:
    Path(job.slice_path).mkdir(parents=True)
    Path(job.slice_path, "theirs.parquet").write_bytes(b"x")
    cluster = InProcess()
    with pytest.raises(SliceError, match=r"'theirs\.parquet' \(1 file\(s\)\), which this provider did not"):
        run(job, cluster)
    assert cluster.answered == 0


def test_gc_removes_what_nobody_committed_and_leaves_what_is_shown(stage: Stage, job: SliceJob) -> None:
    run(asked(job, "one"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_raydatallm.processor.store.versions.create_commit", strike)
        with pytest.raises(Killed):
            run(asked(job, "two"))
    assert any("part-000002" in name for name in files_below(metadata(job)))
    [found] = garbage.find_leftovers(job.address, 0, stale_seconds=0)
    assert garbage.remove_leftovers(found)
    assert not any("part-000002" in name for name in files_below(metadata(job)))
    assert answers(stage.read(job)) == answered("one")
    assert run(asked(job, "one")).outcome == "unchanged"
