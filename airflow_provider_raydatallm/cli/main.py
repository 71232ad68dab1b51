"""`airflow-ray-llm`: the command line of the provider.

`run`, `plan`, `status` and `gc` work on slices, on any Ray cluster; `engines` manages the shared engines
of a cluster, `local` the embedded Ray head of this machine.
"""

from __future__ import annotations

import argparse
import sys

from airflow_provider_raydatallm.cli import engines, local
from airflow_provider_raydatallm.processor.__main__ import add_commands


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="airflow-ray-llm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (add_commands, engines.add_commands, local.add_commands):
        add(commands)
    args = parser.parse_args(argv)
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
