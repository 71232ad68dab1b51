"""Decisions of a run: on real folders, with the store's own code, without a cluster."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_raydatallm.contract.log.progress_text import result_lines
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.__main__ import main
from airflow_provider_raydatallm.processor.commands.command import run_command
from airflow_provider_raydatallm.processor.commands.spec_file import load_spec
from airflow_provider_raydatallm.processor.publish.published import (
    current_report,
    finished_report,
    report_of_run,
)
from airflow_provider_raydatallm.processor.slice_run import run_slice
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import answers, metadata, newest, parts
from tests.support.stub_engine import StubEngine


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these decisions needs Ray: importing it is an error."""
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"x": ["a", "b"]}), tmp_path / "in" / "a.parquet")
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", prompt="{x}")


def add_file(job: SliceJob, name: str, values: list[str]) -> None:
    pq.write_table(pa.table({"x": values}), Path(job.input_path) / name)


def test_finished_slice_is_a_no_op(job: SliceJob) -> None:
    report = run(job)
    assert report.counts.planned == report.counts.succeeded == 2
    cluster = InProcess()
    assert run(job, cluster) == report.model_copy(update={"outcome": "unchanged"})
    assert run(changed(job, engine__batch_size=7), cluster).outcome == "unchanged"
    assert cluster.answered == 0
    assert current_report(job) == report
    assert finished_report(job) == report.model_copy(update={"outcome": "unchanged"})


class Broken(StubEngine):
    def __init__(self, job: SliceJob, rows: int) -> None:
        raise RuntimeError("the licence server is away")


def test_engine_that_cannot_be_made_says_why_and_where_whatever_hides_rows(
    job: SliceJob, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError):
        run(changed(job, engine=f"{__name__}:{Broken.__name__}"))
    failure = Failure.parse(json.loads((metadata(job) / "progress.json").read_text())["failure"])
    hidden = failure.without_row_texts()
    assert hidden.sentence == "RuntimeError: the licence server is away"
    assert "test_slice_run.py" in hidden.frames[-1]
    assert hidden.advice


def test_lease_that_a_dead_publisher_left_is_removed_by_the_next_run(job: SliceJob) -> None:
    run(job)
    leases = metadata(job) / "lease"
    leases.mkdir()
    for holder in ("a run that lives", newest(job).body["run"]):
        for name in ("epoch-000001", "beat-000001"):
            (leases / name).write_text(json.dumps({"holder": holder}))
        assert run(job).outcome == "unchanged"
        assert leases.exists() == (holder == "a run that lives")


def test_forced_run_answers_a_finished_slice_again(job: SliceJob) -> None:
    run(job)
    cluster = InProcess()
    forced = changed(job, rerun__force=True)
    assert finished_report(forced) is None
    for times in (1, 2):
        assert run(forced, cluster).outcome == "published"
        assert cluster.answered == 2 * times


def test_earlier_version_is_not_the_result_of_a_forced_run_that_died(job: SliceJob) -> None:
    """A driver that is killed reports nothing: what it published is asked of the store."""

    def named(job: SliceJob, name: str) -> Report:
        return run_slice(job, lambda progress: None, InProcess(), name=name)

    forced = changed(job, rerun__force=True)
    first = named(forced, "first")
    assert report_of_run(forced, "first") == first
    assert report_of_run(forced, "killed") is None
    second = named(forced, "second")
    assert (report_of_run(forced, "second"), report_of_run(forced, "first")) == (second, None)
    # A run that would have left the version as it is had nothing to add to it.
    assert report_of_run(job, "killed") == second.model_copy(update={"outcome": "unchanged"})


def test_changed_configuration_follows_the_policy(job: SliceJob) -> None:
    run(job)
    other = changed(job, prompt="Other {x}")
    with pytest.raises(SliceError, match=r"rerun.on_config_change='recompute'"):
        run(other)
    assert current_report(other) is finished_report(other) is None
    assert answers(job) == ["a", "b"]
    run(changed(other, rerun__on_config_change="recompute"))
    assert answers(job) == ["Other a", "Other b"]


