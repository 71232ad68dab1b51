"""Slices that a gate leaves to a person: what is published, and when, and what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.hold import HOLD_DAYS
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.__main__ import main
from airflow_provider_raydatallm.processor.ask_again import ask_again_for_people
from airflow_provider_raydatallm.processor.gates.facts import Facts
from airflow_provider_raydatallm.processor.metrics import progress
from airflow_provider_raydatallm.processor.publish.garbage import find_leftovers, remove_leftovers
from airflow_provider_raydatallm.processor.publish.published import current_report
from airflow_provider_raydatallm.processor.publish.staged_commands import (
    discard_for_people,
    is_known_here,
    publish_approved,
    staged_listing,
)
from airflow_provider_raydatallm.processor.slice_run import run_slice
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import read_staged, staged_names
from airflow_provider_raydatallm.processor.store.versions import newest_version
from tests.support.in_process import InProcess, answer_fixed, answer_with, changed, job_of, run_in_process
from tests.support.waiting import wait_for

CUT = answer_with(finish_reason="length")
EACH = {"of": "rows", "then": "hold"}
MANY_CUT = {"of": "truncated", "max": 0.5, "then": "hold"}


def share(rows: ds.Dataset) -> float:
    return SHARE["now"]


#: What the check says, once its author has mended it.
SHARE = {"now": 95.0}


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"name": ["a", "b", "c"]}), tmp_path / "in" / "a.parquet")
    return changed(job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out"), quality__gates=[EACH])


def files(job: SliceJob) -> list[Path]:
    return [*Path(job.slice_path).glob("*")]


def test_what_a_person_was_shown_last_is_what_the_version_says(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what later slices are compared with."""
    cluster = InProcess(answer=CUT)
    own = {"of": f"{__name__}:share", "max": 0.5, "then": "hold"}
    checked = changed(job, quality__gates=[own])
    first = run_in_process(checked, cluster)
    monkeypatch.setitem(SHARE, "now", 0.6)
    checked = changed(job, quality__gates=[own, MANY_CUT])
    shown = run_in_process(checked, cluster)
    assert (shown.staged_version, cluster.answered) == (first.staged_version, 3)
    said = [f"{__name__}:share is 0.6, above max 0.5", "truncated is 1, above max 0.5"]
    assert list(map(str, shown.gates or ())) == said
    folders = SliceFolders.open(job.paths)
    [listed] = staged_listing(folders)
    assert [gate["of"] for gate in listed["held_by"]] == [own["of"], "truncated"]
    assert shown.staged_version is not None
    assert publish_approved(checked, shown.staged_version).gates == shown.gates
    version = newest_version(folders.metadata)
    assert version is not None
    assert Facts.of_commit(version.body).checks[f"{__name__}:share"] == 0.6
    assert folders.metadata.names("checkpoint") == []


def test_damaged_verdicts_are_told_of_and_a_run_judges_anew(job: SliceJob) -> None:
    cluster = InProcess(answer=CUT)
    run_in_process(job, cluster)
    waits = changed(job, quality__gates=[MANY_CUT])
    name = run_in_process(waits, cluster).staged_version
    assert name is not None
    [verdicts] = Path(job.paths.metadata).glob("checkpoint/*/gates-*.json")
    verdicts.write_text(verdicts.read_text().replace("truncated", "rows"))
    with pytest.raises(SliceError, match=r"cannot be published: .*gates-.* is damaged"):
        publish_approved(waits, name)
    again = run_in_process(waits, cluster)
    assert (again.outcome, cluster.answered) == ("held", 3)
    assert publish_approved(waits, again.staged_version or "").gates == again.gates


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_held_slice_whose_files_are_lost_is_staged_anew_whatever_looks_at_them(
    job: SliceJob, damage: str
) -> None:
    cluster = InProcess()
    checked = changed(job, quality__gates=[EACH, {"of": "sql:SELECT count(*) FROM answers", "min": 1}])
    first = run_in_process(checked, cluster)
    for file in Path(job.paths.staging, "staged", first.staged_version or "").iterdir():
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:100])
    again = run_in_process(checked, cluster)
    assert (again.outcome, again.staged_version != first.staged_version) == ("held", True)
    assert cluster.answered == 3


def test_retry_asks_rows_in_quarantine_of_a_slice_that_waits_again(job: SliceJob) -> None:
    cluster = InProcess()
    lossy = changed(job, quality__max_quarantine=1, prompt="fail {name}")
    first = run_in_process(lossy, cluster)
    assert (first.outcome, first.counts.quarantined) == ("held", 3)
    cluster.answer = answer_fixed
    retried = run_in_process(changed(lossy, rerun__retry_quarantined=True), cluster)
    assert (retried.outcome, retried.counts.quarantined, cluster.answered) == ("held", 0, 6)
    assert run_in_process(changed(lossy, rerun__retry_quarantined=True)).staged_version == (
        retried.staged_version
    )
    assert publish_approved(lossy, retried.staged_version or "").counts.succeeded == 3


