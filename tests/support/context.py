"""A task's context made by hand, as far as the operator needs it. The tests of example DAGs, and those of
`tests/durable`, have Airflow itself make it."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from types import SimpleNamespace
from typing import Any

from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.serde import serialize

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.task import own_xcom

_RUN_START = dt.datetime.now(dt.UTC)


class Instance(SimpleNamespace):
    """A task instance that keeps what is pushed to Airflow: no supervisor runs that would send it there."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(dag_id="d", task_id="t", run_id="r", map_index=-1, xcoms={})
        self.__dict__.update(fields)

    def xcom_pull(self, task_ids: str, **_: Any) -> Any:
        """Of another task of the run, whose results a test says (`others`)."""
        return self.__dict__.get("others", {}).get(task_ids)


def _push(ti: Any, key: str, value: Any) -> None:
    if isinstance(ti, Instance):
        ti.xcoms[key] = json.loads(json.dumps(serialize(value)))  # as Airflow does
    else:
        _push_to_airflow(ti, key, value)


_push_to_airflow, own_xcom.push = own_xcom.push, _push


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
    ti = Instance(
        id=uuid.uuid4(), dag_id=operator.dag_id, task_id=operator.task_id, try_number=try_number,
        max_tries=operator.retries + clears, task=operator, start_date=dt.datetime.now(dt.UTC),
    )  # fmt: skip
    run = SimpleNamespace(run_type=DagRunType.MANUAL, conf={}, start_date=_RUN_START)
    return {
        "dag": operator.dag, "dag_run": run, "params": {}, "ti": ti, "task_state_store": store,
        "outlet_events": {},
    }  # fmt: skip
