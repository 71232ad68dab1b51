"""Templates in DAGs of both kinds, with Airflow's own rendering, mapped and not."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.sensors.ray_llm_slice import RayLLMSliceSensor
from tests.support.context import context_of

NATIVE = pytest.mark.parametrize("native", [False, True])
GIVEN: dict[str, Any] = {
    "task_id": "t", "input_path": "/in", "output_path": "/out", "model_source": "m", "prompt": "'yes' {a}",
}  # fmt: skip
RUN = {
    "ds_nodash": "20260131",
    "params": {
        "labels": ["1", "2"], "sampling": {"temperature": 0.5, "stop": ["1"]}, "seed": 4, "day": "20260131",
        "columns": ("a", "b"),
    },
}  # fmt: skip


def dag_of(native: bool) -> DAG:
    return DAG("d", schedule=None, render_template_as_native_obj=native)


def spec_of(native: bool, **given: Any) -> SliceJob:
    task = RayLLMBatchOperator(dag=dag_of(native), **{**GIVEN, "slice_key": "{{ ds_nodash }}", **given})
    task.render_template_fields({**context_of(task), **RUN})  # type: ignore[typeddict-item]
    return task.slice_job(context_of(task))[0]


@NATIVE
def test_static_text_stays_as_it_is_written(native: bool) -> None:
    job = spec_of(
        native, choices=["1", "2"], system_prompt="True", chat_template_kwargs={"day": "20260131"},
        source={"column": "7"}, output_column="['x']", sampling_params={"extra_args": {"text": "{'a': 1}"}},
    )  # fmt: skip
    assert (job.choices, job.system_prompt, job.prompt) == (("1", "2"), "True", "'yes' {a}")
    assert (job.chat_template_kwargs, job.slice_column) == ({"day": "20260131"}, "7")
    assert (job.output_column, job.sampling_params) == ("['x']", {"extra_args": {"text": "{'a': 1}"}})


@NATIVE
def test_rendered_text_becomes_a_key_a_list_a_dict_or_a_number(native: bool) -> None:
    job = spec_of(
        native, choices="{{ params.labels }}", columns="{{ params.columns | list | tojson }}",
        sampling_params="{{ params.sampling }}", engine={"kwargs": {"seed": "{{ params.seed }}"}},
        chat_template_kwargs="{{ {'day': params.day} }}",
    )  # fmt: skip
    assert (job.slice_key, job.choices, job.columns) == ("20260131", ("1", "2"), ("a", "b"))
    assert job.sampling_params == {"temperature": 0.5, "stop": ["1"]}
    assert (job.engine_kwargs, job.chat_template_kwargs) == ({"seed": 4}, {"day": "20260131"})
    with pytest.raises(RayLLMInputError, match="choices"):
        spec_of(native, choices="{{ params.day }}")


@NATIVE
def test_mapped_task_is_rendered_alike(native: bool) -> None:
    dag = dag_of(native)
    with dag:
        mapped = RayLLMBatchOperator.partial(
            **GIVEN, choices=["1", "2"], engine={"kwargs": {"seed": "{{ seed }}"}}
        ).expand(slice_key=["{{ ds_nodash }}"])
    context: Any = {**context_of(mapped), **RUN, "task": mapped, "seed": 4}
    context["ti"].map_index = 0
    mapped.render_template_fields(context)
    task = context["task"]
    job = task.slice_job(context_of(task))[0]
    assert (job.slice_key, job.choices, job.prompt) == ("20260131", ("1", "2"), "'yes' {a}")
    assert job.engine_kwargs == {"seed": 4}


@NATIVE
def test_sensor_waits_for_the_key_as_text(native: bool) -> None:
    sensor = RayLLMSliceSensor(
        task_id="s", dag=dag_of(native), output_path="/out", slice_key="{{ ds_nodash }}"
    )
    sensor.render_template_fields({**RUN})  # type: ignore[typeddict-item]
    assert sensor.slice_key == "20260131"
