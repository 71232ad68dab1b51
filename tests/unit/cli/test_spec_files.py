"""A spec that a person wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.contract.result.failure import Failure
from tests.support.in_process import job_of, run_in_process

LEAST = {
    "slice_key": "2026-01-31", "input_path": "/in", "output_path": "/out", "model_source": "m",
    "prompt": "{a}",
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), [
    ("[]", "it is no JSON object: '[]'"),
    ('"spec"', "it is no JSON object"),
    ("{", "Expecting property name"),
    (json.dumps({"input_pat": "/in", **LEAST}), "there is no input_pat: did you mean input_path?"),
    (json.dumps({"limits": {"orphan": "1h"}, **LEAST}), "limits.orphan is for a task: leave it out"),
    (json.dumps({"slice_key": "x"}), "input_path is missing; output_path is missing; model_source"),
    (json.dumps({**LEAST, "engine": "l4"}), "unknown engine 'l4': use 'auto'"),
    (json.dumps({**LEAST, "quality": {"max_quarantine": 5}}), "quality.max_quarantine: Input should be less"),
])  # fmt: skip
def test_error_names_what_was_written(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.json").write_text(text)
    assert main(["versions", f"{tmp_path}/spec.json"]) == 1
    said = capsys.readouterr().err
    assert f"error: the spec {tmp_path}/spec.json is not valid: " in said
    assert message in said
    assert "Traceback" not in said
    assert "pydantic" not in said


def test_json_has_the_whole_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versions", "--json", f"{tmp_path}/none.json"]) == 1
    failure = Failure.parse(json.loads(capsys.readouterr().out)["failure"])
    assert failure.kind == "input"
    assert f"{tmp_path}/none.json" in failure.sentence


def test_file_may_begin_with_a_byte_order_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = job_of(input_path="/in", output_path=f"{tmp_path}/out")
    (tmp_path / "spec.json").write_text(job.model_dump_json(), encoding="utf-8-sig")
    assert main(["status", f"{tmp_path}/spec.json"]) == 1
    assert f"{tmp_path}/out is empty, or does not exist" in capsys.readouterr().err


def test_result_has_no_line_without_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.csv").write_text("name\na\n")
    job = job_of(input_path=f"{tmp_path}/in.csv", output_path=f"{tmp_path}/out")
    run_in_process(job)  # an engine that does not say how long it took to start
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    assert main(["status", f"{tmp_path}/spec.json"]) == 0
    assert capsys.readouterr().out.startswith("published: 1 rows in ")
    assert main(["show", f"{tmp_path}/out", "2026-01-31"]) == 0
    assert "Before the first row: \n" not in capsys.readouterr().out


@pytest.mark.parametrize("days", ["-1", "nan", "a week"])
def test_days_of_gc_are_a_number(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["gc", "spec.json", "--days", days])
    assert f"{days!r} is not a number of days" in capsys.readouterr().err


def test_file_that_is_not_there_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "/nowhere/spec.json"]) == 1
    assert "cannot read the spec /nowhere/spec.json: there is no such file" in capsys.readouterr().err
