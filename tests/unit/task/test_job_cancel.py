from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.task.job_cancel import TaskAttempt, has_other_waiter

FIRST = TaskAttempt("d", "t", "r", -1, 1)
SECOND = TaskAttempt("d", "t", "r", -1, 2)


@pytest.mark.parametrize(
    ("what", "owner", "state", "deferred", "waited_for"),
    [
        ("marked failed", FIRST.owner_record("j"), "failed", True, False),
        ("marked success", FIRST.owner_record("j"), "success", True, False),
        ("cleared, the next attempt not begun", FIRST.owner_record("j"), None, True, False),
        ("cleared, the next attempt begins and has not looked yet", None, "running", True, False),
        ("cleared, the next attempt waits for the job", SECOND.owner_record("j"), "running", True, True),
        ("cleared, the next attempt waits for another job", SECOND.owner_record("k"), "running", True, False),
        ("cleared, the next attempt is deferred", SECOND.owner_record("j"), "deferred", True, True),
        ("another triggerer took the trigger over", FIRST.owner_record("j"), "deferred", True, True),
        ("the run was deleted", None, None, True, False),
        ("the worker is told to end", FIRST.owner_record("j"), "running", False, False),
        ("... as it defers", FIRST.owner_record("j"), "deferred", False, False),
        ("a worker that was thought dead is told to end", SECOND.owner_record("j"), "deferred", False, True),
    ],
)
def test_only_a_job_that_nobody_else_waits_for_is_stopped(
    what: str, owner: Any, state: str | None, deferred: bool, waited_for: bool
) -> None:
    assert has_other_waiter("j", FIRST, owner, state, deferred=deferred) is waited_for, what
