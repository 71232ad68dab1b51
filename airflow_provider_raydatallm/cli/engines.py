"""`airflow-ray-llm engines`: lists and stops the shared engines of a cluster."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from airflow_provider_raydatallm.cli.cluster import add_address
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.processor.commands.command import Commands, IncompleteError, add_command
from airflow_provider_raydatallm.processor.commands.printing import print_json, say

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.engines.shared.serve_apps import SharedEngine


def add_commands(commands: Commands) -> None:
    engines = commands.add_parser("engines", help="the shared engines of a cluster", description=__doc__)
    actions = engines.add_subparsers(dest="action", required=True)
    for name, run, what in (
        (
            "list",
            _list,
            "list engines: what they run and hold, how long they are idle, which slices use them",
        ),
        ("stop", _stop, "stop engines and free their resources"),
    ):
        add_address(add_command(actions, name, run, what))
    stop = actions.choices["stop"]
    stop.add_argument("names", metavar="NAME", nargs="*", help="as `list` shows them")
    stop.add_argument("--all", action="store_true", help="all of them")
    stop.add_argument(
        "--force", action="store_true", help="also those in use: their slices fail, and can be retried"
    )


def _list(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.engines.shared.holdings import holdings_text

    engines = _get_engines()
    if args.json:
        print_json([asdict(engine) for engine in engines])
        return 0
    if not engines:
        say("no shared engine is on this cluster")
    for engine in engines:
        workers = ", ".join(f"{count} {state.lower()}" for state, count in engine.workers.items())
        state = f"{engine.status.lower()}, {workers or 'no worker'} ({engine.scaling})"
        say(f"{engine.name}: {state}, {holdings_text(engine)}")
        if engine.identity is not None:
            say(f"  runs {engine.identity}")
        for user in engine.users:
            say(f"  used by {user}")
    return 0


def _stop(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.engines.shared import serve_apps

    if bool(args.names) == args.all:
        given = f"{', '.join(args.names)} and --all" if args.all else "neither a name nor --all"
        raise SliceError(
            f"`engines stop` has {given}", kind="input", advice="Name engines to stop, or pass --all"
        )
    known = [engine.name for engine in _get_engines()]
    if unknown := [name for name in args.names if name not in known]:
        names = ", ".join(known) or "none"
        raise SliceError(f"there is no shared engine {unknown[0]!r}; there are: {names}", kind="input")
    ended: list[str] = []
    in_use: list[str] = []
    stuck: list[str] = []
    for name in args.names or known:
        try:
            (ended if serve_apps.SERVE.stop_engine(name, force=args.force) else in_use).append(name)
        except SliceError:
            stuck.append(name)
    result = {"ended": ended, "in_use": in_use, "stuck": stuck}
    if not args.json:
        say(*(f"ended {name}" for name in ended))
    if in_use or stuck:
        left = [*(f"{name} is in use" for name in in_use), *(f"{name} does not stop" for name in stuck)]
        what = "stop the processes" if args.force else "pass --force"
        raise IncompleteError(Failure("engine", ", ".join(left), advice=(f"Wait, or {what}",)), result)
    if args.json:
        print_json(result)
    return 0


def _get_engines() -> list[SharedEngine]:
    """:raises SliceError: when the cluster does not answer."""
    try:
        import ray

        from airflow_provider_raydatallm.processor.engines.shared import serve_apps

        ray.init(logging_level="error", log_to_driver=False)
        return serve_apps.SERVE.engines()
    except Exception as e:
        raise SliceError(f"the Ray cluster does not answer: {e}", kind="unreachable") from e
