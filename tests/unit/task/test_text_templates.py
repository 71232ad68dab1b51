"""Templates in DAGs of both kinds, with Airflow's own rendering, mapped and not."""

from __future__ import annotations

import uuid
from enum import Enum
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param, task
from airflow.sdk.definitions._internal.mixins import ResolveMixin
from airflow.sdk.definitions.xcom_arg import PlainXComArg

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
    assert (job.task.choices, job.task.system_prompt, job.task.prompt) == (("1", "2"), "True", "'yes' {a}")
    assert (job.task.chat_template_kwargs, job.source.column) == ({"day": "20260131"}, "7")
    assert (job.output_column, job.task.sampling_params) == ("['x']", {"extra_args": {"text": "{'a': 1}"}})


@NATIVE
def test_rendered_text_becomes_a_key_a_list_a_dict_or_a_number(native: bool) -> None:
    job = spec_of(
        native, choices="{{ params.labels }}", columns="{{ params.columns | list | tojson }}",
        sampling_params="{{ params.sampling }}", engine={"kwargs": {"seed": "{{ params.seed }}"}},
        chat_template_kwargs="{{ {'day': params.day} }}",
    )  # fmt: skip
    assert (job.slice_key, job.task.choices, job.columns) == ("20260131", ("1", "2"), ("a", "b"))
    assert job.task.sampling_params == {"temperature": 0.5, "stop": ["1"]}
    assert (job.engine.arguments, job.task.chat_template_kwargs) == ({"seed": 4}, {"day": "20260131"})
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
    assert (job.slice_key, job.task.choices, job.task.prompt) == ("20260131", ("1", "2"), "'yes' {a}")
    assert job.engine.arguments == {"seed": 4}


class Label(str, Enum):  # noqa: UP042 — whose text is another
    YES, NO = "yes", "no"


def test_labels_of_an_enum_are_its_values() -> None:
    job = spec_of(False, choices=list(Label), model_source=Label.YES)
    assert (job.task.choices, job.model_source) == (("yes", "no"), "yes")


def test_template_that_cannot_be_rendered_is_no_reason_to_try_again() -> None:
    with pytest.raises(RayLLMInputError, match="literal"):
        spec_of(False, prompt='{{"a": 1}} {name}')


class Output(ResolveMixin):
    """Of another task."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def iter_references(self) -> Any:
        return ()

    def resolve(self, context: Any) -> Any:
        return self.value


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
    assert task.slice_job(context)[0].source.max_rows is None


class Outputs(PlainXComArg):
    """Of another task, over which a task is mapped."""

    def __init__(self, *values: Any) -> None:
        super().__init__(EmptyOperator(task_id=uuid.uuid4().hex))
        self.values = [*values]

    def resolve(self, context: Any) -> Any:
        return self.values


@pytest.mark.parametrize(
    ("argument", "values", "name"),
    [("slice_key", ["a", None], "slice_key"), ("source", [{}, {"column": None}], "source.column")],
)
def test_mapped_output_that_is_none_is_refused(argument: str, values: list[Any], name: str) -> None:
    plain = GIVEN if argument == "slice_key" else {**GIVEN, "slice_key": "k"}
    with dag_of(False) as dag:
        given = Outputs(*values), Outputs(*({argument: value} for value in values))
        mapped = RayLLMBatchOperator.partial(**plain).expand(**{argument: given[0]})
        by_kwargs = RayLLMBatchOperator.partial(**{**plain, "task_id": "u"}).expand_kwargs(given[1])
        listed = RayLLMBatchOperator.partial(**{**plain, "task_id": "v"}).expand_kwargs(
            [{argument: Output(value)} for value in values]
        )
    for one in (mapped, by_kwargs, listed):
        assert rendered(dag, one, 0).slice_job(context_of(one))[0].model_source == "m"
        with pytest.raises(RayLLMInputError, match=f"{name} is the output"):
            rendered(dag, one, 1).slice_job(context_of(mapped))


def test_sensors_mapped_output_that_is_none_is_refused() -> None:
    with dag_of(False) as dag:
        keys = Outputs("a", None)
        sensors = RayLLMSliceSensor.partial(task_id="s", output_path="/out").expand(slice_key=keys)
    with pytest.raises(RayLLMInputError, match="slice_key is the output"):
        rendered(dag, sensors, 1)


def test_none_that_the_dag_maps_over_is_an_argument_that_is_left_out() -> None:
    with dag_of(False) as dag:
        mapped = RayLLMBatchOperator.partial(**GIVEN, slice_key="k").expand(adapter=[None, "/lora"])
        by_kwargs = RayLLMBatchOperator.partial(**{**GIVEN, "task_id": "u"}).expand_kwargs(
            [{"slice_key": "k", "adapter": None}]
        )
    for one in (mapped, by_kwargs):
        assert rendered(dag, one, 0).slice_job(context_of(one))[0].task.lora.path is None


def test_parameter_of_a_function_may_be_named_like_an_argument() -> None:
    arguments = {name: value for name, value in GIVEN.items() if name not in ("task_id", "prompt")}

    @task.ray_llm_batch(**arguments, slice_key="k")
    def ask(name: str, query: str) -> str:
        return f"{name} {query}"

    with dag_of(False) as dag:
        ask.expand(query=Outputs("a", None))
    mapped = dag.get_task("ask")
    for index in (0, 1):
        assert rendered(dag, mapped, index).slice_job(context_of(mapped))[0].slice_key == "k"


def test_function_may_be_given_what_another_task_left_empty() -> None:
    arguments = {name: value for name, value in GIVEN.items() if name not in ("task_id", "prompt")}

    @task.ray_llm_batch(**arguments, slice_key="k")
    def ask(name: str, place: str | None) -> str:
        return f"{name} {place}"

    with dag_of(False) as dag:
        ask(place=Output())
    one: Any = dag.get_task("ask")
    one.render_template_fields({**context_of(one), "dag": dag})
    assert one.slice_job(context_of(one))[0].slice_key == "k"
    assert one.op_kwargs == {"place": None}


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


@pytest.mark.parametrize("leaf", ["gates", "golden", "hold"])
def test_leaf_of_quality_may_be_what_an_upstream_task_says(leaf: str) -> None:
    with DAG("d", schedule=None):

        @task
        def upstream() -> None:
            return None

        quality = {"gates": [{"of": "rows", "then": "hold"}], leaf: upstream()}
        RayLLMBatchOperator(
            task_id="t", slice_key="k", input_path="/in", output_path="/out", prompt="{n}", model_source="m",
            quality=quality,
        )  # fmt: skip
