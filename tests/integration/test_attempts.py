"""Attempts that follow one another on a real cluster: one job does the work, and only its own task stops it.
What Airflow's own processes do to a task is in `tests/durable`."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.exceptions import RayJobStoppedError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.task.job import cancel as job_cancel
from airflow_provider_raydatallm.task.job import tracker as job_tracker
from airflow_provider_raydatallm.task.job.record import STATE_KEY
from airflow_provider_raydatallm.task.job.verdict import Finished, to_event
from airflow_provider_raydatallm.task.job.waiter import heartbeat_key
from tests.support.arguments import written
from tests.support.context import StateStore, context_of
from tests.support.slices import STUB, fragments
from tests.support.waiting import wait_for

N = 100


@pytest.fixture(autouse=True)
def _airflow_that_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No supervisor is there to ask for the task's state and XCom."""
    monkeypatch.setattr(job_cancel, "_read_owner_and_state", lambda attempt: (None, None))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """What jobs wait for before they answer, unless they are asked something that does not begin with
    "wait"."""
    return tmp_path / "gate"


@pytest.fixture
def task(ray_head: LocalHead, tmp_path: Path, gate: Path) -> Iterator[Any]:
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(N)]}), tmp_path / "in.parquet")

    def make(**given: Any) -> RayLLMBatchOperator:
        arguments = {
            "slice_key": "k", "input_path": f"{tmp_path}/in.parquet", "output_path": f"{tmp_path}/out",
            "prompt": "wait: who is {name}?", **STUB, "engine__batch_size": 10, **given,
        }  # fmt: skip
        arguments["engine__kwargs"] = {"gate": str(gate), **given.get("engine__kwargs", {})}
        with DAG("attempts", schedule=None):
            return RayLLMBatchOperator(task_id="ask", **written(**arguments))

    yield make
    gate.touch()  # for a job that nobody stopped


def in_background(operator: RayLLMBatchOperator, store: StateStore | None, try_number: int = 1) -> list[Any]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(operator.execute(context_of(operator, store, try_number=try_number)))
        except BaseException as e:
            results.append(e)

    threading.Thread(target=run, daemon=True).start()
    return results


def status(submission_id: str) -> str | None:
    info = RayHook().call(jobs_api.get_status(submission_id))
    return info.status if info is not None else None


def run_until_submitted(task: Any, submitted: list[str]) -> StateStore:
    """An attempt whose process is gone as soon as its job runs: deferring ends it at just that point."""
    store, operator = StateStore(), task(deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context_of(operator, store))
    if deferred.value.method_name == "execute_in_turn":  # the job of a test before counts for some seconds
        event = {"place": deferred.value.trigger.place}  # type: ignore[attr-defined]
        with pytest.raises(TaskDeferred):
            operator.execute_in_turn(context_of(operator, store), event)
    wait_for(lambda: status(submitted[-1]) == "RUNNING")
    return store


def wait_until_found(store: StateStore) -> None:
    """Until an attempt waits for the job of the one before."""
    wait_for(lambda: store.get(STATE_KEY, {}).get("taken_over_at"))


@pytest.mark.long
def test_next_attempt_finds_the_job_and_has_its_report(task: Any, gate: Path, submitted: list[str]) -> None:
    store = run_until_submitted(task, submitted)
    assert store[STATE_KEY]["phase"] == "submitted"
    operator = task()
    results = in_background(operator, store)
    wait_until_found(store)
    gate.touch()
    [result] = wait_for(lambda: results)
    counts = result["counts"]
    assert (result["outcome"], counts["succeeded"], counts["resumed"]) == ("published", N, 0)
    assert submitted == [result["ray_job_id"]]
    # As if this attempt had died before Airflow took note of its result.
    assert operator.execute(context_of(operator, store, try_number=2)) == result
    # Somebody cleared the task, and so asks anew.
    again = task()
    assert again.execute(context_of(again, store, try_number=2, clears=1))["outcome"] == "unchanged"
    changed = task(sampling_params={"max_tokens": 3}, rerun__on_config_change="recompute")
    assert changed.execute(context_of(changed, store, try_number=3))["published_version"] == 2


@pytest.mark.long
def test_next_attempt_finds_the_job_where_airflow_keeps_no_record_of_it(
    task: Any, gate: Path, submitted: list[str]
) -> None:
    run_until_submitted(task, submitted)
    operator = task()
    results = in_background(operator, None, try_number=2)
    wait_for(lambda: operator._tracker is not None and operator._tracker.job)
    gate.touch()
    [result] = wait_for(lambda: results)
    assert (result["outcome"], result["ray_job_id"], len(submitted)) == ("published", submitted[0], 1)
    wait_for(lambda: status(submitted[0]) == "SUCCEEDED")
    # As if this attempt had died before Airflow took note of its result; and after somebody cleared the task.
    again = operator.execute(context_of(operator, try_number=3))
    assert (again["outcome"], again["ray_job_id"]) == ("published", submitted[0])
    assert operator.execute(context_of(operator, try_number=3, clears=1))["outcome"] == "unchanged"


