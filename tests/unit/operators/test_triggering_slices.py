from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.api.datamodels._generated import (
    AssetEventDagRunReference,
    AssetReferenceAssetEventDagRun,
    DagRunType,
)
from airflow.sdk.execution_time.comms import AssetEventDagRunReferenceResult
from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.operators.triggering_slices import triggering_slices
from tests.support.paths import ROOT


def event(asset: str, extra: dict[str, Any]) -> AssetEventDagRunReferenceResult:
    return AssetEventDagRunReferenceResult.from_asset_event_dag_run_reference(
        AssetEventDagRunReference(
            asset=AssetReferenceAssetEventDagRun(name=asset, uri=asset, extra={}), extra=extra,
            source_task_id="t", source_dag_id="d", source_run_id="r", source_map_index=-1, source_aliases=[],
            timestamp=dt.datetime.now(dt.UTC),
        )
    )  # fmt: skip


def slices(*events: AssetEventDagRunReferenceResult, **run: Any) -> list[str]:
    kind = DagRunType.ASSET_TRIGGERED if events else DagRunType.MANUAL
    given = {"run_type": kind, "conf": {}, **run}
    context = {
        "dag": DAG("d", schedule=None, params={"slice": None}), "dag_run": SimpleNamespace(**given),
        "params": given["conf"], "logical_date": run.get("logical_date"),
        "triggering_asset_events": TriggeringAssetEventsAccessor.build(events),
    }  # fmt: skip
    return triggering_slices.function(**context)  # type: ignore[attr-defined, no-any-return]


def test_every_slice_of_all_events_is_asked_for_once() -> None:
    keys = ["2026-01-02", "2026-01-01", "2026-01-02"]
    events = [event(f"a{i % 2}", {"slice_key": key}) for i, key in enumerate(keys)]
    assert slices(*events, event("other", {}), event("a0", {"slice_key": 5})) == ["2026-01-01", "2026-01-02"]


def test_run_without_events_has_its_own_slice_and_events_without_a_slice_are_an_error() -> None:
    assert slices(conf={"slice": "2026-02-01"}) == ["2026-02-01"]
    assert slices(logical_date=dt.datetime(2026, 2, 3, tzinfo=dt.UTC)) == ["2026-02-03"]
    with pytest.raises(RayLLMInputError, match="no slice key"):
        slices()
    with pytest.raises(RayLLMInputError, match=r"none of the 2 asset event.*slice_key"):
        slices(event("a", {}), event("a", {"slice_key": ""}))


def test_example_maps_its_task_over_them() -> None:
    dag = DagBag(ROOT / "dags").dags["customers_judged"]
    judge = dag.get_task("judge")
    assert (judge.is_mapped, judge.upstream_task_ids) == (True, {"triggering_slices"})
