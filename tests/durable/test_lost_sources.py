"""One source that a task asks is away, deleted or edited: it loses no job by that, publishes no old answer.
docs/what-happens.md has a line for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durable.conftest import HUB_TOKEN
from tests.support.airflow_rest import LIMIT, wait_for
from tests.support.marks import long
from tests.support.scene import DAY, Scene
from tests.support.sealed_backend import Vault

AWAY = "SealedBackend fails"


@pytest.fixture
def sealed(vault: Vault, scene: Scene) -> Iterator[Vault]:
    """It has what a task needs, and is sealed until the test opens it."""
    vault.put("ray_sealed", scene.cluster.connection)
    vault.put("hub_sealed", json.dumps({"conn_type": "huggingface", "password": HUB_TOKEN}))
    vault.seal()
    yield vault
    vault.open()


def wait_away(scene: Scene, times: int) -> None:
    def look() -> bool | None:
        return scene.airflow.api.log(scene.task).count(AWAY) >= times or None

    wait_for(look, LIMIT, f"the log to say {AWAY!r} {times} times", lambda: scene.airflow.api.log(scene.task))


@pytest.mark.parametrize("mode", ["waiting", long("deferred")], indirect=True)
def test_secrets_backend_that_is_away_for_a_while(scene: Scene, sealed: Vault, mode: str) -> None:
    """Before the job is submitted, and where the next try, or another triggerer, looks for it."""
    api = scene.airflow.api
    scene.trigger(mode, "sealed")
    wait_away(scene, 1)
    sealed.open()
    scene.table.wait_answered(DAY, 1)
    assert api.get(scene.task)["try_number"] == 1
    sealed.seal()
    if mode == "waiting":
        scene.airflow.worker(scene.task).kill()
    else:
        api.wait(scene.task, "deferred")
        scene.airflow.restart("triggerer")
    wait_away(scene, 2)
    sealed.open()
    scene.go_on()
    scene.assert_done("the secrets backend is away")
    assert api.get(scene.task)["try_number"] == (2 if mode == "waiting" else 1)


@pytest.mark.long
def test_secrets_backend_that_stays_away_leaves_the_task_its_tries(scene: Scene, sealed: Vault) -> None:
    scene.trigger("waiting", "sealed_soon")
    scene.airflow.api.wait(scene.task, "running", "up_for_retry", "queued", "scheduled", try_number=2)
    scene.wait_logged("RayUnreachableError")
    sealed.open()
    scene.go_on()
    scene.assert_done("the secrets backend stays away for a try")


@pytest.mark.long
def test_marked_run_whose_task_waits_for_its_next_try(scene: Scene) -> None:
    """Airflow tells its API server's listener of the run, and nobody of the task."""
    task = scene.begin("waiting", "patient")
    [job] = scene.jobs
    scene.airflow.worker(task).kill()
    scene.airflow.api.wait(task, "up_for_retry")
    assert scene.jobs == [job]
    scene.airflow.api.mark_run(task, "failed")
    scene.wait_stopped()
    scene.go_on()
    scene.assert_undone("run marked failed while its task waits for its next try", "skipped")
    assert f"Stopped Ray job {job}" in scene.airflow.output("api_server")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_deleted_xcoms_of_a_task_that_waits(scene: Scene, mode: str) -> None:
    task = scene.begin(mode)
    of_run = "dag_id = %s AND run_id = %s"
    assert scene.airflow.api.xcom(task, "ray_llm_job") is not None
    scene.airflow.database.query(f"DELETE FROM xcom WHERE {of_run}", task.dag_id, task.run_id)
    scene.go_on()
    scene.assert_done("the task's XComs are deleted")
    assert scene.airflow.api.get(task)["try_number"] == 1


@pytest.fixture
def edited(data: Path) -> Iterator[Path]:
    file = data / "edited"
    yield file
    file.unlink(missing_ok=True)


@pytest.mark.long
def test_clear_after_retries_were_edited_asks_anew(scene: Scene, edited: Path) -> None:
    """A worker reads other `retries` than those by which Airflow has counted the clear."""
    task = scene.begin("waiting", "retried")
    scene.go_on()
    assert scene.airflow.api.finish(task) == "success"
    assert scene.table.version(DAY) == 1
    scene.table.replace_input(DAY)
    edited.touch()
    scene.airflow.api.clear(task)
    scene.airflow.api.wait(task, "success", try_number=2)
    assert scene.table.version(DAY) == 2
    assert len(scene.table.working_jobs(DAY)) == 2