@pytest.mark.long
def test_job_that_was_done_before_the_next_attempt_counts_as_its_work(
    task: Any, gate: Path, submitted: list[str]
) -> None:
    store = run_until_submitted(task, submitted)
    gate.touch()

    def let_publish() -> None:
        """Of the attempt before, in its last seconds."""
        RayHook().call(jobs_api.send_heartbeat(heartbeat_key(submitted[0]), confirmed=True))

    wait_for(lambda: let_publish() or status(submitted[0]) == "SUCCEEDED")  # type: ignore[func-returns-value]
    operator = task()
    assert operator.execute(context_of(operator, store))["outcome"] == "published"
    assert len(submitted) == 1


@pytest.mark.long
def test_intent_alone_finds_a_job_whose_submission_was_not_confirmed(
    task: Any, gate: Path, submitted: list[str]
) -> None:
    store = run_until_submitted(task, submitted)
    gate.touch()
    store[STATE_KEY]["phase"] = "intent"
    operator = task()
    assert operator.execute(context_of(operator, store))["ray_job_id"] == submitted[0]
    assert len(submitted) == 1


@pytest.mark.long
def test_intent_of_a_submission_that_never_arrived_submits(
    task: Any, gate: Path, submitted: list[str]
) -> None:
    store = run_until_submitted(task, submitted)
    RayHook().call(jobs_api.stop(submitted[0]))
    wait_for(lambda: status(submitted[0]) == "STOPPED")
    gate.touch()
    store[STATE_KEY] |= {"phase": "intent", "submission_id": "never-arrived"}
    operator = task()
    result = operator.execute(context_of(operator, store))
    assert (result["ray_job_id"], len(submitted)) == (submitted[1], 2)


@pytest.mark.long
def test_job_that_was_asked_something_else_is_stopped(
    task: Any, submitted: list[str], tmp_path: Path
) -> None:
    store = run_until_submitted(task, submitted)
    operator = task(prompt="What is {name}?")
    result = operator.execute(context_of(operator, store))
    assert (status(submitted[0]), len(submitted), result["outcome"]) == ("STOPPED", 2, "published")
    table = pq.read_table(Path(result["output_path"]), partitioning=None)
    assert table.column("answer").to_pylist() == [f"What is n{i}?" for i in range(N)]


@pytest.mark.long
def test_killed_task_stops_its_job_and_starts_no_other(
    task: Any, gate: Path, submitted: list[str], tmp_path: Path
) -> None:
    # A job that takes its time to stop: Airflow kills the task's process a few seconds later.
    stop_gate = tmp_path / "stop_gate"
    slow = {"engine__kwargs": {"stop_gate": str(stop_gate)}}
    store, operator = StateStore(), task(**slow)
    results = in_background(operator, store)
    wait_for(Path(f"{gate}.waits").exists)
    operator.on_kill()
    wait_for(lambda: results)
    assert status(submitted[0]) == "RUNNING"
    assert isinstance(results[0], RayLLMJobError)
    stop_gate.touch()
    wait_for(lambda: status(submitted[0]) == "STOPPED")
    # The next try goes on with what is missing.
    gate.touch()
    again = task(**slow)
    result = again.execute(context_of(again, store))
    assert (result["counts"]["succeeded"], len(submitted)) == (N, 2)


@pytest.mark.long
def test_task_that_leaves_its_job_running_finds_it_again(task: Any, gate: Path, submitted: list[str]) -> None:
    store, operator = StateStore(), task(cancel_on_kill=False)
    results = in_background(operator, store)
    wait_for(lambda: submitted and status(submitted[0]) == "RUNNING")
    operator.on_kill()
    wait_for(lambda: results)
    assert isinstance(results[0], RayLLMJobError)
    gate.touch()
    again = task(cancel_on_kill=False)
    result = again.execute(context_of(again, store))
    assert (result["ray_job_id"], result["counts"]["resumed"], len(submitted)) == (submitted[0], 0, 1)


@pytest.mark.long
def test_job_that_somebody_else_stopped_fails_the_task_and_says_so(task: Any, submitted: list[str]) -> None:
    results = in_background(task(), StateStore())
    wait_for(lambda: submitted and status(submitted[0]) == "RUNNING")
    RayHook().call(jobs_api.stop(submitted[0]))
    wait_for(lambda: results)
    assert isinstance(results[0], RayJobStoppedError)
    assert "stop" in str(results[0]).splitlines()[0]


