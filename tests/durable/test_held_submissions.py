"""More tasks than the cluster has room for: few of their jobs wait there, and the other tasks hold theirs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_raydatallm.contract.job.phase import PHASE, WAITING
from tests.durable.conftest import MAX_WAITING_JOBS
from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, Task, wait_for
from tests.support.marks import long
from tests.support.outcomes import Line, Outcomes
from tests.support.ray_door import Cluster
from tests.support.tables import Table

DAYS = [f"2025-01-{day:02}" for day in range(1, 6)]


class WaitingJobs:
    """The most jobs that waited for room on the cluster at once."""

    def __init__(self, cluster: Cluster) -> None:
        self.most, self._cluster = 0, cluster
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def now(self) -> int:
        return len(self._cluster.running(**{PHASE: WAITING}))

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            self.most = max(self.most, self.now())


@pytest.fixture
def waiting_jobs(cluster: Cluster, airflow: Airflow) -> Iterator[WaitingJobs]:
    watched = WaitingJobs(cluster)
    yield watched
    watched.close()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_few_jobs_wait_and_the_other_tasks_hold_theirs(
    airflow: Airflow, cluster: Cluster, outcomes: Outcomes, make_table: Callable[..., Table], mode: str,
    waiting_jobs: WaitingJobs,
) -> None:  # fmt: skip
    table = make_table(*DAYS)
    for day in DAYS:
        table.hold(day, 1)

    def start(day: str) -> Task:
        return airflow.api.trigger(f"crowded_{mode}", conf={"table": table.name, "slice": day})

    def is_holding(task: Task) -> bool:
        return "Waiting to submit the job" in airflow.api.log(task)

    def holding() -> list[Task]:
        return [task for task in tasks if is_holding(task) and not cluster.jobs(run_id=task.run_id)]

    tasks = [start(DAYS[0])]
    table.wait_answered(DAYS[0], 1)  # it has had its turn, and keeps the cluster full
    tasks += [start(day) for day in DAYS[1:]]

    def all_wait() -> list[Task] | None:
        held = holding()
        is_full = len(held) == 2 and waiting_jobs.now() == MAX_WAITING_JOBS
        return held if is_full and holding() == held else None  # one may have had its turn meanwhile

    held = wait_for(all_wait, LIMIT, "two jobs and two tasks to wait", lambda: cluster.jobs())
    marked = held[0]
    airflow.api.mark(marked, "failed")
    for day in DAYS:
        table.release(day)
    others = [task for task in tasks if task != marked]
    days = [day for day, task in zip(DAYS, tasks, strict=True) if task != marked]
    event = "more tasks than the cluster has room for"
    line = outcomes.see(event, mode, others, table, *days)
    assert line == Line(event, mode, "published x4", 4, 0, "right", "success x4")
    assert waiting_jobs.most == MAX_WAITING_JOBS
    assert airflow.api.get(marked)["state"] == "failed"
    assert cluster.jobs(run_id=marked.run_id) == []
    assert airflow.api.xcom(held[1])["seconds"]["queued"] > 1
    assert [len(cluster.jobs(run_id=task.run_id)) for task in others] == [1] * 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "who"), [("deferred", "triggerer"), ("waiting", "worker")], indirect=["mode"]
)
def test_what_dies_with_a_line_loses_and_repeats_no_submission(
    airflow: Airflow, cluster: Cluster, outcomes: Outcomes, make_table: Callable[..., Table], mode: str,
    who: str,
) -> None:  # fmt: skip
    table = make_table(*DAYS[:4])
    for day in DAYS[:4]:
        table.hold(day, 1)
    tasks = [
        airflow.api.trigger(f"crowded_{mode}", conf={"table": table.name, "slice": day}) for day in DAYS[:4]
    ]

    def only_holder() -> Task | None:
        holders = [task for task in tasks if not cluster.jobs(run_id=task.run_id)]
        return holders[0] if len(holders) == 1 else None

    holder = wait_for(only_holder, LIMIT, "three jobs", lambda: cluster.jobs())
    if who == "triggerer":
        airflow.restart("triggerer")
    else:
        airflow.worker(holder).kill()
        airflow.api.wait(holder, "running", try_number=2)
    for day in DAYS[:4]:
        table.release(day)
    event = f"the {who} is killed while tasks hold their submission"
    line = outcomes.see(event, mode, tasks, table, *DAYS[:4])
    assert line == Line(event, mode, "published x4", 4, 0, "right", "success x4")
    assert [len(cluster.jobs(run_id=task.run_id)) for task in tasks] == [1] * 4