def test_changed_input_follows_the_policy(job: SliceJob) -> None:
    run(job)
    add_file(job, "b.parquet", ["c"])
    assert finished_report(job) is None
    with pytest.raises(SliceError, match=r"then 1 file\(s\) of 2 rows; now 2"):
        run(job)
    cluster = InProcess()
    assert run(changed(job, rerun__on_input_change="recompute"), cluster).counts.planned == 3
    assert cluster.answered == 3
    assert answers(job) == ["a", "b", "c"]


def test_extending_keeps_the_finished_rows(job: SliceJob) -> None:
    first = run(job)
    add_file(job, "0.parquet", ["zero"])
    add_file(job, "b.parquet", ["c", "d"])
    cluster = InProcess()
    report = run(changed(job, rerun__on_input_change="extend"), cluster)
    assert cluster.answered == 3
    assert answers(job) == ["zero", "a", "b", "c", "d"]
    assert (report.counts.planned, report.counts.succeeded, report.counts.resumed) == (5, 5, 2)
    assert first.tokens.input is not None
    assert report.tokens.input == first.tokens.input + 3 * 7


def test_extending_refuses_a_file_that_changed(job: SliceJob) -> None:
    run(job)
    add_file(job, "a.parquet", ["a", "b", "more"])
    with pytest.raises(SliceError, match=r"only adds files, but .*a\.parquet changed"):
        run(changed(job, rerun__on_input_change="extend"))
    assert answers(job) == ["a", "b"]


def test_input_that_changed_half_way_follows_the_policy(job: SliceJob) -> None:
    add_file(job, "b.parquet", ["fail"])
    with pytest.raises(SliceError, match="1 of 3 rows failed"):
        run(job)
    add_file(job, "b.parquet", ["fine", "too"])
    with pytest.raises(SliceError, match=r"half finished.*rerun.on_input_change='recompute' or 'extend'"):
        run(job)
    cluster = InProcess()
    report = run(changed(job, rerun__on_input_change="recompute"), cluster)
    assert cluster.answered == 2  # the rows of the file that did not change are kept
    assert (report.counts.planned, report.counts.resumed) == (4, 2)
    assert answers(job) == ["a", "b", "fine", "too"]


def test_deleted_files_are_built_again(job: SliceJob) -> None:
    run(job)
    parts(job)[0].unlink()
    assert current_report(job) is None
    assert run(job).outcome == "published"
    assert answers(job) == ["a", "b"]


def test_damaged_commit_is_reported_and_can_be_forced(
    job: SliceJob, caplog: pytest.LogCaptureFixture
) -> None:
    run(job)
    commit = metadata(job) / "commits" / "commit-000001.json"
    commit.write_bytes(commit.read_bytes().replace(b'"rows"', b'"r0ws"'))
    with pytest.raises(SliceError, match=r"commit-000001\.json is damaged.*rerun.force=True") as error:
        run(job)
    assert run(changed(job, rerun__force=True)).outcome == "published"
    lines = [line for line in caplog.messages if "because of rerun.force" in line]
    assert error.value.failure.sentence in lines[0]
    assert not any(text in line for text in error.value.failure.row_texts for line in lines)
    assert run(job).outcome == "unchanged"


def test_two_instants_that_share_a_key_are_noticed(job: SliceJob) -> None:
    run(changed(job, slice_instant="2026-01-31T01:00:00+00:00"))
    assert run(job).outcome == "unchanged"
    with pytest.raises(SliceError, match=r"source.slice_format '%Y-%m-%d' is too coarse"):
        run(changed(job, slice_instant="2026-01-31T02:00:00+00:00"))


def test_slice_of_a_schedule_that_was_moved_is_redone_when_that_is_forced(job: SliceJob) -> None:
    run(changed(job, slice_instant="2026-01-31T00:00:00+00:00"))
    moved = changed(job, slice_instant="2026-01-31T02:30:00+00:00")
    with pytest.raises(SliceError, match=r"time of day was moved.* slice_key .*rerun\.force"):
        run(moved)
    assert run(changed(moved, rerun__force=True)).published_version == 2
    assert run(moved).outcome == "unchanged"


