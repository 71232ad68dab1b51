"""Engines whose cluster has no CPU left at some step: other programs took them all. It travels with the
job."""

from __future__ import annotations

import threading
from dataclasses import replace

from stub_engine import StubEngine, count_stalls_when
from stub_worker import StubWorkers

from airflow_provider_raydatallm.processor.engines.base import OpenFeeder
from airflow_provider_raydatallm.processor.sizing.facts import Resources

_crowded = threading.Event()
count_stalls_when(_crowded.is_set)


class BeforeTheStart(StubWorkers):
    def start_for_feeders(self, *, alone: bool = False) -> OpenFeeder:
        _take_cpus()
        opens = super().start_for_feeders(alone=alone)
        _crowded.set()
        return opens


class AfterTheStart(StubWorkers):
    def start_for_feeders(self, *, alone: bool = False) -> OpenFeeder:
        import ray

        opens = super().start_for_feeders(alone=alone)
        assert self._workers is not None
        ray.get([worker._ready for worker in self._workers._workers])
        _take_cpus(but=self.workers[1] * self.cpus_per_worker)
        _crowded.set()
        return opens


class AtTheEnd(StubEngine):
    def stop(self) -> None:
        super().stop()
        _take_cpus()


class BeyondItsCluster(StubEngine):
    """Needs more than the cluster has once it waits for its turn, as if nodes had left."""

    _waits = False

    def blocking_engines(self) -> list[str]:
        self._waits = True
        return ["another engine"]

    @property
    def resources(self) -> Resources:
        return replace(super().resources, cpus=1000) if self._waits else super().resources


def _take_cpus(but: int = 0) -> None:
    """Hold all of the cluster's CPUs but so many, as another program may, until this job ends."""
    import ray
    from ray.util import placement_group

    taken = [placement_group([{"CPU": 1}]) for _ in range(int(ray.cluster_resources()["CPU"]) - but)]
    assert all(group.wait(300) for group in taken)
