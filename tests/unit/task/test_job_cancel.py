from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.task.job_cancel import TaskAttempt, has_other_waiter

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
