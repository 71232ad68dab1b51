"""Counts the customers of a day by industry, when `customers_asset` has published it.

Several events, one for each slice, may start one run. It skips slices that were published before
(`unchanged`), and events that a person made in the UI, which name no slice. A version of a slice
may come twice, so what is done with it must not depend on how often it is done.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pendulum
from airflow.sdk import Asset, dag, task

ENRICHED = Asset("customers_enriched")


@task
def count(triggering_asset_events: Any = None) -> dict[str, dict[str, int]]:
    from airflow_provider_raydatallm.reader import published_dataset

    extras = [event.extra for event in triggering_asset_events[ENRICHED]]
    slices = {extra["output_path"] for extra in extras if extra.get("outcome") not in (None, "unchanged")}
    return {
        path: dict(Counter(published_dataset(path).to_table()["industry"].to_pylist())) for path in slices
    }


@dag(schedule=[ENRICHED], start_date=pendulum.datetime(2026, 1, 1, tz="UTC"), catchup=False, tags=["ray-llm"])
def customers_by_industry() -> None:
    count()


customers_by_industry()
