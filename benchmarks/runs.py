"""The two ways in which cases run a slice on the embedded head: the operator, and a bare Ray job."""

from __future__ import annotations

import shlex
import sys
import time
import uuid
from pathlib import Path
from typing import Any


def by_operator(**arguments: Any) -> tuple[float, dict[str, Any]]:
    """Returns the seconds of its `execute`, and what that returns."""
    from airflow.sdk import DAG

    from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
    from tests.support.arguments import written
    from tests.support.context import context_of

    with DAG("bench", schedule=None):
        operator = RayLLMBatchOperator(task_id="ask", **written(**arguments))
    began = time.time()
    result: dict[str, Any] = operator.execute(context_of(operator))
    return time.time() - began, result


def by_script(module: str, *arguments: str, done: Path) -> float:
    """Returns seconds from the submission of `python -m module arguments` until it wrote the file `done`."""
    from airflow_provider_raydatallm.hooks import jobs_api
    from airflow_provider_raydatallm.hooks.ray import RayHook
    from benchmarks.fresh import ROOT

    name, hook, began = f"script-{uuid.uuid4().hex[:6]}", RayHook(), time.time()
    command = f"cd {shlex.quote(str(ROOT))} && exec {shlex.join([sys.executable, '-m', module, *arguments])}"
    hook.call(jobs_api.submit(submission_id=name, entrypoint=command, runtime_env={}, metadata={}))
    while (info := hook.call(jobs_api.get_status(name))) is None or info.status not in jobs_api.TERMINAL:
        time.sleep(0.2)
    assert info.status == "SUCCEEDED", info.message
    return done.stat().st_mtime - began
