"""`airflow-ray-llm`: the one program that people type.

`run` and `status` work on a spec with any Ray cluster; `engines` manages the engines that slices share there,
`local` the embedded Ray head of this machine.
"""

from __future__ import annotations

import argparse
import json
import sys

from airflow_provider_raydatallm.cli import engines
from airflow_provider_raydatallm.processor.__main__ import add_commands


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="airflow-ray-llm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add_commands(commands)
    engines.add_commands(commands)
    local = commands.add_parser("local", help="the embedded Ray head of this machine")
    actions = local.add_subparsers(dest="action", required=True)
    for name, run, what in (
        ("status", _status, "whether it runs, and where"),
        ("stop", _stop, "end it, with every process of it"),
    ):
        action = actions.add_parser(name, help=what, description=what)
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(run=run)
    args = parser.parse_args(argv)
    return int(args.run(args))


def _status(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.local_ray.head import head_status

    head = head_status()
    if args.json:
        shown = head and {
            "address": head.address,
            "pid": head.pid,
            "num_cpus": head.num_cpus,
            "started_at": head.started_at,
        }
        print(json.dumps(shown))
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
    print(
        json.dumps({"ended": ended})
        if args.json
        else f"ended {ended} process(es)"
        if ended
        else "nothing was running"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
