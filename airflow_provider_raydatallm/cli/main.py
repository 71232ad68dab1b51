"""The command line of the provider.

Commands take OUTPUT, a task's output_path, and SLICE, such as 2026-01-31; `run`, `plan` and
`retry-quarantined` take a slice's spec, which `spec` exports from a DAG. Wherever OUTPUT stands, a path that
ends in .json, or package:NAME, is a spec, which names its table and slice. Every command prints JSON with
--json. Exit code 1: it failed, or nothing is published; 2: it is written wrong.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from airflow_provider_raydatallm.cli import clusters, dag_spec, engines, local, tables
from airflow_provider_raydatallm.cli.cluster import add_address, choose_cluster
from airflow_provider_raydatallm.cli.waiting import Waiting
from airflow_provider_raydatallm.processor.__main__ import add_commands
from airflow_provider_raydatallm.processor.commands.command import run_command
from airflow_provider_raydatallm.processor.commands.spec_file import spec_of

_ONLY_READ = ("files", "versions")


def main(argv: list[str] | None = None, prog: str = "airflow-ray-llm") -> int:
    args = make_parser(prog).parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that knows no other letters than ASCII's
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _told_of(args.command):
            code = run_command(_run, args)
        print(end="", flush=True)
        return code
    except BrokenPipeError:  # `| head` has all that it wanted; the interpreter would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(args: argparse.Namespace) -> int:
    if hasattr(args, "spec"):
        spec_of(args)  # a wrong one is told of before a cluster is looked for
    choose_cluster(args)
    return int(args.run(args))


@contextmanager
def _told_of(command: str) -> Iterator[None]:
    """Commands that tell of no progress of their own say that they are at work."""
    from airflow_provider_raydatallm.processor.storage.filesystem import waiting_briefly

    with ExitStack() as stack:
        if command in _ONLY_READ:
            stack.enter_context(waiting_briefly())
        if command in (*_ONLY_READ, "restore", "gc"):
            stack.enter_context(Waiting(f"{command} is at work on the slice's storage"))
        yield


def make_parser(prog: str = "airflow-ray-llm") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, title="commands", metavar="COMMAND")
    tables.add_commands(commands)
    dag_spec.add_commands(commands)
    add_commands(commands)
    for part in (clusters, engines, local):
        part.add_commands(commands)
    for name in ("run", "retry-quarantined"):
        add_address(commands.choices[name])
    add_address(commands.choices["plan"], required=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
