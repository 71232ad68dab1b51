"""`@task.ray_llm_batch` by real Airflow on real Ray, which does not have the DAG file."""

from __future__ import annotations

import io
import os
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.processor.request import row_function
from airflow_provider_raydatallm.submit import pickled_function
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from tests.support.in_process import job_of
from tests.support.slices import STUB, Ask

DAG_FILE = """
import functools
from airflow.sdk import dag, task


@functools.cache
def plain(text):
    return text.strip().title()


@task
def keys():
    return ["2026-01-01", "2026-01-02"]


@dag(schedule=None)
def decorated():
    greeting = "Who is"

    @task.ray_llm_batch(input_path={input!r}, output_path={output!r}, deferrable=True, **{stub!r})
    def ask(name, mark="."):
        return f"{{greeting}} {{plain(name)}}{{mark}}"

    ask.partial(mark=" {{{{ dag.dag_id }}}}?").expand(slice_key=keys())


decorated()
"""


def test_mapped_function_of_a_dag_file_answers_its_slices(
    ray_head: LocalHead, airflow_database: Path, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"name": [" ann", "bob "], "size": [1, 2]}), tmp_path / "in.parquet")
    file = tmp_path / "dags" / "decorated.py"
    file.parent.mkdir()
    file.write_text(DAG_FILE.format(input=f"{tmp_path}/in.parquet", output=f"{tmp_path}/out", stub=STUB))

    done = subprocess.run(
        [str(Path(sys.executable).parent / "airflow"), "dags", "test", "decorated"],
        env={**os.environ, "AIRFLOW__CORE__DAGS_FOLDER": str(file.parent)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert "DEFERRED" not in done.stdout + done.stderr  # a triggerer beside it would take its trigger
    with sqlite3.connect(airflow_database) as connection:
        shown = connection.execute(
            "select rendered_map_index from task_instance where dag_id = 'decorated' and map_index >= 0 "
            "order by map_index"
        ).fetchall()
    assert shown == [("2026-01-01",), ("2026-01-02",)]
    for key in ("2026-01-01", "2026-01-02"):
        table = pq.read_table(tmp_path / "out" / f"ds={key}", partitioning=None)
        assert table.to_pylist() == [
            {"name": " ann", "size": 1, "answer": "Who is Ann decorated?"},
            {"name": "bob ", "size": 2, "answer": "Who is Bob decorated?"},
        ]


@pytest.mark.long
def test_other_python_is_refused_before_submission_and_by_the_job(
    ray_head: LocalHead, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = RayHook("ray_default")
    assert hook.call(jobs_api.get_python_version()) == row_function.PYTHON

    monkeypatch.setattr(pickled_function, "PYTHON", "3.9")  # of another worker
    made = pickled_function.pickle_function(eval("lambda name: name"), ["name"], {})
    job = job_of(input_path=f"{tmp_path}/in", output_path=f"{tmp_path}/out", preprocess=made.reference)
    metadata = {"dag_id": "d", "task_id": "t", "slice_key": "k"}
    with pytest.raises(RayLLMInputError, match=r"compiled by Python 3\.9"):
        JobSubmission(job, [made.package], None, dict, metadata).submit(
            hook, "run", "never-submitted", "nonce"
        )

    assert hook.call(jobs_api.get_status("never-submitted")) is None

    # A cluster that does not tell, or a job with a Python of its own.
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "in.parquet")
    zipfile.ZipFile(io.BytesIO(made.package.content)).extractall(tmp_path)
    code = [*STUB["code_paths"], str(tmp_path / made.reference.split(":")[0])]
    with pytest.raises(RayLLMInputError, match=r"compiled by Python 3\.9"):
        ask(
            input_path=f"{tmp_path}/in.parquet", prompt=None, preprocess=made.reference,
            **{**STUB, "code_paths": code},
        )  # fmt: skip
    assert not (tmp_path / "out").exists()
