"""One embedded Ray head and one tiny model for the whole session; jobs go to them as the operator sends
them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_raydatallm.local import LocalHead, ensure_head, stop_head
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

ROOT = Path(__file__).resolve().parents[2]

#: What a stub-engine task needs beside its paths: the engine is not what these tests are about.
STUB = {
    "engine": "stub_engine:StubEngine",
    "code_paths": [str(ROOT / "tests" / "stub_engine.py")],
    "model_source": "stub/stub",
    "poll_interval": 1.0,
}


@pytest.fixture(scope="session")
def ray_head() -> Iterator[LocalHead]:
    """The session's own embedded head, which the connection `ray_default` names."""
    folder = Path(tempfile.mkdtemp(prefix="rl", dir="/tmp"))
    os.environ["AIRFLOW_RAY_LLM_LOCAL_DIR"] = str(folder)
    os.environ["AIRFLOW_CONN_RAY_DEFAULT"] = "ray://local"
    yield ensure_head(folder)
    stop_head(folder)


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The demo's model, trained once and kept for the next session."""
    folder = ROOT / ".demo" / "model"
    folder.parent.mkdir(exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "demo.tiny_model", str(folder)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return folder


Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(ray_head: LocalHead, tmp_path: Path) -> Ask:
    """Run the operator on the shared cluster and return what it pushes to XCom.

    The context is built by hand here; `test_dags.py` has Airflow itself make it.
    """

    def run(**given: Any) -> dict[str, Any]:
        arguments = {
            "slice_key": "2026-01-31",
            "output_path": str(tmp_path / "out"),
            "prompt": "Who is {name}?",
            **given,
        }
        with DAG(f"d{uuid.uuid4().hex[:8]}", schedule=None) as dag:
            operator = RayLLMBatchOperator(task_id="ask", **arguments)
        ti = SimpleNamespace(
            dag_id=dag.dag_id,
            task_id="ask",
            run_id="r",
            map_index=-1,
            try_number=1,
            xcom_push=lambda key, value: None,
        )
        context = {"dag": dag, "dag_run": SimpleNamespace(run_type="manual"), "params": {}, "ti": ti}
        return operator.execute(context)  # type: ignore[arg-type]

    return run
