from __future__ import annotations

from typing import Any

import pydantic
import pytest

from airflow_provider_raydatallm.contract.fingerprint import answer_cache_key, fingerprint
from airflow_provider_raydatallm.contract.groups import flatten
from tests.support.slice_jobs import slice_job

AUDIO = {"task": "transcribe", "audio_column": "call", "prompt": None}


def test_recordings_are_a_column_s_name_or_a_group() -> None:
    assert flatten({"audio": "call"}) == {"audio_column": "call"}
    group = {
        "column": "call",
        "language": "de",
        "max_seconds": "60",
        "sources": ["/mnt/calls"],
        "timeout": "2m",
    }
    job = slice_job(**{**AUDIO, **flatten({"audio": group})})
    assert (job.audio_language, job.audio_max_seconds, job.audio_timeout) == ("de", 60, 120)
    assert job.media is not None
    assert (job.media.argument, job.media.column, job.media.sources) == ("audio", "call", ("/mnt/calls",))


def test_prompt_may_be_left_out_or_say_what_was_said_before() -> None:
    for given in ({}, {"prompt": "With {name}."}, {"preprocess": "m:f"}, {"engine_scope": "shared"}):
        job = slice_job(**{**AUDIO, **given})
        assert (job.resolved_engine, job.draws_nothing) == ("vllm", True)


@pytest.mark.parametrize(("given", "says"), [
    ({"task": "transcribe"}, "task='transcribe' writes down recordings: give audio"),
    ({"audio_column": "call"}, r"audio\.column is for task='transcribe', and task is 'generate'"),
    ({**AUDIO, "audio_column": None, "audio_language": "en"}, r"audio\.language needs audio\.column"),
    ({**AUDIO, "audio_language": "English"}, r"audio_language"),
    ({**AUDIO, "audio_max_seconds": 0}, "greater than 0"),
    ({**AUDIO, "audio_sources": ["calls"]}, "'calls' is not a source"),
    ({**AUDIO, "image_column": "photo"}, r"images\.column is for task='generate'"),
    ({**AUDIO, "sampling_params": {"temperature": 1}}, "sampling_params is for task='generate'"),
    ({**AUDIO, "engine": "ray_data_llm"}, "task='transcribe' is for engine 'vllm'"),
    ({**AUDIO, "engine": "http", "endpoint_url": "https://h/v1"}, "task='transcribe' is for engine 'vllm'"),
    ({**AUDIO, "engine_kwargs": {"max_model_len": "auto"}}, "and those of recordings are"),
    ({**AUDIO, "engine_kwargs": {"max_model_len": 99}, "on_too_long": "truncate"}, "of recordings are not"),
])  # fmt: skip
def test_arguments_that_do_not_go_with_recordings(given: dict[str, Any], says: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=says):
        slice_job(**given)


def test_fingerprint_and_cache_cover_what_decides_a_transcript() -> None:
    base = slice_job(**AUDIO)
    limits = {"audio_sources": ["https://x.com"], "audio_timeout": 3, "audio_max_bytes": 3000}
    assert fingerprint(slice_job(**AUDIO, **limits)) == fingerprint(base)
    for other in ({"audio_column": "message"}, {"audio_language": "en"}):
        assert fingerprint(slice_job(**{**AUDIO, **other})) != fingerprint(base)
    keys = {
        answer_cache_key(slice_job(**{**AUDIO, **other}), {}, ())
        for other in ({}, {"audio_column": "message"}, {"audio_language": "en"})
    }
    assert len(keys) == 2  # the request names recordings by their content
