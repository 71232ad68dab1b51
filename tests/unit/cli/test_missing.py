"""`missing`: the days and hours of which nothing is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.tables import slice_state
from tests.support.in_process import run_in_process as run
from tests.support.table_commands import ANSWERING, Out, of_day, say, write_progress


@pytest.mark.slow
def test_days_and_hours_without_a_published_slice_are_listed(job: SliceJob, capsys: Out) -> None:
    for key in ("2026-01-01", "2026-01-03", "2026-01-01T01", "20260104"):
        run(of_day(job, key))
    write_progress(of_day(job, "2026-01-02"), 5, **ANSWERING)
    table = job.output_path
    days = ("--from", "2026-01-01", "--to", "2026-01-04")
    assert say(capsys, "missing", table, *days) == "2026-01-02\n2026-01-04\n"
    assert json.loads(say(capsys, "missing", table, *days, "--format", "%Y%m%d", "--json")) == [
        "20260101", "20260102", "20260103",
    ]  # fmt: skip
    hours = say(capsys, "missing", table, "--from", "2026-01-01", "--to", "2026-01-01", "--every", "hour")
    assert len(hours.split()) == 23
    assert "2026-01-01T01" not in hours
    run(of_day(job, "2026-01-05T01+0000"))
    run(of_day(job, "2026-01-05T01+0100"))
    for zone, first in (("", "2026-01-05"), ("+01:00", "2026-01-05T00:00+01:00")):
        of_zone = ("--from", first, "--to", "2026-01-05", "--every", "hour", "--format", "%Y-%m-%dT%H%z")
        offset = zone.replace(":", "") or "+0000"
        assert say(capsys, "missing", table, *of_zone).split() == [
            f"2026-01-05T{hour:02}{offset}" for hour in range(24) if hour != 1
        ]
    same = ("--from", "2026-01-03", "--to", "2026-01-03")
    assert say(capsys, "missing", table, *same) == "all 1 slices are published\n"
    assert "'%Q' writes each date as '%Q'" in say(capsys, "missing", table, *days, "--format", "%Q", code=1)
    assert "comes before the first" in say(
        capsys, "missing", table, "--from", "2026-01-03", "--to", "2026-01-02", code=1
    )


def test_range_that_nobody_gave_is_asked_for(job: SliceJob, capsys: Out) -> None:
    assert "Give --dag DAG TASK, or --from and --to" in say(capsys, "missing", job.output_path, code=1)


def test_slice_that_cannot_be_read_is_not_missing(job: SliceJob, capsys: Out) -> None:
    run(job)
    [commit] = Path(job.paths.metadata).glob("commits/commit-*.json")
    commit.write_text(commit.read_text().replace("2026", "2027"))
    for argument, missing in (("2026-01-02", "2026-01-02\n"), ("2026-01-01", "")):
        assert main(["missing", job.output_path, "--from", "2026-01-01", "--to", argument]) == 1
        captured = capsys.readouterr()
        assert captured.out == missing
        assert main(["missing", job.output_path, "--from", "2026-01-01", "--to", argument, "--json"]) == 1
        said = json.loads(capsys.readouterr().out)
        assert (said["missing"], said["unreadable"]) == (missing.split(), ["2026-01-01"])
        assert said["failure"]["sentence"].startswith("whether 2026-01-01 is published cannot be read: ")
        assert captured.err.startswith("error: whether 2026-01-01 is published cannot be read: ")


def test_hours_are_those_of_the_schedules_timezone(job: SliceJob, capsys: Out) -> None:
    berlin = ("--timezone", "Europe/Berlin")
    for day, hours in (("2026-03-29", 23), ("2026-10-25", 25)):
        of_day = ("missing", job.output_path, "--from", day, "--to", day, "--every", "hour", *berlin)
        keys = say(capsys, *of_day, "--format", "%Y-%m-%dT%H%z").split()
        assert len(keys) == hours
        assert (keys[0][-5:], keys[-1][-5:]) in (("+0100", "+0200"), ("+0200", "+0100"))
    days = ("missing", job.output_path, "--from", "2026-03-28", "--to", "2026-03-30", *berlin)
    assert say(capsys, *days).split() == ["2026-03-28", "2026-03-29", "2026-03-30"]
    with pytest.raises(SystemExit):
        main([*days, "--timezone", "Mars/X"])
    assert "'Mars/X' is no timezone" in capsys.readouterr().err


def test_only_slices_of_the_range_are_read(
    job: SliceJob, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        write_progress(of_day(job, day), 5, **ANSWERING)
    read: list[str] = []
    read_state = slice_state.read_state
    monkeypatch.setattr(slice_state, "read_state", lambda key, of: (read.append(key), read_state(key, of))[1])
    say(capsys, "missing", job.output_path, "--from", "2026-01-02", "--to", "2026-01-02")
    assert read == ["2026-01-02"]


@pytest.mark.parametrize("text", ["2026-13-01", "yesterday"])
def test_date_that_is_none_is_named(job: SliceJob, capsys: Out, text: str) -> None:
    error = say(capsys, "missing", job.output_path, "--from", text, "--to", "2026-01-02", code=1)
    assert error.startswith(f"error: {text!r} is no date such as 2026-01-31")


def test_longer_slices_are_missing_once(job: SliceJob, capsys: Out) -> None:
    run(of_day(job, "2026-W02"))
    january = ("--from", "2026-01-01", "--to", "2026-01-31")
    weeks = say(capsys, "missing", job.output_path, *january, "--format", "%G-W%V")
    assert weeks.split() == ["2026-W01", "2026-W03", "2026-W04", "2026-W05"]
    run(of_day(job, "2026-01"))
    months = say(capsys, "missing", job.output_path, *january, "--format", "%Y-%m")
    assert months == "all 1 slices are published\n"
    last = ("--from", "9999-12-31", "--to", "9999-12-31", "--every", "hour")
    assert len(say(capsys, "missing", job.output_path, *last).split()) == 24
