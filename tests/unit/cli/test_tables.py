"""The commands that look at a table: real slices, answered by the processor in this process."""

from __future__ import annotations

import errno
import getpass
import io
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_raydatallm.cli import tables, waiting
from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.storage import filesystem
from tests.support.in_process import InProcess, answer_fixed, answer_with, changed
from tests.support.in_process import run_in_process as run
from tests.support.stalled_server import stalled_server
from tests.support.table_commands import ANSWERING, Out, of_day, say, write_progress


def test_slices_are_listed_with_what_each_has_and_does(job: SliceJob, capsys: Out) -> None:
    run(job)
    run(of_day(job, "a/b c"))
    write_progress(of_day(job, "2026-01-02"), 5, **ANSWERING)
    write_progress(of_day(job, "2026-01-03"), 500, **ANSWERING)
    write_progress(
        of_day(job, "2026-01-04"), 5, step="failed", failure={"sentence": "no\x1b[31m room\nfor it"}
    )
    write_progress(job, 5, **ANSWERING)
    lines = say(capsys, "slices", job.output_path).splitlines()
    assert lines[0].split() == [
        "slice",
        "state",
        "rows",
        "quarantined",
        "rows/s",
        "tokens",
        "version",
        "published",
    ]
    rows = {line[:10]: " ".join(line[10:].split()) for line in lines[1:]}
    assert rows["2026-01-01"].startswith("published, running again 4 1 ")
    assert rows["2026-01-02"].startswith("running: answering: 1 of 5 rows (20%)")
    assert rows["2026-01-03"].startswith("stopped: answering: ")
    assert rows["2026-01-04"] == "failed: no room for it"
    assert [line.split("  ")[0] for line in lines[1:]][-1] == "a/b c"
    states = {s["key"]: s for s in json.loads(say(capsys, "slices", job.output_path, "--json"))}
    assert states["2026-01-01"]["report"]["counts"]["quarantined"] == 1
    assert (states["2026-01-02"]["run"], states["2026-01-02"]["version"]) == ("running", None)


def test_slice_that_cannot_be_read_is_said_and_hides_no_other(job: SliceJob, capsys: Out) -> None:
    run(job)
    run(of_day(job, "2026-01-02"))
    [commit] = Path(job.paths.metadata).glob("commits/commit-*.json")
    commit.write_text(commit.read_text().replace("2026", "2027"))
    out = say(capsys, "slices", job.output_path)
    assert "unreadable: " in out.splitlines()[1]
    assert "checksum" in out.splitlines()[1]
    assert "published" in out.splitlines()[2]


@pytest.mark.parametrize("path", ["/day={slice}", "/x/{slice}", "", "/{slice}/rows"])
def test_any_output_path_is_the_tables(job: SliceJob, capsys: Out, path: str, tmp_path: Path) -> None:
    output = f"{tmp_path}/tables[1]{path}"
    run(changed(job, output_path=output))
    assert [s["key"] for s in json.loads(say(capsys, "slices", output, "--json"))] == ["2026-01-01"]
    assert "published: 4 rows" in say(capsys, "show", output, "2026-01-01")


