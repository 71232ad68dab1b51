"""A task of one day that waits for its job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, Task, wait_for
from tests.support.outcomes import Line, Outcomes
from tests.support.ray_door import Cluster
from tests.support.tables import Table

DAY = "2025-01-01"


class Scene:
    """A task whose job has answered one batch of four and is held there."""

    def __init__(
        self, airflow: Airflow, cluster: Cluster, outcomes: Outcomes, make: Callable[..., Table]
    ) -> None:
        self.airflow, self.cluster = airflow, cluster
        self._outcomes, self._make = outcomes, make

    def begin(self, mode: str, dag: str = "manual") -> Task:
        self.trigger(mode, dag)
        self.table.wait_answered(DAY, 1)
        if mode == "deferred":
            self.airflow.api.wait(self.task, "deferred")
        return self.task

    def trigger(self, mode: str, dag: str = "manual", **params: Any) -> None:
        """:param params: of the run, beside its table and its slice."""
        self.mode, self.table = mode, self._make(DAY)
        self.table.hold(DAY, 1)
        conf = {"table": self.table.name, "slice": DAY, **params}
        self.task = self.airflow.api.trigger(f"{dag}_{mode}", conf=conf)

    @property
    def jobs(self) -> list[str]:
        return self.cluster.running(run_id=self.task.run_id)

    def wait_stopped(self) -> None:
        wait_for(lambda: not self.jobs or None, LIMIT, "the job to end", lambda: self.jobs)

    def go_on(self) -> None:
        self.table.release(DAY)

    def clean(self) -> None:
        """What a test that failed left must not fail the others."""
        self.cluster.back()
        self.cluster.grant()
        for job in self.jobs:
            self.cluster.stop_job(job)

    def wait_logged(self, text: str) -> None:
        self.airflow.api.wait_logged(self.task, text)

    def see(self, event: str) -> Line:
        return self._outcomes.see(event, self.mode, self.task, self.table, DAY)

    def assert_done(self, event: str, jobs: int = 1) -> None:
        assert self.see(event) == Line(event, self.mode, "published", jobs, 0, "right", "success")

    def assert_undone(self, event: str, state: str) -> None:
        assert self.see(event) == Line(event, self.mode, "-", 1, 0, "none", state)
