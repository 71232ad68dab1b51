from __future__ import annotations

import json
import re
from typing import Any

import pydantic
import pytest

from airflow_provider_raydatallm.contract.report import Counts, Report
from airflow_provider_raydatallm.contract.spec import SliceJob, encode_slice_key


def job(**given: Any) -> SliceJob:
    least = {
        "slice_key": "2026-01-31",
        "input_path": "/in",
        "output_path": "s3://lake/out",
        "model_source": "m",
        "prompt": "{a}",
    }
    return SliceJob.model_validate({**least, **given})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"temprature": 0}, "temprature"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": (4, 2)}, "minimum above its maximum"),
        ({"prompt": None}, "prompt is missing"),
        ({"preprocess": "m:f"}, "give one of them"),
        ({"prompt": None, "preprocess": "no colon"}, "package.module:function"),
        ({"choices": ["a", "a"]}, "two different"),
        ({"choices": ["a", "b"], "regex": "x"}, "exclude each other"),
        ({"choices": ["a", "b"], "sampling_params": {"structured_outputs": {}}}, "structured_outputs"),
        ({"sampling_params": {"n": 2}}, "one answer a row"),
        ({"on_empty": "ignore"}, "on_empty"),
        ({"max_rows": 0}, "max_rows"),
        ({"output_column": "__unit"}, "begin with __"),
        ({"columns": ["x", "x"]}, "different names"),
        ({"slice_key": ""}, "slice_key"),
        ({"answer_cache": "answers"}, "'answers' is no folder that slices can share: give an address"),
        ({"answer_cache": "s3:/lake"}, "'s3:/lake' is no folder"),
        ({"answer_cache": "s3://lake/{slice}"}, "without {slice}"),
        ({"answer_cache": "/a", "deduplicate": False}, "contradict each other"),
        ({"answer_cache": "/a", "engine": "ray_data_llm"}, "is for engine 'vllm'"),
        ({"answer_cache": "/a", "engine_kwargs": {"task_type": "embed"}}, "this slice's is 'ray_data_llm'"),
        ({"answer_cache": "/a", "engine": "m:Mine"}, "this slice's is 'm:Mine'"),
        ({"answer_cache_max_bytes": 1}, "greater than or equal to 1048576"),
        ({"answer_cache_max_days": 0}, "greater than 0"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given: dict[str, Any], says: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=says):
        job(**given)


def test_spec_survives_the_trip() -> None:
    sent = job(choices=["a", "b"], concurrency=(1, 2), output_schema=None, columns=["x"])
    assert SliceJob.model_validate_json(sent.model_dump_json()) == sent


def test_slice_folder() -> None:
    assert job().slice_path == "s3://lake/out/ds=2026-01-31"
    assert job(output_path="/out/day={slice}").slice_path == "/out/day=2026-01-31"
    assert job(output_path="/out/{slice}/answers").slice_path == "/out/2026-01-31/answers"
    assert job(slice_key="EMEA/a=b").slice_path == "s3://lake/out/ds=EMEA%2Fa%3Db"
    assert job(max_rows=10).slice_path == "s3://lake/out/_trial/ds=2026-01-31"
    assert encode_slice_key("..") == "%2E%2E"


def test_fingerprint_changes_with_the_answer_and_with_nothing_else() -> None:
    base = job().fingerprint()
    for same in (
        {"slice_key": "other"}, {"input_path": "/other"}, {"batch_size": 3}, {"concurrency": "auto"},
        {"blocks": 9}, {"max_model_len_percentile": 95}, {"deduplicate": False}, {"answer_cache": "s3://lake/a"},
        {"accelerator_type": "L4"},
        {"engine_kwargs": {"max_num_seqs": 4}}, {"on_empty": "skip"}, {"code_hash": "unused"},
    ):  # fmt: skip
        assert job(**same).fingerprint() == base, same
    for other in (
        {"model_source": "m2"}, {"prompt": "{b}"}, {"system_prompt": "s"}, {"choices": ["a", "b"]},
        {"regex": "x"},
        {"sampling_params": {"temperature": 0}}, {"chat_template_kwargs": {"x": 1}},
        {"engine_kwargs": {"revision": "abc"}},
        {"engine_kwargs": {"max_model_len": "auto"}}, {"deduplicate": True},
        {"engine_kwargs": {"max_model_len": "auto"}, "max_model_len_percentile": 95},
        {"engine_kwargs": {"max_model_len": "auto"}, "on_too_long": "truncate"},
        {"processor_kwargs": {"chat_template_stage": {"chat_template": "x"}}},
        {"engine_kwargs": {"dtype": "float16"}}, {"postprocess": "m:f"}, {"output_column": "b"},
    ):  # fmt: skip
        assert job(**other).fingerprint() != base, other
    with_code = [job(postprocess="m:f", code_hash=h).fingerprint() for h in "ab"]
    assert with_code[0] != with_code[1]