def test_force_answers_what_a_person_rejected_again(job: SliceJob) -> None:
    """Once, and then waits for what the gates say of these answers."""
    cluster = InProcess(batch=1)
    forced = changed(job, rerun__force=True, quality__repeat=2)
    run_in_process(forced, cluster)
    discard_for_people(job.address, None)
    answered = cluster.answered

    def die(batch: pa.Table) -> None:
        if cluster.answered == answered + 1:
            raise KeyboardInterrupt

    cluster.before_batch = die
    with pytest.raises(KeyboardInterrupt):
        run_in_process(forced, cluster)
    cluster.before_batch = lambda batch: None
    report = run_in_process(forced, cluster)
    assert cluster.answered == 2 * answered
    assert [gate.of for gate in report.gates or ()] == ["rows"]
    assert run_in_process(forced, cluster).staged_version == report.staged_version
    assert cluster.answered == 2 * answered


def test_force_publishes_no_answers_that_a_person_rejected_where_they_were_staged_before(
    job: SliceJob,
) -> None:
    cluster = InProcess()
    forced = changed(job, rerun__force=True)
    first = run_in_process(forced, cluster)
    passes = {"of": "rows", "min": 1, "then": "hold"}

    def die() -> None:
        raise KeyboardInterrupt

    more = changed(forced, publish__details=["attempts"], quality__gates=[passes])
    with pytest.raises(KeyboardInterrupt):
        run_slice(more, lambda progress: None, cluster, before_commit=die)
    discard_for_people(job.address, first.staged_version)
    assert run_in_process(more, cluster).outcome == "published"
    assert cluster.answered == 6


def test_held_slice_is_published_by_its_approval_which_answers_nothing(job: SliceJob) -> None:
    cluster = InProcess()
    report = run_in_process(job, cluster)
    assert (report.outcome, report.published_version) == ("held", None)
    assert [(gate.of, gate.verdict, gate.value) for gate in report.gates or ()] == [("rows", "held", 3)]
    assert files(job) == []
    assert current_report(job) is None
    name = report.staged_version
    assert name is not None
    assert is_known_here(job, name)
    assert (staged := read_staged(SliceFolders.open(job.paths), name)) is not None
    assert staged.keep_days == HOLD_DAYS
    approved = publish_approved(job, name)
    assert (approved.outcome, approved.published_version, approved.counts.succeeded) == ("published", 1, 3)
    assert publish_approved(job, name).published_version == 1  # by whom it took longer
    assert files(job)
    assert cluster.answered == 3
    assert run_in_process(job, cluster).outcome == "unchanged"


@pytest.mark.parametrize("gates", [[MANY_CUT], [{"of": "rows", "against": 7, "max": 2, "then": "hold"}]])
def test_gate_holds_a_slice_by_its_figure_or_where_it_knows_none(job: SliceJob, gates: Any) -> None:
    report = run_in_process(changed(job, quality__gates=gates), InProcess(answer=CUT))
    assert report.outcome == "held"
    assert files(job) == []


def test_gate_that_holds_lets_pass_what_is_within_its_limit(job: SliceJob) -> None:
    report = run_in_process(
        changed(job, quality__gates=[MANY_CUT]), InProcess(answer=answer_with(finish_reason="stop"))
    )
    assert (report.outcome, report.published_version) == ("published", 1)


def test_gate_that_fails_stops_what_another_would_hold(job: SliceJob) -> None:
    gates = [EACH, {**MANY_CUT, "then": "fail"}]
    with pytest.raises(SliceError, match="did not pass"):
        run_in_process(changed(job, quality__gates=gates), InProcess(answer=CUT))
    assert files(job) == []


def test_later_run_meets_the_same_hold_and_publishes_it_once_its_gates_let_it(job: SliceJob) -> None:
    cluster = InProcess()
    first, second = (run_in_process(job, cluster) for _ in range(2))
    assert second.outcome == "held"
    assert second.staged_version == first.staged_version
    report = run_in_process(changed(job, quality__gates=[]), cluster)
    assert (report.outcome, cluster.answered) == ("published", 3)


