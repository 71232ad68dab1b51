"""DAG files parsed as Airflow parses them, and what a task of theirs sends to the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.submit.packages import Package
from tests.support.context import context_of


def parse_dag(path: Path, text: str) -> DAG:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    bag = DagBag(path)
    assert bag.import_errors == {}
    (dag,) = bag.dags.values()
    return dag  # type: ignore[return-value]


def sent_by(dag: DAG, task_id: str = "ask") -> tuple[SliceJob, list[Package]]:
    operator: Any = dag.get_task(task_id)
    return operator.slice_job(context_of(operator))  # type: ignore[no-any-return]


def identity(path: Path, text: str) -> str:
    """What changes when the function of the DAG's task `ask` does."""
    job, _ = sent_by(parse_dag(path, text))
    return f"{job.code_hash} {fingerprint(job)} {job.preprocess}"
