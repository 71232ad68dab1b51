"""A task's context made by hand, as far as the operator needs it. The tests of example DAGs, and those of
`tests/durable`, have Airflow itself make it."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from types import SimpleNamespace
from typing import Any

from airflow.sdk.api.datamodels._generated import DagRunType

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

_RUN_START = dt.datetime.now(dt.UTC)


class StateStore(dict[str, Any]):
    """Airflow's task state store, in memory."""

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        self.pop(key, None)


def context_of(
    operator: RayLLMBatchOperator, store: StateStore | None = None, *, try_number: int = 1, clears: int = 0
) -> Any:
    """:param clears: how often somebody cleared the task, before this try."""
    ti = SimpleNamespace(
        id=uuid.uuid4(), dag_id=operator.dag_id, task_id=operator.task_id, run_id="r", map_index=-1,
        try_number=try_number, max_tries=operator.retries + clears, task=operator,
        start_date=dt.datetime.now(dt.UTC), xcom_push=lambda key, value: None,
    )  # fmt: skip
    run = SimpleNamespace(run_type=DagRunType.MANUAL, conf={}, start_date=_RUN_START)
    return {
        "dag": operator.dag, "dag_run": run, "params": {}, "ti": ti, "task_state_store": store,
        "outlet_events": {},
    }  # fmt: skip
