"""Which cluster a command works on, and what it says when there is none."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from airflow_provider_raydatallm.cli.cluster import choose_cluster
from airflow_provider_raydatallm.cli.main import main, make_parser
from airflow_provider_raydatallm.clusters.embedded.folder import FOLDER_VARIABLE
from tests.support.in_process import job_of

COMMANDS = [
    ["run", "spec.json"],
    ["retry-quarantined", "spec.json"],
    ["engines", "list"],
    ["engines", "stop", "x"],
]


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")  # so that it is as before after each test
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "head"))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    job = job_of(input_path="/in", output_path="/out")
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")  # which has ended


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_cluster_a_command_says_what_to_do(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["failure"]["kind"] == "input"
    for way in ("--address", "RAY_ADDRESS", "airflow-ray-llm local start"):
        assert way in said.err


@pytest.mark.parametrize("command", COMMANDS)
def test_cluster_that_is_not_there_is_named_at_once(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:2")
    assert main(command) == 1
    assert "no Ray cluster at 127.0.0.1:2" in capsys.readouterr().err
    assert main([*command, "--address", "127.0.0.1:1", "--json"]) == 1  # before RAY_ADDRESS
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert failure["kind"] == "unreachable"
    assert "no Ray cluster at 127.0.0.1:1" in failure["sentence"]


def test_plan_needs_no_cluster() -> None:
    choose_cluster(make_parser().parse_args(["plan", "spec.json"]))


def test_named_cluster_is_what_ray_connects_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as cluster:
        address = f"127.0.0.1:{cluster.getsockname()[1]}"
        choose_cluster(make_parser().parse_args(["run", "spec.json", "--address", address]))
    assert os.environ["RAY_ADDRESS"] == address


@pytest.mark.parametrize("command", ["status", "dashboard"])
def test_head_that_does_not_run_is_told_with_how_to_start_it(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["local", command]) == 3
    assert "airflow-ray-llm local start" in capsys.readouterr().out
    assert main(["local", command, "--json"]) == 3
    assert json.loads(capsys.readouterr().out) is None
