"""The hook against a real Ray head with token auth."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG

from airflow_provider_raydatallm.exceptions import RayConnectionError, RayLLMJobError, RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.local import LocalHead
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.submission import Shipment, Submission
from tests.integration.conftest import STUB


def hook_with(monkeypatch: pytest.MonkeyPatch, host: str, token: str | None) -> RayHook:
    monkeypatch.setenv(
        "AIRFLOW_CONN_REMOTE", json.dumps({"conn_type": "ray", "host": host, "password": token})
    )
    return RayHook("remote")


def test_right_token_is_taken_by_both_kinds_of_call(
    ray_head: LocalHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = hook_with(monkeypatch, ray_head.address, ray_head.token)
    assert hook.call(jobs_api.version()) == ray_head.ray_version
    found = asyncio.run(hook_with(monkeypatch, ray_head.address, ray_head.token).acall(jobs_api.resources()))
    assert (found.nodes, found.cpus, found.gpus) == (1, ray_head.num_cpus, 0)


@pytest.mark.parametrize("token", [None, "0" * 32])
def test_wrong_token_says_so(ray_head: LocalHead, monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    with pytest.raises(RayConnectionError, match="refuses the token"):
        hook_with(monkeypatch, ray_head.address, token).call(jobs_api.version())


def test_unreachable_cluster_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_api, "_BACKOFF", (0.1,))
    with pytest.raises(RayUnreachableError, match="/api/version failed 2 times: ConnectError"):
        hook_with(monkeypatch, "http://127.0.0.1:9", None).call(jobs_api.version())


def test_local_connection_joins_the_running_head(ray_head: LocalHead) -> None:
    hook = RayHook("ray_default")
    assert hook.settings.address == ray_head.address
    assert os.environ["AIRFLOW_CONN_RAY_DEFAULT"] == "ray://local"
    assert hook.call(jobs_api.status_of("nobody-submitted-this")) is None


def test_job_is_submitted_once_under_its_id_and_can_be_stopped(ray_head: LocalHead) -> None:
    hook = RayHook("ray_default")
    job = {"submission_id": "one-id", "entrypoint": "sleep 60", "runtime_env": {}, "metadata": {"k": "v"}}
    assert hook.call(jobs_api.submit(**job)) == hook.call(jobs_api.submit(**job)) == "one-id"
    assert hook.call(jobs_api.stop("one-id")) is True
    assert status_at_the_end(hook, "one-id") == "STOPPED"
    assert hook.call(jobs_api.stop("never-was")) is False


def status_at_the_end(hook: RayHook, submission_id: str) -> str:
    for _ in range(120):
        info = hook.call(jobs_api.status_of(submission_id))
        assert info is not None
        if info.status in jobs_api.TERMINAL:
            break
        time.sleep(0.5)
    return info.status


def test_killed_task_stops_its_job_and_starts_no_other(
    ray_head: LocalHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow calls `on_kill` from a signal handler, after which `execute` goes on."""
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "in.parquet")
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(300)\n")
    submitted: list[Submission] = []
    submit = Shipment.submit

    def remembered(*arguments: Any) -> Submission:
        submitted.append(submit(*arguments))
        return submitted[-1]

    monkeypatch.setattr(Shipment, "submit", remembered)
    with DAG("d", schedule=None) as dag:
        operator = RayLLMBatchOperator(
            task_id="t", slice_key="k", input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out",
            preprocess="slow:f", **{**STUB, "code_paths": [*STUB["code_paths"], str(tmp_path / "slow.py")]},
        )  # fmt: skip
    ti = SimpleNamespace(
        dag_id="d", task_id="t", run_id="r", map_index=-1, try_number=1, xcom_push=lambda key, value: None
    )
    context = {"dag": dag, "dag_run": SimpleNamespace(run_type="manual"), "params": {}, "ti": ti}

    def kill() -> None:
        while not submitted:
            time.sleep(0.1)
        time.sleep(2)
        operator.on_kill()

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(RayLLMJobError, match="the task was killed"):
        operator.execute(context)  # type: ignore[arg-type]
    assert len(submitted) == 1
    assert status_at_the_end(RayHook(), submitted[0].id) == "STOPPED"
