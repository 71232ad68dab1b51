"""Who may see what: Airflow's own permissions on each DAG, as its REST API asks for them.

A slice's figures are the task's XComs, and its rows the DAG's data: both need the permission to read XComs.
"""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AssetDetails,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagModel
from fastapi import Depends

#: Of routes with a `dag_id` in their path.
MAY_READ_SLICES = [
    Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE)),
    Depends(requires_access_dag("GET", DagAccessEntity.XCOM)),
]


def _readable_dags(user: GetUserDep) -> set[str]:
    """Returns the DAGs of whose slices the user may know."""
    auth = get_auth_manager()
    dag_ids = sorted(auth.get_authorized_dag_ids(user=user, method="GET"))
    teams = DagModel.get_dag_id_to_team_name_mapping(dag_ids) if dag_ids else {}

    def may_read(dag_id: str) -> bool:
        details = DagDetails(id=dag_id, team_name=teams.get(dag_id))
        return all(
            auth.is_authorized_dag(method="GET", access_entity=entity, details=details, user=user)
            for entity in (DagAccessEntity.TASK_INSTANCE, DagAccessEntity.XCOM)
        )

    return {dag_id for dag_id in dag_ids if may_read(dag_id)}


def may_read_asset(user: BaseUser, asset_id: int) -> bool:
    details = AssetDetails(id=str(asset_id))
    return get_auth_manager().is_authorized_asset(method="GET", user=user, details=details)


ReadableDags = Annotated[set[str], Depends(_readable_dags)]