@pytest.mark.long
def test_late_stop_of_the_attempt_before_costs_nothing_but_time(
    task: Any, gate: Path, submitted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_tracker, "_LATE_STOP_SECONDS", 600.0)  # a busy machine may take a minute
    store = run_until_submitted(task, submitted)
    results = in_background(task(), store)
    wait_until_found(store)
    RayHook().call(jobs_api.stop(submitted[0]))
    wait_for(lambda: status(submitted[0]) == "STOPPED")
    gate.touch()
    wait_for(lambda: results)
    assert results[0]["counts"]["succeeded"] == N
    assert len(submitted) == 2


@pytest.mark.long
def test_verdict_from_the_triggerer_is_the_tasks_outcome(task: Any, submitted: list[str]) -> None:
    store = run_until_submitted(task, submitted)
    operator = task(deferrable=True)
    report = {"outcome": "published", "slice_key": "k", "output_path": "o", "fingerprint": "f",
              "counts": {"planned": 1, "succeeded": 1}}  # fmt: skip
    result = operator.execute_complete(context_of(operator, store), to_event(Finished(report)))
    assert (result["outcome"], result["ray_job_id"]) == ("published", submitted[0])
    assert store["ray_llm_job"]["phase"] == "concluded"


@pytest.mark.long
def test_job_publishes_only_while_a_task_waits_for_it(
    task: Any, gate: Path, tmp_path: Path, ray_head: LocalHead
) -> None:
    operator = task(output_path=f"{tmp_path}/unwatched")
    shipment = operator._build_submission(context_of(operator))
    hook, name = RayHook(), f"unwatched-{uuid.uuid4().hex[:8]}"
    hook.call(jobs_api.send_heartbeat(heartbeat_key(name)))
    beats = ["--heartbeat-key", heartbeat_key(name), "--orphan-timeout", "600"]
    shipment.submit(hook, "run", name, "n", beats)
    waits = "waits until a task waits for it"

    def log() -> str:
        info = hook.call(jobs_api.get_status(name))
        return hook.call(jobs_api.read_log_tail(name, info, 200)) if info is not None else ""

    gate.touch()
    wait_for(lambda: '"step":"publish"' in log())
    hook.call(jobs_api.send_heartbeat(heartbeat_key(name)))  # of a waiter that may have hung
    wait_for(lambda: waits in log())
    assert not list((tmp_path / "unwatched").rglob("*.parquet"))
    hook.call(jobs_api.send_heartbeat(heartbeat_key(name), confirmed=True))
    wait_for(lambda: status(name) == "SUCCEEDED")
    assert pq.read_table(tmp_path / "unwatched").num_rows == N
    beat = f"{ray_head.address}/api/packages/gcs/{heartbeat_key(name)}"
    kept = httpx.get(beat, headers={"Authorization": f"Bearer {ray_head.token}"}, trust_env=False)
    assert kept.status_code == 404  # the cluster keeps no beat of a job that is over


@pytest.mark.long
def test_job_that_nobody_waits_for_ends_itself_and_keeps_its_rows(
    ray_head: LocalHead, tmp_path: Path
) -> None:
    names = [f"n{i}" for i in range(10)] + ["wait"] * (N - 10)
    pq.write_table(pa.table({"name": names}), tmp_path / "in.parquet")
    never = {"engine__kwargs": {"gate": f"{tmp_path}/never"}}
    with DAG("attempts", schedule=None):
        operator = RayLLMBatchOperator(**written(
            task_id="ask", slice_key="k", prompt="{name}", input_path=f"{tmp_path}/in.parquet",
            output_path=f"{tmp_path}/out", **STUB, engine__batch_size=10, **never,
        ))  # fmt: skip
    shipment = operator._build_submission(context_of(operator))
    hook, name = RayHook(), f"orphan-{uuid.uuid4().hex[:8]}"

    def beat() -> bool:
        hook.call(jobs_api.send_heartbeat(heartbeat_key(name)))
        time.sleep(1)
        return True

    beat()
    shipment.submit(
        hook, "run", name, "n", ["--heartbeat-key", heartbeat_key(name), "--orphan-timeout", "12"]
    )
    wait_for(lambda: beat() and status(name) == "RUNNING")
    until = time.monotonic() + 16
    wait_for(lambda: beat() and time.monotonic() > until)  # somebody waits
    wait_for(lambda: beat() and fragments(tmp_path / "out"))
    assert status(name) == "RUNNING"
    wait_for(lambda: status(name) == "FAILED")
    info = hook.call(jobs_api.get_status(name))
    assert info is not None
    assert "no task waited for the job for 12 s" in info.message
    assert fragments(tmp_path / "out")
