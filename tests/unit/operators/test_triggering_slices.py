from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.api.datamodels._generated import AssetReferenceAssetEventDagRun, DagRunType
from airflow.sdk.execution_time.comms import AssetEventDagRunReferenceResult
from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor, set_current_context

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.lineage.assets import record_asset_events
from airflow_provider_raydatallm.operators.triggering_slices import triggering_slices
from tests.support.slice_jobs import slice_job

RESULT = {
    "outcome": "published", "output_path": "/out/ds=2026-01-30", "published_version": 1, "fingerprint": "f",
    "ray_job_id": "j", "counts": {"planned": 1, "succeeded": 1, "quarantined": 0},
}  # fmt: skip


def event_of(asset: str, extra: dict[str, Any]) -> AssetEventDagRunReferenceResult:
    return AssetEventDagRunReferenceResult(
        asset=AssetReferenceAssetEventDagRun(name=asset, uri=asset, extra={}), extra=extra,
        source_task_id="t", source_dag_id="d", source_run_id="r", source_map_index=-1, source_aliases=[],
        timestamp=dt.datetime.now(dt.UTC),
    )  # fmt: skip


def published(key: str, asset: str = "table", **more: Any) -> AssetEventDagRunReferenceResult:
    """The event of a task of this provider, with what it put into it."""
    outlet = Asset(asset)
    recorded = SimpleNamespace(extra={})
    job = slice_job(slice_key=key, source__max_rows=more.pop("trial", None))
    record_asset_events(
        [outlet], {outlet: recorded}, job, {**RESULT, "slice_key": key, **more},  # type: ignore[arg-type]
        partition_key=None, emit_partition=False,
    )  # fmt: skip
    return event_of(asset, recorded.extra)


def slices(*events: AssetEventDagRunReferenceResult, **run: Any) -> list[str]:
    """What the task returns, in a run that these events started."""
    with DAG("d", schedule=[Asset("table")], params={"slice": None}) as dag:
        triggering_slices()
    task: Any = dag.get_task("triggering_slices")
    kind = DagRunType.ASSET_TRIGGERED if events else DagRunType.MANUAL
    context: Any = {
        "dag": dag, "triggering_asset_events": TriggeringAssetEventsAccessor.build(events),
        "dag_run": SimpleNamespace(run_type=kind, conf=run.get("params", {})), "params": {}, **run,
    }  # fmt: skip
    with set_current_context(context):
        return task.python_callable()


def test_each_slice_of_all_events_is_listed_once() -> None:
    again = published("2026-01-30", outcome="unchanged", ray_job_id=None)
    events = (published("2026-01-30"), published("2026-01-31"), again, published("EMEA", "other"))
    assert slices(*events) == ["2026-01-30", "2026-01-31", "EMEA"]


def test_trials_are_left_out() -> None:
    trial = published("2026-01-29", trial=10)
    assert slices(trial, published("2026-01-30")) == ["2026-01-30"]
    assert slices(trial) == []
    assert slices(published("2026-01-29", output_path="/free.trial/out/ds=2026-01-29")) == ["2026-01-29"]


def test_events_that_name_no_slice_are_no_reason_to_do_nothing() -> None:
    by_hand = event_of("table", {})
    assert slices(by_hand, published("2026-01-30")) == ["2026-01-30"]
    assert slices(event_of("table", {"slice_key": "2026-01-28"})) == ["2026-01-28"]
    with pytest.raises(RayLLMInputError, match="none of the events"):
        slices(by_hand)


def test_run_without_events_has_its_own_slice() -> None:
    assert slices(params={"slice": "2026-01-27"}) == ["2026-01-27"]
    with pytest.raises(RayLLMInputError, match="no slice key"):
        slices()