def test_version_that_a_run_staged_is_held_when_its_gates_say_so_by_now(job: SliceJob) -> None:
    """The run before died between stage and commit."""
    cluster = InProcess()

    def die() -> None:
        raise SystemExit(1)

    with pytest.raises(SystemExit):
        run_slice(changed(job, quality__gates=[]), lambda progress: None, cluster, before_commit=die)
    report = run_in_process(job, cluster)
    assert (report.outcome, cluster.answered) == ("held", 3)
    assert files(job) == []
    staged = read_staged(SliceFolders.open(job.paths), str(report.staged_version))
    assert staged is not None
    assert staged.is_held  # `gc` leaves it
    assert publish_approved(job, str(report.staged_version)).published_version == 1


def test_rejected_slice_keeps_its_rows_and_is_asked_about_anew(job: SliceJob) -> None:
    cluster = InProcess()
    name = str(run_in_process(job, cluster).staged_version)
    discard_for_people(job.address, name)
    assert not is_known_here(job, name)
    with pytest.raises(SliceError, match="no staged version"):
        publish_approved(job, name)
    again = run_in_process(job, cluster)
    assert (again.outcome, cluster.answered) == ("held", 3)
    assert again.staged_version != name


def test_rejected_answers_are_left_to_people_whatever_else_the_gates_say_by_now(job: SliceJob) -> None:
    """Others may have been published meanwhile, with which a gate compares."""
    cluster = InProcess(answer=CUT)
    strict = changed(job, quality__gates=[MANY_CUT])
    discard_for_people(job.address, str(run_in_process(strict, cluster).staged_version))
    lenient = changed(job, quality__gates=[{**MANY_CUT, "max": 1}])
    for report in (run_in_process(lenient, cluster) for _ in range(2)):  # staged anew, and taken up
        assert report.outcome == "held"
        assert list(map(str, report.gates or ())) == ["truncated is 1", "rejections is 1, above max 0"]
    discard_for_people(job.address, None)
    held = run_in_process(lenient, cluster)
    assert [gate.value for gate in held.gates or () if gate.of == "rejections"] == [2]
    assert publish_approved(lenient, str(held.staged_version)).outcome == "published"
    assert cluster.answered == 3
    assert run_in_process(lenient, cluster).outcome == "unchanged"


@pytest.mark.parametrize("has_all", [True, False])
def test_rejection_is_settled_once_all_of_its_rows_are_published(job: SliceJob, has_all: bool) -> None:
    """A person approved them then; not where what was approved lacks some of them."""
    cluster = InProcess(answer=CUT)
    strict = changed(job, quality__gates=[MANY_CUT], rerun="extend")
    file = Path(job.input_path) / "b.parquet"
    if not has_all:
        pq.write_table(pa.table({"name": ["d"]}), file)
    discard_for_people(job.address, str(run_in_process(strict, cluster).staged_version))
    if has_all:
        pq.write_table(pa.table({"name": ["d"]}), file)
    else:
        file.rename(job.input_path.rstrip("/") + "-b.parquet")
    held = run_in_process(strict, cluster)
    assert [gate.value for gate in held.gates or () if gate.of == "rejections"] == [1]
    publish_approved(strict, str(held.staged_version))
    if has_all:
        pq.write_table(pa.table({"name": ["e"]}), Path(job.input_path) / "c.parquet")
    else:
        Path(job.input_path.rstrip("/") + "-b.parquet").rename(file)
    report = run_in_process(changed(strict, quality__gates=[{**MANY_CUT, "max": 1}]), cluster)
    assert report.outcome == ("published" if has_all else "held")
    assert cluster.answered == (5 if has_all else 4)


def test_answers_that_a_person_rejects_while_a_run_stages_them_are_left_to_people(
    job: SliceJob, tmp_path: Path
) -> None:
    """As those of fewer files: more rows let the gate pass."""
    cluster = InProcess(answer=CUT)
    most = changed(job, quality__gates=[{"of": "rows", "min": 4, "then": "hold"}], rerun="extend")
    name = str(run_in_process(most, cluster).staged_version)
    pq.write_table(pa.table({"name": ["d"]}), Path(job.input_path) / "b.parquet")

    def reject() -> None:
        if name in staged_names(SliceFolders.open(job.paths).metadata):
            discard_for_people(job.address, name)

    report = run_slice(most, lambda progress: None, cluster, before_commit=reject)
    assert (report.outcome, cluster.answered, files(job)) == ("held", 4, [])
    assert [str(gate) for gate in report.gates or ()][1:] == ["rejections is 1, above max 0"]


