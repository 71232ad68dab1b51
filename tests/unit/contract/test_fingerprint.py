from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.contract.fingerprint import answer_cache_key, fingerprint
from airflow_provider_raydatallm.contract.spec.tasks import generate
from tests.support.slice_jobs import slice_job

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def test_fingerprint_changes_exactly_when_answers_may_change() -> None:
    base = fingerprint(slice_job())
    for same in (
        {"slice_key": "other"}, {"input_path": "/other"}, {"engine__batch_size": 3},
        {"engine__workers": "auto"}, {"engine__blocks": 9}, {"engine__max_model_len_percentile": 95},
        {"engine__deduplicate": False}, {"engine__cache": "s3://lake/a"}, {"engine__scope": "shared"},
        {"engine__accelerator": "L4"}, {"engine__kwargs": {"max_num_seqs": 4}}, {"source__on_empty": "skip"},
        {"engine": "vllm"}, {"engine": "ray_data_llm"},
        {"code_hash": "unused"}, {"slice_timezone": "Asia/Taipei"}, {"source__slice_format": "%Y"},
        {"publish__keep_versions": 3}, {"choices": None, "output_mode": "struct", "quality__repair": 0},
        {"messages": None, "tools": None, "logprobs": False},
    ):  # fmt: skip
        assert fingerprint(slice_job(**same)) == base, same
    for other in (
        {"model_source": "m2"}, {"prompt": "{b}"}, {"system_prompt": "s"}, {"choices": ["a", "b"]},
        {"regex": "x"}, {"sampling_params": {"temperature": 0}}, {"chat_template_kwargs": {"x": 1}},
        {"engine__kwargs": {"revision": "abc"}}, {"engine__kwargs": {"dtype": "float16"}},
        {"engine__kwargs": {"max_model_len": "auto"}}, {"engine__deduplicate": True},
        {"engine__kwargs": {"max_model_len": "auto"}, "engine__max_model_len_percentile": 95},
        {"engine__kwargs": {"max_model_len": "auto"}, "quality__on_too_long": "truncate"},
        {"engine__processor": {"chat_template_stage": {"chat_template": "x"}}},
        {"postprocess": "m:f"}, {"output_column": "b"}, {"prompt": None, "messages": "m"},
        {"chat_template": "{{ messages }}"}, {"tools": [TOOL]}, {"reasoning_parser": "qwen3"},
        {"logprobs": True}, {"engine": "m:Mine"},
        # By another rule, the slice has other rows, or reads them in another way.
        {"source__column": "d"}, {"source__column": "d", "slice_timezone": "Asia/Taipei"},
        {"source__encoding": "latin-1"}, {"source__column_types": {"a": "int64"}},
    ):  # fmt: skip
        assert fingerprint(slice_job(**other)) != base, other
    embeds = [slice_job(task="embed", quality={"on_too_long": policy}) for policy in ("quarantine", "chunk")]
    assert fingerprint(embeds[0]) != fingerprint(embeds[1])
    regex = fingerprint(slice_job(regex="x"))
    assert regex == fingerprint(slice_job(regex="x", quality__max_invalid=0.1))
    assert regex != fingerprint(slice_job(regex="x", quality__repair=1))
    schema = {"output_schema": {"properties": {}}}
    assert len({fingerprint(slice_job(**schema, output_mode=m)) for m in ("struct", "json", "columns")}) == 3
    for given in ({"postprocess": "m:f"}, {"engine": "m:Engine"}):
        with_code = [fingerprint(slice_job(**given, code_hash=h)) for h in "ab"]
        assert with_code[0] != with_code[1], given


def test_way_in_which_labels_are_found_is_part_of_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: tuple[dict[str, Any], ...] = (
        {}, {"labels__confidence": True}, {"labels__exact": True}, {"labels__multi": True},
    )  # fmt: skip
    jobs = [slice_job(choices=["a", "b"], engine="vllm", **way) for way in ways]
    assert len(set(map(fingerprint, jobs))) == len(ways)
    # Without confidence, a probability that is cached may not be exact.
    assert len({answer_cache_key(job, {}, None) for job in jobs}) == len(ways)
    before = [(fingerprint(job), answer_cache_key(job, {}, None)) for job in jobs]
    monkeypatch.setattr(generate, "LABEL_QUESTION", "Is it {label}?")
    after = [(fingerprint(job), answer_cache_key(job, {}, None)) for job in jobs]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, True, False]
    assert all(x != y for x, y in zip(before[-1], after[-1], strict=True))


