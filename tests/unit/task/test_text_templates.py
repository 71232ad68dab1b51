"""Templates in DAGs of both kinds, with Airflow's own rendering, mapped and not."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from airflow.sdk import DAG, Param
from airflow.sdk.definitions._internal.mixins import ResolveMixin

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


class Label(str, Enum):  # noqa: UP042 — whose text is another
    YES, NO = "yes", "no"


def test_labels_of_an_enum_are_its_values() -> None:
    job = spec_of(False, choices=list(Label), model_source=Label.YES)
    assert (job.choices, job.model_source) == (("yes", "no"), "yes")


def test_template_that_cannot_be_rendered_is_no_reason_to_try_again() -> None:
    with pytest.raises(RayLLMInputError, match="literal"):
        spec_of(False, prompt='{{"a": 1}} {name}')


class Output(ResolveMixin):
    """Of another task, which returned nothing."""

    def iter_references(self) -> Any:
        return ()

    def resolve(self, context: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("given", "name"),
    [({"slice_key": Output()}, "slice_key"), ({"source": {"column": Output()}}, "source.column"),
     ({"choices": Output()}, "choices"), ({"columns": ["a", Output()]}, r"columns\[1\]")],
)  # fmt: skip
def test_argument_that_another_task_left_empty_is_not_taken_as_left_out(
    given: dict[str, Any], name: str
) -> None:
    with pytest.raises(RayLLMInputError, match=f"{name} is the output .* None"):
        spec_of(False, **given)


def test_form_may_leave_its_fields_empty() -> None:
    dag = DAG("d", schedule=None, params={"rows": Param(None, type=["null", "integer"])})
    task = RayLLMBatchOperator(
        dag=dag, **GIVEN, slice_key="k", source={"max_rows": dag.param("rows"), "trial": dag.param("rows")}
    )
    context: Any = {**context_of(task), "params": {"rows": None}}
    context["dag_run"].conf = {}
    task.render_template_fields(context)
    assert task.slice_job(context)[0].max_rows is None


def test_mapped_value_that_is_none_is_refused() -> None:
    with dag_of(False) as dag:
        mapped = RayLLMBatchOperator.partial(**GIVEN).expand(slice_key=["a", None])
        sensors = RayLLMSliceSensor.partial(task_id="s", output_path="/out").expand(slice_key=["a", None])
    assert rendered(dag, mapped, 0).slice_job(context_of(mapped))[0].slice_key == "a"
    task = rendered(dag, mapped, 1)
    with pytest.raises(RayLLMInputError, match="slice_key is the output"):
        task.slice_job(context_of(mapped))
    with pytest.raises(RayLLMInputError, match="slice_key is the output"):
        rendered(dag, sensors, 1)


def rendered(dag: DAG, mapped: Any, index: int) -> Any:
    context: Any = {**context_of(mapped), "task": mapped, "dag": dag}
    context["ti"].map_index = index
    mapped.render_template_fields(context)
    return context["task"]


@NATIVE
def test_sensor_waits_for_the_key_as_text(native: bool) -> None:
    sensor = RayLLMSliceSensor(
        task_id="s", dag=dag_of(native), output_path="/out", slice_key="{{ ds_nodash }}"
    )
    sensor.render_template_fields({**RUN})  # type: ignore[typeddict-item]
    assert sensor.slice_key == "20260131"
