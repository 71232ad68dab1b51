"""The slices of the asset events that started a run, to map a task over.

One run may have the events of several slices: Airflow starts it for all that came meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from airflow.sdk import get_current_context, task

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.task.run_slice import slice_of_run

log = logging.getLogger(__name__)


@task
def triggering_slices() -> list[str]:
    """Lists the slice keys that the run's asset events name, each once; of a run without events, such as one
    that a person triggers, its own slice key.

    `RayLLMBatchOperator.partial(...).expand(slice_key=triggering_slices())` processes them all. Trials are
    left out. Another DAG may use `triggering_slices.override(task_id=...)()`.

    :raises RayLLMInputError: when the run has events, and none names a slice; or no events, and no slice.
    """
    context = get_current_context()
    by_asset = context["triggering_asset_events"]
    events = [event for asset in by_asset for event in by_asset[asset]]
    return slices_of(events) if events else [slice_of_run(context, None).key]


def slices_of(events: Iterable[Any]) -> list[str]:
    """See `triggering_slices`.

    :param events: Airflow's, of tasks of this provider and of others.
    """
    keys: dict[str, None] = {}
    is_trial = False
    for event in events:
        key = event.extra.get("slice_key")
        if event.extra.get("trial") is not None:
            is_trial = True
        elif isinstance(key, str):
            keys[key] = None
        else:
            log.warning("An event of asset %r at %s names no slice", event.asset.name, event.timestamp)
    if not keys and not is_trial:
        raise RayLLMInputError(
            "none of the events that started this run names a slice",
            advice="Schedule the DAG by an asset in a slice task's outlets; an event that a person creates "
            'needs the extra {"slice_key": "2026-01-31"}',
        )
    return list(keys)
