"""Collects what a run's tasks have noted of their slices: from Airflow's XComs, and the progress of running
ones from the tables' metadata.

Contexts differ. A task's callback has the task instance; a DAG's has the DAG, the run's id and perhaps its
last task; a deadline's has the run as JSON and nothing else.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from airflow.sdk.configuration import conf

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.report import cost_of
from airflow_provider_raydatallm.contract.slice_paths import SlicePaths
from airflow_provider_raydatallm.exceptions import failure_of
from airflow_provider_raydatallm.links.page_address import slice_page, task_page, with_host
from airflow_provider_raydatallm.links.ray import RayJobLink
from airflow_provider_raydatallm.notifications.message import SliceMessage, SliceStatus
from airflow_provider_raydatallm.operators.slice_task import SliceTask
from airflow_provider_raydatallm.task import own_xcom
from airflow_provider_raydatallm.task.failed_try import FAILURE_KEY
from airflow_provider_raydatallm.task.gpu_price import gpu_hour_price
from airflow_provider_raydatallm.task.slice_entry import INDEX_KEY, SliceEntry

#: Task instances of a run that are asked for their slices.
_INSTANCES = 200
#: Seconds that the tables' storage may take, for all of a message: this process need not even reach it.
_STORAGE_SECONDS = 10.0
_MAPPED = re.compile(r"(.+)_(\d+)")
_RUNNING = frozenset({"running", "deferred"})
_FAILED = frozenset({"failed", "upstream_failed", "up_for_retry"})
_DONE = frozenset({"success", "skipped", "removed"})


class _Instance(NamedTuple):
    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    state: str | None

    @property
    def name(self) -> str:
        index = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}.{self.task_id}{index}"

    def xcom(self, key: str) -> Any:
        return own_xcom.pull(self, key)


def collect_slices(context: Mapping[str, Any], log: Any) -> SliceMessage:
    """Returns the slices of a callback's task, or of all tasks of its run. Raises nothing: a message without
    figures is better than none.

    :param context: of a callback of a task or a DAG, or of a deadline.
    """
    dag_id = "Airflow"
    try:
        ti = context.get("ti")
        if ti is not None and "reason" not in context:  # which Airflow gives to callbacks of DAGs
            dag_id = ti.dag_id
            return _of_task(ti, context.get("exception"), log)
        dag_id, run_id = _run_of(context)
        return _of_run(dag_id, run_id, context.get("dag"))
    except Exception as e:
        return SliceMessage(dag_id, note=_lacking(e, log))


def _lacking(error: Exception, log: Any) -> str:
    log.warning("The message lacks the slices' figures: %s: %s", type(error).__name__, error)
    return "the slices' figures could not be read"


def _of_task(ti: Any, error: Any, log: Any) -> SliceMessage:
    """
    :param error: of the task; None of what was marked, or whose process died.
    """
    map_index = -1 if ti.map_index is None else ti.map_index
    state = getattr(ti, "state", None)
    if state is None:  # in the DAG processor
        key = f"{ti.task_id}_{map_index}" if map_index >= 0 else ti.task_id
        state = _states(ti.dag_id, ti.run_id, [ti.task_id]).get(key)
    instance = _Instance(ti.dag_id, ti.task_id, ti.run_id, map_index, getattr(state, "value", state))
    if not _has_slices(ti.task):
        return SliceMessage(instance.name, note="the task has no slice")
    failure = failure_of(error) if isinstance(error, BaseException) else None
    try:
        status = _status(instance, instance.xcom(INDEX_KEY), failure, _read_until())
        return SliceMessage(instance.name, (status,))
    except Exception as e:
        # A success without figures reads like one that a person marked.
        known = (_status(instance, None, failure, 0.0),) if instance.state in _FAILED else ()
        return SliceMessage(instance.name, known, _lacking(e, log))


def _of_run(dag_id: str, run_id: str, dag: Any) -> SliceMessage:
    statuses, instances, read_until = [], _instances(dag_id, run_id, dag), _read_until()
    for instance in islice(instances, _INSTANCES):
        entry = instance.xcom(INDEX_KEY)
        # Where the DAG is not known, a task without an entry may be any other task.
        if entry is not None or dag is not None:
            statuses.append(_status(instance, entry, None, read_until))
    is_cut = next(instances, None) is not None
    note = f"Only the first {_INSTANCES} tasks of the run were asked" if is_cut else ""
    return SliceMessage(dag_id, tuple(statuses), note)


def _run_of(context: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the ids of the DAG and the run."""
    dag = context.get("dag")
    if dag is not None:
        return dag.dag_id, context["run_id"]
    run = context["dag_run"]
    return run["dag_id"], run["dag_run_id"]


