"""`airflow-ray-llm local`: the embedded Ray head of this machine."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from airflow_provider_raydatallm.processor.commands.command import Commands, add_command

if TYPE_CHECKING:
    from airflow_provider_raydatallm.clusters.embedded.head import LocalHead

_NO_HEAD = "no embedded Ray head runs on this machine; start one with: airflow-ray-llm local start"


def add_commands(commands: Commands) -> None:
    local = commands.add_parser("local", help="the embedded Ray head of this machine")
    actions = local.add_subparsers(dest="action", required=True)
    for name, run, what in (
        ("start", _start, "start it, unless it runs"),
        ("status", _status, "whether it runs, and where"),
        ("dashboard", _dashboard, "the address of its dashboard, and the token that it asks for"),
        ("stop", _stop, "stop it with all its processes"),
    ):
        add_command(actions, name, run, what)


def _start(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.clusters.embedded.head import ensure_head

    return _show(ensure_head(), args)


def _status(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.clusters.embedded.head import head_status

    return _show(head_status(), args)


def _show(head: LocalHead | None, args: argparse.Namespace) -> int:
    if args.json:
        fields = ("address", "pid", "num_cpus", "started_at")
        print(json.dumps(head and {name: getattr(head, name) for name in fields}))
    elif head is None:
        print(_NO_HEAD)
    else:
        print(
            f"Ray {head.ray_version} at {head.address}, {head.num_cpus} logical CPUs, since "
            f"{head.started_at} (pid {head.pid})"
        )
    return 0 if head else 3


def _dashboard(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.clusters.embedded.head import head_status

    head = head_status()
    if args.json:
        print(json.dumps(head and {"address": head.address, "token": head.token}))
    elif head is None:
        print(_NO_HEAD)
    else:  # never in one line: an address with a secret in it ends up in histories and logs
        print(f"{head.address}\ntoken, which it asks for: {head.token}")
    return 0 if head else 3


def _stop(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.clusters.embedded.head import stop_head

    ended = stop_head()
    text = f"ended {ended} process(es)" if ended else "nothing was running"
    print(json.dumps({"ended": ended}) if args.json else text)
    return 0
