"""The API's routes. A client names a DAG, a task and a run; what lies where, the task's own entry says."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from fastapi import APIRouter, HTTPException, Path, Query, status

from airflow_provider_raydatallm.contract.result.row_errors import changes_for
from airflow_provider_raydatallm.links.output import OutputLink
from airflow_provider_raydatallm.links.ray import RayJobLink
from airflow_provider_raydatallm.page import failures, index, overview, storage
from airflow_provider_raydatallm.page.access import (
    MAY_READ_SLICES,
    SlicesReader,
    may_read_asset,
    may_read_audit_log,
)
from airflow_provider_raydatallm.page.answers import (
    CellState,
    Order,
    Reason,
    Sample,
    Settings,
    SliceRun,
    SlicesPage,
    Stored,
    TaskRun,
    TasksPage,
)
from airflow_provider_raydatallm.page.marked_runs import find_mark
from airflow_provider_raydatallm.task.failed_try import shows_row_texts
from airflow_provider_raydatallm.task.gpu_price import gpu_hour_price
from airflow_provider_raydatallm.task.job.cancel import OWNER_KEY

router = APIRouter(prefix="/api", tags=["Ray LLM"])

Offset = Annotated[int, Query(ge=0)]
#: As Airflow's database holds them: PostgreSQL has no NUL.
Name = Annotated[str, Path(pattern=r"^[^\x00]*$")]
MapIndex = Annotated[int, Path(ge=-1, lt=2**31)]
_TASK = "/dags/{dag_id}/tasks/{task_id}"
_RUN = _TASK + "/runs/{run_id}/{map_index}"


@router.get("/settings")
def get_settings(_: GetUserDep) -> Settings:
    """What the page shows at all."""
    return Settings(
        show_samples=shows_row_texts(),
        gpu_hour_price=gpu_hour_price(),
        currency=conf.get("ray_llm", "currency", fallback="USD"),
    )


@router.get("/tasks")
def get_tasks(
    session: SessionDep,
    reader: SlicesReader,
    name: Annotated[str, Query(max_length=200)] = "",
    state: CellState | None = None,
    order: Order = "urgency",
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> TasksPage:
    """Tasks with slices, of the DAGs that the user may read."""
    found = overview.find_tasks(session, reader.dag_ids(), reader.readable, name)
    return overview.list_tasks(session, found, state, order, offset, limit)


@router.get(f"{_TASK}/slices", dependencies=MAY_READ_SLICES)
def get_slices(
    dag_id: str,
    task_id: Name,
    session: SessionDep,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=400)] = 400,
) -> SlicesPage:
    """A task's runs of slices, the newest first, by Airflow's database alone."""
    return index.list_slices(session, dag_id, task_id, offset, limit)


@router.get(_RUN, dependencies=MAY_READ_SLICES)
def get_run(
    dag_id: str, task_id: Name, run_id: Name, map_index: MapIndex, session: SessionDep, user: GetUserDep
) -> SliceRun:
    """One run of a slice, by Airflow's database alone."""
    run = _find(session, dag_id, task_id, run_id, map_index)
    task = (dag_id, task_id, run_id, map_index)
    return SliceRun(
        line=run.line,
        failure=failures.story_of(run.failure),
        output_path=run.entry.paths.get("table", ""),
        output_url=_web_address(index.read_xcom(session, *task, OutputLink.xcom_key)),
        assets=[a for a in index.list_assets(session, dag_id, task_id) if may_read_asset(user, a.id)],
        ray_job_id=run.entry.ray_job_id,
        ray_job_url=_web_address(index.read_xcom(session, *task, RayJobLink.xcom_key)),
        tries=index.list_tries(session, *task),
        history=index.list_history(session, dag_id, task_id, run.line.slice_key) or [run.line],
        to_change=changes_for(run.line.quarantine_reasons or {}),
    )


@router.get(f"{_RUN}/stored", dependencies=MAY_READ_SLICES)
def get_stored(dag_id: str, task_id: Name, run_id: Name, map_index: MapIndex, session: SessionDep) -> Stored:
    """The slice's report, versions and progress, from its folder."""
    run = _find(session, dag_id, task_id, run_id, map_index)
    session.close()  # storage may take its time, and a connection is not needed for it
    return storage.read_stored(run, {"dag_id": dag_id, "task_id": task_id})


@router.get(f"{_RUN}/task", dependencies=MAY_READ_SLICES)
def get_task_run(
    dag_id: str, task_id: Name, run_id: Name, map_index: MapIndex, session: SessionDep
) -> TaskRun:
    """One run of a task that has not come to its slice, by Airflow's database alone."""
    run = index.find_task_run(session, dag_id, task_id, run_id, map_index)
    if run is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "Airflow has no such task instance")
    return run


@router.get(f"{_RUN}/reason", dependencies=MAY_READ_SLICES)
def get_reason(
    dag_id: str, task_id: Name, run_id: Name, map_index: MapIndex, session: SessionDep, user: GetUserDep
) -> Reason:
    """Why a run failed of which Airflow has no record, or that something stopped: by the audit log, and by
    the slice's folder."""
    run = _find(session, dag_id, task_id, run_id, map_index)
    is_told = run.failure is not None and run.failure.kind != "stopped"
    if is_told or run.task_state not in failures.AFTER_FAILURE:
        return Reason()
    task = (dag_id, task_id, run_id, map_index)
    owner = index.read_xcom(session, *task, OWNER_KEY)
    job = None
    if run.failure is None and isinstance(owner, dict) and owner.get("try_number") == run.line.try_number:
        job = owner.get("submission_id")
    mark = find_mark(session, *task) if run.task_state == "failed" else None
    by = mark if mark and may_read_audit_log(user, dag_id) else None
    session.close()
    found = storage.read_reason(run, {"dag_id": dag_id, "task_id": task_id}, job) if job else Reason()
    return found.model_copy(update={"is_marked": mark is not None, "marked_by": by})


@router.get(f"{_RUN}/samples/{{kind}}", dependencies=MAY_READ_SLICES)
def get_sample(
    dag_id: str,
    task_id: Name,
    run_id: Name,
    map_index: MapIndex,
    kind: Literal["published", "quarantined"],
    session: SessionDep,
) -> Sample:
    """Some rows of the slice's newest version, where `[ray_llm] show_samples` allows it."""
    if not shows_row_texts():
        raise HTTPException(status.HTTP_403_FORBIDDEN, "[ray_llm] show_samples is off")
    run = _find(session, dag_id, task_id, run_id, map_index)
    session.close()
    return storage.read_sample(run, {"dag_id": dag_id, "task_id": task_id}, kind)


def _find(session: SessionDep, dag_id: str, task_id: Name, run_id: Name, map_index: int) -> index.RunOfSlice:
    run = index.find_run(session, dag_id, task_id, run_id, map_index)
    if run is None:
        raise HTTPException(
            status.HTTP_404_NOT_FOUND, "no entry of a slice that this version of the provider can read"
        )
    return run


def _web_address(value: object) -> str | None:
    try:
        is_web = isinstance(value, str) and urlsplit(value).scheme in ("http", "https") and value.encode()
    except ValueError:  # of a host that cannot be one, or of half a character
        is_web = False
    return str(value) if is_web else None
