from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.slice_paths import encode_slice_key
from airflow_provider_raydatallm.contract.spec.engine_arguments import with_token_ids
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from tests.support.slice_jobs import refusal, slice_job


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temprature": 0}, "temprature"),
        ({"slice_key": "_probe-x"}, "slice_key"), ({"slice_key": ".x"}, "slice_key"),
        ({"engine__workers": 0}, "engine.workers"),
        ({"engine__workers": (4, 2)}, "minimum above its maximum"),
        ({"prompt": None}, "prompt is missing"),
        ({"preprocess": "m:f"}, "give one of them"),
        ({"prompt": None, "preprocess": "no colon"}, "package.module:function"),
        ({"choices": ["a", "a"]}, "two different"),
        ({"choices": ["a", "b\0"]}, "must not hold NUL"),
        ({"choices": frozenset("ab")}, "it is a frozenset, whose order"),
        ({"choices": (c for c in "ab")}, "it is a generator"),
        ({"columns": frozenset("ab")}, "it is a frozenset"),
        ({"publish__details": {"seconds", "cached"}}, "publish.details: it is a set"),
        ({"quality__gates": ({"of": "rows", "min": 1} for _ in "a")}, "quality.gates: it is a generator"),
        ({"tools": iter([])}, "tools: it is a list_iterator"),
        ({"quality__gates": [{"of": "rows", "min": 1}] * 101}, "quality.gates: List should have at most 100"),
        ({"quality__gates": [{"of": "rows", "mn": 1}]}, "no quality.gates.0.mn: quality.gates.0 has of, max"),
        ({"quality__gates": [{"of": "golden", "min": 0.9}]}, "'golden', and there are no such rows"),
        ({"quality__golden": {"path": "golden.csv"}}, "quality.golden 'golden.csv' is relative"),
        ({"quality__golden": {"path": "/{ds}.csv"}}, "has {ds}, and only {slice} is replaced"),
        ({"task": "embed", "quality__golden": {"path": "/g.csv"}}, "task='embed' answers with vectors"),
        ({"quality__gates": ["rows"]}, "quality.gates.0: Input should be a dict (got 'rows')"),
        ({"quality__gates": [{"of": "top_label", "max": 0.9}]}, "'top_label', and these answers"),
        (
            {"choices": ["ham", "spam"], "quality__gates": [{"of": "label:spma", "max": 0.9}]},
            "a gate of 'label:spma', and choices has no 'spma', but 'ham', 'spam'",
        ),
        ({"source__slice_format": "YYYY-MM-DD"}, "'YYYY-MM-DD' writes each date as 'YYYY-MM-DD': give"),
        ({"source__slice_format": "%s"}, "depends on the machine's timezone"),
        ({"source__slice_format": ""}, "writes each date as ''"),
        ({"choices": ["a", "b"], "regex": "x"}, "exclude each other"),
        ({"choices": ["a", "b"], "sampling_params": {"structured_outputs": {}}}, "structured_outputs"),
        ({"output_mode": "columns"}, "output_mode is 'columns', which is for answers of an output_schema"),
        ({"output_schema": {}, "output_mode": "table"}, "output_mode"),
        ({"output_schema": {}, "output_mode": "columns", "output_column": "b"}, "leave output_column out"),
        ({"output_schema": {}, "output_mode": "columns", "postprocess": "m:f"}, "both decide the published"),
        ({"quality__repair": 2}, "quality.repair is for answers that lack their shape, and these have none"),
        ({"quality__max_invalid": 0.1}, "quality.max_invalid is for answers that lack their shape"),
        ({"regex": "x", "quality__repair": -1}, "repair"),
        ({"regex": "x", "quality__max_invalid": 1.5}, "quality.max_invalid"),
        ({"choices": ["a", "b"], "quality__gates": [{"of": "confidence", "min": 0.5}]}, "no label has one"),
        ({"quality__max_quarantine": "2.5%"}, "quality.max_quarantine: a share is from 0 to 1: write 0.025"),
        ({"source__on_empty": "ignore"}, "on_empty"),
        ({"source__max_rows": 0}, "max_rows"),
        ({"output_column": "__unit"}, "begin with __"),
        ({"columns": ["x", "x"]}, "different names"),
        ({"input_path": "/in/ds={Slice}/"}, "'/in/ds={Slice}/' has {Slice}, and only {slice} is replaced"),
        ({"output_path": "/out/ds={ds}"}, "has {ds}, and only {slice} is replaced there"),
        ({"publish__metadata_path": "s3://lake/out/m"}, "metadata_path 's3://lake/out/m' lies inside the"),
        ({"source__csv": {"delimiter": ";;"}}, "give one ASCII character"),
        *(
            ({"source__encoding": name}, f"{name!r} is not an encoding of text files")
            for name in ("klingon", "rot13", "hex", "base64", "zlib", "bz2", "quopri", "uu", "undefined",
                         "idna", "punycode")
        ),
        ({"slice_key": ""}, "slice_key"),
        ({"task": ""}, "task: give one of 'generate', 'classify'"),
        ({"engine__kind": ""}, "engine.kind: unknown engine ''"),
        ({"engine__cache": "answers"}, "engine.cache: not a folder that slices"),
        ({"engine__cache": "s3:/lake"}, "engine.cache: not a folder"),
        ({"engine__cache": "s3://lake/{slice}"}, "without {slice}"),
        ({"engine__cache": "/a", "engine__deduplicate": False}, "contradict each other"),
        ({"engine__cache": "/a", "engine": "ray_data_llm"}, "engine.cache is for engine.kind='vllm' or"),
        ({"engine__cache": "/a", "engine__kwargs": {"task_type": "embed"}}, "engine is 'ray_data_llm'"),
        ({"engine__cache": "/a", "engine": "m:Mine"}, "this slice's engine is a class of your own"),
        ({"engine__cache_max_bytes": 1}, "greater than or equal to 1048576"),
        ({"engine__cache_max_days": 0}, "greater than 0"),
        ({"engine__kwargs": {"max_model_len": "2k"}}, "'2k': a number of tokens, or 'auto'"),
        ({"sampling_params": {"logit_bias": {"abc": 5}}}, "'logit_bias' has the key 'abc': give the id of"),
        ({"sampling_params": {"logit_bias": {-1: 5}}}, "'logit_bias' has the key '-1'"),
        ({"sampling_params": {"logit_bias": {42: "much"}}}, "'logit_bias' of token 42 is 'much'"),
        ({"sampling_params": {"logit_bias": {42: float("nan")}}}, "nan is not a finite number"),
        ({"sampling_params": {"logit_bias": [42]}}, "'logit_bias' is [42]: give a dict"),
        ({"engine__kwargs": {"hf_overrides": {1.5: "a"}}}, "the key 1.5 is a float"),
        ({"engine__kwargs": {"hf_overrides": {"a": [{1: 0, "1": 1}]}}}, "of the keys [1, '1'] two"),
        ({"sampling_params": {"top_k": "None"}}, "'top_k' rendered to 'None': check the"),
        ({"engine__kwargs": {"max_model_len": 0}}, "is 0: a number of tokens"),
        ({"quality__on_too_long": "truncate"}, "needs engine.kwargs['max_model_len']"),
        ({"quality__on_too_long": "chunk"}, "'chunk' is for task='embed', and task is 'generate'"),
        (
            {"quality__on_too_long": "truncate", "engine__kwargs": {"max_model_len": 64},
             "sampling_params": {"max_tokens": 64}},
            "max_tokens is 64 and max_model_len 64",
        ),
        (
            {"engine__kwargs": {"max_model_len": "auto"}, "sampling_params": {"max_tokens": None}},
            "'max_tokens'] is None, which leaves no room",
        ),
        ({"engine__max_model_len_percentile": 101}, "less than or equal to 100"),
        ({"engine__workers": "all"}, "auto"),
        ({"engine__blocks": 0}, "greater than or equal to 1"),
    ],
)  # fmt: skip
def test_invalid_field_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    assert message in refusal(**fields)


