"""The link from a task to its job's page in the Ray dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

from airflow_provider_raydatallm.task import own_xcom

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class RayJobLink(BaseOperatorLink):
    """The operator pushes the address when it submits the job, so that the link works while the job runs."""

    name = "Ray job"
    xcom_key = "ray_job_url"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return own_xcom.pull(ti_key, self.xcom_key) or ""
