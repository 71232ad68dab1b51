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


def test_result_of_an_earlier_try_is_lost_to_a_clear_and_to_another_question() -> None:
    record = JobRecord(**RECORD).conclude({"outcome": "published"}, 2)
    assert record.is_over
    assert record.lost_result("h", first_try=1, try_number=3) == {"outcome": "published"}
    assert record.lost_result("h", first_try=3, try_number=3) is None  # cleared after the second try
    assert record.lost_result("h", first_try=1, try_number=2) is None  # its own
    assert record.lost_result("another", first_try=1, try_number=3) is None
