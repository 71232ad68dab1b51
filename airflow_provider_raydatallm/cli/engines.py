"""`airflow-ray-llm engines`: the shared engines of a cluster, listed and ended.

The cluster is that of RAY_ADDRESS, the one whose node this is, or this machine's embedded head.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

_PROGRAM = "airflow_provider_raydatallm.cli.main"
_CONNECT_SECONDS = 10

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.engines.shared.serve_apps import SharedEngine


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    engines = commands.add_parser("engines", help="the shared engines of a cluster", description=__doc__)
    actions = engines.add_subparsers(dest="action", required=True)
    for name, run, what in (
        ("list", _list, "which there are, with their workers and the slices that use them"),
        ("stop", _stop, "end some, and free what they hold"),
    ):
        action = actions.add_parser(name, help=what, description=what)
        action.add_argument("--json", action="store_true", help="print JSON")
        if run is _stop:
            action.add_argument("names", metavar="NAME", nargs="*", help="as `list` shows them")
            action.add_argument("--all", action="store_true", help="all of them")
            action.add_argument(
                "--force",
                action="store_true",
                help="also those in use: their slices fail, and can be retried",
            )
        action.set_defaults(run=run)


def _list(args: argparse.Namespace) -> int:
    if (found := _engines()) is None:
        return 1
    if args.json:
        print(json.dumps([asdict(e) for e in found]))
    elif not found:
        print("no shared engine is on this cluster")
    for engine in () if args.json else found:
        workers = ", ".join(f"{count} {state.lower()}" for state, count in engine.workers.items())
        print(f"{engine.name}: {engine.status.lower()}, {workers or 'no worker'} ({engine.deployment})")
        for user in engine.users:
            print(f"  used by {user}")
    return 0


def _stop(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.contract.errors import SliceError
    from airflow_provider_raydatallm.processor.engines.shared import serve_apps

    if bool(args.names) == args.all:
        print("error: name engines to stop, or say --all", file=sys.stderr)
        return 2
    if (found := _engines()) is None:
        return 1
    there = [e.name for e in found]
    if unknown := [n for n in args.names if n not in there]:
        known = ", ".join(there) or "none"
        print(f"error: there is no shared engine {unknown[0]!r}; there are: {known}", file=sys.stderr)
        return 1
    ended: list[str] = []
    used: list[str] = []
    stuck: list[str] = []
    for name in args.names or there:
        try:
            (ended if serve_apps.SERVE.stop_engine(name, force=args.force) else used).append(name)
        except SliceError:
            stuck.append(name)
    if args.json:
        print(json.dumps({"ended": ended, "in_use": used, "stuck": stuck}))
    else:
        for name in ended:
            print(f"ended {name}")
        for name in used:
            print(f"{name} is in use: wait, or say --force", file=sys.stderr)
        for name in stuck:
            what = "end what it holds" if args.force else "say --force"
            print(f"{name} does not end: wait, or {what}", file=sys.stderr)
    return 1 if used or stuck else 0


def _engines() -> list[SharedEngine] | None:
    """None when no cluster can be reached, which is told."""
    from airflow_provider_raydatallm.local_ray.head import head_status

    if "RAY_ADDRESS" not in os.environ and (head := head_status()) is not None:
        # Ray has read its environment when it was imported.
        os.execve(sys.executable, [sys.executable, "-m", _PROGRAM, *sys.argv[1:]], head.environment())
    try:
        address = os.environ.get("RAY_ADDRESS", "auto")
        if ":" in address and "://" not in address:  # Ray would try for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()

        import ray

        from airflow_provider_raydatallm.processor.engines.shared import serve_apps

        ray.init(address, logging_level="error", log_to_driver=False)
        return serve_apps.SERVE.engines()
    except Exception as e:
        print(f"error: no Ray cluster can be reached; is RAY_ADDRESS right? ({e})", file=sys.stderr)
        return None
