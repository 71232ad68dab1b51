"""Slices that a gate leaves to a person: what is published, and when, and what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.hold import HOLD_DAYS
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.__main__ import main
from airflow_provider_raydatallm.processor.publish.garbage import find_leftovers, remove_leftovers
from airflow_provider_raydatallm.processor.publish.published import current_report
from airflow_provider_raydatallm.processor.publish.staged_commands import (
    discard_for_people,
    is_known_here,
    publish_approved,
)
from airflow_provider_raydatallm.processor.slice_run import run_slice
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import read_staged
from tests.support.in_process import InProcess, answer_with, changed, job_of, run_in_process

CUT = answer_with(finish_reason="length")
EACH = {"of": "rows", "then": "hold"}
MANY_CUT = {"of": "truncated", "max": 0.5, "then": "hold"}


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"name": ["a", "b", "c"]}), tmp_path / "in" / "a.parquet")
    return changed(job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out"), quality__gates=[EACH])


def files(job: SliceJob) -> list[Path]:
    return [*Path(job.slice_path).glob("*")]


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
