from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.fingerprint import answer_cache_key, fingerprint
from airflow_provider_raydatallm.contract.spec.leaves import expand
from airflow_provider_raydatallm.contract.spec.tasks.transcribe import Transcribe
from tests.support.slice_jobs import refusal, slice_job

AUDIO = {"task": "transcribe", "audio__column": "call", "prompt": None}


def test_recordings_are_a_column_s_name_or_a_group() -> None:
    assert expand("audio", "call") == {"column": "call"}
    group = {
        "column": "call",
        "language": "de",
        "max_seconds": "60",
        "sources": ["/mnt/calls"],
        "timeout": "2m",
    }
    task = slice_job(task="transcribe", prompt=None, audio=group).task_as(Transcribe)
    assert (task.audio.language, task.audio.max_seconds, task.audio.timeout) == ("de", 60, 120)
    media = task.media
    assert media is not None
    assert (media.argument, media.column, media.sources) == ("audio", "call", ("/mnt/calls",))


def test_prompt_may_be_left_out_or_say_what_was_said_before() -> None:
    for given in ({}, {"prompt": "With {name}."}, {"preprocess": "m:f"}, {"engine__scope": "shared"}):
        job = slice_job(**{**AUDIO, **given})
        assert (job.engine.kind, job.draws_nothing) == ("vllm", True)


@pytest.mark.parametrize(("given", "says"), [
    ({"task": "transcribe"}, "task='transcribe' writes down recordings: give audio"),
    ({"audio__column": "call"}, "audio is for task='transcribe', and task is 'generate'"),
    ({**AUDIO, "audio__column": None, "audio__language": "en"}, r"audio\.language needs audio\.column"),
    ({**AUDIO, "audio__language": "English"}, r"audio\.language"),
    ({**AUDIO, "audio__max_seconds": 0}, "greater than 0"),
    ({**AUDIO, "audio__sources": ["calls"]}, "'calls' is not a source"),
    ({**AUDIO, "images__column": "photo"}, "images is for task='generate', and task is 'transcribe'"),
    ({**AUDIO, "sampling_params": {"temperature": 1}}, "sampling_params is for task='generate'"),
    ({**AUDIO, "engine": "ray_data_llm"}, "task='transcribe' is for engine 'vllm'"),
    ({**AUDIO, "engine": "http", "engine__url": "https://h/v1"}, "task='transcribe' is for engine 'vllm'"),
    ({**AUDIO, "engine__kwargs": {"max_model_len": "auto"}}, "and those of recordings are"),
    ({**AUDIO, "engine__kwargs": {"max_model_len": 99}, "quality__on_too_long": "truncate"}, "of recordings"),
])  # fmt: skip
def test_arguments_that_do_not_go_with_recordings(given: dict[str, Any], says: str) -> None:
    assert re.search(says, refusal(**given))


def test_fingerprint_and_cache_cover_what_decides_a_transcript() -> None:
    base = slice_job(**AUDIO)
    limits = {"audio__sources": ["https://x.com"], "audio__timeout": 3, "audio__max_bytes": 3000}
    assert fingerprint(slice_job(**AUDIO, **limits)) == fingerprint(base)
    for other in ({"audio__column": "message"}, {"audio__language": "en"}):
        assert fingerprint(slice_job(**{**AUDIO, **other})) != fingerprint(base)
    keys = {
        answer_cache_key(slice_job(**{**AUDIO, **other}), {}, ())
        for other in ({}, {"audio__column": "message"}, {"audio__language": "en"})
    }
    assert len(keys) == 2  # the request names recordings by their content
