"""Every command reports how it fails: the record as JSON on stdout, the sentence on stderr."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from airflow_provider_raydatallm.cli import dag_spec
from airflow_provider_raydatallm.cli.main import main, make_parser
from airflow_provider_raydatallm.clusters.embedded import head
from airflow_provider_raydatallm.clusters.embedded.folder import FOLDER_VARIABLE
from airflow_provider_raydatallm.clusters.embedded.processes import LocalHeadError
from airflow_provider_raydatallm.contract.result.failure import Failure, Kind
from airflow_provider_raydatallm.processor.tables import listing

#: Of each argument that a command asks for, by its name in the help, a value with which it fails.
VALUES = {
    "SPEC": "/nowhere/spec.json", "VERSION": "1",
    "OUTPUT": "nowhere://out", "SLICE": "2026-01-31", "BEFORE": "2026-01-30", "AFTER": "2026-01-31",
    "DAG": "nowhere", "TASK": "nowhere", "DATE": "2026-01-31", "NAME": "nowhere",
}  # fmt: skip


def commands_of(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield path, parser
    for group in groups:
        for name, command in group.choices.items():
            yield from commands_of(command, (*path, name))


COMMANDS = dict(commands_of(make_parser()))


def failing(path: tuple[str, ...]) -> list[str]:
    """A command with the arguments that it asks for, of which none is there."""
    words = list(path)
    for action in COMMANDS[path]._actions:
        if action.required:
            words += [*action.option_strings[:1], VALUES[str(action.metavar)]]
    return words


@pytest.fixture(autouse=True)
def nothing_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cluster, no DAG, and no folder that the embedded head can have."""
    monkeypatch.setenv("RAY_ADDRESS", "")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv(FOLDER_VARIABLE, "/tmp/" + "x" * 100)

    def no_head() -> None:
        raise LocalHeadError("the state of the head cannot be read", log=["the head's\x1b[31m last line"])

    monkeypatch.setattr(head, "head_status", no_head)

    def no_dag(args: argparse.Namespace) -> tuple[str, None]:
        raise ValueError(f"there is no DAG {args.dag!r}")

    monkeypatch.setattr(dag_spec, "_job_of_task", no_dag)  # without Airflow's database


def test_every_command_has_json() -> None:
    assert len(COMMANDS) > 15
    for path in COMMANDS:
        assert make_parser().parse_args([*failing(path), "--json"]).json is True


def test_error_that_nobody_expected_is_a_record_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("\x1b[31mbroken")

    monkeypatch.setattr(listing, "find_slices", fail)
    assert main(["slices", "/nowhere", "--json"]) == 1
    said = capsys.readouterr()
    failure = json.loads(said.out)["failure"]
    assert (failure["kind"], failure["sentence"]) == ("transient", "RuntimeError: broken")
    assert said.err.startswith("Traceback")
    assert "\x1b" not in said.err


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_failure_is_a_record_in_json_and_a_sentence_on_stderr(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(failing(path)) == 1
    said = capsys.readouterr()
    assert said.out == ""
    [*_, error] = [line for line in said.err.splitlines() if not line.startswith(" ")]
    assert error.startswith("error: ")
    assert main([*failing(path), "--json"]) == 1
    said = capsys.readouterr()
    record = json.loads(said.out)["failure"]
    failure = Failure.parse(record)
    assert record["kind"] in get_args(Kind)
    assert failure.sentence
    assert failure.text in said.err
