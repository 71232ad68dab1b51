"""Finds the industry of yesterday's new customers, and publishes no day that nobody should trust unseen.

Once all rows of a day are answered, and before anybody can read them, gates look at them: by a query, by a
function of `checks/industries.py` beside this file, and by how many customers whose industry is known the
engine got right. A day whose industries are others than those of the
days before waits for a person among Airflow's required actions, as do the first days, which nothing can be
compared with.

The engine is that of `customers_keywords`; gates are the same with a model.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import CronDataIntervalTimetable, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    tags=["ray-llm"],
)
def customers_reviewed() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_reviewed",
        model_source="keywords",
        prompt="{Company}",
        choices=["Law", "Dental", "Software", "Bank"],
        output_column="industry",
        engine="keywords:Keywords",
        code_paths=["engines/keywords.py", "checks/industries.py"],
        quality={
            "max_quarantine": 1.0,  # names that say nothing
            "golden": {"path": os.environ.get("RAY_LLM_EXAMPLE_GOLDEN", "s3://lake/known_industries.csv")},
            "gates": [
                {"of": "golden", "min": 0.8},
                {"of": 'sql:SELECT count(*) - count(DISTINCT "Customer Id") FROM answers', "max": 0},
                {"of": "industries:share_of_contradictions", "max": 0.05},
                {"of": "labels", "against": 7, "max": 0.2, "then": "hold"},
            ],
            "hold": {"reject_after": "7d"},
        },
    )


customers_reviewed()
