"""Labels told apart by few tokens: the tree, and the labels' tokens after a real chat template."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.vllm.request.label_tree import (
    LABELS,
    LabelsNotToldApart,
    LabelTree,
)
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
from benchmarks.model_folder import write_model_folder
from tests.support.in_process import job_of

END = [9]


@pytest.mark.parametrize("seed", range(40))
def test_probabilities_are_those_of_writing_each_label_in_full(seed: int) -> None:
    """As a grammar would have it: token by token, each among those that continue a label."""
    rng = random.Random(seed)
    labels = sorted({tuple(rng.choices((1, 2), k=rng.randint(1, 3))) for _ in range(4)} | {(3,)})
    whole = [(*label, *END) for label in labels]
    model: dict[tuple[int, ...], dict[int, float]] = {}

    def logprobs(prefix: tuple[int, ...]) -> dict[int, float]:
        return model.setdefault(prefix, {token: rng.uniform(-6, 0) for token in (1, 2, 3, *END)})

    def probability(prefix: tuple[int, ...], token: int) -> float:
        allowed = {text[len(prefix)] for text in whole if text[: len(prefix)] == prefix}
        weights = {token: math.exp(logprobs(prefix)[token]) for token in allowed}
        return weights[token] / sum(weights.values())

    tree = LabelTree.of_labels(labels, END)
    tree = LabelTree.from_json(json.loads(tree.params)[LABELS])
    found = tree.probabilities([[logprobs(r.prefix)[t] for t in r.tokens] for r in tree.requests])
    expected = [math.prod(probability(text[:i], token) for i, token in enumerate(text)) for text in whole]
    assert found == pytest.approx(expected)
    assert sum(found) == pytest.approx(1)


def test_labels_that_differ_in_their_first_token_take_one_request() -> None:
    tree = LabelTree.of_labels([[1, 5], [2], [3, 5]], [])
    assert [(r.prefix, r.tokens) for r in tree.requests] == [((), (1, 2, 3))]
    assert tree.most_tokens == 1


def test_tokens_that_all_labels_begin_with_are_part_of_the_prompt() -> None:
    tree = LabelTree.of_labels([[7, 7, 1], [7, 7, 2, 4]], [])
    assert [(r.prefix, r.tokens) for r in tree.requests] == [((7, 7), (1, 2))]
    assert tree.most_tokens == 3


def test_many_labels_are_asked_about_in_groups_that_vllm_takes() -> None:
    tree = LabelTree.of_labels([[i] for i in range(300)], [])
    assert [len(r.tokens) for r in tree.requests] == [128, 128, 44]
    logprobs = [[math.log(0.001)] * len(r.tokens) for r in tree.requests]
    logprobs[2][43] = math.log(0.5)
    assert tree.probabilities(logprobs)[299] == pytest.approx(0.5 / (0.5 + 0.299))


@pytest.mark.parametrize(
    ("labels", "ends", "says"),
    [
        ([[1], [1]], END, "the same tokens"),
        ([[1], [1, 2]], [], "no token ends"),
        (list(itertools.product(range(3), range(3), range(3))), END, "13 requests"),
    ],
)
def test_labels_that_cannot_be_told_apart(labels: list[list[int]], ends: list[int], says: str) -> None:
    with pytest.raises(LabelsNotToldApart, match=says):
        LabelTree.of_labels(labels, ends)


def test_probability_that_is_no_number_fails_its_row() -> None:
    tree = LabelTree.of_labels([[1], [2]], [])
    with pytest.raises(ValueError, match="none of the labels"):
        tree.probabilities([[-math.inf, -math.inf]])


def tokenizer_of(folder: Path, template: str | None = None, **arguments: Any) -> PromptTokenizer:
    folder.mkdir(exist_ok=True)
    model = folder / "model" if (folder / "model").exists() else write_model_folder(folder / "model")
    if template is not None:
        config = json.loads((model / "tokenizer_config.json").read_text())
        (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
        (model / "chat_template.jinja").unlink(missing_ok=True)
    options = {"engine": "vllm", "choices": ["yes", "no"], "model_source": str(model), **arguments}
    return PromptTokenizer(job_of(input_path="/i", output_path="/o", **options))


def request(text: str = "x", **sampling: Any) -> str:
    return json.dumps(
        {"messages": [{"role": "user", "content": text}], "sampling_params": sampling, "cells": [[]]}
    )


def test_request_is_a_tree_of_the_labels_tokens(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    [whole] = tokenizer._tokenizer(["<|user|>x<|assistant|>no"])
    [row] = tokenizer([request(temperature=0, max_tokens=50)])
    tree = LabelTree.from_json(json.loads(row.params)[LABELS])
    assert row.error is None
    assert whole[: len(row.tokens)] == list(row.tokens)
    assert whole[len(row.tokens)] in tree.requests[0].tokens
    assert row.total_tokens == len(row.tokens) + 1


def test_row_that_draws_its_answer_fails_alone(tmp_path: Path) -> None:
    rows = tokenizer_of(tmp_path)([request(temperature=0.7), request(top_p=0.5), request()])
    assert [row.error is None for row in rows] == [False, False, True]
    assert "temperature" in str(rows[0].error)
    assert "labels.exact=True" in str(rows[1].error)


THINKS = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"


@pytest.mark.parametrize("opening", ["<think>\n", "[THINK]", "<seed:think>", "<|begin_of_thought|>"])
def test_model_that_thinks_first_is_refused(tmp_path: Path, opening: str) -> None:
    with pytest.raises(SliceError, match="thinking"):
        tokenizer_of(tmp_path, THINKS + opening)


def test_model_that_need_not_think_does_not(tmp_path: Path) -> None:
    [row] = tokenizer_of(tmp_path / "thought", THINKS + "<think></think>")([request()])
    assert row.error is None
    may = THINKS + "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
    [row] = tokenizer_of(tmp_path / "may", may)([request()])
    assert row.error is None


ENDS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}"
    "{% if m.role == 'assistant' %}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize("labels", [["end", "end user"], [" yes", " yes indeed"]])
def test_label_that_begins_another_competes_with_the_end_of_the_turn(
    tmp_path: Path, labels: list[str]
) -> None:
    """Also one that occurs in the token that ends it, or that the chat template trims."""
    tokenizer = tokenizer_of(tmp_path, ENDS, choices=labels)
    [row] = tokenizer([request()])
    [branching] = LabelTree.from_json(json.loads(row.params)[LABELS]).requests
    [[end]] = tokenizer._tokenizer(["<|end|>"])
    assert end in branching.tokens
    assert len(branching.tokens) == 2


def test_choices_that_cannot_be_compared_are_written_unless_probabilities_are_asked_for(
    tmp_path: Path,
) -> None:
    merged = [f"{a}{b}{c}" for a, b, c in itertools.product("ab", "ab", "abc")]
    [row] = tokenizer_of(tmp_path, choices=merged)([request(temperature=0)])
    assert LABELS not in json.loads(row.params)
    with pytest.raises(SliceError, match=r"labels\.confidence=True is not possible with this model"):
        tokenizer_of(tmp_path, choices=merged, label_confidence=True)


def test_label_with_a_line_break_is_compared_and_cannot_be_written(tmp_path: Path) -> None:
    [row] = tokenizer_of(tmp_path, choices=["yes\nno", "maybe"])([request()])
    assert row.error is None
    merged = [f"{a}{b}{c}" for a, b, c in itertools.product("ab", "ab", "ab\n")]
    with pytest.raises(SliceError, match=r"choices has 'aa\\n', and vLLM cannot"):
        tokenizer_of(tmp_path, choices=merged)