def test_instant_that_is_published_under_another_timezones_key_is_refused(job: SliceJob) -> None:
    instant = "2026-01-30T16:00:00+00:00"  # midnight of the 31st in Taipei
    in_utc = changed(job, slice_key="2026-01-30", slice_instant=instant, other_slice_keys=["2026-01-31"])
    in_taipei = changed(job, slice_key="2026-01-31", slice_instant=instant, other_slice_keys=["2026-01-30"])
    run(in_utc)
    with pytest.raises(SliceError, match=r"published as '2026-01-30': the timezone .* give the task a slice"):
        run(in_taipei)
    assert run(in_utc).outcome == "unchanged"
    next_day = {"slice_instant": "2026-01-31T16:00:00+00:00", "other_slice_keys": ["2026-02-01"]}
    assert run(changed(in_taipei, **next_day)).outcome == "published"


def test_key_of_another_instant_names_the_timezone_where_it_may_have_changed(job: SliceJob) -> None:
    run(changed(job, slice_instant="2026-01-31T16:00:00+00:00", other_slice_keys=["2026-02-01"]))
    with pytest.raises(SliceError, match=r"two runs share one key.* Or its timezone has changed since"):
        run(changed(job, slice_instant="2026-01-30T16:00:00+00:00", other_slice_keys=["2026-01-30"]))


def test_error_about_a_repeated_hour_advises_a_format_that_tells_it_apart(job: SliceJob) -> None:
    hour = {
        "slice_key": "2025-10-26T02",
        "slice_timezone": "Europe/Berlin",
        "source__slice_format": "%Y-%m-%dT%H",
    }
    run(changed(job, **hour, slice_instant="2025-10-26T00:00:00+00:00"))
    with pytest.raises(SliceError, match="an hourly DAG needs '%Y-%m-%dT%H%z'"):
        run(changed(job, **hour, slice_instant="2025-10-26T01:00:00+00:00"))


def test_empty_slice_follows_the_policy(job: SliceJob, tmp_path: Path) -> None:
    nothing = changed(job, input_path=f"{tmp_path}/nowhere/")
    with pytest.raises(SliceError, match="matches no file"):
        run(nothing)
    with pytest.raises(SliceError, match=r"matches no file where day is '2026-01-31'\. Check"):
        run(changed(nothing, source__column="day"))
    (tmp_path / "empty.csv").touch()
    with pytest.raises(SliceError, match=r"matches 1 file\(s\), of 0 bytes each\. Check"):
        run(changed(nothing, input_path=f"{tmp_path}/*.csv"))
    skipped = run(changed(nothing, source__on_empty="skip"))
    assert (skipped.outcome, skipped.counts.planned) == ("empty", 0)
    assert not Path(job.slice_path).exists()
    with pytest.raises(SliceError, match=r"no slice of .*/out shows which columns"):
        run(changed(nothing, source__on_empty="publish"))
    assert not Path(job.slice_path).exists()


def test_slice_without_rows_says_what_its_column_holds(job: SliceJob) -> None:
    add_file(job, "a.parquet", ["31.01.2026", "01.02.2026"])
    with pytest.raises(SliceError, match=r"where x is .*\['31.01.2026'"):
        run(changed(job, source__column="x", columns=["x"]))


def vanish(job: SliceJob) -> None:
    for file in Path(job.input_path).iterdir():
        file.unlink()


@pytest.mark.parametrize("policy", ["recompute", "extend"])
def test_slice_whose_input_vanished_keeps_its_rows_and_says_so_when_empty_ones_are_skipped(
    job: SliceJob, policy: str
) -> None:
    first = run(job)
    vanish(job)
    report = run(changed(job, source__on_empty="skip", rerun__on_input_change=policy))
    assert report == first.model_copy(update={"outcome": "kept"})
    assert result_lines(report) == [
        f"kept: the input is empty now, and the 2 rows of version 1 stay in {job.slice_path}"
    ]
    assert answers(job) == ["a", "b"]