def _instances(dag_id: str, run_id: str, dag: Any) -> Iterator[_Instance]:
    """Yields a run's task instances that may have slices: of a DAG that is not known, all.

    Those that failed come first, then those that are not done: a message names some of many only.
    """
    tasks = dag.task_dict if dag is not None else None
    states = _states(dag_id, run_id)
    for key, state in sorted(states.items(), key=lambda of_task: _urgency(of_task[1])):
        names = [(key, -1)]
        if (mapped := _MAPPED.fullmatch(key)) and key not in (tasks or ()):
            names.append((mapped[1], int(mapped[2])))
        for task_id, map_index in names:
            if tasks is None or _has_slices(tasks.get(task_id)):
                yield _Instance(dag_id, task_id, run_id, map_index, state)


def _urgency(state: str | None) -> int:
    if state in _FAILED:
        return 0
    return 2 if state in _DONE else 1


def _has_slices(task: Any) -> bool:
    operator = getattr(task, "operator_class", type(task))  # of a mapped task
    return isinstance(operator, type) and issubclass(operator, SliceTask)


def _states(dag_id: str, run_id: str, task_ids: list[str] | None = None) -> dict[str, str | None]:
    """Returns the states of task instances, by `TASK` or, of mapped ones, `TASK_INDEX`."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(dag_id=dag_id, run_ids=[run_id], task_ids=task_ids)
    return {key: getattr(state, "value", state) for key, state in (states.get(run_id) or {}).items()}


def _read_until() -> float:
    return time.monotonic() + _STORAGE_SECONDS


def _status(instance: _Instance, noted: Any, failure: Failure | None, read_until: float) -> SliceStatus:
    """
    :param noted: the task's entry, as it wrote it.
    :param failure: of a task that failed in this process.
    :param read_until: when storage is no longer waited for, by the monotonic clock.
    """
    entry = SliceEntry.parse(noted)
    state, ids = instance.state, instance[:4]
    links = {"Task": with_host(task_page(*ids))}
    if failure is None and state in _FAILED and (kept := instance.xcom(FAILURE_KEY)) is not None:
        failure = Failure.parse(kept)
    if entry is None:
        return SliceStatus(instance.name, state, failure=failure, links=links)
    can_be = ("awaiting_input", "deferred") if entry.outcome == "held" else (None, "success", "skipped")
    if state in can_be:
        state = entry.outcome or state
    links = {"Slice": with_host(slice_page(*ids)), **links}
    job_url = instance.xcom(RayJobLink.xcom_key)
    if isinstance(job_url, str) and job_url.startswith(("http://", "https://")):
        links["Ray job"] = job_url
    progress = _progress(instance, entry, read_until) if state in _RUNNING else None
    return SliceStatus(instance.name, state, entry, failure, links, progress, _cost(entry))


def _cost(entry: SliceEntry) -> str | None:
    """Of this run: what found the slice finished, or waited for another run, has the figures of that one."""
    if entry.outcome != "published":
        return None
    cost = cost_of(entry.gpu_seconds, gpu_hour_price()) if entry.cost is None else entry.cost
    return None if cost is None else f"{cost:,.2f} {conf.get('ray_llm', 'currency', fallback='USD')}"


def _progress(instance: _Instance, entry: SliceEntry, read_until: float) -> dict[str, Any] | None:
    """Returns what the slice's folder says of the running job, where this process may read it, in time."""
    seconds_left = read_until - time.monotonic()
    if seconds_left <= 0:
        return None
    from airflow_provider_raydatallm.processor.tables.slice_view import SliceView

    task = {"dag_id": instance.dag_id, "task_id": instance.task_id}
    view = SliceView(SlicePaths(**entry.paths), task, seconds_left)
    read: list[dict[str, Any] | None] = []

    def look() -> None:
        try:
            read.append(view.progress())
        except Exception:  # of storage, or a package that is missing: the message says less
            read.append(None)

    reader = threading.Thread(target=look, daemon=True)  # it may hang for longer than this process lives
    reader.start()
    reader.join(seconds_left)
    progress = read[0] if read else None
    # What a failed job wrote has its error's text; a plan does not say how far it is.
    is_of_work = progress is not None and progress.get("step") != "failed" and not progress.get("plan")
    return progress if is_of_work else None
