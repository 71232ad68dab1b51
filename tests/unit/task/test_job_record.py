"""Records of jobs, some of which other versions of the provider wrote."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.task.job_record import STATE_KEY, JobRecord
from tests.support.context import StateStore

RECORD: dict[str, Any] = {
    "phase": "submitted", "ray_conn_id": "c", "submission_id": "j", "nonce": "n", "spec_hash": "h",
    "fingerprint": "f", "try_number": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "job"),
    [
        (RECORD, "j"), ({**RECORD, "from_the_future": 1}, "j"), ({"phase": "submitted"}, None),
        ("a newer form", None), ([1], None), ({}, None), (None, None),
    ],
)  # fmt: skip
def test_record_that_cannot_be_read_is_none(value: Any, job: str | None) -> None:
    record = JobRecord.read(StateStore({STATE_KEY: value}))
    assert (record and record.submission_id) == job