def test_table_may_be_written_in_other_ways_and_is_no_other_table(
    job: SliceJob, capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(changed(job, publish__metadata_path=f"{tmp_path}/metadata"))
    monkeypatch.chdir(tmp_path)
    metadata = ("--metadata-path", f"{tmp_path}/metadata")
    for output in ("out", "./out", f"file://{tmp_path}/out", f"{tmp_path}//out/"):
        assert "--- row 1 of 4" in say(capsys, "sample", output, "2026-01-01", *metadata)
        assert "published" in say(capsys, "slices", output, *metadata)
    for command in (["show", "other", "2026-01-01"], ["sample", "other", "2026-01-01"]):
        assert "holds the metadata of" in say(capsys, *command, *metadata, code=1)
    assert "unreadable: " in say(capsys, "slices", "other", *metadata)


def test_report_of_a_slice_is_shown_with_its_versions(job: SliceJob, capsys: Out) -> None:
    run(job)
    run(changed(job, prompt="{name} new"))
    text = say(capsys, "show", job.output_path, "2026-01-01")
    assert "planned 5, succeeded 4" in text
    assert "quarantined 1" in text
    assert text.splitlines()[-1].startswith("versions: 2 (20")
    assert "1 (20" in text


def test_slice_or_table_that_does_not_exist_is_named_with_what_there_is(job: SliceJob, capsys: Out) -> None:
    run(job)
    write_progress(of_day(job, "2026-01-02"), 5, step="failed", failure={"sentence": "no room"})
    run(of_day(job, "2026-01-03"))
    for command in (["show", "2026-01-09"], ["show", "2026-01-09", "--json"], ["sample", "2026-01-09"],
                    ["watch", "2026-01-09"], ["diff", "2026-01-09", "2026-01-01"]):  # fmt: skip
        error = say(capsys, command[0], job.output_path, *command[1:], code=1)
        assert error.splitlines()[-1] == (
            f"error: no run of slice 2026-01-09 left anything in {job.output_path}, which has 3 slice(s), "
            "from 2026-01-01 to 2026-01-03. A run whose job never started may leave nothing here: see its "
            "task's log or page"
        )
        error = say(capsys, command[0], f"{job.output_path}s", *command[1:], code=1)
        assert f"error: {job.output_path}s is empty, or does not exist. " in error
    assert "nothing is published in" in say(capsys, "sample", job.output_path, "2026-01-02", code=1)
    for command in ("slices", "gc"):
        said = say(capsys, command, f"{job.output_path}s", code=1)
        assert f"error: {job.output_path}s is empty, or does not exist. A run whose job never started" in said


def test_unreadable_slice_is_an_error_of_show_as_json_too(job: SliceJob, capsys: Out) -> None:
    run(job)
    [commit] = Path(job.paths.metadata).glob("commits/commit-*.json")
    commit.write_text(commit.read_text().replace("2026", "2027"))
    assert main(["show", job.output_path, "2026-01-01", "--json"]) == 1
    captured = capsys.readouterr()
    said = json.loads(captured.out)  # one document
    assert "checksum" in "".join(said["failure"]["row_texts"])
    assert said["version"] is None
    assert captured.err.startswith("error: ")


def test_metadata_that_lies_elsewhere_is_asked_for(job: SliceJob, capsys: Out, tmp_path: Path) -> None:
    run(changed(job, publish__metadata_path=f"{tmp_path}/metadata"))
    for command in (["show", "2026-01-01"], ["sample", "2026-01-01"], ["watch", "2026-01-01"],
                    ["diff", "2026-01-01", "2026-01-01"],
                    ["missing", "--from", "2026-01-01", "--to", "2026-01-01"]):  # fmt: skip
        error = say(capsys, command[0], job.output_path, *command[1:], code=1)
        assert error.endswith("the publishing task has as publish.metadata_path\n")
    assert "unreadable: " in say(capsys, "slices", job.output_path)


def test_key_may_end_like_a_version(job: SliceJob, capsys: Out) -> None:
    run(job)
    run(of_day(job, "2026-01-01@3"))
    text = say(capsys, "diff", job.output_path, "2026-01-01@3", "2026-01-01@1")
    assert "counts.planned" in text
    error = say(capsys, "diff", job.output_path, "2026-01-01@4", "2026-01-01", code=1)
    assert error.startswith("error: version 4 of ")


def test_rows_are_shown_as_one_line_a_value(job: SliceJob, capsys: Out, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a\x1b[2Jb\nc", "x" * 5000, "fail"]}), tmp_path / "in.parquet")
    run(job)
    lines = say(capsys, "sample", job.output_path, "2026-01-01").splitlines()
    assert lines[:2] == ["--- row 1 of 2", r"name: ab\nc"]
    assert any(line.endswith("... (5,000 characters)") for line in lines)
    assert len(json.loads(say(capsys, "sample", job.output_path, "2026-01-01", "--rows", "1", "--json"))) == 1
    assert "name: fail" in say(capsys, "sample", job.output_path, "2026-01-01", "--quarantined")


#: Answers with the name, where the stub would choose the first label.
_of_its_own = partial(answer_fixed, bad='"structured_outputs"', good='"ignored"')


@pytest.mark.slow
def test_two_versions_and_two_slices_are_compared(job: SliceJob, capsys: Out, tmp_path: Path) -> None:
    job, cluster = changed(job, choices=["a", "b", "c"]), InProcess(answer=_of_its_own)
    run(job, cluster)
    pq.write_table(pa.table({"name": [*"abbb", "fail", "c"]}), tmp_path / "other.parquet")
    run(of_day(job, "2026-01-02", input_path=f"{tmp_path}/other.parquet"), cluster)
    run(changed(job, model_source="m/other"), cluster)
    found = json.loads(say(capsys, "diff", job.output_path, "2026-01-01@1", "2026-01-01", "--json"))
    by_name = {d["name"]: (d["before"], d["after"]) for d in found["figures"]}
    assert by_name["model_source"] == ("m/m", "m/other")
    assert "output_column" not in by_name
    text = say(capsys, "diff", job.output_path, "2026-01-01@1", "2026-01-02")
    shares = {line.split()[2]: line.split()[3:] for line in text.splitlines() if line.startswith("share of")}
    assert shares == {"a": ["75.0%", "20.0%"], "b": ["25.0%", "60.0%"], "c": ["0.0%", "20.0%"]}
    error = say(capsys, "diff", job.output_path, "2026-01-01@9", "2026-01-02", code=1)
    assert "version 9 of " in error
    assert "there are: 1, 2" in error


def test_share_of_labels_that_were_not_counted_is_unknown(job: SliceJob, capsys: Out) -> None:
    run(job)
    run(of_day(job, "2026-01-02", choices=["a", "b"]), InProcess(answer=_of_its_own))
    text = say(capsys, "diff", job.output_path, "2026-01-01", "2026-01-02")
    shares = [line.split()[2:] for line in text.splitlines() if line.startswith("share of")]
    assert shares == [["a", "-", "75.0%"], ["b", "-", "25.0%"]]
    found = json.loads(say(capsys, "diff", job.output_path, "2026-01-02", "2026-01-01", "--json"))
    assert found["labels"][0] == {"name": "a", "before": 0.75, "after": None}


@pytest.mark.slow
def test_share_of_a_label_that_a_report_leaves_out_is_unknown(
    job: SliceJob, capsys: Out, tmp_path: Path
) -> None:
    names = [f"n{i:02}" for i in range(51)]
    for day, rarest in (("2026-01-01", "n00"), ("2026-01-02", "n50")):
        rows = [name for name in names for _ in range(1 if name == rarest else 2)]
        pq.write_table(pa.table({"name": rows}), tmp_path / "in.parquet")
        run(of_day(job, day, choices=names), InProcess(answer=_of_its_own))
    found = json.loads(say(capsys, "diff", job.output_path, "2026-01-01", "2026-01-02", "--json"))["labels"]
    assert {d["name"]: (d["before"], d["after"]) for d in found if None in (d["before"], d["after"])} == {
        "n00": (None, 2 / 101), "n50": (2 / 101, None),
    }  # fmt: skip


@pytest.mark.slow
def test_shares_of_several_labels_are_of_rows(job: SliceJob, capsys: Out) -> None:
    several = changed(job, engine="vllm", choices=["x", "y"], labels__multi=True)
    run(several, InProcess(batch=3, answer=answer_with(numbers=[0.9, 0.1])))
    run(of_day(several, "2026-01-02"), InProcess(answer=answer_with(numbers=[0.9, 0.8])))
    found = json.loads(say(capsys, "diff", job.output_path, "2026-01-01", "2026-01-02", "--json"))
    assert found["labels"] == [
        {"name": "y", "before": 0.0, "after": 1.0}, {"name": "x", "before": 1.0, "after": 1.0},
    ]  # fmt: skip


def test_values_that_json_lacks_are_texts(job: SliceJob, capsys: Out, tmp_path: Path) -> None:
    numbers = pa.array([float("nan"), float("inf"), 1.0])
    pq.write_table(
        pa.table({"name": [*"abc"], "number": numbers, "of": [[float("nan")]] * 3, "key": [b"\xff\x00"] * 3}),
        tmp_path / "in.parquet",
    )
    run(job)
    text = say(capsys, "sample", job.output_path, "2026-01-01", "--json")
    rows = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert [row["number"] for row in rows] == ["nan", "inf", 1.0]
    assert (rows[0]["of"], rows[0]["key"]) == (["nan"], "/wA=")
    write_progress(of_day(job, "2026-01-02"), 5, **ANSWERING | {"rows_per_s": float("nan")})
    assert "NaN" not in say(capsys, "slices", job.output_path, "--json")


def test_terminal_gets_nothing_that_it_obeys(job: SliceJob, capsys: Out, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a"], "\x1b[2J": ["b"]}), tmp_path / "in.parquet")
    run(job)
    write_progress(of_day(job, "\x1b[2J"), 5, step="failed", failure={"sentence": "no\x1b[31m room\nfor it"})
    for command in (["slices"], ["sample", "2026-01-01"], ["show", "\x1b[2J"], ["watch", "\x1b[2J"]):
        assert main([command[0], job.output_path, *command[1:]]) == int(command[0] in ("watch", "show"))
        text = capsys.readouterr().out
        assert "\x1b" not in text
        assert "\n: b\n" in text or "no room for it" in text


@pytest.mark.slow
@pytest.mark.parametrize("command", ["slices {table} >&-", "files {spec} | true"])
def test_reader_that_has_enough_hears_of_no_error(job: SliceJob, tmp_path: Path, command: str) -> None:
    run(job)
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    arguments = command.format(table=job.output_path, spec=tmp_path / "spec.json")
    program = f"{sys.executable} -m airflow_provider_raydatallm.cli.main {arguments}"
    shell = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert shell.stderr == ""


def test_letters_that_a_terminal_lacks_are_escaped(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    run(of_day(job, "Ünï"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(terminal := io.BytesIO(), encoding="ascii"))
    assert main(["slices", job.output_path]) == 0
    assert b"\\xdcn\\xef" in terminal.getvalue()


def test_storage_that_cannot_be_listed_is_named(
    job: SliceJob, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("unable to locate credentials")

    monkeypatch.setattr(LocalFileSystem, "ls", away)
    error = say(capsys, "slices", job.output_path, code=1)
    assert error == f"error: cannot list the slices of {job.output_path}: unable to locate credentials\n"


@pytest.mark.slow
def test_storage_that_does_not_answer_is_named_meanwhile_and_given_up(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = {"config_kwargs": {"retries": {"max_attempts": 0}, "read_timeout": 0.2}}
    monkeypatch.setattr(filesystem, "_BRIEF_S3", brief)
    monkeypatch.setattr(waiting, "_EVERY_S", 0.1)
    with stalled_server() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        for command in (["slices"], ["show", "2026-01-01"], ["sample", "2026-01-01"]):
            error = say(capsys, command[0], "s3://lake/out", *command[1:], code=1)
            assert error.startswith("reading s3://lake/out, for ")
            assert "Read timeout" in error.splitlines()[-1]
            assert "run the slice again" not in error
        spec = {"slice_key": "k", "input_path": "/in", "output_path": "s3://lake/out", "model_source": "m"}
        (tmp_path / "spec.json").write_text(json.dumps({**spec, "prompt": "{name}"}))
        error = say(capsys, "versions", f"{tmp_path}/spec.json", code=1)
        assert error.startswith("versions is at work on the slice's storage, for ")
        assert "Read timeout" in error.splitlines()[-1]


def test_progress_of_reading_many_slices_is_told(
    job: SliceJob, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job)
    texts: list[str] = []

    class Noted(waiting.Waiting):
        def __exit__(self, *error: Any) -> None:
            texts.append(self.text)
            super().__exit__(*error)

    monkeypatch.setattr(tables, "Waiting", Noted)
    say(capsys, "slices", job.output_path)
    assert texts == [f"reading {job.output_path}: 1 of 1 slices"]


@pytest.mark.parametrize("rows", ["0", "-1", "many"])
def test_number_of_rows_is_at_least_one(job: SliceJob, capsys: Out, rows: str) -> None:
    run(job)
    with pytest.raises(SystemExit):
        main(["sample", job.output_path, "2026-01-01", "--rows", rows])
    assert "at least 1" in capsys.readouterr().err
    assert say(capsys, "sample", job.output_path, "2026-01-01", "--rows", str(10**20)).count("--- row") == 4


def test_run_is_watched_to_its_end(job: SliceJob, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    write_progress(job, 0, **ANSWERING)

    def finish(seconds: float) -> None:
        (Path(job.paths.metadata) / "progress.json").unlink()
        run(job, InProcess())

    monkeypatch.setattr(tables, "time", SimpleNamespace(sleep=finish))
    lines = say(capsys, "watch", job.output_path, "2026-01-01").splitlines()
    assert lines[0].startswith("answering: 1 of 5 rows")
    assert lines[1].startswith("published: 4 rows")
    assert main(["watch", job.output_path, "2026-01-01"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("published: 4 rows")
    assert "no run of slice 2026-01-01 tells of its progress" in captured.err


def test_watch_outlives_a_look_that_fails(
    job: SliceJob, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_progress(job, 0, **ANSWERING)
    open_file = os.open

    def fail(path: Any, *args: Any, **options: Any) -> int:
        if str(path).endswith("/progress.json"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return open_file(path, *args, **options)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            monkeypatch.setattr(os, "open", fail)
        elif len(slept) == 2:
            monkeypatch.setattr(os, "open", open_file)
            run(job)

    slept: list[float] = []
    monkeypatch.setattr(tables, "time", SimpleNamespace(sleep=sleep))
    assert main(["watch", job.output_path, "2026-01-01"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].startswith("published: 4 rows")
    assert ": cannot read " in captured.err
    assert captured.err.endswith(": looking again\n")


def test_watch_says_by_its_exit_code_that_a_run_failed(
    job: SliceJob, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {"step": "failed", "failure": {"sentence": "no GPU"}}
    write_progress(job, 0, **ANSWERING)
    monkeypatch.setattr(tables, "time", SimpleNamespace(
        sleep=lambda seconds: write_progress(job, 0, **{**ANSWERING, **failed})
    ))  # fmt: skip
    assert main(["watch", job.output_path, "2026-01-01"]) == 1
    captured = capsys.readouterr()
    assert "no GPU" in captured.out
    assert captured.err == "error: the run of slice 2026-01-01 failed: no GPU\n"
    assert main(["watch", job.output_path, "2026-01-01", "--json"]) == 1
    [state, failure] = map(json.loads, capsys.readouterr().out.splitlines())  # a line for each step
    assert state["run"] == "failed"
    assert failure["failure"]["sentence"].endswith("no GPU")


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    "[]", '"x"', "{", '{"when": 5}', '{"step": "failed"}',
    '{"when": "2026-01-01T00:00:00", "step": "answer"}',
    '{"when": "2026-01-01T00:00:00+00:00", "step": "queued"}',
    '{"when": "2026-01-01T00:00:00+00:00", "step": "answer", "planned": 5}',
    '{"when": "2026-01-01T00:00:00+00:00", "step": "plan", "plan": [1]}',
])  # fmt: skip
def test_progress_of_another_shape_hides_no_slice(job: SliceJob, capsys: Out, text: str) -> None:
    run(job)
    (Path(job.paths.metadata) / "progress.json").write_text(text)
    run(of_day(job, "2026-01-02"))
    lines = say(capsys, "slices", job.output_path).splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["published", "published"]
    assert "published: 4 rows" in say(capsys, "show", job.output_path, "2026-01-01")


def test_run_that_could_not_say_why_it_ended_names_a_disk_that_is_full(
    job: SliceJob, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_progress(job, 500, **ANSWERING)
    assert "; the disk" not in say(capsys, "slices", job.output_path)
    usage = shutil.disk_usage(job.paths.metadata)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4096))
    full = f"the disk of {job.paths.metadata} is full (4,096 bytes are free)"
    assert say(capsys, "slices", job.output_path).rstrip().endswith(f"; {full}")
    assert main(["show", job.output_path, job.slice_key]) == 1
    assert f"and not why it ended: {full}" in capsys.readouterr().out


def test_output_that_cannot_be_written_says_so(tmp_path: Path, capsys: Out, monkeypatch: Any) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    said = say(capsys, "slices", f"{tmp_path}/ro/out", code=1)
    user = f"{getpass.getuser()} ({os.geteuid()})"
    assert f"{tmp_path}/ro/out is empty, or does not exist: user {user} may not write in {tmp_path}. " in said
