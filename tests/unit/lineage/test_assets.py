from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_raydatallm.contract.result.report import Counts, Report
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict
from airflow_provider_raydatallm.lineage.assets import check_emit_partition, record_asset_events
from tests.support.slice_jobs import spec

JOB = spec(slice_key="k", input_path="/in", output_path="/out", model_source="m", prompt="{a}")
RESULT: dict[str, Any] = Report(
    outcome="published",
    slice_key="k",
    output_path=JOB.slice_path,
    published_version=3,
    fingerprint="f",
    counts=Counts(planned=3, succeeded=2, quarantined=1, resumed=1),
    gates=(GateVerdict(of="truncated", value=0.5, max=0.1, verdict="warned"),),
).to_xcom(report_path=JOB.paths.report(1), ray_job_id="j", dashboard_url="http://d", queued=1.0, total=2.0)


@pytest.mark.parametrize(
    ("partition_key", "emit_partition", "partitions"),
    [(None, False, set()), (None, True, {"k"}), ("p", False, set()), ("p", True, set())],
)
def test_partition_is_set_only_on_request_and_without_a_partition_key(
    partition_key: str | None, emit_partition: bool, partitions: set[str]
) -> None:
    events = OutletEventAccessors()
    one = Asset("one")
    record_asset_events(
        [one], events, JOB, RESULT, partition_key=partition_key, emit_partition=emit_partition
    )
    assert events[one].partition_keys == partitions


def test_extra_of_the_user_is_kept() -> None:
    events = OutletEventAccessors()
    one = Asset("one")
    events[one].extra["mine"] = 1
    record_asset_events([one, "table"], events, JOB, RESULT, partition_key=None, emit_partition=False)
    assert len(events) == 1
    assert events[one].extra == {
        "mine": 1, "outcome": "published", "slice_key": "k", "output_path": "/out/ds=k",
        "published_version": 3, "fingerprint": "f", "ray_job_id": "j", "trial": None, "counts": {
            "planned": 3, "succeeded": 2, "quarantined": 1,
        }, "gates": [{"of": "truncated", "value": 0.5, "verdict": "warned"}],
    }  # fmt: skip


def test_emit_partition_without_an_asset_is_refused() -> None:
    check_emit_partition([], False)
    check_emit_partition([AssetAlias("a"), Asset("one")], True)
    check_emit_partition([Asset.ref(name="one")], True)
    for outlets in ([], [AssetAlias("a")]):
        with pytest.raises(ValueError, match="add an Asset to outlets"):
            check_emit_partition(outlets, True)
