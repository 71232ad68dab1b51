"""The link from a task to where people look at its table: the storage's console, or a data catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from airflow_provider_raydatallm.task import own_xcom

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class OutputLink(BaseOperatorLink):
    """The operator pushes the address when it knows its slice, where `[ray_llm] output_url` is set."""

    name = "Output"
    xcom_key = "ray_llm_output_url"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return own_xcom.pull(ti_key, self.xcom_key) or ""


def output_url(table: str) -> str | None:
    """Returns the web address of a slice's folder; None where none is configured, or the folder is on a disk.

    `{bucket}`, `{path}` (of the folder in its bucket) and `{address}` (the whole) of `[ray_llm] output_url`
    are replaced, percent-encoded.
    """
    template: str = conf.get("ray_llm", "output_url", fallback="")
    scheme, _, inside = table.rpartition("://")
    bucket, _, path = inside.partition("/")
    if not template or scheme in ("", "file"):
        return None
    values = {"{bucket}": quote(bucket), "{path}": quote(path), "{address}": quote(table, safe="")}
    for name, value in values.items():
        template = template.replace(name, value)
    return template
