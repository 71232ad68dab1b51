"""Records a run's figures in the events of the assets that its task declares as `outlets`.

Airflow itself sets the run's `partition_key` as the event's partition. Other runs emit events without one
unless `emit_partition` is set: a partitioned event does not start DAGs scheduled on the plain asset.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.definitions.asset import AssetRef
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.lineage.table_names import output_table
from airflow_provider_raydatallm.task.airflow_features import HAS_EVENT_PARTITIONS

if TYPE_CHECKING:
    from airflow.sdk.types import OutletEventAccessorProtocol, OutletEventAccessorsProtocol

log = logging.getLogger(__name__)


def check_emit_partition(outlets: Sequence[object], emit_partition: bool) -> None:
    """:raises ValueError: when `emit_partition` has no event to put a partition on, or Airflow cannot."""
    if emit_partition and not HAS_EVENT_PARTITIONS:
        raise ValueError("emit_partition sets the partition of asset events, which needs Airflow 3.3")
    if emit_partition and not any(isinstance(o, (Asset, AssetRef)) for o in outlets):
        raise ValueError(
            "emit_partition sets the slice key on the events of this task's assets, but outlets has none: "
            "add an Asset to outlets (events of an AssetAlias cannot have their own partition), or leave "
            "emit_partition out"
        )


def record_asset_events(
    outlets: Sequence[object],
    outlet_events: OutletEventAccessorsProtocol,
    job: SliceJob,
    result: Mapping[str, Any],
    *,
    partition_key: str | None,
    emit_partition: bool,
) -> None:
    """Adds the run's figures to the events that Airflow emits for the task's outlets when it succeeds.

    An alias resolves to the asset whose URI is the output table's address; Airflow creates it if needed.

    :param outlet_events: `context["outlet_events"]`.
    :param result: the operator's `return_value`.
    :param partition_key: the run's.
    :param emit_partition: set the slice key as partition when the run has no partition key.
    """
    extra = {**_extra(result), "trial": job.trial_name}
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            _resolve_alias(outlet_events[outlet], output_table(job).uri, extra)
        elif isinstance(outlet, (Asset, AssetRef)):
            try:
                event = outlet_events[outlet]
            except AirflowRuntimeError as e:  # a reference to an asset that no DAG declares emits no event
                log.warning("No event for outlet %s: %s", outlet, e)
                continue
            event.extra.update(extra)
            if emit_partition and partition_key is None:
                event.add_partitions(job.slice_key)


def _resolve_alias(event: OutletEventAccessorProtocol, uri: str, extra: dict[str, Any]) -> None:
    asset = Asset(uri)
    try:
        # An asset that a DAG declares, whatever its name. The protocol's type lacks references.
        event.add(Asset.ref(uri=asset.uri), extra)  # type: ignore[arg-type]
    except AirflowRuntimeError:
        event.add(asset, extra)


def _extra(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an event's figures: small, and with the same keys for every outcome."""
    counts = {k: result["counts"][k] for k in ("planned", "succeeded", "quarantined")}
    keys = ("outcome", "slice_key", "output_path", "published_version", "fingerprint", "ray_job_id")
    gates = [{k: gate[k] for k in ("of", "value", "verdict")} for gate in result.get("gates") or ()]
    return {**{k: result[k] for k in keys}, "counts": counts, "gates": gates}