def test_job_survives_json() -> None:
    sent = slice_job(choices=["a", "b"], engine__workers=(1, 2), output_schema=None, columns=["x"])
    assert SliceJob.model_validate_json(sent.model_dump_json()) == sent


@pytest.mark.parametrize("fields", [
    {"engine__kwargs": {"hf_overrides": {"id2label": {i: f"l{i}" for i in range(12)}}}},
    {"sampling_params": {"logit_bias": {i: i for i in range(12)}}},
    {"engine": "ray_data_llm", "engine__processor": {"x": [{i: i for i in range(12)}]}},
    {"chat_template_kwargs": {"words": {i: i for i in range(12)}}},
])  # fmt: skip
def test_numbers_as_keys_are_the_same_on_both_sides(fields: dict[str, Any]) -> None:
    sent = slice_job(**fields)
    received = SliceJob.model_validate_json(sent.model_dump_json())
    assert received == sent
    assert fingerprint(received) == fingerprint(sent)


def test_biases_are_numbers_by_tokens() -> None:
    given = {42: "5", "7": -1.5, "9": None}
    params = slice_job(sampling_params={"logit_bias": given, "seed": 1}).task.sampling
    assert params == {"logit_bias": {"42": 5, "7": -1.5}, "seed": 1}  # OpenAI's API takes texts
    assert with_token_ids(params) == {"logit_bias": {42: 5, 7: -1.5}, "seed": 1}
    of_column = {"logit_bias": "{bias}"}
    assert slice_job(sampling_params=of_column).task.sampling == of_column