@pytest.mark.parametrize("written", [
    {"sampling_params": {"temperature": 0.5}}, {"engine": "http", "engine__url": "https://h/v1"},
    {"reasoning_parser": "qwen3"},
])  # fmt: skip
def test_labels_that_are_written_anyway_are_the_same_answers(written: dict[str, Any]) -> None:
    jobs = [slice_job(choices=["a", "b"], **written, labels__exact=exact) for exact in (False, True)]
    assert fingerprint(jobs[0]) == fingerprint(jobs[1])


def test_cache_changes_the_fingerprint_only_where_answers_are_random_and_shared() -> None:
    random, greedy = {"sampling_params": {"temperature": 1}}, {"sampling_params": {"temperature": 0}}

    def cache_changes(**fields: Any) -> bool:
        return fingerprint(slice_job(**fields, engine__cache="/a")) != fingerprint(slice_job(**fields))

    assert not cache_changes(**random)  # such requests run each time
    assert not cache_changes(**greedy, engine__deduplicate=True)
    assert not cache_changes(sampling_params={"seed": 1}, engine__deduplicate=True)
    assert cache_changes(**random, engine__deduplicate=True)
    assert cache_changes(sampling_params={"temperature": "{t}"}, engine__deduplicate=True)
    # A preprocess function may set another temperature.
    assert cache_changes(**greedy, engine__deduplicate=True, prompt=None, preprocess="m:f")


def test_cache_is_shared_by_jobs_whose_engines_answer_a_request_the_same() -> None:
    def key(files: Any = (), **fields: Any) -> str:
        job = slice_job(**fields)
        return answer_cache_key(job, job.engine.arguments, files)

    base = key()
    for same in (
        {"prompt": "{b}"}, {"sampling_params": {"temperature": 0}},
        {"columns": ["x"]}, {"engine__deduplicate": True}, {"engine__kwargs": {"max_num_seqs": 4}},
        {"engine__kwargs": {"gpu_memory_utilization": 0.5, "enforce_eager": True}},
        {"prompt": None, "preprocess": "m:f"}, {"postprocess": "m:f"}, {"output_path": "/b"},
        {"engine__scope": "shared"},
    ):  # fmt: skip
        assert key(**same) == base, same
    for other in (
        {"model_source": "m2"}, {"files": [["config.json", 1, 2]]}, {"chat_template_kwargs": {"x": 1}},
        {"engine__kwargs": {"revision": "abc"}}, {"engine__kwargs": {"tokenizer": "t"}},
        {"engine__kwargs": {"max_model_len": 64}}, {"engine__kwargs": {"dtype": "float16"}},
        {"engine__kwargs": {"max_model_len": "auto"}, "quality__on_too_long": "truncate"},
        {"engine__kwargs": {"load_format": "dummy"}}, {"engine__kwargs": {"logits_processors": ["m:F"]}},
        {"engine__kwargs": {"structured_outputs_config": {"disable_any_whitespace": True}}},
        {"chat_template": "{{ messages }}"}, {"tools": [TOOL]},
    ):  # fmt: skip
        assert key(**other) != base, other
    auto = slice_job(engine__kwargs={"max_model_len": "auto"})
    assert len({answer_cache_key(auto, {"max_model_len": n}, []) for n in (64, 128)}) == 2
    # Which limit "auto" stands for is known by then.
    assert answer_cache_key(auto, {"max_model_len": 64}, ()) == key(engine__kwargs={"max_model_len": 64})


def test_grammar_counts_for_jobs_with_a_schema_only() -> None:
    closed = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for schema, whitespace in ((closed, "none"), ({"type": "object"}, "bounded")):
        job = slice_job(output_schema=schema)
        assert job.task.derived(job) == {"whitespace": whitespace}
    own = slice_job(
        output_schema=closed, engine__kwargs={"structured_outputs_config": {"backend": "guidance"}}
    )
    elsewhere = slice_job(output_schema=closed, engine="ray_data_llm")
    for job in (own, elsewhere, slice_job(), slice_job(regex="a+")):
        assert job.task.derived(job) == {}
