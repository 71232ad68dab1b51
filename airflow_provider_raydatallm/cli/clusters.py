"""`airflow-ray-llm clusters`: lists and ends the Ray clusters that tasks have had made on Kubernetes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.commands.command import Commands, add_command
from airflow_provider_raydatallm.processor.commands.printing import print_json, say

if TYPE_CHECKING:
    from airflow_provider_raydatallm.clusters.kuberay.made_clusters import MadeCluster


def add_commands(commands: Commands) -> None:
    clusters = commands.add_parser(
        "clusters", help="the Ray clusters that tasks have had made on Kubernetes", description=__doc__
    )
    actions = clusters.add_subparsers(dest="action", required=True)
    for name, run, what in (
        ("list", _list, "list them with their state, the tasks that need them and when KubeRay ends them"),
        ("end", _end, "end clusters: tasks that need them have others made, and keep their finished rows"),
        ("clean", _clean, "remove what KubeRay keeps of clusters that have ended"),
    ):
        command = add_command(actions, name, run, what)
        command.add_argument("--kubernetes-conn-id", metavar="ID", default="kubernetes_default")
        command.add_argument("--namespace", default="", help="default: the connection's")
    end = actions.choices["end"]
    end.add_argument("names", metavar="NAME", nargs="*", help="as `list` shows them")
    end.add_argument("--all", action="store_true", help="all of them")


def _list(args: argparse.Namespace) -> int:
    found = _find(args)
    if args.json:
        print_json([asdict(cluster) for cluster in found])
        return 0
    if not found:
        say("no Ray cluster of a task is there")
    for cluster in found:
        why = f" ({cluster.reason})" if cluster.reason else ""
        ends = f", ends by {cluster.ends_by}" if cluster.ends_by else ""
        say(f"{cluster.name}: {cluster.state}{why}, since {cluster.made_at}{ends}")
        say(f"  made for {cluster.owner}, needed by {cluster.holders} task(s)")
    return 0


def _end(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.clusters.kuberay import made_clusters

    if bool(args.names) == args.all:
        given = f"{', '.join(args.names)} and --all" if args.all else "neither a name nor --all"
        raise SliceError(f"`clusters end` has {given}", kind="input", advice="Name clusters, or pass --all")
    found = _find(args)
    known = [cluster.name for cluster in found]
    if unknown := [name for name in args.names if name not in known]:
        names = ", ".join(known) or "none"
        raise SliceError(f"there is no Ray cluster {unknown[0]!r}; there are: {names}", kind="input")

    def end() -> Iterator[MadeCluster]:
        for cluster in found:
            if args.all or cluster.name in args.names:
                made_clusters.end(args.kubernetes_conn_id, args.namespace, cluster)
                yield cluster

    return _tell(args, end())


def _clean(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.clusters.kuberay import made_clusters

    return _tell(args, made_clusters.clean(args.kubernetes_conn_id, args.namespace))


def _find(args: argparse.Namespace) -> list[MadeCluster]:
    from airflow_provider_raydatallm.clusters.kuberay import made_clusters

    with _own_errors():
        return made_clusters.find(args.kubernetes_conn_id, args.namespace)


def _tell(args: argparse.Namespace, clusters: Iterator[MadeCluster]) -> int:
    """Tells of each that ends, as it does."""
    ended = []
    with _own_errors():
        for cluster in clusters:
            ended.append(cluster.name)
            if not args.json:
                say(f"ended {cluster.name}")
    if args.json:
        print_json({"ended": ended})
    return 0


@contextmanager
def _own_errors() -> Iterator[None]:
    from airflow_provider_raydatallm.exceptions import RayLLMInputError, RayLLMJobError

    try:
        yield
    except (RayLLMInputError, RayLLMJobError) as e:
        raise SliceError.of(e.failure) from e
