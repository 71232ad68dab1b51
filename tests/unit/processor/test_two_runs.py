"""Runs that meet: whoever finds its number taken decides again what is to be done, and no row is paid twice
for one question."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor import version_build
from airflow_provider_raydatallm.processor.publish import restore, version_numbers
from airflow_provider_raydatallm.processor.ray_runtime.own_task import CONFIG
from airflow_provider_raydatallm.processor.store import lease, versions
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from tests.support.in_process import InProcess, answer_fixed, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import (
    answers,
    checkpoint_folders,
    files_below,
    folders_of,
    metadata,
    newest,
    staged_marker,
)

ROWS = 40


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(ROWS)]}), tmp_path / "in.parquet")
    return job_of(
        input_path=f"{tmp_path}/in.parquet",
        output_path=f"{tmp_path}/out",
        rerun__on_config_change="recompute",
    )


def asked(job: SliceJob, text: str) -> SliceJob:
    return changed(job, prompt=f"{{name}} {text}")


class Killed(Exception): ...


def meets(when: int, other: Callable[[], Any]) -> InProcess:
    """A cluster in which something happens once, when so many rows are answered."""

    def meet(batch: pa.Table) -> None:
        if cluster.answered == when:
            cluster.before_batch = lambda batch: None
            other()

    cluster = InProcess(before_batch=meet)
    return cluster


def before_commit(monkeypatch: pytest.MonkeyPatch, other: Callable[[], Any]) -> None:
    """Has something happen once, when the next run has staged its files and is about to commit."""
    commit = version_build.commit

    def late(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(version_build, "commit", commit)
        other()
        return commit(*args, **kwargs)

    monkeypatch.setattr(version_build, "commit", late)


@pytest.fixture
def unleased(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a holder is taken for dead: a second run works beside it, and the first does not notice."""
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.3)
    monkeypatch.setattr(lease, "BEAT_SECONDS", 600.0)
    monkeypatch.setattr(lease.Lease, "check", lambda self: None)


