"""Records of jobs, some of which other versions of the provider wrote."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raydatallm.hooks.jobs_api import ListedJob
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from airflow_provider_raydatallm.task.job.record import (
    JobRecord,
    LeftJob,
    find_listed_job,
    hash_of,
    try_series,
)
from tests.support.slice_jobs import slice_job

RECORD: dict[str, Any] = {
    "phase": "submitted", "cluster": "connection:c", "submission_id": "j", "nonce": "n", "spec_hash": "h",
    "fingerprint": "f", "try_number": 1,
}  # fmt: skip
TASK = {
    "dag_id": "d", "task_id": "t", "run_id": "r", "map_index": "-1", "run_start": "then",
    "dag_version_id": "v", "ray_llm_phase": "admitted", "try_number": "2", "try_series": "1-3-v",
}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "job", "spec_hash"),
    [
        (RECORD, "j", "h"), ({**RECORD, "from_the_future": 1}, "j", "h"),
        ({**RECORD, "record_format": 2}, "j", ""), ({**RECORD, "phase": "paused"}, "j", ""),
        ({"submission_id": "j", "cluster": "connection:c"}, "j", ""),
        ({"phase": "submitted"}, None, None), ({**RECORD, "submission_id": 1}, None, None),
        ({**RECORD, "left": [{"cluster": "c", "submission_id": "i"}]}, "j", "h"),
        ({**RECORD, "left": [{"cluster": "c", "submission_id": "../i"}]}, "j", ""),
        ({**RECORD, "left": [{"cluster": "c", "submission_id": "i\n"}]}, "j", ""),
        *(({**RECORD, "submission_id": path}, None, None) for path in ("../packages/gcs/x", "..", "j?x", "")),
        ("a newer form", None, None), ([1], None, None), ({}, None, None), (None, None, None),
    ],
)  # fmt: skip
def test_record_of_another_version_tells_the_job_if_nothing_else(
    value: Any, job: str | None, spec_hash: str | None
) -> None:
    record = JobRecord.from_json(value)
    assert (record and record.submission_id, record and record.spec_hash) == (job, spec_hash)


def test_record_is_read_as_it_was_written() -> None:
    record = replace(JobRecord(**RECORD), left=[LeftJob("connection:d", "i")])
    assert JobRecord.from_json(json.loads(json.dumps(asdict(record)))) == record


def test_price_is_no_other_question() -> None:
    def hash_with(**given: Any) -> str:
        return hash_of(JobSubmission(slice_job(**given), (), None, dict, {}))

    known = hash_with()
    assert hash_with(engine__gpu_hour_price=2.5) == known
    limited = [hash_with(engine__gpu_hour_price=price, limits__max_cost=5) for price in (2, 3)]
    assert limited[0] == limited[1] != known


def listed(name: str = "j", status: str = "RUNNING", at: float | None = 1.0, **metadata: Any) -> ListedJob:
    kept = {n: v for n, v in {**TASK, **metadata}.items() if v is not None}
    return ListedJob(name, status, kept, at)


@pytest.mark.parametrize(
    ("job", "is_found"),
    [
        (listed(), True), (listed(status="SUCCEEDED"), True), (listed(status="FAILED"), True),
        (listed(map_index="3"), False), (listed(run_id="s"), False), (listed(ray_llm_phase=None), False),
        # A clear asks anew, and starts a finished run anew; but it finds what still runs.
        (listed(try_series="0-2-v"), True), (listed(status="SUCCEEDED", try_series="0-2-v"), False),
        (listed(run_start="before"), True), (listed(status="SUCCEEDED", run_start="before"), False),
        # Of a DAG that was edited, and of another Airflow or of a run that was deleted.
        (listed(dag_version_id="w"), True), (listed(run_start="before", dag_version_id="w"), False),
        # Of other versions.
        (listed(run_start=None, dag_version_id=None), False), (listed(try_series=None), True),
        (listed(status="SUCCEEDED", try_series=None), False),
    ],
)  # fmt: skip
def test_job_that_the_cluster_lists_is_the_tasks_own_by_its_metadata(job: ListedJob, is_found: bool) -> None:
    assert find_listed_job([job], TASK) == (job if is_found else None)


def test_task_whose_run_and_version_are_unknown_has_no_job_in_the_list() -> None:
    unknown = {"run_start": "", "dag_version_id": ""}
    assert find_listed_job([listed(**unknown)], {**TASK, **unknown}) is None


def test_newest_job_is_the_tasks_job_and_one_that_runs_before_one_that_ended() -> None:
    ended, runs = listed("a", "FAILED", 3.0), listed("b", at=1.0)
    jobs = [listed("c", "FAILED", None), ended, listed("d", "STOPPED", 2.0)]
    assert find_listed_job(jobs, TASK) is ended
    assert find_listed_job([*jobs, runs, listed("e", at=0.5)], TASK) is runs


def test_result_of_an_earlier_try_is_lost_to_a_clear_and_to_another_question() -> None:
    record = replace(JobRecord(**RECORD), try_series="s").conclude({"outcome": "published"}, 2)
    assert record.is_over
    assert record.is_left_to("h", "s", try_number=3)
    assert not record.is_left_to("h", "cleared", try_number=3)
    assert not record.is_left_to("h", "s", try_number=2)  # its own
    assert not record.is_left_to("another", "s", try_number=3)


def test_record_that_cannot_tell_its_series_gives_no_result() -> None:
    record = JobRecord(**RECORD).conclude({"outcome": "published"}, 1)
    assert not record.is_left_to("h", series(), try_number=2)


def series(*, clears: int = 0, max_tries: int = 3, version: str | None = "v", retries: int = 3) -> str:
    ti = SimpleNamespace(max_tries=max_tries, dag_version_id=version, task=SimpleNamespace(retries=retries))
    return try_series(ti, SimpleNamespace(clear_number=clears))


@pytest.mark.parametrize(
    ("what_is_new", "is_same"),
    [
        ({}, True),
        # Of the file, which a worker has read before Airflow has stored it, or another default of its own.
        ({"retries": 1}, True), ({"retries": 5}, True),
        ({"clears": 1}, False),
        # The run is left as it is: the task has new tries, or as many as before but another version.
        ({"max_tries": 4}, False), ({"version": "w", "retries": 2}, False),
        ({"clears": 1, "max_tries": 4, "retries": 1}, False), ({"clears": 1, "retries": 2}, False),
    ],
)  # fmt: skip
def test_clear_begins_a_series_whatever_retries_the_file_has(
    what_is_new: dict[str, Any], is_same: bool
) -> None:
    assert (series(**what_is_new) == series()) is is_same
