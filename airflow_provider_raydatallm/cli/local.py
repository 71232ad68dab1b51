"""`airflow-ray-llm local`: the embedded Ray head of this machine."""

from __future__ import annotations

import argparse
import json


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    local = commands.add_parser("local", help="the embedded Ray head of this machine")
    actions = local.add_subparsers(dest="action", required=True)
    for name, run, what in (
        ("status", _status, "whether it runs, and where"),
        ("stop", _stop, "stop it with all its processes"),
    ):
        action = actions.add_parser(name, help=what, description=what)
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(run=run)


def _status(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.local_ray.head import head_status

    head = head_status()
    if args.json:
        fields = ("address", "pid", "num_cpus", "started_at")
        print(json.dumps(head and {name: getattr(head, name) for name in fields}))
    elif head is None:
        print("no embedded Ray head runs on this machine")
    else:
        print(
            f"Ray {head.ray_version} at {head.address}, {head.num_cpus} logical CPUs, since "
            f"{head.started_at} (pid {head.pid})"
        )
    return 0 if head else 3


def _stop(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.local_ray.head import stop_head

    ended = stop_head()
    text = f"ended {ended} process(es)" if ended else "nothing was running"
    print(json.dumps({"ended": ended}) if args.json else text)
    return 0
