from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.sdk.execution_time import task_runner

from airflow_provider_raydatallm.task.job import cancel as job_cancel
from airflow_provider_raydatallm.task.job.cancel import TaskAttempt, has_other_waiter, still_waits

FIRST = TaskAttempt("d", "t", "r", -1, 1)
SECOND = TaskAttempt("d", "t", "r", -1, 2)


@pytest.mark.parametrize(("event", "owner", "state", "deferred", "other_waiter"), [
    ("marked failed", FIRST.owner_record("j"), "failed", True, False),
    ("marked success", FIRST.owner_record("j"), "success", True, False),
    ("cleared, the next attempt has not started", FIRST.owner_record("j"), None, True, False),
    ("cleared, the next attempt has not checked the job yet", None, "running", True, False),
    ("cleared, the next attempt waits for the job", SECOND.owner_record("j"), "running", True, True),
    ("cleared, the next attempt waits for another job", SECOND.owner_record("k"), "running", True, False),
    ("cleared, the next attempt is deferred", SECOND.owner_record("j"), "deferred", True, True),
    ("another triggerer took over the trigger", FIRST.owner_record("j"), "deferred", True, True),
    ("the run was deleted", None, None, True, False),
    ("the worker is terminated", FIRST.owner_record("j"), "running", False, False),
    ("... as it defers", FIRST.owner_record("j"), "deferred", False, False),
    ("a worker that was thought dead is terminated", SECOND.owner_record("j"), "deferred", False, True),
])  # fmt: skip
def test_only_a_job_without_another_waiter_is_stopped(
    event: str, owner: Any, state: str | None, deferred: bool, other_waiter: bool
) -> None:
    assert has_other_waiter("j", FIRST, owner, state, deferred=deferred) is other_waiter, event


@pytest.mark.parametrize(("event", "owner", "state", "waits"), [
    ("it waits on its worker", FIRST.owner_record("j"), "running", True),
    ("it waits in the triggerer", FIRST.owner_record("j"), "deferred", True),
    ("marked", FIRST.owner_record("j"), "failed", False),
    ("given up, as nothing was heard of it", FIRST.owner_record("j"), "up_for_retry", False),
    ("cleared, the next attempt has not started", FIRST.owner_record("j"), None, False),
    ("cleared, the next attempt has not checked the job yet", None, "running", False),
    ("the next attempt waits for the job, and says so itself", SECOND.owner_record("j"), "deferred", False),
    ("the run was deleted", None, None, False),
    ("its XCom was deleted while it waits in the triggerer", None, "deferred", True),
    ("its XCom was edited to nothing that names a job", "x", "deferred", True),
    ("its XCom was deleted, and it was marked", None, "failed", False),
])  # fmt: skip
def test_job_may_publish_only_for_an_attempt_that_airflow_wants_to_wait(
    event: str, owner: Any, state: str | None, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", object(), raising=False)
    monkeypatch.setattr(job_cancel, "_read_owner_and_state", lambda attempt: (owner, state))
    assert asyncio.run(still_waits("j", FIRST)) is waits, event


@pytest.mark.parametrize(("event", "state", "is_recorded", "waits"), [
    ("its XCom was deleted while it waits on its worker", "running", True, True),
    ("cleared, the next attempt has just begun: this one has no record any more", "running", False, False),
    ("marked", "failed", True, False),
    ("the next attempt is deferred", "deferred", True, False),
])  # fmt: skip
def test_attempt_on_a_worker_without_its_xcom_knows_itself_by_its_own_record(
    event: str, state: str, is_recorded: bool, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", object(), raising=False)
    monkeypatch.setattr(job_cancel, "_read_owner_and_state", lambda attempt: (None, state))
    assert asyncio.run(still_waits("j", FIRST, lambda: is_recorded)) is waits, event
