"""`python -m airflow_provider_raydatallm.processor run SPEC`: runs one slice on the Ray cluster that this
process can reach. Its other commands are those of the command line that need no Airflow.

SPEC is a JSON file of a `SliceJob`: a path, a URL that fsspec opens, or `package:NAME` for one that was
shipped with the job. The report is printed as JSON; with --nonce as a marked line
(`contract.log.marked_lines`), which the Airflow side looks for.
"""

from __future__ import annotations

import argparse
import sys

from airflow_provider_raydatallm.processor.commands.command import Commands, run_command
from airflow_provider_raydatallm.processor.commands.run_commands import add_run_commands
from airflow_provider_raydatallm.processor.commands.slice_commands import (
    add_decide_command,
    add_plan_command,
    add_status_command,
)
from airflow_provider_raydatallm.processor.commands.version_commands import add_version_commands


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="airflow_provider_raydatallm.processor", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add_commands(commands)
    add_status_command(commands)
    add_decide_command(commands)
    args = parser.parse_args(argv)
    return run_command(args.run, args)


def add_commands(commands: Commands) -> None:
    """Adds the commands that people type, too."""
    add_run_commands(commands)
    add_plan_command(commands)
    add_version_commands(commands)


if __name__ == "__main__":
    sys.exit(main())
