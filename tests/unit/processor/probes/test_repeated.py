"""Repeated rows: random ones of the slice, asked once more."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.probes.sample import all_but, by_unit, sample_rows
from airflow_provider_raydatallm.processor.run_plan import as_json, as_table, plan_run
from airflow_provider_raydatallm.processor.slice_run import inspect_slice
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from tests.support import stub_engine
from tests.support.in_process import (
    InProcess,
    answer_instead,
    answer_numbers,
    changed,
    job_of,
    run_in_process,
)
from tests.support.slice_files import checkpoint_folders

NAMES = [f"name {n}" for n in range(40)]


class Forgetful(InProcess):
    """Has another answer when it is asked again, to requests with such a text. Notes the requests."""

    def __init__(self, other: str = "", fails: str = "-", **given: Any) -> None:
        super().__init__(answer=self._answer, **given)
        self.other, self.fails = other, fails
        self.requests: list[dict[str, Any]] = []

    @property
    def texts(self) -> list[str]:
        return [request["messages"][0]["content"] for request in self.requests]

    def _answer(self, batch: pa.Table) -> pa.Table:
        requests = [json.loads(text) for text in batch["__request"].to_pylist()]
        self.requests += copy.deepcopy(requests)
        for request in requests:
            message = request["messages"][0]
            if "again" in request and self.other and message["content"].endswith(self.other):
                message["content"] += " again"
            if "again" in request and message["content"].endswith(self.fails):
                message["content"] = "fails"
        return answer_instead(batch, requests)


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    for name, some in (("a", NAMES[:25]), ("b", NAMES[25:])):
        pq.write_table(pa.table({"name": some}), tmp_path / "in" / f"{name}.parquet", row_group_size=9)
    return job_of(
        input_path=f"{tmp_path}/in/",
        output_path=f"{tmp_path}/out",
        quality={"max_quarantine": 0, "repeat": 8},
    )


def test_so_many_rows_are_asked_again_and_in_no_figure_but_their_own(job: SliceJob) -> None:
    plain = run_in_process(changed(job, quality__repeat=None, output_path=f"{job.output_path}-2"))
    cluster = Forgetful()
    assert as_json(plan_run(job, None))["repeat"] == {"rows": 8, "to_answer": 8}
    assert "repeat rows" in as_table(plan_run(job, None))
    report = run_in_process(job, cluster)
    assert (report.counts, report.tokens) == (plain.counts, plain.tokens)
    assert cluster.texts[:40] == NAMES
    again = cluster.texts[40:]
    assert (len(again), len(set(again)), set(again) <= set(NAMES)) == (8, 8, True)
    assert ["again" in request for request in cluster.requests] == [False] * 40 + [True] * 8
    repeat = report.repeat
    assert repeat is not None
    assert (repeat.rows, repeat.differing, repeat.share) == (8, 0, 0)
    assert (round(repeat.low, 4), round(repeat.high, 4)) == (0, 0.3244)
    assert (repeat.tokens.input, repeat.tokens.output) == (8 * 7, 8 * 3)
    assert checkpoint_folders(job) == []
    table = pq.read_table(job.slice_path, partitioning=None)
    assert table["answer"].to_pylist() == NAMES
    assert run_in_process(job, cluster).outcome == "unchanged"


def test_other_answers_and_failures_are_counted_by_rows(job: SliceJob) -> None:
    everything = changed(job, quality__repeat=40)
    report = run_in_process(everything, cluster := Forgetful(other="7", fails="4"))
    expected = sum(name.endswith(("7", "4")) for name in NAMES)
    assert sorted(cluster.texts[40:]) == sorted(NAMES)
    assert report.repeat is not None
    assert (report.repeat.rows, report.repeat.differing) == (40, expected)
    assert report.counts.quarantined == 0
    assert str(report.repeat).startswith("8 of 40 rows that were asked twice have another answer: 20.0% (")


@pytest.mark.parametrize(("repeat", "rows"), [(0.01, 1), (0.5, 20), (2, 2), (1000, 40), (0.999, 40)])
def test_share_or_number(job: SliceJob, repeat: float, rows: int) -> None:
    report = run_in_process(changed(job, quality__repeat=repeat))
    assert report.repeat is not None
    assert report.repeat.rows == rows


def test_rows_are_the_same_in_each_run_and_asked_once(job: SliceJob) -> None:
    cluster = Forgetful()
    stopping = changed(job, quality__gates=[{"of": "rows", "max": 1}])
    with pytest.raises(SliceError, match="did not pass"):
        run_in_process(stopping, cluster)
    cluster.requests.clear()
    assert as_json(plan_run(job, None))["repeat"] == {"rows": 8, "to_answer": 0}
    with pytest.raises(SliceError, match="did not pass"):
        run_in_process(changed(stopping, quality__repeat=9), cluster)
    assert len(cluster.texts) == 9  # of another number all are asked
    cluster.requests.clear()
    assert run_in_process(job, cluster).repeat is not None
    assert cluster.texts == []


def test_run_after_one_that_was_killed_asks_what_is_missing(job: SliceJob) -> None:
    def die(batch: pa.Table) -> None:
        if '"again"' in batch["__request"][0].as_py() and len(cluster.texts) > 42:
            raise KeyboardInterrupt

    cluster = Forgetful(batch=3, before_batch=die)
    with pytest.raises(KeyboardInterrupt):
        run_in_process(job, cluster)
    asked = len(cluster.texts) - 40
    later = Forgetful()
    report = run_in_process(job, later)
    assert 0 < asked < 8
    assert len(later.texts) == 8 - asked
    assert report.repeat is not None
    assert report.repeat.rows == 8


def test_gate_of_repeated_rows(job: SliceJob) -> None:
    gated = changed(job, quality__repeat=40, quality__gates=[{"of": "repeat", "max": 0.05}])
    with pytest.raises(SliceError, match=r"repeat is 0\.1, above max 0\.05"):
        run_in_process(gated, Forgetful(other="7"))
    with pytest.raises(ValueError, match="a gate of 'repeat', and there are no such rows"):
        changed(gated, quality__repeat=None)
    with pytest.raises(ValueError, match=r"1\.5 is neither a number of rows"):
        changed(job, quality__repeat=1.5)
    for several_things in (1, 1.0, True):
        with pytest.raises(ValueError, match="1 could be one row, or all of them"):
            changed(job, quality__repeat=several_things)


def test_vectors_may_differ_by_rounding(job: SliceJob) -> None:
    class Rounds(InProcess):
        by = 1e-5

        def __init__(self) -> None:
            super().__init__(answer=self._answer)

        def _answer(self, batch: pa.Table) -> pa.Table:
            answers = answer_numbers(batch, size=3)
            shifts = [self.by if '"again"' in text else 0 for text in batch["__request"].to_pylist()]
            rows = zip(answers["numbers"].to_pylist(), shifts, strict=True)
            numbers = [[x + shift for x in row] for row, shift in rows]
            index = answers.schema.get_field_index("numbers")
            kind = answers.schema.field(index).type
            return answers.set_column(index, "numbers", pa.array(numbers, kind))

    job = changed(job, task="embed")
    report = run_in_process(job, Rounds())
    assert report.repeat is not None
    assert report.repeat.differing == 0
    far = Rounds()
    far.by = 0.01
    report = run_in_process(changed(job, output_path=f"{job.output_path}-2"), far)
    assert report.repeat is not None
    assert report.repeat.differing == 8


def as_parts(answered: dict[str, Any]) -> dict[str, Any]:
    """Postprocess: a column of its type for each word."""
    *words, text = answered["answer"].split()
    return {word: float(text) if "." in text else int(text) for word in words}


@pytest.mark.parametrize(("once", "again", "differing"), [
    ("a 3", "a 3.5", 8),
    ("a 3", "a 3.0", 0),
    ("a 9007199254740993", "a 9007199254740992.0", 8),
    ("a 3", "a b 3", 8),
    ("a b 3", "b 3", 8),
])  # fmt: skip
def test_second_answers_may_have_columns_and_types_of_their_own(
    job: SliceJob, once: str, again: str, differing: int
) -> None:
    def answer(batch: pa.Table) -> pa.Table:
        answers = stub_engine.answer(batch)
        said = pa.array([again if '"again"' in text else once for text in batch["__request"].to_pylist()])
        return answers.set_column(answers.schema.get_field_index("text"), "text", said)

    made = changed(job, postprocess="tests.unit.processor.probes.test_repeated:as_parts")
    report = run_in_process(made, InProcess(answer=answer))
    assert report.repeat is not None
    assert report.repeat.differing == differing


@pytest.mark.parametrize(("share", "rows"), [(0.07, 7), (0.55, 55), (0.011, 2)])
def test_share_is_the_one_that_is_written(job: SliceJob, share: float, rows: int) -> None:
    pq.write_table(pa.table({"name": [f"name {n}" for n in range(100 - 15)]}), f"{job.input_path}a.parquet")
    report = run_in_process(changed(job, quality__repeat=share))
    assert report.repeat is not None
    assert report.repeat.rows == rows


def test_sample_and_its_rest_are_all_rows(job: SliceJob) -> None:
    build, _ = inspect_slice(job, SliceFolders.open(job.paths), read_only=True)
    assert build is not None
    plan = build.plan
    assert len(plan.units) > 2
    for rows in (1, 7, 39, 40):
        positions = sample_rows(plan, rows)
        assert len(positions) == rows
        chosen = {(unit, int(o)) for unit, offsets in by_unit(plan, positions).items() for o in offsets}
        ranges = all_but(plan, positions).ranges
        rest = {
            (int(unit), offset)
            for unit, start, stop in zip(ranges.units, ranges.starts, ranges.stops, strict=True)
            for offset in range(start, stop)
        }
        assert chosen | rest == {(u, o) for u, unit in enumerate(plan.units) for o in range(unit.rows)}
        assert not chosen & rest
        assert len(chosen) == rows
