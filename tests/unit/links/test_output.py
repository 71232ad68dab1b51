from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.links.output import OutputLink, output_url
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from tests.support.context import Instance
from tests.support.in_process import job_of

CONSOLE = "https://console.example/browse/{bucket}?prefix={path}/"


@pytest.mark.parametrize(
    ("template", "table", "address"),
    [
        (CONSOLE, "s3://lake/a b/ds=2026-01-31", "https://console.example/browse/lake?prefix=a%20b/ds%3D2026-01-31/"),
        (CONSOLE, "s3://lake/x?y=1&z#f", "https://console.example/browse/lake?prefix=x%3Fy%3D1%26z%23f/"),
        ("https://data.example/?{address}", "gs://b/t/ds=k%2F1", "https://data.example/?gs%3A%2F%2Fb%2Ft%2Fds%3Dk%252F1"),
        (CONSOLE, "s3://lake/{bucket}", "https://console.example/browse/lake?prefix=%7Bbucket%7D/"),
        (CONSOLE, "/data/table/ds=2026-01-31", None),
        (CONSOLE, "file:///data/table/ds=2026-01-31", None),
        ("", "s3://lake/table/ds=2026-01-31", None),
    ],
)  # fmt: skip
def test_address_of_the_output_is_that_of_the_configured_console(
    monkeypatch: pytest.MonkeyPatch, template: str, table: str, address: str | None
) -> None:
    monkeypatch.setenv("AIRFLOW__RAY_LLM__OUTPUT_URL", template)
    assert output_url(table) == address


@pytest.mark.parametrize("configured", [True, False])
def test_task_with_a_console_pushes_the_address_of_its_slice(
    monkeypatch: pytest.MonkeyPatch, configured: bool
) -> None:
    if configured:
        monkeypatch.setenv("AIRFLOW__RAY_LLM__OUTPUT_URL", CONSOLE)
    context: Any = {"ti": Instance()}
    job = job_of(input_path="s3://lake/in", output_path="s3://lake/out", slice_key="2026-01-31")
    task = RayLLMBatchOperator(
        task_id="t", input_path="/in", output_path="/out", model_source="m", prompt="{a}", slice_key="k"
    )
    task._push_links(context, job)
    address = "https://console.example/browse/lake?prefix=out/ds%3D2026-01-31/"
    assert context["ti"].xcoms[OutputLink.xcom_key] == (address if configured else "")
    assert context["ti"].xcoms.keys() == {link.xcom_key for link in RayLLMBatchOperator.operator_extra_links}
