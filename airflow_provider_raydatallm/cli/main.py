"""`airflow-ray-llm`: the command line of the provider.

`slices`, `show`, `diff` and others look at a table by its output_path; `run`, `plan`, `gc` and others take a
slice's spec, which `spec` exports from a DAG; `engines` manages the shared engines of a cluster,
`local` the embedded Ray head of this machine. The cluster is `--address`, else RAY_ADDRESS, else the embedded
head. Every command prints JSON with `--json`.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from airflow_provider_raydatallm.cli import dag_spec, engines, local, tables
from airflow_provider_raydatallm.cli.cluster import add_address, choose_cluster
from airflow_provider_raydatallm.cli.waiting import Waiting
from airflow_provider_raydatallm.processor.__main__ import add_commands
from airflow_provider_raydatallm.processor.commands.command import run_command

_ONLY_READ = ("status", "files", "versions")


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
    commands = parser.add_subparsers(dest="command", required=True)
    add_commands(commands)
    for part in (tables, dag_spec, engines, local):
        part.add_commands(commands)
    for name in ("run", "retry-quarantined"):
        add_address(commands.choices[name])
    add_address(commands.choices["plan"], required=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
