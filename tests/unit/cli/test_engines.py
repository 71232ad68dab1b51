from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import ray

from airflow_provider_raydatallm.cli import engines as engines_cli
from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.shared.identity import Identity
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import SharedEngine

IDLE = SharedEngine(
    "ray-llm-idle-0", "RUNNING", "", "workers-1-to-1-idle-600-s", {}, (), idle_s=1234.5,
    identity=Identity("org/m", {"model": "org/m", "disable_log_stats": True, "max_model_len": 256}, "f"),
)  # fmt: skip
USED = SharedEngine(
    "ray-llm-used-0", "DEPLOYING", "", "workers-1-to-2-idle-kept", {"RUNNING": 1, "STARTING": 1}, ("s3://a",),
    identity=Identity("org/m", {"model": "org/m"}, "f"), worker={"memory": 3.6e9},
)  # fmt: skip
STUCK = replace(IDLE, name="ray-llm-stuck-0")
SetEngines = Callable[..., None]


@pytest.fixture
def set_engines(monkeypatch: pytest.MonkeyPatch) -> SetEngines:
    """Sets the engines of the cluster."""

    def set_engines(*engines: SharedEngine) -> None:
        monkeypatch.setattr(engines_cli, "_get_engines", lambda: list(engines))
        monkeypatch.setenv("RAY_ADDRESS", "auto")

    def stop_engine(name: str, *, force: bool = False) -> bool:
        if name == STUCK.name and not force:
            raise SliceError("it does not stop", kind="engine")
        return force or name == IDLE.name

    monkeypatch.setattr(serve_apps.SERVE, "stop_engine", stop_engine)
    return set_engines


def test_engines_are_listed_with_workers_and_users(
    set_engines: SetEngines, capsys: pytest.CaptureFixture[str]
) -> None:
    set_engines(IDLE, USED)
    assert main(["engines", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ray-llm-idle-0: running, no worker (workers-1-to-1-idle-600-s), idle for 1,234 s",
        "  runs org/m with max_model_len=256",
        "ray-llm-used-0: deploying, 1 running, 1 starting (workers-1-to-2-idle-kept), "
        "holds 7.2 GB of memory, in use",
        "  runs org/m",
        "  used by s3://a",
    ]
    assert main(["engines", "list", "--json"]) == 0
    assert [e["users"] for e in json.loads(capsys.readouterr().out)] == [[], ["s3://a"]]
    set_engines()
    assert main(["engines", "list"]) == 0
    assert capsys.readouterr().out == "no shared engine is on this cluster\n"
    assert main(["engines", "list", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


@pytest.mark.parametrize(("arguments", "code", "ended", "in_use", "stuck"), [
    ([IDLE.name], 0, [IDLE.name], [], []), ([USED.name], 1, [], [USED.name], []),
    ([USED.name, "--force"], 0, [USED.name], [], []), ([STUCK.name], 1, [], [], [STUCK.name]),
    ([STUCK.name, "--force"], 0, [STUCK.name], [], []),
    (["--all"], 1, [IDLE.name], [USED.name], [STUCK.name]),
])  # fmt: skip
def test_engine_in_use_is_stopped_by_force_only(
    set_engines: SetEngines, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int,
    ended: list[str], in_use: list[str], stuck: list[str],
) -> None:  # fmt: skip
    set_engines(STUCK, IDLE, USED)
    assert main(["engines", "stop", *arguments, "--json"]) == code
    said = json.loads(capsys.readouterr().out)
    failure = said.pop("failure", None)
    assert said == {"ended": ended, "in_use": in_use, "stuck": stuck}
    assert main(["engines", "stop", *arguments]) == code
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"ended {name}" for name in ended]
    left = [*(f"{name} is in use" for name in in_use), *(f"{name} does not stop" for name in stuck)]
    assert (failure or {}).get("sentence", "") == ", ".join(left)
    assert printed.err == (f"error: {', '.join(left)}. Wait, or pass --force\n" if left else "")


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "`engines stop` has neither a name nor --all. Name engines to stop, or pass --all"),
    (["--all", "x"], "`engines stop` has x and --all. Name engines to stop, or pass --all"),
    ([IDLE.name, "typo"], "there is no shared engine 'typo'; there are: ray-llm-idle-0"),
])  # fmt: skip
def test_unclear_request_stops_nothing(
    set_engines: SetEngines, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    set_engines(IDLE)
    assert main(["engines", "stop", *arguments]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"error: {message}\n")


def test_cluster_that_does_not_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**options: Any) -> None:
        raise ConnectionError("no answer")

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(ray, "init", fail)
    for command in (["list"], ["stop", "--all"]):
        assert main(["engines", *command, "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["failure"] == {
            "kind": "unreachable", "sentence": "the Ray cluster does not answer: no answer",
        }  # fmt: skip


def test_unreachable_cluster_fails_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def head_status() -> None:
        raise AssertionError("RAY_ADDRESS names the cluster")

    monkeypatch.setattr("airflow_provider_raydatallm.clusters.embedded.head.head_status", head_status)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert main(["engines", "list"]) == 1
    assert capsys.readouterr().err.startswith("error: there is no Ray cluster at 127.0.0.1:1")