def test_slice_path_is_the_output_path_with_the_encoded_key() -> None:
    assert slice_job().slice_path == "s3://lake/out/ds=2026-01-31"
    assert slice_job(output_path="/out/day={slice}").slice_path == "/out/day=2026-01-31"
    assert slice_job(output_path="/out/{slice}/answers").slice_path == "/out/2026-01-31/answers"
    assert slice_job(slice_key="EMEA/a=b").slice_path == "s3://lake/out/ds=EMEA%2Fa%3Db"
    assert slice_job(source__max_rows=10).slice_path == "s3://lake/out.trial/first-10/ds=2026-01-31"
    assert encode_slice_key("..") == "%2E%2E"


def test_rendered_arguments_of_vllm_are_numbers_and_booleans() -> None:
    kwargs = {"max_model_len": "4096", "enforce_eager": "false", "revision": "1234567", "dtype": "bfloat16"}
    engine = slice_job(engine__kwargs=kwargs).engine.arguments
    assert engine == {**kwargs, "max_model_len": 4096, "enforce_eager": False}
    params = {
        "temperature": " 0.5",
        "top_k": "-1",
        "seed": "{seed}",
        "min_p": "1e-3",
        "stop": "7",
        "skip": "1.2.3",
    }
    sampling = slice_job(sampling_params=params).task.sampling
    assert sampling == {**params, "temperature": 0.5, "top_k": -1, "min_p": 0.001}
    assert slice_job(engine__kwargs={"max_model_len": None}).engine.arguments == {}


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_speculation_has_a_short_form_that_decides_no_answer(method: str) -> None:
    job = slice_job(engine__kwargs={"speculative_config": method})
    config = job.engine.arguments["speculative_config"]
    assert (config["method"], fingerprint(job)) == (method, fingerprint(slice_job()))
    assert not slice_job(choices=["a", "b"], engine__kwargs=job.engine.arguments).compares_labels


@pytest.mark.parametrize(
    ("sampling_params", "config", "message"),
    [
        ({}, "eagle", "'eagle': use 'ngram', 'suffix', or vLLM's own dict"),
        ({"min_p": 0.1}, "ngram", "sampling_params['min_p'] and engine.kwargs['speculative_config']"),
        ({"logit_bias": {"1": 2.0}}, {"method": "ngram"}, "sampling_params['logit_bias'] and"),
    ],
)
def test_speculation_that_vllm_would_refuse_is_refused(
    sampling_params: dict[str, Any], config: Any, message: str
) -> None:
    assert message in refusal(sampling_params=sampling_params, engine__kwargs={"speculative_config": config})
    slice_job(sampling_params=sampling_params | {"min_p": 0}, engine__kwargs={})
