from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pydantic
import pytest
from airflow.sdk import ObjectStoragePath

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.submission import submission_id_of

HEAVY = ("ray", "torch", "vllm", "pandas", "pyarrow")
DAGS = sorted((Path(__file__).parents[2] / "dags").glob("*.py"))


def operator(**given: Any) -> RayLLMBatchOperator:
    least: dict[str, Any] = {
        "task_id": "t", "input_path": "/in", "output_path": "/out", "model_source": "m", "prompt": "{a}",
    }  # fmt: skip
    return RayLLMBatchOperator(**{**least, **given})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"concurrency": 0}, r"concurrency.*got 0"),
        ({"on_empty": "x"}, "on_empty"),
        ({"prompt": None}, "prompt is missing"),
        ({"choices": ["a"]}, "choices"),
        ({"input_format": "avro"}, "input_format"),
        ({"poll_interval": 0.5}, "poll_interval"),
        ({"max_rows": -1}, "max_rows"),
    ],
)
def test_wrong_argument_is_refused_when_the_dag_is_parsed(given: dict[str, Any], says: str) -> None:
    with pytest.raises((RayLLMInputError, ValueError), match=says):
        operator(**given)


def test_templated_arguments_wait_for_their_rendering() -> None:
    operator(
        max_rows="{{ params.rows }}", prompt="{{ params.prompt }}", sampling_params={"max_tokens": "{{ 1 }}"}
    )


def test_schema_class_becomes_a_json_schema_and_template_fields_are_plain() -> None:
    class Answer(pydantic.BaseModel):
        industry: str

    made = operator(output_schema=Answer)
    assert made.output_schema == Answer.model_json_schema()
    json.dumps([getattr(made, name) for name in made.template_fields])


def test_paths_may_be_object_storage_paths() -> None:
    made = operator(input_path=ObjectStoragePath("file:///data/in"), output_path="s3://bucket/out")
    assert (made.input_path, made.output_path) == ("/data/in", "s3://bucket/out")


def test_submission_id_is_safe_and_never_used_twice() -> None:
    metadata = {"dag_id": "dag", "task_id": "group.task", "slice_key": "EMEA/a b"}
    one, two = (submission_id_of(metadata, "run") for _ in range(2))
    assert one != two
    assert not set("/ ") & set(one)


def test_parsing_the_example_dags_imports_nothing_heavy() -> None:
    code = (
        f"import sys, runpy; [runpy.run_path(p) for p in {list(map(str, DAGS))!r}]; "
        f"assert 'airflow_provider_raydatallm' in sys.modules; print([m for m in {HEAVY!r} if m in "
        "sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(DAGS) >= 6
    assert done.stdout.splitlines()[-1] == "[]"
