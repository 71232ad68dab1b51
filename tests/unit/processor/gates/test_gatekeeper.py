"""Gates of slices: what they stop, and what that costs."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.result.errors import SliceError, StorageError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish.published import current_report
from airflow_provider_raydatallm.processor.slice_run import stage_slice
from airflow_provider_raydatallm.processor.storage import documents
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import table_versions
from airflow_provider_raydatallm.processor.store.staged_versions import StagedVersion
from tests.support.in_process import InProcess, answer_numbers, answer_with, changed, job_of, run_in_process
from tests.support.slice_files import metadata

CUT = answer_with(finish_reason="length")


def answer_own_name(batch: pa.Table) -> pa.Table:
    names = [json.loads(text)["messages"][-1]["content"] for text in batch.column("__request").to_pylist()]
    answers = answer_with()(batch)
    return answers.set_column(answers.schema.get_field_index("text"), "text", pa.array(names))


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"name": ["a", "b", "c"]}), tmp_path / "in" / "a.parquet")
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")


def with_gates(job: SliceJob, *gates: dict[str, Any]) -> SliceJob:
    return changed(job, quality__gates=gates)


def files(job: SliceJob) -> list[Path]:
    return [*Path(job.slice_path).glob("*")]


def test_slice_that_does_not_pass_publishes_nothing_and_another_limit_pays_for_no_row(job: SliceJob) -> None:
    cluster = InProcess(answer=CUT)
    with pytest.raises(SliceError, match=r"did not pass: truncated is 1, above max 0\.5") as raised:
        run_in_process(with_gates(job, {"of": "truncated", "max": 0.5}), cluster)
    assert raised.value.kind == "input"
    assert cluster.answered == 3
    assert files(job) == []
    report = run_in_process(with_gates(job, {"of": "truncated", "max": 1}), cluster)
    assert cluster.answered == 3
    assert report.outcome == "published"
    assert files(job)


def test_report_tells_what_each_gate_said(job: SliceJob, caplog: pytest.LogCaptureFixture) -> None:
    gates = [
        {"of": "truncated", "max": 0.5, "then": "warn"},
        {"of": "quarantined", "max": 0},
        {"of": "cached", "max": 0.9},
    ]
    with caplog.at_level(logging.WARNING):
        report = run_in_process(with_gates(job, *gates), InProcess(answer=CUT))
    assert report.gates is not None
    assert [(one.of, one.verdict, one.value) for one in report.gates] == [
        ("truncated", "warned", 1.0), ("quarantined", "passed", 0.0), ("cached", "unknown", None),
    ]  # fmt: skip
    assert "truncated is 1, above max 0.5" in caplog.text
    assert "cached is not known" in caplog.text


def test_slice_is_compared_with_those_before_it_and_no_later_ones(job: SliceJob) -> None:
    def publish(key: str, rows: int, **given: Any) -> Any:
        pq.write_table(pa.table({"name": [str(n) for n in range(rows)]}), f"{job.input_path}/a.parquet")
        return run_in_process(changed(job, slice_key=key, **given))

    for day, rows in [("01", 10), ("02", 12), ("03", 11), ("09", 1000)]:
        publish(f"2026-01-{day}", rows)
    gates = {"quality__gates": [{"of": "rows", "against": 7, "min": 0.5, "max": 2}]}
    with pytest.raises(SliceError, match=r"rows against 3 slice\(s\) is 0\.3636, below min 0\.5"):
        publish("2026-01-04", 4, **gates)
    report = publish("2026-01-05", 12, **gates)
    assert [(one.slices, one.verdict) for one in report.gates] == [(3, "passed")]


def test_version_that_was_staged_before_is_judged_by_the_gates_of_now(job: SliceJob) -> None:
    cluster = InProcess(answer=CUT)
    staged = stage_slice(job, lambda progress: None, cluster)
    assert isinstance(staged, StagedVersion)
    strict = with_gates(job, {"of": "truncated", "max": 0.5})
    for _ in range(2):
        with pytest.raises(SliceError, match="did not pass"):
            run_in_process(strict, cluster)
        with pytest.raises(SliceError, match="did not pass"):
            stage_slice(strict, lambda progress: None, cluster)
        assert files(job) == []
    report = run_in_process(with_gates(job, {"of": "truncated", "max": 0.5, "then": "warn"}), cluster)
    assert report.outcome == "published"
    assert [one.verdict for one in report.gates or ()] == ["warned"]
    assert current_report(job) == report
    assert cluster.answered == 3


@pytest.mark.parametrize(
    "again",
    [{"rerun__on_input_change": "extend"}, {"rerun__retry_quarantined": True}, {"columns": ["name"]}],
)
def test_rows_that_are_taken_over_are_known_to_count(job: SliceJob, again: dict[str, Any]) -> None:
    def answer(batch: pa.Table) -> pa.Table:
        names = answer_own_name(batch)["text"].to_pylist()
        answers = answer_with()(batch)
        reasons, errors = {"a": None, "b": "length", "c": "stop"}, {"c": "broken"}
        for column, of_names in (("finish_reason", reasons), ("error", errors)):
            index = answers.schema.get_field_index(column)
            values = pa.array([of_names.get(name) for name in names], pa.string())
            answers = answers.set_column(index, answers.schema.field(index), values)
        return answers

    cluster = InProcess(answer=answer)
    job = changed(job, quality__max_quarantine=0.5, rerun__on_config_change="recompute")
    run_in_process(job, cluster)
    if "rerun__on_input_change" in again:
        pq.write_table(pa.table({"name": ["d"]}), Path(job.input_path) / "d.parquet")
    with pytest.raises(SliceError, match="did not pass: truncated is 0"):
        run_in_process(changed(with_gates(job, {"of": "truncated", "max": 0.2}), **again), cluster)


@pytest.mark.parametrize("limit", ["max_quarantine", "max_invalid"])
def test_version_that_was_staged_before_may_lose_no_more_rows_than_others(job: SliceJob, limit: str) -> None:
    cluster = InProcess(answer=answer_with(text="no number"))
    loose = changed(job, quality__max_quarantine=1, output_schema={"type": "integer"})
    stage_slice(loose, lambda progress: None, cluster)
    with pytest.raises(SliceError, match=f"more than quality.{limit} 0.5"):
        run_in_process(changed(loose, **{f"quality__{limit}": 0.5}), cluster)
    assert files(job) == []
    assert run_in_process(loose, cluster).outcome == "published"
    assert cluster.answered == 3


def test_row_of_which_nothing_is_known_hides_none_of_the_others(job: SliceJob) -> None:
    """An endpoint that leaves `finish_reason` out, now and then."""

    def answer(batch: pa.Table) -> pa.Table:
        answers = CUT(batch)
        index = answers.schema.get_field_index("finish_reason")
        return answers.set_column(index, answers.schema.field(index), pa.array([None, "length", "length"]))

    cluster = InProcess(answer=answer)
    stage_slice(job, lambda progress: None, cluster)
    strict = with_gates(job, {"of": "truncated", "max": 0.5})
    with pytest.raises(SliceError, match=r"truncated is 0\.6667, above"):  # by what was staged
        run_in_process(strict, cluster)
    with pytest.raises(SliceError, match=r"truncated is 0\.6667, above"):
        run_in_process(changed(strict, rerun__force=True), cluster)
    report = run_in_process(with_gates(job, {"of": "truncated", "max": 0.7, "min": 0.1}), cluster)
    assert [one.verdict for one in report.gates or ()] == ["unknown"]


def test_tries_that_do_not_pass_leave_no_files(job: SliceJob) -> None:
    cluster = InProcess(answer=CUT)
    for limit in (0.5, 0.4):
        with pytest.raises(SliceError, match="did not pass"):
            run_in_process(with_gates(job, {"of": "truncated", "max": limit}), cluster)
        assert not list((metadata(job) / "staged").glob("*"))


def test_labels_that_the_report_does_not_name_count_too(job: SliceJob) -> None:
    """120 labels, of which a report names 50; each slice's most frequent ones are others."""
    labels = [f"label {n:03}" for n in range(120)]
    job = changed(job, choices=labels, labels__exact=True)
    gates = [
        {"of": "label:label 119", "min": 0.003, "max": 0.02},
        {"of": "label:label 000", "against": 3, "max": 0.02},
        {"of": "labels", "against": 3, "max": 0.3},
    ]
    for day in range(1, 5):
        often = [labels[(n + 30 * day) % 120] for n in range(50)]
        pq.write_table(pa.table({"name": labels * 3 + often}), f"{job.input_path}/a.parquet")
        report = run_in_process(
            changed(with_gates(job, *gates), slice_key=f"2026-01-0{day}"), InProcess(answer=answer_own_name)
        )
        assert len(report.labels or ()) == 50
    assert [one.verdict for one in report.gates or ()] == ["passed"] * 3
    strict = with_gates(job, {"of": "label:label 119", "max": 0.001})
    with pytest.raises(SliceError, match=r"label:label 119 is 0\.0"):
        run_in_process(changed(strict, slice_key="2026-01-05"), InProcess(answer=answer_own_name))


