"""Which failures a task waits out before it submits its job: behind real sockets, and real TLS."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG

from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from tests.support.certificates import Authority
from tests.support.context import context_of
from tests.support.http_server import http_server


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a task on the cluster at an address."""
    monkeypatch.setattr(jobs_api, "_BACKOFF", ())
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "in.parquet")

    def run(host: str, reconnect_timeout: float, **extra: Any) -> None:
        connection = {"conn_type": "ray", "host": host, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", json.dumps(connection))
        with DAG("d", schedule=None):
            operator = RayLLMBatchOperator(
                task_id="t", slice_key="s", input_path=f"{tmp_path}/in.parquet", prompt="{name}",
                output_path=f"{tmp_path}/out", model_source="m", limits={"reconnect": reconnect_timeout},
                poll_interval=1,
            )  # fmt: skip
        operator.execute(context_of(operator))

    return run


def test_certificate_that_is_not_valid_and_a_server_without_tls_are_final_at_submit(
    submit: Any, tmp_path: Path
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    right, wrong = ({"ca_file": str(ca.ca_file)} for ca in (authority, other))
    began = time.monotonic()

    def assert_final(address: str, reason: str, advice: str, **extra: str) -> None:
        with pytest.raises(RayConnectionError, match=re.escape(address)) as error:
            submit(address, 20, **extra)
        assert reason in error.value.failure.sentence
        assert advice in error.value.failure.advice[0]

    with http_server(lambda request: (200, {}), authority.issue("server")) as address:
        for extra in ({}, wrong):
            assert_final(address, "local issuer", "ca_file", **extra)
        assert_final(address.replace("127.0.0.1", "localhost"), "'localhost'", "host", **right)
    with http_server(lambda request: (200, {}), authority.issue("expired", valid_hours=-1)) as address:
        assert_final(address, "expired", "Renew it", **right)
    with http_server(lambda request: (200, {})) as address:
        assert_final(address.replace("http:", "https:"), "TLS", "http://")
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_cluster_whose_name_is_unknown_for_a_while_is_waited_for(submit: Any) -> None:
    began = time.monotonic()
    with pytest.raises(RayUnreachableError, match="failed 1 times: ConnectError"):
        submit("https://ray-head.invalid", 1)
    assert time.monotonic() - began >= 1
