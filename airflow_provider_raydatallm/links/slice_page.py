"""The link from a task to the page of its slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

from airflow_provider_raydatallm.links.page_address import slice_page

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class SlicePageLink(BaseOperatorLink):
    """The operator pushes the address when it knows its slice, so that the link works while the task runs."""

    name = "Slice"
    xcom_key = "ray_llm_slice_page"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return slice_page(ti_key.dag_id, ti_key.task_id, ti_key.run_id, ti_key.map_index)
