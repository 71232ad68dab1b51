"""A kind of cluster as others may come: tasks make it, share it by its name and end it, and it takes a while
to start. The package knows nothing of it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from airflow_provider_raydatallm.clusters.base import (
    Access,
    Cluster,
    ClusterStartingError,
    FindEnded,
    Holder,
    none_has_ended,
)
from airflow_provider_raydatallm.exceptions import RayUnreachableError
from tests.support.fake_cluster import FakeCluster, fake_cluster


@dataclass
class Toy:
    """One that was made. `server` outlives this process's objects, as a real one does. `holders`: the newest
    try of each task that holds it."""

    server: FakeCluster
    end: ExitStack
    holders: dict[str, int] = field(default_factory=dict)


class ToyCluster(Cluster):
    kind = "toy"
    host_name = "toy"
    ends_when_released = True

    #: Those that were made, by what tells each apart.
    made: dict[str, Toy] = {}
    #: How many were made, with those that have ended.
    count = 0
    is_starting = False

    @property
    def identity(self) -> str:
        self._own = self._own or next(iter(self.made), "")
        return super().identity

    def acquire(self, holder: Holder | None) -> None:
        if self._own and self._own not in self.made:
            raise self._released()
        _ = self.identity
        if not self._own:
            self._own = self.make()
        if holder is not None:
            holders = self.made[self._own].holders
            holders[holder.task] = max(holder.try_number, holders.get(holder.task, 0))

    def address(self) -> Access:
        if self._own not in self.made:
            raise self._released()
        if self.is_starting:
            raise ClusterStartingError(f"{self.label}: the toy is being made")
        return Access(self.made[self._own].server.address)

    def release(self, holder: Holder | None, find_ended: FindEnded = none_has_ended) -> None:
        if (toy := self.made.get(self._own)) is not None:
            for task in find_ended(list(toy.holders)):
                toy.holders.pop(task, None)
            if holder is not None and toy.holders.get(holder.task, 0) <= holder.try_number:
                toy.holders.pop(holder.task, None)
            if not toy.holders:
                self.end(self._own)

    @classmethod
    def make(cls, port: int = 0) -> str:
        end = ExitStack()
        ToyCluster.count += 1
        own = f"toy-{cls.count}"
        cls.made[own] = Toy(end.enter_context(fake_cluster(port)), end)
        return own

    @classmethod
    def end(cls, own: str) -> None:
        cls.made.pop(own).end.close()

    def _released(self) -> RayUnreachableError:
        return RayUnreachableError(f"{self.label}: the toy {self._own} was released")
