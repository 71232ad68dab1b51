"""What happens when ...: each event hits a task that waits for a job which is half done. docs/what-happens.md
has a line for each."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from airflow.sdk.execution_time import comms

from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, wait_for
from tests.support.marks import long
from tests.support.outcomes import Line
from tests.support.scene import DAY, Scene

# --- The job goes on, and is found again ---


@pytest.mark.long
@pytest.mark.parametrize("answer", [(404, "default backend - 404"), long((200, "<html>")), long((409, ""))])
def test_something_else_that_answers_for_the_cluster_at_submit(scene: Scene, answer: tuple[int, str]) -> None:
    scene.cluster.replace(*answer)
    scene.trigger("waiting")
    scene.wait_logged("Waiting for the cluster")
    scene.cluster.back()
    scene.go_on()
    scene.assert_done(f"HTTP {answer[0]} of an ingress at submit")
    assert scene.airflow.api.get(scene.task)["try_number"] == 1


@pytest.mark.long
@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_task_that_dies_in_its_last_second(scene: Scene, mode: str) -> None:
    task = scene.begin(mode, "lastsecond")
    scene.go_on()
    scene.assert_done("task killed after its slice was published")
    assert scene.airflow.api.get(task)["try_number"] == 2


@pytest.mark.parametrize("who", ["worker", long("task process")])
def test_killed_worker(scene: Scene, who: str) -> None:
    task = scene.begin("waiting")
    worker = scene.airflow.worker(task)
    worker.kill() if who == "worker" else worker.runner.kill()
    scene.airflow.api.wait(task, "running", try_number=2)
    scene.go_on()
    scene.assert_done(f"{who} killed")
    if hasattr(comms, "GetTaskStateStore"):  # from Airflow 3.3
        assert scene.airflow.api.state_store(task)["ray_llm_job"]["phase"] == "concluded"


@pytest.mark.long
def test_try_that_was_thought_dead_concludes_beside_the_next_one(scene: Scene) -> None:
    task = scene.begin("waiting", "announced")
    worker = scene.airflow.worker(task)
    processes = [worker.supervisor, worker.runner]
    try:
        for process in processes:
            process.suspend()
        scene.airflow.api.wait(task, "running", try_number=2)
        scene.wait_logged("of an earlier attempt")
        scene.go_on()
    finally:
        for process in processes:
            process.resume()
    scene.assert_done("worker hangs, and wakes up when its slice is ready")
    wait_for(lambda: not worker.runner.is_running() or None, LIMIT, "the first try to end")
    record = scene.airflow.api.state_store(task)["ray_llm_job"]
    assert (record["phase"], record["try_number"]) == ("concluded", 2)
    found = scene.airflow.api.call("GET", "/assets/events", params={"source_dag_id": "announced_waiting"})
    events = [(e["extra"]["outcome"], e["extra"]["published_version"]) for e in found["asset_events"]]
    assert events == [("published", 1)]


def test_killed_triggerer(scene: Scene) -> None:
    task = scene.begin("deferred")
    scene.airflow.restart(scene.airflow.triggerer_of(task))
    scene.go_on()
    scene.assert_done("triggerer killed and restarted")
    assert scene.airflow.api.get(task)["try_number"] == 1


@pytest.fixture
def without_triggerer(airflow: Airflow) -> Iterator[Callable[[], None]]:
    """Kills the triggerer, until the test ends."""
    yield lambda: airflow.kill("triggerer")
    airflow.start("triggerer")


@pytest.mark.long
def test_mark_while_no_triggerer_lives(scene: Scene, without_triggerer: Callable[[], None]) -> None:
    """Airflow's API server stops the job."""
    task = scene.begin("deferred")
    [job] = scene.jobs
    without_triggerer()
    scene.airflow.api.mark(task, "failed")
    scene.wait_stopped()
    scene.go_on()
    scene.assert_undone("marked failed while no triggerer lives", "failed")
    assert f"Stopped Ray job {job}" in scene.airflow.output("api_server")


@pytest.mark.long
def test_mark_while_no_triggerer_lives_and_the_cluster_is_away(
    scene: Scene, without_triggerer: Callable[[], None]
) -> None:
    """Nobody stops the job, and nobody waits for it."""
    task = scene.begin("deferred", "watched")
    without_triggerer()
    scene.cluster.away()
    scene.airflow.api.mark(task, "success")
    scene.go_on()  # at once: the last beat is fresh
    scene.wait_stopped()
    scene.assert_undone("... and the cluster away", "success")
    assert f"Could not stop the Ray job, if any, of marked ('{task.dag_id}'" in scene.airflow.output(
        "api_server"
    )


