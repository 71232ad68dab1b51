"""What a run says in the events of the assets that its task declares as `outlets`.

An event's partition is the run's `partition_key`, which Airflow puts there itself. A run without one makes
events without one unless that is asked for: a partitioned event does not start DAGs whose schedule is the
plain asset.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.definitions.asset import AssetRef
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.lineage.table_names import output_table

if TYPE_CHECKING:
    from airflow.sdk.types import OutletEventAccessorProtocol, OutletEventAccessorsProtocol

log = logging.getLogger(__name__)


def check_emit_partition(outlets: Sequence[object], emit_partition: bool) -> None:
    """:raises ValueError: when `emit_partition` has no event to put a partition on."""
    if emit_partition and not any(isinstance(o, (Asset, AssetRef)) for o in outlets):
        raise ValueError(
            "emit_partition puts the slice key on the events of this task's assets, and outlets has none: "
            "add an Asset to outlets (events of an AssetAlias cannot have a partition of their own), or "
            "leave emit_partition out"
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
    """Put the run's figures on the events that Airflow emits for the task's outlets when it succeeds.

    Every asset gets them. An alias gets the asset that has the output table's address as its URI; Airflow
    makes one if there is none.

    :param outlets: the operator's.
    :param outlet_events: `context["outlet_events"]`.
    :param result: the operator's `return_value`, by `Report.to_xcom`.
    :param partition_key: the run's.
    :param emit_partition: put the slice key there as partition if the run has none.
    """
    extra = _extra(result)
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            _resolve_alias(outlet_events[outlet], output_table(job).uri, extra)
        elif isinstance(outlet, (Asset, AssetRef)):
            try:
                event = outlet_events[outlet]
            except AirflowRuntimeError as e:  # refers to what no DAG declares: Airflow emits nothing either
                log.warning("No event for outlet %s: %s", outlet, e)
                continue
            event.extra.update(extra)
            if emit_partition and partition_key is None:
                event.add_partitions(job.slice_key)


def _resolve_alias(event: OutletEventAccessorProtocol, uri: str, extra: dict[str, Any]) -> None:
    asset = Asset(uri)
    try:
        # One that a DAG declares, whatever its name. The protocol leaves references out.
        event.add(Asset.ref(uri=asset.uri), extra)  # type: ignore[arg-type]
    except AirflowRuntimeError:
        event.add(asset, extra)


def _extra(result: Mapping[str, Any]) -> dict[str, Any]:
    """What an event tells of a result: small, and the same keys for every outcome."""
    told = ("outcome", "slice_key", "output_path", "fingerprint", "ray_job_id")
    counts = ("planned", "succeeded", "quarantined")
    return {k: result[k] for k in told} | {"counts": {k: result["counts"][k] for k in counts}}
