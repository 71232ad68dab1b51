"""Prompts of tasks without a chat template: special tokens, the types of a pair, and what is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.vllm.request.pooling import POOLING
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder, _to_json
from benchmarks.model_folder import write_model_folder
from tests.support.bert import write_bert_tokenizer
from tests.support.in_process import job_of


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert_tokenizer(tmp_path_factory.mktemp("bert"))


def tokenizer_of(folder: Path, limit: int | None = None, **arguments: Any) -> PromptTokenizer:
    given = {"engine": "vllm", "model_source": str(folder), **arguments}
    return PromptTokenizer(job_of(input_path="/i", output_path="/o", **given), limit)


def request(row: dict[str, str], query: str | None = "{q}") -> str:
    return _to_json(RequestBuilder(["q", "d"], prompt="{d}", query=query).build(row)).decode()


words = st.lists(st.sampled_from(["a", "bank", "of", "law", "[SEP]", "\u2603"]), max_size=6).map(" ".join)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(query=words, text=words)
def test_pair_is_that_of_the_tokenizer_unless_a_cell_spells_a_control_token(
    bert: Path, query: str, text: str
) -> None:
    from transformers import AutoTokenizer

    tokenizer = tokenizer_of(bert, task="score", query="{q}")
    [row] = tokenizer([request({"q": query, "d": text})])
    assert row.error is None
    own = AutoTokenizer.from_pretrained(str(bert))
    separators = [i for i, token in enumerate(row.tokens) if token == own.sep_token_id]
    assert len(separators) == 2
    types = json.loads(row.params)[POOLING]["extra_kwargs"]["compressed_token_type_ids"]
    assert types == separators[0] + 1
    if text and "[SEP]" not in query + text:  # transformers takes an empty text for none
        expected = own(query, text)
        assert list(row.tokens) == expected["input_ids"]
        assert expected["token_type_ids"].count(0) == types


def test_text_of_a_pair_is_cut_and_its_query_is_not(bert: Path) -> None:
    whole = tokenizer_of(bert, task="score", query="{q}")
    cut = tokenizer_of(bert, 12, task="score", query="{q}")
    rows = [request({"q": "bank of law", "d": "law " * 40}), request({"q": "law " * 40, "d": "bank"})]
    [long, _], [shorter, hopeless] = whole(rows), cut(rows)
    assert (shorter.shortened, len(shorter.tokens)) == (True, 12)
    assert shorter.tokens[:11] == list(long.tokens[:11])
    assert shorter.tokens[-1] == long.tokens[-1]
    assert "the query alone, has" in str(hopeless.error)


@pytest.mark.parametrize(("limit", "is_cut"), [(7, False), (8, True)])
def test_text_is_not_cut_to_nothing(bert: Path, limit: int, is_cut: bool) -> None:
    cut = tokenizer_of(bert, limit, task="score", query="{q}")
    [row] = cut([request({"q": "bank of law law", "d": "law " * 40})])
    assert (row.error is None, len(row.tokens)) == (is_cut, limit if is_cut else 0)


def test_text_stands_between_the_tokenizers_special_tokens(bert: Path) -> None:
    [row] = tokenizer_of(bert, task="classify", choices=["a", "b"])([request({"q": "", "d": "bank"}, None)])
    assert len(row.tokens) == 3
    [cut] = tokenizer_of(bert, 5, task="embed")([request({"q": "", "d": "law " * 40}, None)])
    assert (len(cut.tokens), cut.tokens[-1]) == (5, row.tokens[-1])


def test_tokenizer_of_no_pairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SliceError, match="puts nothing between"):
        tokenizer_of(write_model_folder(tmp_path / "model"), task="score", query="{q}")
