"""Maps a task over the slices whose asset events started its run."""

from __future__ import annotations

from typing import Any

from airflow.sdk import task

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.task.run_slice import slice_of_run


@task
def triggering_slices(**context: Any) -> list[str]:
    """Returns the slices of the asset events that started the run, each once, for
    `RayLLMBatchOperator.partial(...).expand(slice_key=triggering_slices())`.

    A run may have several events: Airflow starts one for all that came meanwhile. A run that a person or a
    schedule started has the slice that a task without `slice_key` would have.

    :raises RayLLMInputError: when neither names a slice.
    """
    accessor = context["triggering_asset_events"]
    events = [event for asset in accessor for event in accessor[asset]]
    keys = [(event.extra or {}).get("slice_key") for event in events]
    if slices := sorted({key for key in keys if key and isinstance(key, str)}):
        return slices
    try:
        return [slice_of_run(context, None).key]  # type: ignore[arg-type]
    except RayLLMInputError as e:
        if not events:
            raise
        raise RayLLMInputError(
            f"none of the {len(events)} asset event(s) that started this run names a slice_key in its extra, "
            "as those of RayLLMBatchOperator do. Whoever makes an event by hand adds it: "
            '{"slice_key": "2026-01-31"}'
        ) from e