def test_number_that_became_void_at_the_commit_is_followed_by_another(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_commit(monkeypatch, lambda: versions.void(folders_of(job).metadata, 1, "a test"))
    cluster = InProcess()
    report = run(job, cluster)
    assert (report.outcome, report.published_version, cluster.answered) == ("published", 2, ROWS)
    assert newest(job).to_report(job.slice_path, "published") == report
    assert answers(job) == [f"n{i}" for i in range(ROWS)]
    assert files_below(metadata(job) / "staged") == {staged_marker(job)}


@pytest.mark.usefixtures("unleased")
def test_run_whose_question_another_published_first_is_attached_to_it(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[Any] = []
    second = InProcess()
    before_commit(monkeypatch, lambda: others.append(run(job, second)))
    first = InProcess()
    report = run(job, first)
    assert (first.answered, second.answered) == (ROWS, 0)  # the fragments were all there
    assert others[0].outcome == "published"
    assert report == others[0].model_copy(update={"outcome": "attached"})
    assert newest(job).number == 1
    assert not (metadata(job) / "progress.json").exists()
    assert answers(job) == [f"n{i}" for i in range(ROWS)]


@pytest.mark.slow
@pytest.mark.usefixtures("unleased")
def test_run_that_meets_another_question_at_its_commit_publishes_after_it_and_pays_nothing_twice(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = InProcess()
    before_commit(monkeypatch, lambda: run(asked(job, "new"), second))
    first = InProcess()
    report = run(job, first)
    assert (report.published_version, first.answered, second.answered) == (2, ROWS, ROWS)
    assert newest(job).body["base"] == 1
    assert answers(job) == [f"n{i}" for i in range(ROWS)]
    assert checkpoint_folders(job) == []


@pytest.mark.slow
@pytest.mark.usefixtures("unleased")
@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_decision_is_made_again_by_the_policies(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    before_commit(monkeypatch, lambda: run(asked(job, "new")))
    mine = changed(job, rerun__on_config_change=policy)
    if policy == "recompute":
        assert run(mine).published_version == 2
        return
    with pytest.raises(SliceError, match="is published with another configuration"):
        run(mine)
    assert (newest(job).number, answers(job)[0]) == (1, "n0 new")


@pytest.mark.slow
@pytest.mark.usefixtures("unleased")
def test_run_that_meets_a_new_version_half_way_answers_no_row_twice(job: SliceJob) -> None:
    second = InProcess()
    first = meets(20, lambda: run(asked(job, "new"), second))
    report = run(job, first)
    assert (report.published_version, first.answered, second.answered) == (2, ROWS, ROWS)
    assert answers(job) == [f"n{i}" for i in range(ROWS)]


def kill_at(rows: int) -> InProcess:
    def die() -> None:
        raise Killed

    return meets(rows, die)


def test_half_finished_question_waits_while_others_are_published(job: SliceJob) -> None:
    first = kill_at(20)
    with pytest.raises(Killed):
        run(job, first)
    run(asked(job, "other"))
    [left] = checkpoint_folders(job)
    again = kill_at(10)
    with pytest.raises(Killed):
        run(asked(job, "third"), again)
    assert len(checkpoint_folders(job)) == 2
    rest = InProcess()
    report = run(job, rest)
    assert (report.published_version, first.answered + rest.answered) == (2, ROWS)
    assert report.counts.resumed == 20
    assert answers(job) == [f"n{i}" for i in range(ROWS)]
    assert left not in checkpoint_folders(job)
    assert len(checkpoint_folders(job)) == 1
    rest = InProcess()
    run(asked(job, "third"), rest)
    assert again.answered + rest.answered == ROWS
    assert checkpoint_folders(job) == []


def test_question_that_is_asked_again_after_another_one_is_paid_again(job: SliceJob) -> None:
    """Its rows were published and replaced: they are the older version's, not the question's for ever."""
    run(job)
    run(asked(job, "other"))
    cluster = InProcess()
    assert run(job, cluster).published_version == 3
    assert cluster.answered == ROWS


def test_forced_run_that_died_resumes_and_the_next_forced_one_pays_anew(job: SliceJob) -> None:
    run(job)
    forced = changed(job, rerun__force=True)
    first = kill_at(20)
    with pytest.raises(Killed):
        run(forced, first)
    rest = InProcess()
    assert run(forced, rest).published_version == 2
    assert first.answered + rest.answered == ROWS
    third = InProcess()
    assert run(forced, third).published_version == 3
    assert third.answered == ROWS


def test_half_finished_forced_run_counts_for_the_version_that_it_replaces_only(job: SliceJob) -> None:
    run(job)
    with pytest.raises(Killed):
        run(changed(job, rerun__force=True), kill_at(20))
    assert len(checkpoint_folders(job)) == 1
    run(asked(job, "new"))
    assert checkpoint_folders(job) == []


def test_version_that_appears_while_a_run_decides_is_followed(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job)
    look = version_numbers._highest_shown

    def late(folders: SliceFolders) -> tuple[int, str]:
        monkeypatch.setattr(version_numbers, "_highest_shown", look)
        run(asked(job, "new"))
        return look(folders)

    monkeypatch.setattr(version_numbers, "_highest_shown", late)
    assert run(asked(job, "newer")).published_version == 3
    assert newest(job).body["base"] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("unleased")
def test_two_forced_runs_that_meet_publish_one_version_each_or_attach(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job)
    forced = changed(job, rerun__force=True)
    second = InProcess()
    before_commit(monkeypatch, lambda: run(forced, second))
    first = InProcess()
    report = run(forced, first)
    assert (report.outcome, report.published_version) == ("attached", 2)
    assert (first.answered, second.answered) == (ROWS, 0)


@pytest.fixture
def growing(job: SliceJob, tmp_path: Path) -> SliceJob:
    """A job whose input is a folder, of one file until now."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in.parquet").rename(tmp_path / "in" / "0.parquet")
    return changed(job, input_path=f"{tmp_path}/in/", rerun__on_input_change="extend")


@pytest.mark.usefixtures("unleased")
def test_extension_whose_base_is_replaced_half_way_pays_no_row_twice(
    growing: SliceJob, tmp_path: Path
) -> None:
    run(growing)
    other_answers = InProcess(answer=partial(answer_fixed, bad='"n', good='"m'))
    run(changed(growing, rerun__force=True), other_answers)
    pq.write_table(pa.table({"name": [f"x{i}" for i in range(20)]}), tmp_path / "in" / "1.parquet")
    cluster = meets(10, lambda: restore.restore_version(growing.address, 1))
    report = run(growing, cluster)
    assert (report.published_version, newest(growing).body["base"], cluster.answered) == (4, 3, 20)
    assert answers(growing) == [f"n{i}" for i in range(ROWS)] + [f"x{i}" for i in range(20)]
    assert checkpoint_folders(growing) == []


@pytest.mark.parametrize("is_gone", [True, False])
def test_file_that_changed_after_an_extension_died_is_an_error(
    growing: SliceJob, tmp_path: Path, is_gone: bool
) -> None:
    run(growing)
    pq.write_table(pa.table({"name": [f"x{i}" for i in range(20)]}), tmp_path / "in" / "1.parquet")
    with pytest.raises(Killed):
        run(growing, kill_at(10))
    old = tmp_path / "in" / "0.parquet"
    old.unlink()
    if not is_gone:
        pq.write_table(pa.table({"name": ["other"]}), old)
    with pytest.raises(SliceError, match=r"only adds files, but .*0\.parquet changed, is gone"):
        run(growing)
    assert len(answers(growing)) == ROWS


def test_rows_taken_over_by_an_extension_that_died_are_not_the_next_versions(
    growing: SliceJob, tmp_path: Path
) -> None:
    run(growing)
    pq.write_table(pa.table({"name": [f"x{i}" for i in range(20)]}), tmp_path / "in" / "1.parquet")
    died = kill_at(10)
    with pytest.raises(Killed):
        run(growing, died)
    run(asked(growing, "other"))
    cluster = InProcess(answer=partial(answer_fixed, bad='"n', good='"m'))
    assert run(growing, cluster).published_version == 3
    assert (died.answered, cluster.answered) == (10, ROWS + 10)
    assert answers(growing) == [f"m{i}" for i in range(ROWS)] + [f"x{i}" for i in range(20)]


@pytest.mark.slow
@pytest.mark.usefixtures("unleased")
def test_extension_that_meets_another_version_copies_that_ones_rows(
    growing: SliceJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = growing
    run(job)
    pq.write_table(pa.table({"name": ["more"]}), tmp_path / "in" / "1.parquet")
    forced = changed(job, rerun__force=True)
    before_commit(monkeypatch, lambda: run(forced, InProcess()))
    cluster = InProcess()
    report = run(job, cluster)
    assert (report.outcome, cluster.answered) == ("attached", 1)
    assert answers(job)[-1] == "more"
    assert newest(job).number == 2


@pytest.fixture
def of_task(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes this process a job of a task."""

    def be(name: str) -> None:
        metadata = {"dag_id": name, "task_id": "infer", "job_submission_id": "j", "run_id": "r"}
        monkeypatch.setenv(CONFIG, json.dumps({"metadata": metadata}))

    return be


def test_slice_of_another_configuration_says_what_changed_and_whose_it_is(
    job: SliceJob, of_task: Callable[[str], None]
) -> None:
    of_task("reviews")
    run(job)
    kept = changed(job, rerun__on_config_change="fail")
    with pytest.raises(SliceError) as own:
        run(asked(kept, "new"))
    assert own.value.failure.sentence == (
        "slice '2026-01-31' is published with another configuration: prompt was {name} and is {name} new"
    )
    assert own.value.failure.advice[0] == "Undo the change"
    of_task("copied")
    with pytest.raises(SliceError, match="the table of task 'infer' of DAG 'reviews'"):
        run(asked(kept, "new"))
    run(asked(job, "new"))
    of_task("reviews")
    with pytest.raises(SliceError, match="published by task 'infer' of DAG 'copied' with another") as others:
        run(kept)
    assert others.value.failure.advice[0] == "Give this task an output_path of its own"


def test_copied_task_publishes_no_slice_in_the_first_ones_table(
    job: SliceJob, of_task: Callable[[str], None]
) -> None:
    of_task("reviews")
    run(job)
    of_task("copied")
    copied = changed(asked(job, "new"), slice_key="2026-02-01", rerun__on_config_change="fail")
    cluster = InProcess()
    with pytest.raises(SliceError) as refused:
        run(copied, cluster)
    assert cluster.answered == 0
    assert refused.value.failure.sentence == (
        f"{job.table_paths.table} is the table of task 'infer' of DAG 'reviews', which asks something else: "
        "prompt was {name} and is {name} new"
    )
    assert refused.value.failure.advice == (
        "Give task 'infer' of DAG 'copied' an output_path of its own",
        "If it takes that table over, set rerun.on_config_change='recompute' for its first run",
    )
    assert not Path(copied.paths.metadata).exists(), "the owner's `slices` shows no failure of it"
    assert run(changed(copied, rerun__on_config_change="recompute")).outcome == "published"
    assert run(changed(copied, slice_key="2026-02-02")).outcome == "published", "now the table names it"


@pytest.mark.parametrize("is_damaged", [False, True])
def test_renamed_task_goes_on_in_its_table(
    job: SliceJob, of_task: Callable[[str], None], is_damaged: bool
) -> None:
    kept = changed(job, rerun__on_config_change="fail")
    of_task("reviews")
    run(kept)
    if is_damaged:  # another slice, which is for that one's runs to tell
        [commit] = Path(job.paths.metadata).glob("commits/commit-*.json")
        commit.write_text("{")
    of_task("renamed")
    assert run(changed(kept, slice_key="2026-02-01")).outcome == "published"
