"""One embedded Ray head and one tiny model for the whole session; jobs go to them as the operator sends
them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead, ensure_head, stop_head
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.operators.slice_task import SliceTask
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from airflow_provider_raydatallm.task.failed_try import FAILURE_KEY
from tests.support import tiny_model as trained
from tests.support.arguments import written
from tests.support.context import Instance, context_of
from tests.support.engine_processes import end_engines
from tests.support.paths import ROOT
from tests.support.s3 import moto_server
from tests.support.slices import PROGRAM, Ask

ONE_ENGINE = "one_engine"
#: Of its tests, those that look at the engine's start, and the one that ends it.
_STARTS_IT = "test_shared_engines"
_ENDS_IT = "test_engines_end_when_they_are_told_to_and_a_users_application_does_not"
#: Of the last files by their names, those that take a minute.
_LONGEST = frozenset({"test_transcribe", "test_vllm", "test_workers"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that two processes end together."""

    def place(item: pytest.Item) -> int:
        if item.path.parent.name == ONE_ENGINE:
            return 2 if item.name == _ENDS_IT else int(item.path.stem != _STARTS_IT)
        return 3 if item.path.stem in _LONGEST else 4

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def with_row_texts() -> Iterator[None]:
    """Errors in full, as `[ray_llm] show_samples` allows them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__RAY_LLM__SHOW_SAMPLES", "true")
        yield


@pytest.fixture(scope="session")
def ray_head() -> Iterator[LocalHead]:
    """The session's own embedded head, which the connection `ray_default` names."""
    folder = Path(tempfile.mkdtemp(prefix="rl", dir="/tmp"))
    os.environ["AIRFLOW_RAY_LLM_LOCAL_DIR"] = str(folder)
    os.environ["AIRFLOW_CONN_RAY_DEFAULT"] = "ray://local"
    os.environ["RAY_metrics_report_interval_ms"] = "1000"  # noqa: SIM112  # 10 s otherwise
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GB that each engine zeroes at its start, else 2
    yield ensure_head(folder)
    stop_head(folder)


@pytest.fixture(scope="module", autouse=True)
def engines_end_with_their_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Idle shared engines hold CPUs, and 2.5 GB each. Those of `one_engine` end with their folder."""
    yield
    if request.path.parent.name != ONE_ENGINE:
        end_engines()


def assert_recorded(error: BaseException, ti: Any) -> None:
    failure = getattr(error, "failure", None)
    assert isinstance(failure, Failure), f"{error!r} carries no record"
    if isinstance(ti, Instance):
        assert Failure.parse(ti.xcoms[FAILURE_KEY]).sentence == failure.sentence


@pytest.fixture(scope="session", autouse=True)
def every_failure_is_recorded() -> Iterator[None]:
    """No exception reaches Airflow without its record, in all tests whose tasks run in this process."""

    def checked(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def run(task: SliceTask, *args: Any, **named: Any) -> Any:
            try:
                return method(task, *args, **named)
            except (TaskDeferred, AirflowSkipException):
                raise
            except BaseException as e:
                assert_recorded(e, (named.get("context") or args[-1])["ti"])
                raise

        return run

    with pytest.MonkeyPatch.context() as patch:
        for name in ("execute", "resume_execution"):
            patch.setattr(SliceTask, name, checked(getattr(SliceTask, name)))
        yield


@pytest.fixture(scope="session")
def airflow_database() -> Path:
    """The database of the session's Airflow; `empty_database` is for tests with an Airflow of their own."""
    subprocess.run([PROGRAM.with_name("airflow"), "db", "migrate"], check=True, capture_output=True)
    database = Path(os.environ["AIRFLOW_HOME"]) / "airflow.db"
    shutil.copy(database, database.with_name("empty.db"))
    return database


@pytest.fixture(scope="session")
def empty_database(airflow_database: Path) -> Path:
    return airflow_database.with_name("empty.db")


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


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    """A real S3 API on loopback: the variables by which a process reaches it."""
    with moto_server() as address:
        yield {
            "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip


@pytest.fixture
def ask(ray_head: LocalHead, tmp_path: Path) -> Ask:
    """Run the operator on the shared cluster and return what it pushes to XCom."""

    def run(**given: Any) -> dict[str, Any]:
        arguments = {
            "slice_key": "2026-01-31", "output_path": str(tmp_path / "out"), "prompt": "Who is {name}?",
            **given,
        }  # fmt: skip
        with DAG(f"d{uuid.uuid4().hex[:8]}", schedule=None):
            operator = RayLLMBatchOperator(task_id="ask", **written(**arguments))
        return operator.execute(context_of(operator))

    return run


@pytest.fixture
def run_example(
    ray_head: LocalHead, airflow_database: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Runs an example DAG for the day 2026-01-01, and returns its first task's table."""

    def run(dag_id: str, **environment: Any) -> Path:
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        bag = DagBag(ROOT / "dags" / f"{dag_id}.py")
        assert bag.import_errors == {}
        dag = bag.dags[dag_id]
        done = dag.test(logical_date=pendulum.datetime(2026, 1, 2, tz="UTC"))
        assert done.state == "success"
        return Path(dag.tasks[0].output_path)

    return run