def test_kept_version_may_be_of_another_configuration(job: SliceJob) -> None:
    first = run(job)
    vanish(job)
    other = changed(job, prompt="Other {x}", source__on_empty="skip", rerun__on_input_change="recompute")
    with pytest.raises(SliceError, match="published with another configuration") as raised:
        run(other)
    assert raised.value.failure.code == "published"
    report = run(changed(other, rerun__on_config_change="recompute"))
    assert (report.outcome, report.fingerprint) == ("kept", first.fingerprint)


@pytest.mark.parametrize("on_empty", ["skip", "publish"])
def test_input_that_vanished_is_another_input_whatever_empty_slices_are(job: SliceJob, on_empty: str) -> None:
    run(job)
    vanish(job)
    with pytest.raises(SliceError, match="is published from other input") as raised:
        run(changed(job, source__on_empty=on_empty))
    assert raised.value.failure.code == "published"
    assert answers(job) == ["a", "b"]


def test_damaged_version_of_an_input_that_vanished_is_no_empty_slice(job: SliceJob) -> None:
    run(job)
    vanish(job)
    parts(job)[0].unlink()
    with pytest.raises(SliceError, match=r"version 1 of .* is damaged, and .* holds no row"):
        run(changed(job, source__on_empty="skip", rerun__on_input_change="recompute"))


def test_slice_that_became_empty_leaves_no_old_rows_behind(job: SliceJob) -> None:
    run(job)
    before = pq.read_schema(parts(job)[0])
    vanish(job)
    report = run(changed(job, source__on_empty="publish", rerun__on_input_change="recompute"))
    assert (report.outcome, report.published_version) == ("empty", 2)
    [part] = parts(job)
    assert (pq.read_schema(part), pq.read_metadata(part).num_rows) == (before, 0)


def upper(row: dict[str, Any]) -> dict[str, Any]:
    return {"upper": row["answer"].upper(), "length": len(row["answer"])}


@pytest.mark.parametrize(
    "given", [{}, {"postprocess": f"{__name__}:upper"}, {"publish__file_per_input": True}], ids=str
)
def test_slice_without_any_file_has_the_columns_of_its_table(job: SliceJob, given: dict[str, Any]) -> None:
    job = changed(job, **given)
    run(job)
    nothing = changed(
        job, slice_key="2026-02-01", input_path=f"{job.input_path}none/", source__on_empty="publish"
    )
    assert run(nothing).outcome == "empty"
    assert run(nothing).outcome == "unchanged"
    assert pq.read_schema(parts(nothing)[0]) == pq.read_schema(parts(job)[0])
    table = f"{job.output_table}/**/*.parquet"
    assert pl.read_parquet(table).height == duckdb.sql(f"from '{table}'").shape[0] == 2
    cluster = InProcess()
    again = changed(nothing, input_path=job.input_path, rerun__on_input_change="recompute")
    assert (run(again, cluster).outcome, cluster.answered) == ("published", 2)


def test_empty_slice_of_a_known_table_keeps_its_columns(job: SliceJob) -> None:
    run(changed(job, source__column="x", slice_key="nobody", source__on_empty="publish"))
    assert pq.read_table(changed(job, slice_key="nobody").slice_path).schema.names == ["x", "answer"]