@pytest.mark.long
def test_triggerer_that_was_thought_dead_stops_nothing(scene: Scene) -> None:
    """It finds its trigger with another one when it wakes up, and calls the trigger's `on_kill`."""
    task = scene.begin("deferred")
    first = scene.airflow.triggerer_of(task)
    scene.wait_logged("Running entrypoint for job")  # the trigger runs then; it was only assigned before
    scene.airflow.start("triggerer-2")
    try:
        family = [psutil.Process(scene.airflow.pid(first))]
        family += family[0].children(recursive=True)
        for process in family:
            process.suspend()
        wait_for(
            lambda: scene.airflow.triggerer_of(task) == "triggerer-2" or None,
            LIMIT,
            "the second to take over",
        )
        for process in family:
            process.resume()
        scene.wait_logged("another attempt is waiting for it")
        scene.go_on()
        scene.assert_done("two triggerers, one hangs for a while")
    finally:
        scene.airflow.kill("triggerer-2")


@pytest.mark.long
def test_restarted_scheduler(scene: Scene, mode: str) -> None:
    task = scene.begin(mode)
    # LocalExecutor's workers are the scheduler's children and die with its machine.
    scene.airflow.restart("scheduler")
    if mode == "waiting":
        scene.airflow.api.wait(task, "running", try_number=2)
    scene.go_on()
    scene.assert_done("scheduler killed and restarted")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["waiting", long("deferred")], indirect=True)
def test_cluster_that_is_away_for_a_while(scene: Scene, mode: str) -> None:
    task = scene.begin(mode)
    scene.cluster.away()
    scene.wait_logged("Waiting for the cluster")
    scene.cluster.back()
    scene.go_on()
    scene.assert_done("Jobs API away for a while")
    assert scene.airflow.api.get(task)["try_number"] == 1


@pytest.mark.long
@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_token_that_is_replaced(scene: Scene, mode: str) -> None:
    scene.begin(mode)
    scene.cluster.revoke()
    scene.wait_logged("refuses the token")
    scene.cluster.grant()
    scene.go_on()
    scene.assert_done("token refused for a while")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_clear_of_a_task_that_keeps_its_job(scene: Scene, mode: str) -> None:
    task = scene.begin(mode, "kept")
    scene.airflow.api.clear(task)
    scene.airflow.api.wait(task, "running", "deferred", try_number=2)
    scene.go_on()
    scene.assert_done("cleared, cancel_on_kill=False")
    assert scene.airflow.api.state_store(task)["ray_llm_job"]["commits_alone"]  # a mark leaves it, too


# --- The job is stopped, its rows are kept ---


@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_clear(scene: Scene, mode: str) -> None:
    task = scene.begin(mode)
    [before] = scene.jobs
    scene.airflow.api.clear(task)
    scene.airflow.api.wait(task, "running", "deferred", try_number=2)

    def found() -> bool:
        return "of an earlier attempt" in scene.airflow.api.log(task)

    if mode == "waiting":
        wait_for(lambda: before not in scene.jobs or None, LIMIT, "the job to end")
    else:  # either the stop is first, or the new try
        wait_for(lambda: before not in scene.jobs or found() or None, LIMIT, "the job to end or be found")
    scene.go_on()
    line = scene.see("cleared")
    assert line == Line("cleared", mode, "published", line.jobs, 0, "right", "success")
    # The stop may also be late: then the job that was found ends, and another continues.
    assert line.jobs in ((1, 2) if found() and mode == "deferred" else (2,))
    assert len(scene.table.answered(DAY)) <= 5  # of four batches, and the one that was in flight


@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
@pytest.mark.parametrize("state", ["failed", long("success")])
def test_mark(scene: Scene, mode: str, state: str) -> None:
    task = scene.begin(mode)
    scene.airflow.api.mark(task, state)
    scene.wait_stopped()
    scene.go_on()
    scene.assert_undone(f"marked {state}", state)


def test_mark_while_the_job_is_submitted(scene: Scene) -> None:
    """The API server finds no job yet, and Airflow refuses to defer the task."""
    seen = len(scene.cluster.calls)
    scene.cluster.lets_jobs_in.clear()
    scene.trigger("deferred")
    wait_for(lambda: "POST /api/jobs/" in scene.cluster.calls[seen:] or None, LIMIT, "a submission")
    scene.airflow.api.mark(scene.task, "failed")
    scene.cluster.lets_jobs_in.set()
    wait_for(lambda: scene.cluster.jobs(run_id=scene.task.run_id) or None, LIMIT, "the job")
    scene.wait_stopped()
    scene.go_on()
    event = "marked while its job is submitted"  # the engine may not even have started
    assert scene.see(event) in [Line(event, "deferred", "-", n, 0, "none", "failed") for n in (0, 1)]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_deleted_run(scene: Scene, mode: str) -> None:
    task = scene.begin(mode)
    scene.airflow.api.mark_run(task, "failed")  # Airflow refuses to delete a run that runs
    scene.airflow.api.delete_run(task)
    scene.wait_stopped()
    scene.go_on()
    line = scene._outcomes.see("run deleted", mode, [], scene.table, DAY)
    assert line == Line("run deleted", mode, "-", 1, 0, "none", "-")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_execution_timeout(scene: Scene, mode: str) -> None:
    task = scene.begin(mode, "timed")
    scene.wait_stopped()
    scene.assert_undone("execution_timeout", "failed")
    assert "AirflowTaskTimeout" in scene.airflow.api.log(task)
    # Cleared, it goes on with what is missing.
    scene.go_on()
    scene.airflow.api.clear(task)
    scene.airflow.api.wait(task, "running", "deferred", "success", try_number=2)
    scene.assert_done("... and then cleared")


