"""Commands about one slice: `OUTPUT SLICE`, or a spec in its place, and what each says of a failed slice."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.slice_run import stage_slice
from airflow_provider_raydatallm.processor.store.file_names import PROGRESS
from airflow_provider_raydatallm.processor.store.lease import Lease
from airflow_provider_raydatallm.processor.store.run_record import leave_failure, read_progress
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import StagedVersion
from tests.support.in_process import InProcess, changed
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import parts
from tests.support.table_commands import Out, say

DAY = "2026-01-01"


def stage(job: SliceJob) -> str:
    staged = stage_slice(job, lambda progress: None, InProcess())
    assert isinstance(staged, StagedVersion)
    return staged.name


def fail(job: SliceJob) -> None:
    """A run of which too many rows fail: four are answered."""
    with pytest.raises(SliceError, match="1 of 5 rows failed"):
        run(changed(job, quality__max_quarantine=0.1))


def write_spec(job: SliceJob, tmp_path: Path) -> str:
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    return f"{tmp_path}/spec.json"


@pytest.mark.parametrize("by", ["output", "metadata elsewhere", "quarantine elsewhere", "spec", "trial"])
def test_versions_of_a_slice_are_looked_at_and_changed_without_its_job(
    job: SliceJob, capsys: Out, tmp_path: Path, by: str
) -> None:
    slice_of = [job.output_path, DAY]
    match by:
        case "metadata elsewhere":
            job = changed(job, publish__metadata_path=f"{tmp_path}/metadata")
            slice_of += ["--metadata-path", f"{tmp_path}/metadata"]
        case "quarantine elsewhere":
            job = changed(job, publish__quarantine_path=f"{tmp_path}/failed")
        case "trial":
            job = changed(job, source__max_rows=4)
            slice_of = [f"{job.output_path}.trial/first-4", DAY]
        case "spec":
            slice_of = [write_spec(job, tmp_path)]
    job = changed(job, publish__keep_versions=3)
    run(job)
    first, second = stage(changed(job, prompt="1 {name}")), stage(changed(job, prompt="2 {name}"))
    published, *staged = json.loads(say(capsys, "versions", *slice_of, "--json"))
    assert (published["version"], {one["staged"] for one in staged}) == (1, {first, second})
    assert say(capsys, "files", *slice_of) == f"{parts(job)[0]}\n"
    output, *rest = slice_of
    names = rest[:1] if by != "spec" else []
    options = rest[1:]
    assert f"{first} is discarded" in say(capsys, "discard", output, *names, first, *options)
    assert f"{second} is published, as version" in say(capsys, "commit", *slice_of)
    assert say(capsys, "sample", *slice_of).splitlines()[-1].startswith("answer: 2 ")
    assert "version 1 is published again" in say(capsys, "restore", output, *names, "1", *options)
    assert say(capsys, "sample", *slice_of).splitlines()[-1] == "answer: b"
    assert "no run left anything that is" in say(capsys, "gc", output, *options)


def test_columns_change_by_a_command_that_says_so(job: SliceJob, capsys: Out) -> None:
    stage(job)
    other = {"output_column": "other", "publish__on_schema_change": "accept"}
    run(changed(job, slice_key="2026-01-02", **other))
    assert "other columns" in say(capsys, "commit", job.output_path, DAY, code=1)
    assert "is published" in say(capsys, "commit", job.output_path, DAY, "--accept-columns")


def test_failed_slice_has_its_reason_everywhere(job: SliceJob, capsys: Out) -> None:
    fail(job)
    [_, line] = say(capsys, "slices", job.output_path).splitlines()
    assert line.startswith(
        f"{DAY}  failed: 1 of 5 rows failed, which is more than quality.max_quarantine 0.1"
    )
    [state] = json.loads(say(capsys, "slices", job.output_path, "--json"))
    assert Failure.parse(state["failure"]).sentence.startswith("1 of 5 rows failed")
    for command in ("show", "status"):
        assert main([command, job.output_path, DAY]) == 1
        text = capsys.readouterr().out
        assert text.startswith("the run failed at ")
        assert text.endswith("nothing is published\n")
        for part in (
            "it begins with fail",
            "Advice: Or raise quality.max_quarantine",
            "Where: ",
            "row 5",
            "5 planned = 4 answered + 1 failed",
        ):
            assert part in text
        assert "ValueError: ValueError" not in text
        assert main([command, job.output_path, DAY, "--json"]) == 1
        shown = json.loads(capsys.readouterr().out)
        assert (shown["version"], shown["run"]) == (None, "failed")
        assert shown["failure"] == state["failure"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"input_path": "{root}/none.parquet"}, "{root}/none.parquet"),
        ({"prompt": "{nam}"}, "nam"),
        ({"postprocess": "no_such_module:f"}, "no_such_module"),
    ],
)
@pytest.mark.parametrize("is_published", [False, True])
def test_run_that_failed_before_its_rows_has_its_reason_too(
    job: SliceJob, capsys: Out, tmp_path: Path, changes: dict[str, str], named: str, is_published: bool
) -> None:
    if is_published:
        run(job)
    given = {name: value.replace("{root}", str(tmp_path)) for name, value in changes.items()}
    named = named.replace("{root}", str(tmp_path))
    with pytest.raises(SliceError) as e:
        run(changed(job, **given))
    [state] = json.loads(say(capsys, "slices", job.output_path, "--json"))
    assert (state["version"], state["run"]) == (1 if is_published else None, "failed")
    assert Failure.parse(state["failure"]) == e.value.failure
    assert named in e.value.failure.sentence
    assert named in say(capsys, "slices", job.output_path).splitlines()[1]
    assert main(["show", job.output_path, DAY]) == int(not is_published)
    assert named in capsys.readouterr().out
    assert e.value.failure.sentence in say(capsys, "watch", job.output_path, DAY, code=1)
    run(job)
    [state] = json.loads(say(capsys, "slices", job.output_path, "--json"))
    assert (state["version"], state["run"], state["failure"]) == (1, None, None)


def test_failure_is_not_left_where_another_run_is_at_work_or_in_another_table(
    job: SliceJob, capsys: Out, tmp_path: Path
) -> None:
    failure = Failure("input", "no such file")
    lease = Lease.acquire(
        SliceFolders.open(job.paths).metadata, me="a run", slice_key=DAY, known_epoch=lambda: 0,
        wait=False, stop_waiting=lambda holder: True,
    )  # fmt: skip
    assert lease is not None
    with contextlib.closing(lease):
        leave_failure(job.address, failure)
        assert read_progress(SliceFolders.open(job.paths)) is None
        leave_failure(job.address, failure, is_over=lambda holder: str(holder) == "a run")
    assert (read_progress(SliceFolders.open(job.paths)) or {}).get("step") == "failed"
    run(job)
    inside = changed(job, output_path=f"{job.output_path}/ds={DAY}")
    with pytest.raises(SliceError, match="lies inside"):
        leave_failure(inside.address, failure)
    assert "published" in say(capsys, "slices", job.output_path)


@pytest.mark.parametrize("given", [{"prompt": "{gone}"}, {"prompt": "fail {name}"}])
def test_slice_that_fails_again_for_the_same_reason_failed_at_the_later_time(
    job: SliceJob, given: dict[str, Any]
) -> None:
    records = []
    for _ in range(2):
        with pytest.raises(SliceError):
            run(changed(job, **given))
        folders = SliceFolders.open(job.paths)
        records.append(read_progress(folders) or {})
        folders.metadata.put_json(PROGRESS, {**records[-1], "when": "2001-01-01T00:00:00+00:00"})
    first, second = records
    assert first["failure"] == second["failure"]
    assert not second["when"].startswith("2001")
    assert second.keys() >= first.keys() - {"per_worker", "history"}, "what the run itself wrote stays"


def test_published_slice_whose_next_run_failed_has_both(job: SliceJob, capsys: Out) -> None:
    run(job)
    with contextlib.suppress(SliceError):
        run(changed(job, prompt="fail {name}"))
    [_, line] = say(capsys, "slices", job.output_path).splitlines()
    assert "published, failed again" in line
    assert "failed: 5 of 5 rows failed" in line
    text = say(capsys, "show", job.output_path, DAY)
    assert text.startswith("the run failed at")
    assert "\npublished: 4 rows" in text
    assert ", 1 in quarantine (ValueError 1)" in text


def test_staged_version_is_seen_before_it_is_committed(job: SliceJob, capsys: Out) -> None:
    name = stage(job)
    assert say(capsys, "slices", job.output_path).splitlines()[1] == f"{DAY}  staged: {name}"
    assert f"staged {name}  20" in say(capsys, "show", job.output_path, DAY)
    [state] = json.loads(say(capsys, "slices", job.output_path, "--json"))
    assert [one["staged"] for one in state["staged"]] == [name]
    run(changed(job, prompt="x {name}"))
    stage(changed(job, prompt="y {name}"))
    assert f"staged: {name}, " in say(capsys, "slices", job.output_path)


def test_rows_of_a_staged_version_are_seen_before_it_is_committed(job: SliceJob, capsys: Out) -> None:
    name = stage(job)
    for words in (["--staged"], ["--staged", name]):
        rows = json.loads(say(capsys, "sample", job.output_path, DAY, *words, "--json"))
        assert rows[0]["answer"]
    [failed] = json.loads(say(capsys, "sample", job.output_path, DAY, "--staged", "--quarantined", "--json"))
    assert failed["__row"] == 5
    run(changed(job, prompt="x {name}"))
    assert "no staged version" in say(capsys, "sample", job.output_path, DAY, "--staged", "other", code=1)


def test_rows_that_failed_are_seen_before_anything_is_published(job: SliceJob, capsys: Out) -> None:
    fail(job)
    assert main(["sample", job.output_path, DAY, "--quarantined", "--json"]) == 0
    said = capsys.readouterr()
    [row] = json.loads(said.out)
    assert (row["__file"], row["__row"]) == (job.input_path, 5)
    assert "it begins with fail" in row["__error"]
    assert said.err.startswith("nothing is published: these rows failed in a run")
    assert "__row: 5" in say(capsys, "sample", job.output_path, DAY, "--quarantined")
    assert "nothing is published in" in say(capsys, "sample", job.output_path, DAY, code=1)
    run(changed(job, prompt="fail {name}", quality__max_quarantine=1))  # its quarantine counts from here on
    rows = json.loads(say(capsys, "sample", job.output_path, DAY, "--quarantined", "--json", "--rows", "9"))
    assert len(rows) == 5
    assert rows[0]["name"] == "a"


def test_failed_rows_are_those_of_the_question_that_was_asked_last(job: SliceJob, capsys: Out) -> None:
    fail(job)
    with contextlib.suppress(SliceError):
        run(changed(job, prompt="fail {name}", quality__max_quarantine=0.1))
    rows = json.loads(say(capsys, "sample", job.output_path, DAY, "--quarantined", "--json", "--rows", "3"))
    assert [row["__row"] for row in rows] == [1, 2, 3]


def test_row_that_failed_once_and_was_answered_is_no_failed_one(job: SliceJob, capsys: Out) -> None:
    fail(job)

    def die(batch: pa.Table) -> None:
        raise RuntimeError("no more")

    more = changed(job, rerun__retry_quarantined=True, quality__max_quarantine=0.1)
    with contextlib.suppress(RuntimeError):
        run(more, InProcess(before_batch=die))
    [row] = json.loads(say(capsys, "sample", job.output_path, DAY, "--quarantined", "--json"))
    assert row["__row"] == 5


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("versions OUT", "`versions` is about one slice, and none of OUT is named. Give its key after"),
        ("show SPEC 2026-01-01", "SPEC is a spec, which names its own slice and metadata, and 2026-01-01 is"),
        ("gc SPEC --metadata-path /x", "SPEC is a spec, which names its own slice and metadata, and"),
        ("plan OUT 2026-01-01", "`plan` takes one argument, a spec, and OUT 2026-01-01 is given. Export a"),
        ("plan OUT", "OUT is a folder, and no spec. Export a task's with `airflow ray-llm spec DAG TASK"),
        ("run OUT 2026-01-01", "`run` takes one argument, a spec, and OUT 2026-01-01 is given"),
        ("slices /", "output_path '/' makes the root of a bucket or disk the table"),
    ],
)  # fmt: skip
def test_wrong_form_is_told_what_to_do(
    job: SliceJob, capsys: Out, tmp_path: Path, command: str, says: str
) -> None:
    run(job)
    names = {"SPEC": write_spec(job, tmp_path), "OUT": job.output_path}
    for name, path in names.items():
        command, says = command.replace(name + " ", path + " "), says.replace(f"{name} ", f"{path} ")
        command = path.join(command.rsplit(name, 1)) if command.endswith(name) else command
    assert f"error: {says}" in say(capsys, *command.split(), code=1)


def test_slice_that_gc_cleaned_is_not_said_to_be_unknown(job: SliceJob, capsys: Out) -> None:
    fail(job)
    say(capsys, "gc", job.output_path, "--days", "0")
    says = f"nothing is published of slice {DAY} in {job.output_path}, and no run left a reason here"
    assert f"error: {says}. A run whose job never started" in say(
        capsys, "show", job.output_path, DAY, code=1
    )
    [_, line] = say(capsys, "slices", job.output_path).splitlines()
    assert line == f"{DAY}  nothing is published, and no run left a reason here"


def test_plan_that_would_fail_quotes_no_row(job: SliceJob, capsys: Out, tmp_path: Path) -> None:
    fail(job)
    spec = write_spec(changed(job, quality__max_quarantine=0.1), tmp_path)
    assert main(["plan", spec, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["findings"][0]["code"] == "too_many_failed"
    assert "begins with fail" not in said["failure"]["sentence"]


def test_version_that_is_no_number_is_told_what_to_do(job: SliceJob, capsys: Out) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["restore", job.output_path, DAY])
    assert f"'{DAY}' is no version: give OUTPUT SLICE VERSION" in capsys.readouterr().err
