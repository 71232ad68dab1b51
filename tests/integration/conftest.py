"""One embedded Ray head and one tiny model for the whole session; jobs go to them as the operator sends
them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_raydatallm.local_ray.head import LocalHead, ensure_head, stop_head
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from tests.support import tiny_model as trained
from tests.support.context import context_of
from tests.support.paths import ROOT

PROGRAM = Path(sys.executable).parent / "airflow-ray-llm"

#: What a stub-engine task needs beside its paths: the engine is not what these tests are about.
STUB = {
    "engine": "stub_engine:StubEngine",
    "code_paths": [str(ROOT / "tests" / "support" / "stub_engine.py")],
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


@pytest.fixture(scope="module")
def no_engines(ray_head: LocalHead) -> None:
    """Shared engines that tests before left there are ended: they hold CPUs for minutes."""
    command = [PROGRAM, "engines", "stop", "--all", "--force"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    return trained.tiny_model()


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the `run` jobs that were submitted, in their order."""
    found: list[str] = []
    submit = JobSubmission.submit

    def noted(
        self: JobSubmission, hook: Any, command: Any, submission_id: str, nonce: str, arguments: Any = ()
    ) -> None:
        submit(self, hook, command, submission_id, nonce, arguments)
        if command == "run":
            found.append(submission_id)

    monkeypatch.setattr(JobSubmission, "submit", noted)
    return found


def wait_for(what: Callable[[], Any], seconds: float = 300) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := what():
            return value
        time.sleep(0.1)
    raise AssertionError("it did not happen")


@contextmanager
def moto_server() -> Iterator[str]:
    """A real S3 API, with STS and IAM, on loopback; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(listens)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    """A real S3 API on loopback: the variables by which a process reaches it."""
    with moto_server() as address:
        yield {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(ray_head: LocalHead, tmp_path: Path) -> Ask:
    """Run the operator on the shared cluster and return what it pushes to XCom."""

    def run(**given: Any) -> dict[str, Any]:
        arguments = {
            "slice_key": "2026-01-31",
            "output_path": str(tmp_path / "out"),
            "prompt": "Who is {name}?",
            **given,
        }
        with DAG(f"d{uuid.uuid4().hex[:8]}", schedule=None):
            operator = RayLLMBatchOperator(task_id="ask", **arguments)
        return operator.execute(context_of(operator))

    return run
