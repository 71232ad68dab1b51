"""The kind `connection`: a cluster that others run, at the address that a connection has."""

from __future__ import annotations

from airflow_provider_raydatallm.clusters.base import Access, Cluster


class ConnectionCluster(Cluster):
    """Identified by its connection alone: its address may change, and two clusters that follow each other at
    one address look the same. The second one does not know the first one's jobs."""

    kind = "connection"

    def address(self) -> Access:
        return Access(self._host)
