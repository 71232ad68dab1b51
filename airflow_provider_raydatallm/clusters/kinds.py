"""All kinds of clusters, and how to open a cluster of any."""

from __future__ import annotations

from airflow_provider_raydatallm.clusters.base import Cluster, Identity, Order
from airflow_provider_raydatallm.clusters.connection import ConnectionCluster
from airflow_provider_raydatallm.clusters.embedded.cluster import EmbeddedCluster
from airflow_provider_raydatallm.clusters.kuberay.cluster import KubeRayCluster
from airflow_provider_raydatallm.exceptions import RayConnectionError

KINDS: dict[str, type[Cluster]] = {
    kind.kind: kind for kind in (ConnectionCluster, EmbeddedCluster, KubeRayCluster)
}


def open_cluster(identity: str, host: str = "", order: Order | None = None) -> Cluster:
    """Returns the cluster that a record names, or that a connection means (`meant_by`). Nothing is started or
    asked.

    :param host: of the identity's connection, as it is now; "" where nobody has read it.
    :param order: of the task, if it says what it wants of a cluster.
    :raises RayConnectionError: when the identity cannot be read, or the connection means a cluster of another
        kind by now, or one that nobody makes.
    """
    known = Identity.parse(identity)
    kind = KINDS.get(known.kind)
    if kind is None:
        raise RayConnectionError(
            f"connection {known.conn_id!r}: there is no kind of cluster {known.kind!r}: another version of "
            "the provider wrote it"
        )
    if host and _kind_at(host) is not kind:
        raise RayConnectionError(
            f"connection {known.conn_id!r} means {host} by now, which is not the cluster of the job "
            f"({identity})"
        )
    if order is not None and not kind.is_made_to_order:
        made = " or ".join(repr(k.host_name) for k in KINDS.values() if k.is_made_to_order)
        raise RayConnectionError(
            f"connection {known.conn_id!r} means a cluster that runs already, and the task wants one made",
            advice=f"Leave the argument cluster out, or name a connection with the host {made}",
        )
    return kind(known.conn_id, known.own, host, order)


def meant_by(conn_id: str, host: str) -> str:
    """Returns the identity, as far as the connection tells, of the cluster that it means."""
    return str(Identity(_kind_at(host).kind, conn_id))


def host_names() -> set[str]:
    """Returns the hosts of connections that are not addresses."""
    return {kind.host_name for kind in KINDS.values() if kind.host_name is not None}


def _kind_at(host: str) -> type[Cluster]:
    named = (kind for kind in KINDS.values() if kind.host_name == host)
    return next(named, ConnectionCluster)