@pytest.mark.parametrize(("given", "says"), [
    ({"prompt": "{y}"}, r"column 'y'.*columns are 'x'"),
    ({"system_prompt": "{y}"}, "system_prompt names the column 'y'"),
    ({"output_column": "x"}, "Choose another output_column"),
    ({"columns": ["nope"]}, r"columns names \['nope'\]"),
    ({"engine": "json:loads"}, "not a subclass"),
    ({"engine__kwargs": {"max_model_length": 3}}, "Did you mean 'max_model_len'"),
    ({"sampling_params": {"max_token": 3}}, "Did you mean 'max_tokens'"),
    ({"prompt": None, "preprocess": "nowhere:f"}, "Ship its code with code_paths"),
    ({"postprocess": "json:nothing"}, "cannot be loaded"), ({"engine__accelerator": "L4"}, "CPU build"),
])  # fmt: skip
def test_what_cannot_work_is_refused_before_a_cluster_is_asked(
    job: SliceJob, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(SliceError, match=says):
        run(changed(job, **{"engine": "auto", **given}))
    assert not Path(job.slice_path).exists()


@pytest.mark.parametrize(("module", "code", "advice", "line"), [
    ("not_shipped", None, "Ship its code with code_paths", None),
    ("lacks_package", "\nimport nltkx.tokenize", "Install 'nltkx' on the cluster's nodes", 2),
    ("lacks_part", "import json.parts", "The cluster has another version of 'json'", 1),
    ("raises", "x = 1 / 0", "Fix what its code does when it is imported", 1),
    ("lacks_name", "", "Check the name", None),
])  # fmt: skip
def test_code_that_cannot_be_loaded_has_its_line_and_what_to_do(
    job: SliceJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    module: str, code: str | None, advice: str, line: int | None,
) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    if code is not None:
        (tmp_path / f"{module}.py").write_text(code)
    with pytest.raises(SliceError) as raised:
        run(changed(job, prompt=None, preprocess=f"{module}:f"))
    failure = raised.value.failure
    assert failure.advice[0].startswith(advice)
    frames = () if line is None else (f"at {tmp_path}/{module}.py:{line}",)
    assert failure.without_row_texts().frames == frames


@pytest.mark.parametrize("field", ["output_path", "publish__metadata_path", "publish__quarantine_path"])
def test_output_inside_the_input_is_refused(job: SliceJob, field: str) -> None:
    with pytest.raises(SliceError, match=rf"{job.input_path}out.* lies inside the input"):
        run(changed(job, **{field: f"{job.input_path}out"}))


@pytest.mark.parametrize("metadata", ["beside the table", "elsewhere"])
def test_trial_run_never_meets_the_published_slice(job: SliceJob, tmp_path: Path, metadata: str) -> None:
    if metadata == "elsewhere":
        job = changed(
            job, publish__metadata_path=f"{tmp_path}/meta", publish__quarantine_path=f"{tmp_path}/bad"
        )
    run(job)
    trial = changed(job, source__max_rows=1)
    assert current_report(trial) is None
    assert trial.slice_path != job.slice_path
    assert run(trial).published_version == 1
    cluster = InProcess()
    assert (run(job, cluster).outcome, cluster.answered) == ("unchanged", 0)


def test_program_reports_an_error_in_one_marked_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"slice_key": "k", "promt": "x"}))
    assert main(["run", str(tmp_path / "spec.json"), "--nonce", "n"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("@ray-llm error n ")
    assert "promt" in out
    with pytest.raises(SliceError, match="cannot read the spec"):
        load_spec(str(tmp_path / "none.json"))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "\ud800"])
