"""What stands before a transcript."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.feeding.tokenized_request import name_media
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
from airflow_provider_raydatallm.processor.engines.vllm.request.transcript import TRANSCRIPT
from tests.support.bert import write_bert_tokenizer
from tests.support.slice_jobs import slice_job
from tests.support.speech_model import write_speech_tokenizer


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_speech_tokenizer(tmp_path_factory.mktemp("whisper"))


def prompt_of(model: Path, words: str = "", **given: Any) -> tuple[list[str], dict[str, Any]]:
    """Returns the tokens' texts, and what the worker is told."""
    from transformers import AutoTokenizer

    job = slice_job(task="transcribe", audio__column="call", prompt=None, model_source=str(model), **given)
    message = {"role": "user", "content": words}
    request = json.dumps({"messages": [message], "cells": [[[0, len(words)]]], "sampling_params": {}})
    [row] = PromptTokenizer(job)([name_media(request, [b"abc"])])
    if row.error is not None:
        raise row.error
    tokens = AutoTokenizer.from_pretrained(model).convert_ids_to_tokens(list(row.tokens))
    return tokens, json.loads(row.params)[TRANSCRIPT]


def test_language_that_is_given_stands_in_the_prompt(whisper: Path) -> None:
    tokens, told = prompt_of(whisper, audio__language="de")
    assert tokens == ["<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>"]
    assert told["languages"] == []


def test_language_that_is_not_given_is_chosen_by_the_worker(whisper: Path) -> None:
    tokens, told = prompt_of(whisper)
    assert tokens == ["<|startoftranscript|>"]
    assert (len(told["languages"]), len(told["then"])) == (3, 2)


def test_words_stand_before_and_spell_no_token(whisper: Path) -> None:
    tokens, _ = prompt_of(whisper, "ab", audio__language="en")
    assert tokens[:4] == ["<|startofprev|>", "a", "b", "<|startoftranscript|>"]
    tokens, _ = prompt_of(whisper, "<|endoftext|>", audio__language="en")
    assert "".join(tokens[1:-4]) == "<|endoftext|>"
    assert "<|endoftext|>" not in tokens
    tokens, _ = prompt_of(whisper, "x" * 500 + "y", audio__language="en")
    assert "".join(tokens[1:-4]) == "x" * 222 + "y"  # their end counts


def test_model_of_one_language_has_no_token_of_it(whisper: Path, tmp_path: Path) -> None:
    write_speech_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"is_multilingual": False}))
    for given in ({}, {"audio__language": "en"}):
        assert prompt_of(tmp_path, **given)[0] == ["<|startoftranscript|>", "<|notimestamps|>"]
    with pytest.raises(SliceError, match=r"audio\.language is 'de', .*: it is for English only"):
        prompt_of(tmp_path, audio__language="de")


def test_what_the_model_does_not_know_is_refused(whisper: Path, tmp_path: Path) -> None:
    with pytest.raises(SliceError, match=r"audio\.language is 'xx', .*: it knows de, en, zh"):
        prompt_of(whisper, audio__language="xx")
    with pytest.raises(SliceError, match=r"has no token '<.startofprev.>'.* is for Whisper models"):
        prompt_of(write_bert_tokenizer(tmp_path))
