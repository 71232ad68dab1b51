"""Ends the wait of a slice for which its cluster became too small."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.sizing import checks, cluster_probe
from airflow_provider_raydatallm.processor.sizing.facts import ClusterFacts


class SizeWatch:
    """Nodes may come back: it looks now and then."""

    def __init__(
        self,
        engine: Engine,
        rows: int,
        every_s: float,
        probe: Callable[[], ClusterFacts] = cluster_probe.probe_cluster,
    ) -> None:
        self._engine, self._rows, self._probe = engine, rows, probe
        self._every_s = self._next_look = every_s

    def check(self, waited_s: float) -> None:
        """:raises SliceError: of kind `queue`, which is retried: the next try is refused before it waits, if
        the cluster still lacks nodes."""
        if waited_s < self._next_look:
            return
        self._next_look = waited_s + self._every_s
        for finding in checks.preflight_findings(self._engine.plan, self._rows, self._probe()):
            if finding.severity == "error" and finding.kind == "cluster":
                raise SliceError(
                    f"the cluster lost nodes, and the slice has waited {waited_s:.0f} s: {finding.message}",
                    kind="queue",
                    advice=finding.fix,
                )
