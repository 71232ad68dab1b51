"""A task's XComs beside its `return_value`: small, and read by Airflow's servers, the page and triggers.

They stand in Airflow's database whatever XCom backend a deployment has, as Airflow keeps its links. A backend
writes a value elsewhere, and leaves an address that a list of slices would have to fetch one by one.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk.bases.xcom import BaseXCom


def push(ti: Any, key: str, value: Any) -> None:
    """
    :param ti: the running task instance.
    :param value: what JSON can hold.
    """
    map_index = -1 if ti.map_index is None else ti.map_index
    BaseXCom.set(key, value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=map_index)


def pull(ti: Any, key: str) -> Any:
    """Returns what a task instance pushed; None where it did not.

    :param ti: whatever has a task instance's ids.
    """
    return BaseXCom.get_value(ti_key=ti, key=key)
