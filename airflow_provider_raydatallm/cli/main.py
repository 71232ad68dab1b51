"""`airflow-ray-llm`: the command line of the provider.

`run`, `plan`, `status`, `gc` and others work on slices; `engines` manages the shared engines of a cluster,
`local` the embedded Ray head of this machine. The cluster is `--address`, else RAY_ADDRESS, else the embedded
head. Every command prints JSON with `--json`.
"""

from __future__ import annotations

import argparse
import sys

from airflow_provider_raydatallm.cli import engines, local
from airflow_provider_raydatallm.cli.cluster import add_address, choose_cluster
from airflow_provider_raydatallm.processor.__main__ import add_commands


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    return int(args.run(args)) if choose_cluster(args) else 1


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="airflow-ray-llm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (add_commands, engines.add_commands, local.add_commands):
        add(commands)
    for name in ("run", "retry-quarantined"):
        add_address(commands.choices[name])
    add_address(commands.choices["plan"], required=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