def test_lengths_of_answers_are_compared_with_those_of_slices_before(job: SliceJob, tmp_path: Path) -> None:
    cluster = InProcess(answer=answer_own_name)
    gates = [
        {"of": "median:answer", "against": 7, "max": 1.5},
        {"of": "spread:answer", "against": 7, "max": 0.25},
    ]
    job = changed(with_gates(job, *gates), prompt="{name}")
    pq.write_table(pa.table({"name": ["a" * n for n in range(1, 51)]}), tmp_path / "in" / "a.parquet")
    for day in (1, 2, 3, 4):
        report = run_in_process(changed(job, slice_key=f"2026-01-0{day}"), cluster)
    assert [(gate.value, gate.figure) for gate in report.gates or ()] == [(1, 25), (0, None)]
    pq.write_table(pa.table({"name": ["a" * n for n in range(41, 91)]}), tmp_path / "in" / "a.parquet")
    with pytest.raises(
        SliceError, match=r"median:answer .* is 2\.6, above max 1\.5; spread:answer .* above max"
    ):
        run_in_process(changed(job, slice_key="2026-01-05"), cluster)


def test_answers_without_a_text_are_counted(job: SliceJob, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a", "", "", "b"]}), tmp_path / "in" / "a.parquet")
    job = changed(with_gates(job, {"of": "empty:answer", "max": 0.25}), prompt="{name}")
    with pytest.raises(SliceError, match=r"empty:answer is 0\.5, above max 0\.25"):
        run_in_process(job, InProcess(answer=answer_own_name))


def test_held_version_is_staged_again_where_a_gate_looks_at_what_was_not_counted(job: SliceJob) -> None:
    cluster = InProcess()
    held = run_in_process(with_gates(job, {"of": "rows", "then": "hold"}), cluster)
    looks = {"of": "median:answer", "max": 0}
    with pytest.raises(SliceError, match=r"median:answer is \d+, above max 0"):
        run_in_process(with_gates(job, looks), cluster)
    again = run_in_process(with_gates(job, {**looks, "then": "hold"}), cluster)
    assert (again.outcome, again.staged_version != held.staged_version) == ("held", True)
    assert cluster.answered == 3


@pytest.mark.parametrize(
    ("fields", "figure", "why"),
    [
        ({}, "median:text", "'text' is no column of the answers: they have 'answer'"),
        ({"output_mode": "columns", "output_schema": {
            "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]
        }}, "median:ok", "says 'median:ok', and 'ok' is a column of type bool: numbers and texts have one"),
        ({"output_mode": "columns", "output_schema": {
            "type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]
        }}, "empty:n", "a column of type double: a text may be empty"),
    ],
)  # fmt: skip
def test_gate_of_a_column_without_a_median_is_refused_before_a_row_is_answered(
    job: SliceJob, fields: dict[str, Any], figure: str, why: str
) -> None:
    cluster = InProcess()
    gate = {"of": figure, "max": 1}
    with pytest.raises(SliceError, match=why):
        run_in_process(changed(with_gates(job, gate), **fields), cluster)
    assert cluster.answered == 0


def test_label_that_no_answer_has_is_known_to_be_none(job: SliceJob) -> None:
    job = changed(job, choices=["x", "y"], labels__multi=True, engine="vllm")
    cluster = InProcess(answer=partial(answer_numbers, size=2))  # none of which is above 0.5
    stage_slice(job, lambda progress: None, cluster)
    for _ in range(2):  # by what was staged, too
        with pytest.raises(SliceError, match=r"label:x is 0, below min 0\.1"):
            run_in_process(with_gates(job, {"of": "label:x", "min": 0.1}), cluster)
    assert cluster.answered == 3


def test_labels_that_postprocess_made_numbers_have_no_shares_that_are_known(job: SliceJob) -> None:
    gates = [{"of": "top_label", "max": 0.9}, {"of": "label:x", "max": 0.1}]
    made = changed(job, choices=["x", "y"], postprocess=f"{__name__}:as_number")
    assert [one.verdict for one in run_in_process(with_gates(made, *gates)).gates or ()] == ["unknown"] * 2


def as_number(row: dict[str, Any]) -> dict[str, int]:
    return {"answer": len(row["answer"])}


def publish_days(job: SliceJob, days: range) -> None:
    for day in days:
        run_in_process(changed(job, slice_key=f"2026-01-{day:02}"))


def slices_before(
    job: SliceJob, key: str = "2026-01-20", same: str | None = None, **given: Any
) -> int | None:
    gate = {"of": "rows", "against": 5, "max": 9, "same": same, "then": "warn"}
    report = run_in_process(changed(with_gates(job, gate), slice_key=key, **given))
    return (report.gates or ())[0].slices


def test_slice_may_be_compared_with_its_day_of_the_week_only(job: SliceJob) -> None:
    publish_days(job, range(1, 20))
    assert slices_before(job) == 5
    assert slices_before(job, key="2026-01-27", same="weekday") == 3
    assert slices_before(job, key="no date", same="weekday") == 0


@pytest.mark.parametrize(
    "report",
    [
        {"counts": {"succeeded": 3}},
        {"counts": {"planned": None, "succeeded": 3}},
        {"counts": {"planned": 10**400, "succeeded": 3}},
        {"counts": {"planned": 3, "succeeded": 3, "quarantined": -1}},
        {"labels": ["a"]},
        {"labels": {"a": "b"}},
        {"labels": {"a": 0}},
        {"labels": {"a": 10**400}},
    ],
)
def test_no_slice_is_compared_with_what_no_run_counted(job: SliceJob, report: dict[str, Any]) -> None:
    publish_days(job, range(1, 5))
    [commit] = (metadata(changed(job, slice_key="2026-01-02")) / "commits").glob("commit-*.json")
    body = documents.decode(commit.read_bytes())
    commit.write_bytes(documents.encode({**body, "report": {**body["report"], **report}}))
    assert slices_before(job) == 3


def test_slice_is_compared_with_its_own_table(job: SliceJob) -> None:
    def at(folder: str) -> SliceJob:
        return changed(job, output_path=f"{job.output_path}/{folder}")

    publish_days(at("t/sales-{slice}"), range(1, 4))
    assert slices_before(at("t/sales-b-{slice}")) == 0
    assert slices_before(at("t/returns-{slice}")) == 0
    publish_days(at("t/sales-b-{slice}"), range(21, 23))
    assert slices_before(at("t/sales-{slice}"), "2026-01-23") == 3
    # Each slice is a table of its own, and another's are below the same folders.
    publish_days(at("days/{slice}/sales"), range(1, 4))
    publish_days(at("days/{slice}/returns"), range(1, 3))
    assert slices_before(at("days/{slice}/sales")) == 3


def test_slices_are_in_the_order_of_their_dates(job: SliceJob) -> None:
    job = changed(job, source__slice_format="%d.%m.%Y")
    for key in ("30.01.2026", "31.01.2026", "02.02.2026", "01.03.2025", "31.01.2026 EU"):
        run_in_process(changed(job, slice_key=key))
    assert slices_before(job, "01.02.2026") == 3
    assert slices_before(job, "31.01.2026 US") == 1  # no date: by the keys that are none either


def test_number_of_rows_of_a_trial_is_chosen(job: SliceJob) -> None:
    strict = with_gates(job, {"of": "rows", "min": 3}, {"of": "quarantined", "max": 0})
    report = run_in_process(changed(strict, source__max_rows=2))
    assert [(one.of, one.verdict) for one in report.gates or ()] == [("quarantined", "passed")]


def test_store_that_cannot_be_read_lets_no_slice_pass(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(store: Store) -> None:
        raise StorageError("read", store.url, "busy")

    publish_days(job, range(1, 4))
    monkeypatch.setattr(table_versions, "newest_version", fail)
    with pytest.raises(StorageError, match="busy"):
        slices_before(job)
    assert not files(changed(job, slice_key="2026-01-20"))


def test_gate_changes_no_published_slice(job: SliceJob) -> None:
    report = run_in_process(job)
    asks = with_gates(job, {"of": "rows", "min": 100})
    assert fingerprint(asks) == fingerprint(job)
    assert run_in_process(asks).outcome == "unchanged"
    assert report.gates is None
