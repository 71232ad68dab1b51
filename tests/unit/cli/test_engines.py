from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_raydatallm.cli import engines as engines_cli
from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import SharedEngine

IDLE = SharedEngine("ray-llm-idle-0", "RUNNING", "", "workers-1-to-1-idle-600-s", {}, ())
USED = SharedEngine(
    "ray-llm-used-0", "DEPLOYING", "", "workers-1-to-2-idle-kept", {"RUNNING": 1, "STARTING": 1}, ("s3://a",)
)
STUCK = replace(IDLE, name="ray-llm-stuck-0")
See = Callable[..., None]


@pytest.fixture
def see(monkeypatch: pytest.MonkeyPatch) -> See:
    """Have these engines on the cluster; None: there is no cluster."""

    def seen(*engines: SharedEngine | None) -> None:
        found = None if None in engines else list(engines)
        monkeypatch.setattr(engines_cli, "_engines", lambda: found)

    def end(name: str, *, force: bool = False) -> bool:
        if name == STUCK.name and not force:
            raise SliceError("it does not end", kind="engine")
        return force or name == IDLE.name

    monkeypatch.setattr(serve_apps.SERVE, "stop_engine", end)
    return seen


def test_engines_are_listed_with_workers_and_users(see: See, capsys: pytest.CaptureFixture[str]) -> None:
    see(IDLE, USED)
    assert main(["engines", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ray-llm-idle-0: running, no worker (workers-1-to-1-idle-600-s)",
        "ray-llm-used-0: deploying, 1 running, 1 starting (workers-1-to-2-idle-kept)",
        "  used by s3://a",
    ]
    assert main(["engines", "list", "--json"]) == 0
    assert [e["users"] for e in json.loads(capsys.readouterr().out)] == [[], ["s3://a"]]
    see()
    assert main(["engines", "list"]) == 0
    assert capsys.readouterr().out == "no shared engine is on this cluster\n"
    assert main(["engines", "list", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "code", "ended", "in_use", "stuck"),
    [
        ([IDLE.name], 0, [IDLE.name], [], []),
        ([USED.name], 1, [], [USED.name], []),
        ([USED.name, "--force"], 0, [USED.name], [], []),
        ([STUCK.name], 1, [], [], [STUCK.name]),
        ([STUCK.name, "--force"], 0, [STUCK.name], [], []),
        (["--all"], 1, [IDLE.name], [USED.name], [STUCK.name]),
    ],
)
def test_engine_in_use_is_stopped_by_force_only(
    see: See,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    ended: list[str],
    in_use: list[str],
    stuck: list[str],
) -> None:
    see(STUCK, IDLE, USED)
    assert main(["engines", "stop", *arguments, "--json"]) == code
    assert json.loads(capsys.readouterr().out) == {"ended": ended, "in_use": in_use, "stuck": stuck}
    assert main(["engines", "stop", *arguments]) == code
    said = capsys.readouterr()
    assert said.out.splitlines() == [f"ended {name}" for name in ended]
    used = [f"{name} is in use: wait, or say --force" for name in in_use]
    assert said.err.splitlines() == used + [f"{name} does not end: wait, or say --force" for name in stuck]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "name engines to stop, or say --all"),
        (["--all", IDLE.name], 2, "name engines to stop, or say --all"),
        ([IDLE.name, "typo"], 1, "there is no shared engine 'typo'; there are: ray-llm-idle-0"),
    ],
)
def test_what_is_unclear_stops_nothing(
    see: See, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    see(IDLE)
    assert main(["engines", "stop", *arguments]) == code
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"error: {says}\n")


def test_no_cluster_is_an_error(see: See) -> None:
    see(None)
    assert main(["engines", "list"]) == main(["engines", "stop", "--all"]) == 1


def test_cluster_that_is_gone_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def another() -> None:
        raise AssertionError("which cluster it is was said")

    monkeypatch.setattr("airflow_provider_raydatallm.local_ray.head.head_status", another)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # nobody there
    assert main(["engines", "list"]) == 1
    assert capsys.readouterr().err.startswith("error: no Ray cluster can be reached; is RAY_ADDRESS right?")
