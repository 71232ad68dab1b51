"""Finds the cluster of a command: `--address`, else RAY_ADDRESS, else this machine's embedded head, else the
cluster that this machine is a node of."""

from __future__ import annotations

import argparse
import os
import socket
import sys

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure

_PROGRAM = "airflow_provider_raydatallm.cli.main"
_CONNECT_TIMEOUT_S = 10
_NO_CLUSTER = Failure(
    "input",
    "no Ray cluster is named, and no embedded head runs on this machine",
    advice=(
        "Give --address HOST:6379, or set RAY_ADDRESS, or start an embedded head: "
        "airflow-ray-llm local start",
    ),
)


def add_address(command: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Adds `--address` to a command that works on a cluster.

    :param required: whether the command fails without one.
    """
    command.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the Ray cluster (default: RAY_ADDRESS, else this machine's embedded head)",
    )
    command.set_defaults(needs_cluster=required)


def choose_cluster(args: argparse.Namespace) -> None:
    """Makes Ray in this process connect to a command's cluster.

    For the embedded head it starts the program again: Ray reads the token's place when it is imported.

    :raises SliceError: when there is none and the command needs one.
    """
    if not hasattr(args, "address"):
        return
    from airflow_provider_raydatallm.clusters.embedded.head import head_status

    address = args.address or os.environ.get("RAY_ADDRESS", "")
    if not address and (head := head_status()) is not None:
        os.execve(sys.executable, [sys.executable, "-m", _PROGRAM, *sys.argv[1:]], head.environment())
    address = address or _node_address()
    if address:
        os.environ["RAY_ADDRESS"] = address
    problem = _problem_of(address)
    if problem is not None and args.needs_cluster:
        raise SliceError.of(problem)


def _node_address() -> str:
    from airflow_provider_raydatallm.processor.run_plan import node_cluster_address

    address = node_cluster_address()  # also of a cluster that has ended
    return address if address and _problem_of(address) is None else ""


def _problem_of(address: str) -> Failure | None:
    if not address:
        return _NO_CLUSTER
    host, _, port = address.rpartition(":")
    if not host or "://" in address:
        return None  # Ray's own names
    try:  # Ray would retry for minutes
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as e:
        return Failure(
            "unreachable",
            f"there is no Ray cluster at {address} ({e})",
            advice=("Check --address or RAY_ADDRESS",),
        )
    return None