@pytest.mark.long
def test_terminated_worker(scene: Scene) -> None:
    task = scene.begin("waiting")
    os.kill(scene.airflow.worker(task).supervisor.pid, signal.SIGTERM)
    scene.airflow.api.wait(task, "running", try_number=2)
    scene.go_on()
    scene.assert_done("worker told to end (SIGTERM)", jobs=2)


# --- The job is lost ---


@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_head_that_dies_and_comes_back(scene: Scene, mode: str) -> None:
    task = scene.begin(mode)
    scene.cluster.kill()
    scene.cluster.start()
    scene.go_on()
    scene.assert_done("Ray head killed and restarted", jobs=2)
    # Within one try: on a busy machine a try may end before Airflow has started its task.
    tries = scene.airflow.api.log(task).split("--- try ")
    [submitting] = [log for log in tries if "Submitted Ray job" in log]
    assert "The job was lost; submitting another one" in submitting


@pytest.mark.long
@pytest.mark.parametrize("mode", ["waiting", long("deferred")], indirect=True)
def test_job_that_somebody_stops(scene: Scene, mode: str) -> None:
    task = scene.begin(mode)
    [job] = scene.jobs
    scene.cluster.stop_job(job)
    scene.airflow.api.wait(task, "running", "deferred", try_number=2)
    scene.go_on()
    scene.assert_done("job stopped in Ray's dashboard", jobs=2)
    assert "RayJobStoppedError" in scene.airflow.api.log(task)


@pytest.mark.long
def test_token_that_is_revoked_for_good(scene: Scene, mode: str) -> None:
    task = scene.begin(mode, "once")
    scene.cluster.revoke()
    assert scene.airflow.api.finish(task) == "failed"
    assert "RayConnectionError" in scene.airflow.api.log(task)
    wait_for(lambda: not scene.jobs or None, LIMIT, "the job to end itself")
    scene.assert_undone("token revoked, orphan_timeout", "failed")
    scene.cluster.grant()
    scene.go_on()
    scene.airflow.api.clear(task)
    scene.airflow.api.wait(task, "running", "deferred", "success", try_number=2)
    scene.assert_done("... and then cleared")


@pytest.mark.long
def test_killed_worker_without_another_try(scene: Scene) -> None:
    task = scene.begin("waiting", "once")
    scene.airflow.worker(task).kill()
    assert scene.airflow.api.finish(task) == "failed"
    assert len(scene.jobs) == 1
    wait_for(lambda: not scene.jobs or None, LIMIT, "the job to end itself")
    scene.assert_undone("worker killed, no retries, orphan_timeout", "failed")


# --- Pools ---


@pytest.mark.long
def test_deferred_task_keeps_its_slot_of_a_pool_that_includes_deferred(scene: Scene) -> None:
    scene.airflow.cli("pools", "set", "one_slice", "1", "slices at once", "--include-deferred")
    task = scene.begin("deferred", "pooled")
    other = "2025-01-02"
    scene.table.write(other)
    second = scene.airflow.api.trigger("pooled_deferred", conf={"table": scene.table.name, "slice": other})
    wait_for(
        lambda: scene.airflow.api.get(second)["state"] == "scheduled" or None, LIMIT, "the second to be due"
    )
    time.sleep(5)
    assert scene.airflow.api.get(second)["state"] == "scheduled"
    assert scene.cluster.jobs(run_id=second.run_id) == []
    scene.go_on()
    event = "two slices, a pool of one slot"
    line = scene._outcomes.see(event, "deferred", [task, second], scene.table, DAY, other)
    assert line == Line(event, "deferred", "published x2", 2, 0, "right", "success x2")
    # Each said so in the event of its outlet, on the worker on which it resumed.
    found = scene.airflow.api.call("GET", "/assets/events", params={"source_dag_id": "pooled_deferred"})
    said = [
        (e["partition_key"], e["extra"]["slice_key"], e["extra"]["outcome"]) for e in found["asset_events"]
    ]
    assert sorted(said) == [(key, key, "published") for key in (DAY, other)]
