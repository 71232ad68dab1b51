"""Mapped tasks are checked when the DAG is parsed, with what of them is known by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pydantic
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.sensors.ray_llm_slice import RayLLMSliceSensor

PATHS: dict[str, Any] = {"input_path": "/in", "output_path": "/out", "model_source": "m"}
KEYS: dict[str, Any] = {"slice_key": ["a", "b"]}
SECRET = {"kwargs": {"hf_token": "hf_" + "a" * 34}}


class Polite(RayLLMBatchOperator):
    def __init__(self, *, prompt: str, **given: Any) -> None:
        super().__init__(prompt=prompt.strip() + " please", **given)


class Answer(pydantic.BaseModel):
    x: int


def partial(**given: Any) -> Any:
    return RayLLMBatchOperator.partial(**{"task_id": "t", "prompt": "{a}", **PATHS, **given})


def decorated(**given: Any) -> Any:
    @task.ray_llm_batch(**{**PATHS, **given})
    def ask(name: str, log: str = "x") -> str:
        return name

    return ask


def upstream() -> Any:
    return EmptyOperator(task_id="up").output


@pytest.mark.parametrize(("make", "says"), [
    (lambda: partial(choices=["a"]).expand(**KEYS), "choices"),
    (lambda: partial(quality={"max_quarantin": 1}).expand(**KEYS), "quality has no 'max_quarantin'"),
    (lambda: partial(input_path="in").expand_kwargs([{"slice_key": "a"}]), "input_path 'in' is relative"),
    (lambda: partial(prompt=None).expand(**KEYS), "prompt is missing"),
    (lambda: RayLLMBatchOperator.partial(task_id="t", prompt="{a}").expand(**KEYS), "missing .*'input_path'"),
    (lambda: partial(output_mode="columns").expand(**KEYS), "output_mode is 'columns'"),
    (lambda: partial(deferrable="{{ x }}").expand(**KEYS), "deferrable"),
    (lambda: partial(deferrable="{{ x }}").expand_kwargs(upstream()), "deferrable"),
    (lambda: partial(slice_key="k").expand(poll_interval=[0.5]), "poll_interval"),
    (lambda: partial(slice_key="k").expand(runtime_env=[{}, {"pip": ["{{ x }}"]}]), "runtime_env"),
    (lambda: partial(engine={"kind": "{{ x }}:E"}).expand_kwargs(upstream()), "which code runs"),
    (lambda: decorated(choices=["a"]).expand(**KEYS), "choices"),
    (lambda: decorated().partial(slice_key="k").expand(nme=["a"]), "does not accept 'nme'|nme"),
    (lambda: decorated().partial(quality={"max_quarantin": 1}).expand(**KEYS), "quality has no"),
    (lambda: decorated().override(deferrable="{{ x }}").expand_kwargs(upstream()), "deferrable"),
    (lambda: RayLLMSliceSensor.partial(task_id="t", output_path="out").expand(**KEYS), "'out' is relative"),
    (lambda: RayLLMSliceSensor.partial(task_id="t", output_path="/o", slice_format="Y").expand(**KEYS),
     "slice_format 'Y'"),
])  # fmt: skip
def test_arguments_that_cannot_work_are_refused(make: Callable[[], Any], says: str) -> None:
    with DAG("d", schedule=None), pytest.raises((RayLLMInputError, TypeError, ValueError), match=says):
        make()


@pytest.mark.parametrize("make", [
    lambda: partial(engine=SECRET).expand(**KEYS),
    lambda: partial(engine=SECRET).expand_kwargs(upstream()),
    lambda: partial(slice_key="k").expand(engine=[{}, SECRET]),
    lambda: partial().expand_kwargs([{"slice_key": "a"}, {"slice_key": "b", "engine": SECRET}]),
    lambda: partial(runtime_env={"env_vars": {"OPENAI_API_KEY": "sk-" + "a" * 32}}).expand(**KEYS),
    lambda: decorated(engine=SECRET).expand(**KEYS),
    lambda: decorated().partial(engine=SECRET).expand(**KEYS),
    lambda: decorated(slice_key="k").expand(engine=[{}, SECRET]),
    lambda: decorated(engine=SECRET).expand_kwargs(upstream()),
])  # fmt: skip
def test_secret_comes_into_no_serialized_dag(make: Callable[[], Any]) -> None:
    with DAG("d", schedule=None), pytest.raises(RayLLMInputError, match="looks like a secret"):
        make()


@pytest.mark.parametrize("make", [
    lambda: RayLLMBatchOperator.partial(task_id="t", **PATHS).expand(prompt=["{a}", "{b}"], **KEYS),
    lambda: partial(labels={"multi": True}).expand(choices=upstream()),
    lambda: partial(labels={"multi": True}).expand_kwargs(upstream()),
    lambda: partial(output_mode="columns", slice_key="k").expand(output_schema=[Answer]),
    lambda: partial(output_mode="columns").expand_kwargs([{"slice_key": "a", "output_schema": Answer}]),
    lambda: partial(slice_key="k").expand(deferrable=[True, False], log=["full"]),
    lambda: partial(slice_key="k").expand(poll_interval=upstream()),
    lambda: partial(slice_key="k").expand(engine={"a": 1}),
    lambda: partial(slice_key="k").expand(engine=["auto", "l4-small", {"profile": "l4-small"}]),
    lambda: partial(engine=upstream(), sampling_params={"seed": "{{ 1 }}"}).expand(**KEYS),
    lambda: partial(prompt="Describe it.").expand(images=["photo"]),
    lambda: decorated().expand(name=upstream(), log=["{{ ds }}"]),
    lambda: decorated(output_mode="struct").partial(log="{{ ds }}").expand_kwargs(upstream()),
    lambda: RayLLMSliceSensor.partial(task_id="s").expand(output_path=["/a", "/b"]),
    lambda: partial(slice_key="k").expand_kwargs([{"choices": None, "regex": "a+"}, {"choices": ["a", "b"]}]),
    lambda: partial(prompt=None, audio="a").expand(task=["transcribe"], **KEYS),
    lambda: Polite.partial(task_id="t", **PATHS).expand(prompt=[" {a}"], **KEYS),
    lambda: Polite.partial(task_id="t", **PATHS).expand(prompt=upstream(), **KEYS),
])  # fmt: skip
def test_what_is_mapped_counts_as_rendered_later(make: Callable[[], Any]) -> None:
    with DAG("d", schedule=None) as dag:
        make()
    assert sum(isinstance(t, MappedOperator) for t in dag.tasks) == 1


def test_check_adds_nothing_to_the_dag() -> None:
    with DAG("d", schedule=None, default_args=PATHS) as dag:
        with EmptyOperator(task_id="s").as_setup():
            inside = RayLLMBatchOperator.partial(task_id="t", prompt="{a}").expand(**KEYS)
        partial(task_id="u", slice_key=upstream()).expand(engine=["auto"])
    assert dag.task_dict["t"] is inside
    assert not inside.upstream_task_ids
    assert dag.get_task("u").upstream_task_ids == {"up"}
