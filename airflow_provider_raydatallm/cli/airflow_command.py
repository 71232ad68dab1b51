"""`airflow ray-llm ...`: the same commands in Airflow's own command line. Imported by each start of that."""

from __future__ import annotations

import argparse
import os
import sys

from airflow.cli.cli_config import ActionCommand, Arg


class _Arguments(Arg):
    """All that follows `airflow ray-llm`. Airflow's parser answers its `--help`, with the text of ours."""

    def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
        super().add_to_parser(parser)
        parser.format_help = _help  # type: ignore[method-assign]


def _help() -> str:
    from airflow_provider_raydatallm.cli.main import make_parser

    return make_parser(_PROGRAM).format_help()


_PROGRAM = "airflow ray-llm"
_ALL = _Arguments(  # type: ignore[no-untyped-call]
    ("arguments",),
    nargs=argparse.REMAINDER,
    help="a command of airflow-ray-llm with its arguments; without any, they are listed",
)


def get_cli_commands() -> list[ActionCommand]:
    what = "Slices of tables that RayLLMBatchOperator answers, shared engines, the embedded Ray head"
    return [ActionCommand(name="ray-llm", help=what, func=_run, args=[_ALL])]


def _run(args: argparse.Namespace) -> None:
    from airflow_provider_raydatallm.cli.main import main

    _keep_stdout_for_results()
    raise SystemExit(main(args.arguments or ["--help"], prog=_PROGRAM))


def _keep_stdout_for_results() -> None:
    """Sends Airflow's log to stderr: its loggers hold the stream itself, and would write between the JSON."""
    if sys.stdout is None:
        return
    sys.stdout.flush()
    results = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(2, 1)
    sys.stdout = results