def test_spec_that_cannot_be_parsed_is_a_wrong_input(text: str, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(text, errors="surrogatepass")
    with pytest.raises(SliceError, match=r"the spec .* is not valid|cannot read the spec") as e:
        load_spec(str(tmp_path / "spec.json"))
    assert e.value.kind == "input"


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        ("import sys\nsys.exit('no licence')", "SystemExit: no licence"),
        ("class Own(BaseException): pass\nraise Own('x')", "Own: x"),
        ("class Own(Exception):\n    def __str__(self): raise RuntimeError('no')\nraise Own()", r"\(Own\)"),
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [{"prompt": None, "preprocess": "failing_module:f"}, {"engine__kind": "failing_module:F"}],
    ids=["preprocess", "engine"],
)
def test_module_that_fails_when_it_is_imported_is_a_wrong_input(
    arguments: dict[str, Any],
    module: str,
    cause: str,
    job: SliceJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "failing_module.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SliceError, match=cause) as e:
        run(changed(job, **arguments), InProcess())
    assert e.value.kind == "input"


def test_command_that_the_users_code_ends_has_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    def end(args: argparse.Namespace) -> int:
        raise SystemExit("enough")

    assert run_command(end, argparse.Namespace(nonce=None, json=True)) == 1
    assert json.loads(capsys.readouterr().out)["failure"]["sentence"] == "SystemExit: enough"


def test_input_path_that_no_disk_has_is_a_wrong_input(job: SliceJob) -> None:
    with pytest.raises(SliceError, match="File name too long") as e:
        run(changed(job, input_path=f"/{'x' * 256}"))
    assert e.value.kind == "input"


def test_spec_in_a_store_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("Unable to locate credentials")

    monkeypatch.setattr(LocalFileSystem, "cat_file", away)
    with pytest.raises(SliceError, match=r"cannot read the spec /a/spec\.json: Unable to locate credentials"):
        load_spec("/a/spec.json")


@pytest.fixture
def spec(job: SliceJob, tmp_path: Path) -> str:
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    return str(tmp_path / "spec.json")


def test_program_says_that_there_is_nothing(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, text in (("versions", "nothing is published or staged in"), ("gc", "is empty, or does not")):
        assert main([command, spec]) == 1
        assert text in capsys.readouterr().err


def test_program_without_a_nonce_prints_for_people(
    job: SliceJob, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(job)
    assert main(["run", spec]) == 0
    output = capsys.readouterr()
    assert output.out == f"unchanged: 2 rows in {job.slice_path}\n"
    assert output.err == "planning the slice\n"
    assert main(["run", spec, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "unchanged"


def test_program_lists_the_published_files(
    job: SliceJob, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["files", spec]) == 1
    assert "no slice is published" in capsys.readouterr().err
    run(job)
    assert main(["files", spec]) == 0
    assert capsys.readouterr().out == f"{parts(job)[0]}\n"
    assert main(["files", spec, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [str(parts(job)[0])]
    assert main(["retry-quarantined", spec, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "unchanged"


@pytest.mark.slow
def test_other_columns_beside_the_answers_are_published_without_asking_a_row_again(tmp_path: Path) -> None:
    names = ["a", "fail", "c"]
    pq.write_table(pa.table({"name": names, "x": [1, 2, 3], "y": ["p", "q", "r"]}), tmp_path / "in.parquet")
    job = job_of(
        input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out", columns=["name", "x"],
        quality__max_quarantine=0.5,
    )  # fmt: skip
    run(job)
    with pytest.raises(SliceError, match=r"the columns beside the answers changed.*asks the model nothing"):
        run(changed(job, columns=None))
    for columns in (None, ["name"], ["y", "name"]):
        cluster = InProcess()
        again = changed(job, columns=columns, rerun__on_config_change="recompute")
        report = run(again, cluster)
        assert (cluster.answered, report.counts.succeeded, report.counts.quarantined) == (0, 2, 1)
        expected = pq.read_table(tmp_path / "in.parquet", columns=columns).take([0, 2])
        table = pq.read_table(job.slice_path, partitioning=None)
        assert table.drop_columns("answer").equals(expected)
        assert table.column("answer").to_pylist() == ["a", "c"]
        [failed] = pq.read_table(job.paths.quarantine, partitioning=None).to_pylist()
        assert failed["name"] == "fail"
    # A request that reads another column is another request.
    run(changed(job, rerun__on_config_change="recompute", prompt="{x}"), cluster := InProcess())
    assert cluster.answered == 3


def test_half_finished_slice_keeps_its_rows_when_a_column_that_no_request_reads_is_left_out(
    tmp_path: Path,
) -> None:
    pq.write_table(pa.table({"name": [f"{i}" for i in range(40)], "x": range(40)}), tmp_path / "in.parquet")
    job = job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out")

    def die(batch: pa.Table) -> None:
        if batch.column("__offset")[0].as_py() >= 20:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        run(job, InProcess(before_batch=die))
    run(changed(job, columns=["name"]), cluster := InProcess())
    assert cluster.answered == 20