@pytest.mark.parametrize(("condition", "outcome", "asked"), [("", "held", 1), ("name = 'a'", "published", 2)])
def test_decision_that_comes_while_a_retry_answers_counts(
    job: SliceJob, condition: str, outcome: str, asked: int
) -> None:
    """Of the version whose rows in quarantine another person asks again."""
    lossy = changed(
        job, quality__gates=[{"of": "quarantined", "max": 0, "then": "hold"}], quality__max_quarantine=1
    )
    pq.write_table(pa.table({"name": ["a", "b"]}), Path(job.input_path) / "a.parquet")
    pq.write_table(pa.table({"name": ["fail c"]}), Path(job.input_path) / "c.parquet")
    name = str(run_in_process(lossy, InProcess()).staged_version)

    def decide(batch: pa.Table) -> None:
        if name in staged_names(SliceFolders.open(job.paths).metadata):
            if condition:
                ask_again_for_people(job.address, name, condition)
            else:
                discard_for_people(job.address, name)

    cluster = InProcess(answer=answer_fixed, before_batch=decide)
    report = run_in_process(changed(lossy, rerun__retry_quarantined=True), cluster)
    assert (report.outcome, cluster.answered) == (outcome, asked)
    assert staged_names(SliceFolders.open(job.paths).metadata) != [name]


def test_rejected_answers_are_published_once_the_author_leaves_no_slice_to_people(job: SliceJob) -> None:
    cluster = InProcess(answer=CUT)
    discard_for_people(job.address, str(run_in_process(job, cluster).staged_version))
    warned = changed(job, quality__gates=[{**MANY_CUT, "then": "warn"}])
    assert run_in_process(warned, cluster).outcome == "published"


def test_new_answers_are_not_those_that_were_rejected(job: SliceJob) -> None:
    strict = changed(job, quality__gates=[MANY_CUT])
    discard_for_people(job.address, str(run_in_process(strict, InProcess(answer=CUT)).staged_version))
    other = changed(strict, prompt="Better: {name}")
    finished = InProcess(answer=answer_with(finish_reason="stop"))
    assert run_in_process(other, finished).outcome == "published"


def test_approval_is_refused_once_another_version_is_published(job: SliceJob) -> None:
    name = str(run_in_process(job, InProcess()).staged_version)
    other = changed(job, quality__gates=[], prompt="Other {name}")
    assert run_in_process(other, InProcess()).published_version == 1
    with pytest.raises(SliceError, match="another version was published since"):
        publish_approved(job, name)
    assert current_report(other) is not None


def test_gc_leaves_what_waits_for_a_person(job: SliceJob) -> None:
    name = str(run_in_process(job, InProcess()).staged_version)
    for found in find_leftovers(job.address, 0):
        remove_leftovers(found, 0)
    assert publish_approved(job, name).published_version == 1


@pytest.mark.parametrize(("words", "shown"), [([], True), (["--reject"], False)])
def test_job_passes_a_decision_on(job: SliceJob, tmp_path: Path, words: list[str], shown: bool) -> None:
    name = str(run_in_process(job, InProcess()).staged_version)
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    assert main(["decide", f"{tmp_path}/spec.json", "--staged", name, *words]) == 0
    assert (current_report(job) is not None) == shown
    assert is_known_here(job, name) == shown


def test_object_store_that_lacks_a_version_is_no_other_one(job: SliceJob, s3_store: Store) -> None:
    far = changed(job, output_path=f"{s3_store.url}/out")
    assert is_known_here(far, "000001-00000000") is None  # it has nothing of the slice
    name = str(run_in_process(far, InProcess()).staged_version)
    assert is_known_here(far, name) is True
    assert is_known_here(far, "000001-00000000") is False
    assert is_known_here(job, "000001-00000000") is None  # perhaps on the cluster's disk


def test_held_version_is_staged_anew_once_the_table_has_another_type(job: SliceJob, tmp_path: Path) -> None:
    """Else its approval would fail each time that somebody was asked."""
    rows = {"name": ["a", "b", "c"], "n": [None, None, None]}
    pq.write_table(pa.table(rows), Path(job.input_path) / "a.parquet")
    (tmp_path / "others").mkdir()
    pq.write_table(pa.table({"name": ["d"], "n": [1]}), tmp_path / "others" / "a.parquet")
    cluster = InProcess()
    name = str(run_in_process(job, cluster).staged_version)
    other = changed(job, slice_key="2026-02-01", input_path=f"{tmp_path}/others/", quality__gates=[])
    assert run_in_process(other).outcome == "published"
    with pytest.raises(SliceError, match="other columns meanwhile"):
        publish_approved(job, name)
    again = run_in_process(job, cluster)
    assert (again.outcome, cluster.answered) == ("held", 3)
    assert publish_approved(job, str(again.staged_version)).outcome == "published"


def test_slice_that_waits_shows_no_run_that_is_at_work(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute later it would look killed."""
    monkeypatch.setattr(progress, "_EXPORT_SECONDS", 0.01)
    written = Path(job.paths.metadata, "progress.json")
    cluster = InProcess(before_batch=lambda batch: wait_for(written.exists))
    assert run_in_process(job, cluster).outcome == "held"
    assert not written.exists()
