"""What a task needs while it waits, what a run may choose, and where secrets go."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from airflow_provider_raydatallm.clusters.embedded.folder import FOLDER_VARIABLE
from tests.durable.conftest import HUB_TOKEN, WAREHOUSE_PASSWORD
from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, Task, wait_for
from tests.support.outcomes import assert_recorded
from tests.support.s3 import moto_server
from tests.support.scene import DAY, Scene
from tests.support.tables import Table

MakeTable = Callable[..., Table]

_ROLE = {"role_arn": "arn:aws:iam::123456789012:role/ray", "region_name": "eu-west-1"}


@pytest.fixture
def edited(data: Path) -> Iterator[Path]:
    """The DAG `unplugged` is another one while this file is there."""
    file = data / "edited"
    yield file
    file.unlink(missing_ok=True)


def test_deferred_task_needs_neither_its_dag_nor_its_connections_to_conclude_and_no_log_has_their_secrets(
    scene: Scene, edited: Path
) -> None:
    api = scene.airflow.api
    with moto_server() as sts:
        connections = {
            "ray_unplugged": json.loads(scene.cluster.connection),
            "hub_unplugged": {"conn_type": "huggingface", "password": HUB_TOKEN},
            "sts_unplugged": {
                "conn_type": "aws", "login": "AKIAOFTHECONNECTION", "password": "connection/sesame+1",
                "extra": json.dumps({**_ROLE, "service_config": {"sts": {"endpoint_url": sts}}}),
            },
        }  # fmt: skip
        for name, fields in connections.items():
            api.call("POST", "/connections", json={"connection_id": name, **fields})
        api.call("POST", "/variables", json={"key": "unplugged", "value": "Be brief."})
        scene.begin("deferred", "unplugged")
        seen = len(scene.cluster.calls)  # until the trigger has read the connection
        wait_for(lambda: len(scene.cluster.calls) > seen + 5 or None, LIMIT, "the trigger to ask for the job")
    for name in connections:
        api.call("DELETE", f"/connections/{name}")
    api.call("DELETE", "/variables/unplugged")
    edited.touch()
    scene.go_on()
    scene.assert_done("all that submitting needs is gone while the task is deferred")

    [job] = scene.cluster.jobs(run_id=scene.task.run_id)
    lent = job["runtime_env"]["env_vars"]
    session = [lent[name] for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")]
    assert lent["HF_TOKEN"] == HUB_TOKEN
    assert all(len(secret) > 20 for secret in session)
    airflow_keeps = _all_that_airflow_keeps(scene.airflow)
    assert DAY in airflow_keeps
    for secret in (*session, HUB_TOKEN, "connection/sesame+1"):
        for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1]):
            assert form not in airflow_keeps


def _all_that_airflow_keeps(airflow: Airflow) -> str:
    """Its logs and its database, but for connections, which it encrypts."""
    logs = [p.read_text(errors="replace") for p in airflow.home.rglob("*.log")]
    names = airflow.database.query(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' "
        "AND table_type = 'BASE TABLE'"
    )
    rows = [row for (name,) in names for (row,) in airflow.database.query(f'SELECT t::text FROM "{name}" t')]
    return "\n".join([*logs, *rows])


def test_run_chooses_what_the_dag_declares_and_nothing_else(scene: Scene) -> None:
    """A Param is a boolean or a number for the argument whose template it fills. A connection that it names
    has to be of a model hub."""
    scene.trigger("deferred", "templated")
    scene.go_on()
    scene.assert_done("templated arguments")
    assert_log_is_the_providers_own(scene)

    again = {"table": scene.table.name, "slice": DAY, "force": True, "share": 0.12}
    forced = scene.airflow.api.trigger("templated_deferred", conf=again)
    assert scene.airflow.api.finish(forced) == "success"
    assert scene.airflow.api.xcom(forced)["outcome"] == "published"
    assert scene.table.version(DAY) == 2

    refusals = [
        ({"hub": "warehouse", "force": True}, "its password is no token of a model hub"),
        ({"share": 12}, "quality.max_quarantine"),
    ]
    for conf, text in refusals:
        refused = scene.airflow.api.trigger("templated_deferred", conf={**again, **conf})
        assert_refused(scene, refused, text)
    undeclared = scene.airflow.api.trigger("dateless_deferred", conf={"slice": DAY})
    assert_refused(scene, undeclared, "no Param 'slice'")
    assert WAREHOUSE_PASSWORD not in _all_that_airflow_keeps(scene.airflow)


def assert_refused(scene: Scene, task: Task, text: str) -> None:
    assert scene.airflow.api.finish(task) == "failed"
    scene.airflow.api.wait_logged(task, text)
    assert assert_recorded(scene.airflow.api, task)
    assert scene.airflow.api.get(task)["try_number"] == 1
    assert not scene.cluster.jobs(run_id=task.run_id)


def assert_log_is_the_providers_own(scene: Scene) -> None:
    scene.wait_logged("published")
    lines = scene.airflow.api.log(scene.task).splitlines()
    assert len(lines) < 60, "\n".join(lines)
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert not [word for word in ("(pid=", "ray::", "INFO worker.py", "vllm") if word in text]


@pytest.fixture
def embedded(airflow: Airflow) -> Iterator[Path]:
    """The folder of the embedded Ray of all tasks; stops it."""
    folder = Path(airflow.environment[FOLDER_VARIABLE])
    yield folder
    stop_embedded(airflow)
    shutil.rmtree(folder, ignore_errors=True)


def stop_embedded(airflow: Airflow) -> None:
    program = Path(sys.executable).parent / "airflow-ray-llm"
    subprocess.run([str(program), "local", "stop"], env=airflow.environment, check=True, capture_output=True)


@pytest.fixture
def triggerer_of_another_machine(airflow: Airflow, tmp_path: Path) -> Iterator[Path]:
    """Airflow's only one; yields the folder in which it would look for an embedded Ray."""
    folder = tmp_path / "t"
    airflow.stop("triggerer")
    airflow.start("triggerer-2", **{FOLDER_VARIABLE: str(folder)})
    yield folder
    airflow.stop("triggerer-2")
    airflow.start("triggerer")


@pytest.mark.long
def test_triggerer_of_another_machine_refuses_the_embedded_ray_and_starts_none(
    scene: Scene, embedded: Path, triggerer_of_another_machine: Path
) -> None:
    api = scene.airflow.api
    scene.trigger("deferred", "embedded")
    assert api.finish(scene.task) == "failed"
    scene.wait_logged("deferrable=False")
    assert not triggerer_of_another_machine.exists()
    assert not scene.table.has_output(DAY)
    # The head of a worker knows nothing of what the worker knows.
    head = json.loads((embedded / "head.json").read_text())["head"]
    names = psutil.Process(head["pid"]).environ()
    assert "PATH" in names
    assert not {"DATABASE_URL", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW_CONN_HUB"} & names.keys()


@pytest.mark.long
def test_embedded_ray_that_is_stopped_and_started_by_another_task_continues_the_slice_in_the_same_try(
    scene: Scene, embedded: Path, make_table: MakeTable
) -> None:
    api = scene.airflow.api
    scene.begin("deferred", "embedded")
    stop_embedded(scene.airflow)
    scene.wait_logged("Waiting for the cluster")
    other = make_table(DAY)
    starter = api.trigger("embedded_deferred", conf={"table": other.name, "slice": DAY})
    scene.go_on()
    assert [api.finish(starter), api.finish(scene.task)] == ["success", "success"]
    assert api.get(scene.task)["try_number"] == 1
    assert scene.table.rows_right(DAY)
    assert len(scene.table.working_jobs(DAY)) == 2