def test_cache_is_in_the_fingerprint_only_where_chance_decides_an_answer() -> None:
    chance, greedy = {"sampling_params": {"temperature": 1}}, {"sampling_params": {"temperature": 0}}

    def changes(**given: Any) -> bool:
        return job(**given, answer_cache="/a").fingerprint() != job(**given).fingerprint()

    assert not changes(**chance)  # such requests are asked each time
    assert not changes(**greedy, deduplicate=True)
    assert not changes(sampling_params={"seed": 1}, deduplicate=True)
    assert changes(**chance, deduplicate=True)
    assert changes(sampling_params={"temperature": "{t}"}, deduplicate=True)
    assert changes(**greedy, deduplicate=True, prompt=None, preprocess="m:f")  # which may say otherwise


def test_answers_are_shared_by_what_acts_after_the_request_is_made() -> None:
    def space(files: Any = (), **given: Any) -> str:
        made = job(**given)
        return made.answer_cache_key(made.engine_kwargs, files)

    base = space()
    for same in (
        {"prompt": "{b}"}, {"sampling_params": {"temperature": 0}}, {"choices": ["a", "b"]},
        {"columns": ["x"]}, {"deduplicate": True}, {"engine_kwargs": {"max_num_seqs": 4}},
        {"engine_kwargs": {"gpu_memory_utilization": 0.5, "enforce_eager": True}},
        {"prompt": None, "preprocess": "m:f"}, {"postprocess": "m:f"}, {"output_path": "/b"},
        {"engine_scope": "shared"},
    ):  # fmt: skip
        assert space(**same) == base, same
    for other in (
        {"model_source": "m2"}, {"files": [["config.json", 1, 2]]}, {"chat_template_kwargs": {"x": 1}},
        {"engine_kwargs": {"revision": "abc"}}, {"engine_kwargs": {"tokenizer": "t"}},
        {"engine_kwargs": {"max_model_len": 64}}, {"engine_kwargs": {"dtype": "float16"}},
        {"engine_kwargs": {"max_model_len": "auto"}, "on_too_long": "truncate"},
        {"engine_kwargs": {"load_format": "dummy"}}, {"engine_kwargs": {"logits_processors": ["m:F"]}},
        {"engine_kwargs": {"structured_outputs_config": {"disable_any_whitespace": True}}},
    ):  # fmt: skip
        assert space(**other) != base, other
    auto = job(engine_kwargs={"max_model_len": "auto"})
    assert auto.answer_cache_key({"max_model_len": 64}, []) != auto.answer_cache_key(
        {"max_model_len": 128}, []
    )


def test_xcom_is_the_report_and_what_only_airflow_knows() -> None:
    report = Report(
        outcome="published",
        slice_key="k",
        output_path="/o",
        fingerprint="f",
        counts=Counts(planned=2, succeeded=2),
    )
    xcom = report.to_xcom(
        report_path="/o/_report.json", ray_job_id="j", dashboard_url="u", queued=1.0, total=2.0
    )
    assert set(xcom) == {
        "outcome", "slice_key", "output_path", "report_path", "ray_job_id", "dashboard_url", "fingerprint",
        "counts", "tokens",
        "seconds", "throughput", "utilisation", "balance", "advice",
    }  # fmt: skip
    assert set(xcom["seconds"]) == {"queued", "start", "engine_start", "inference", "publish", "total"}
    assert set(xcom["counts"]) == {
        "planned",
        "succeeded",
        "resumed",
        "quarantined",
        "invalid_output",
        "truncated",
        "shortened",
        "deduplicated",
        "cached",
    }
    assert json.loads(json.dumps(xcom)) == xcom


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"engine_kwargs": {"max_model_len": "2k"}}, "'2k': a number of tokens, or 'auto'"),
        ({"engine_kwargs": {"max_model_len": 0}}, "is 0: a number of tokens"),
        ({"on_too_long": "truncate"}, "needs engine_kwargs['max_model_len']"),
        (
            {"on_too_long": "truncate", "engine_kwargs": {"max_model_len": 64},
             "sampling_params": {"max_tokens": 64}},
            "max_tokens is 64 and max_model_len 64",
        ),
        (
            {"engine_kwargs": {"max_model_len": "auto"}, "sampling_params": {"max_tokens": None}},
            "'max_tokens'] is None, which leaves no place",
        ),
        ({"max_model_len_percentile": 101}, "less than or equal to 100"),
        ({"concurrency": "all"}, "auto"),
        ({"concurrency": (4, 2)}, "minimum above its maximum"),
        ({"blocks": 0}, "greater than or equal to 1"),
    ],
)  # fmt: skip
def test_sizes_that_contradict_each_other_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        job(**given)


def test_limit_that_a_template_made_is_a_number() -> None:
    assert job(engine_kwargs={"max_model_len": "4096"}).engine_kwargs == {"max_model_len": 4096}
    assert job(engine_kwargs={"max_model_len": None}).engine_kwargs == {}
