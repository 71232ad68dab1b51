"""Slices that wait for a person, as `slices --held` finds them in one table or several."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.store.staged_versions import document_name
from tests.support.in_process import InProcess, answer_with, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.table_commands import Out, of_day, say

CUT = answer_with(finish_reason="length")
GATES = [{"of": "truncated", "max": 0.5, "then": "hold"}, {"of": "rows", "against": 7, "then": "hold"}]
WHY = "held, as truncated is 1, above max 0.5; rows against 0 slice(s) is not known"


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    return job_of(
        slice_key="2026-01-01", input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out",
    )  # fmt: skip


def hold(job: SliceJob) -> str:
    return str(run(changed(job, quality__gates=GATES), InProcess(answer=CUT)).staged_version)


def test_held_slices_of_tables_are_listed_with_since_when_and_why(job: SliceJob, capsys: Out) -> None:
    other = changed(job, output_path=f"{job.output_path}_b")
    names = [hold(job), hold(other)]
    run(of_day(job, "2026-01-02"))
    [titles, line] = say(capsys, "slices", job.output_path, "--held").splitlines()
    assert titles.split() == ["slice", "waits", "since", "staged", "why"]
    key, since, *rest = line.split("  ")
    assert (key, rest) == ("2026-01-01", [names[0], WHY])
    both = ("slices", job.output_path, other.output_path)
    titles, *lines = say(capsys, *both, "--held").splitlines()
    assert [line.split()[:2] for line in lines] == [[one.output_path, "2026-01-01"] for one in (job, other)]
    found = json.loads(say(capsys, *both, "--held", "--json"))
    assert [(one["output"], one["staged"]) for one in found] == [
        (one.output_path, name) for one, name in zip((job, other), names, strict=True)
    ]
    assert found[0]["staged_at"] == since
    assert [(gate["of"], gate["value"], gate["max"]) for gate in found[0]["held_by"]] == [
        ("truncated", 1, 0.5), ("rows", None, None),
    ]  # fmt: skip
    assert [one["key"] for one in json.loads(say(capsys, *both, "--json"))] == [
        "2026-01-01", "2026-01-02", "2026-01-01",
    ]  # fmt: skip
    assert f"{since}  2 rows, 0 quarantined  m/m" in say(capsys, "versions", job.output_path, "2026-01-01")
    assert say(capsys, "versions", job.output_path, "2026-01-01").strip().endswith(WHY)


def test_table_without_held_slices_says_so_and_a_wrong_one_hides_no_other(job: SliceJob, capsys: Out) -> None:
    run(job)
    assert say(capsys, "slices", job.output_path, "--held") == "no slice waits for a person\n"
    assert json.loads(say(capsys, "slices", job.output_path, "--held", "--json")) == []
    other = changed(job, output_path=f"{job.output_path}_b")
    name = hold(other)
    wrong = f"{job.output_path}_c"
    error = say(capsys, "slices", wrong, other.output_path, "--held", code=1)
    assert f"{wrong} is empty, or does not exist" in error
    assert main(["slices", wrong, other.output_path, "--held", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["staged"] for one in found["slices"]] == [name]
    assert wrong in found["failure"]["sentence"]


def test_held_slice_that_cannot_be_read_or_published_is_listed_with_why(job: SliceJob, capsys: Out) -> None:
    hold(job)
    run(changed(job, prompt="{name} new"))
    name = hold(of_day(job, "2026-01-02"))
    Path(of_day(job, "2026-01-02").paths.metadata, document_name(name)).write_text("{")
    [_, first, second] = say(capsys, "slices", job.output_path, "--held").splitlines()
    assert first.endswith("; another version was published since: it can only be discarded")
    assert "is damaged, or was edited" in second
