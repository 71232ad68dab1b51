"""Who may see what: Airflow's own permissions on each DAG, as its REST API asks for them.

A slice's figures are the task's XComs, and its rows the DAG's data: both need the permission to read XComs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.batch_apis import IsAuthorizedDagRequest
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AssetDetails,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagModel
from fastapi import Depends

_ENTITIES = (DagAccessEntity.TASK_INSTANCE, DagAccessEntity.XCOM)
#: Of routes with a `dag_id` in their path.
MAY_READ_SLICES = [Depends(requires_access_dag("GET", entity)) for entity in _ENTITIES]


class Reader:
    """A user, as far as slices are concerned. Some auth managers ask a server for each answer."""

    def __init__(self, user: GetUserDep) -> None:
        self._user = user
        self._auth = get_auth_manager()

    def dag_ids(self) -> set[str]:
        """Returns the DAGs that the user may read at all."""
        return self._auth.get_authorized_dag_ids(user=self._user, method="GET")

    def readable(self, dag_ids: set[str]) -> set[str]:
        """Returns those of the DAGs of whose slices the user may know."""
        if not dag_ids:
            return set()
        teams = DagModel.get_dag_id_to_team_name_mapping(sorted(dag_ids))

        def may_read(some: Iterable[str]) -> bool:
            requests: list[IsAuthorizedDagRequest] = [
                {"method": "GET", "access_entity": entity, "details": details}
                for details in (DagDetails(id=dag_id, team_name=teams.get(dag_id)) for dag_id in some)
                for entity in _ENTITIES
            ]
            return self._auth.batch_is_authorized_dag(requests, user=self._user)

        return dag_ids if may_read(dag_ids) else {dag_id for dag_id in dag_ids if may_read([dag_id])}


def may_read_audit_log(user: BaseUser, dag_id: str) -> bool:
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(
        method="GET", access_entity=DagAccessEntity.AUDIT_LOG, details=details, user=user
    )


def may_read_asset(user: BaseUser, asset_id: int) -> bool:
    details = AssetDetails(id=str(asset_id))
    return get_auth_manager().is_authorized_asset(method="GET", user=user, details=details)


SlicesReader = Annotated[Reader, Depends(Reader)]
