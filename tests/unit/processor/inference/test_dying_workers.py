"""Workers that die again and again before a row is answered end the run; those that may still live do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_provider_raydatallm.contract.log.progress_text import progress_text
from airflow_provider_raydatallm.processor.engines.base import EngineGivenUpError
from airflow_provider_raydatallm.processor.inference.dying_workers import DyingWorkers
from airflow_provider_raydatallm.processor.metrics.meter import Deaths
from airflow_provider_raydatallm.processor.ray_runtime.job_state import JobWorker, WorkerExit

CRASH = "Worker unexpectedly exits with a connection error code 2. End of file."


class Job:
    """A job's workers as Ray lists them, at one look after the other."""

    def __init__(self) -> None:
        self.workers: Sequence[JobWorker] = ()
        self.ended: dict[int, str] = {}
        self._now = 0.0
        self.watch = DyingWorkers(lambda: self.workers, self._exit_of, lambda: self._now)

    def _exit_of(self, pid: int) -> WorkerExit | None:
        text = self.ended.get(pid)
        return None if text is None else WorkerExit(text, {"node_id": "n", "pid": pid})

    def look(self, *workers: JobWorker) -> Deaths:
        self.workers = workers
        self._now += 60
        return self.watch.observe()


@pytest.fixture
def job() -> Job:
    return Job()


def worker(deaths: int, pid: int, name: str = "Worker", number: int = 0) -> JobWorker:
    return JobWorker(f"{name}-{number}", name, pid, deaths)


def test_deaths_are_counted_with_the_reason_of_the_last_and_end_the_run(job: Job) -> None:
    job.ended = {101: CRASH}
    assert job.look(worker(0, 101)) == (0, "")
    assert job.look(worker(4, 102), worker(0, 7, "Writer")) == (4, CRASH.partition(". ")[0])
    job.ended[102] = "killed. Twice"
    with pytest.raises(EngineGivenUpError) as raised:
        job.look(worker(5, 103), worker(0, 7, "Writer"))
    assert raised.value.kind == "engine"
    assert "Worker died 5 times" in raised.value.failure.sentence
    assert raised.value.failure.cause == "killed. Twice"
    assert raised.value.log == {"node_id": "n", "pid": 102}


def test_run_goes_on_while_a_worker_of_the_stage_may_live(job: Job) -> None:
    assert job.look(worker(9, 101), worker(0, 102, number=1)) == (9, "")
    with pytest.raises(EngineGivenUpError):
        job.look(worker(9, 101), worker(5, 102, number=1))


def test_worker_that_waits_for_its_resources_is_no_hope_for_the_others(job: Job) -> None:
    with pytest.raises(EngineGivenUpError):
        job.look(worker(5, 101), worker(0, 0, number=1))


def test_job_whose_workers_are_not_known_goes_on(job: Job) -> None:
    assert job.look() == (0, "")


def test_progress_tells_of_deaths() -> None:
    start = {"step": "start", "elapsed_s": 2.0, "rows": 0, "died": 3, "died_of": "killed"}
    assert progress_text(start) == "starting the engine: 3 worker(s) died, the last one: killed"
    assert progress_text({**start, "died_of": ""}).endswith(": 3 worker(s) died")
