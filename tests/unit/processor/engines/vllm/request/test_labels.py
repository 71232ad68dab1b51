"""Labels told apart by few tokens: the tree, and the labels' tokens after a real chat template."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.tasks.generate import LABEL_QUESTION
from airflow_provider_raydatallm.processor.engines.vllm.request.labels.tree import (
    LABELS,
    LabelsNotToldApart,
    LabelTree,
)
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
from benchmarks.model_folder import write_model_folder
from tests.support.in_process import job_of

END = [9]


class Model:
    """One that writes tokens at random."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._logprobs: dict[tuple[int, ...], dict[int, float]] = {}
        self.asked: list[int] = []

    def logprobs(self, prefix: tuple[int, ...]) -> dict[int, float]:
        return self._logprobs.setdefault(
            prefix, {token: self._rng.uniform(-6, 0) for token in (1, 2, 3, 4, *END)}
        )

    def answer(self, tree: LabelTree) -> list[float]:
        """As a worker asks."""
        tree = LabelTree.from_json(json.loads(tree.params)[LABELS])
        known: dict[int, list[float]] = {}
        while numbers := tree.next_requests(known):
            for number in numbers:
                assert number not in known
                request = tree.requests[number]
                known[number] = [self.logprobs(request.prefix)[token] for token in request.tokens]
        self.asked.append(len(known))
        return tree.probabilities(known)


def exact_tree(labels: Any, **options: Any) -> LabelTree:
    return LabelTree.of_labels(labels, END, **{"is_exact": True, **options})


def random_labels(rng: random.Random) -> list[list[tuple[int, ...]]]:
    """Some of which can be written in two ways."""
    while True:
        others = {tuple(rng.choices((1, 2, 3, 4), k=rng.randint(1, 3))) for _ in range(7)}
        texts = list(others | {(4,), (3, 3)})
        rng.shuffle(texts)
        labels = [texts[:2], texts[2:4], *([text] for text in texts[4:])]
        with contextlib.suppress(LabelsNotToldApart):  # by few enough requests
            exact_tree(labels)
            return labels


@pytest.mark.parametrize("seed", range(60))
def test_probabilities_are_those_of_writing_each_label_in_full(seed: int) -> None:
    """As a grammar of the model's own tokens would have it: token by token, each among those that go on with
    a label; ways to write one add up."""
    rng = random.Random(seed)
    labels, model = random_labels(rng), Model(rng)
    whole = [[(*way, *END) for way in ways] for ways in labels]
    texts = list(itertools.chain.from_iterable(whole))

    def probability(prefix: tuple[int, ...], token: int) -> float:
        allowed = {text[len(prefix)] for text in texts if text[: len(prefix)] == prefix}
        weights = {token: math.exp(model.logprobs(prefix)[token]) for token in allowed}
        return weights[token] / sum(weights.values())

    expected = [
        sum(math.prod(probability(text[:i], token) for i, token in enumerate(text)) for text in ways)
        for ways in whole
    ]
    told = model.answer(exact_tree(labels))
    assert told == pytest.approx(expected)
    assert sum(told) == pytest.approx(1)


def test_most_probable_label_is_known_before_all_requests_are_asked() -> None:
    asked: list[tuple[int, int]] = []
    for seed in range(200):
        rng = random.Random(seed)
        labels, model = random_labels(rng), Model(rng)
        tree = exact_tree(labels)
        exact = model.answer(tree)
        known = model.answer(exact_tree(labels, is_exact=False))
        assert known.index(max(known)) == exact.index(max(exact))
        assert all(least <= all_of_it + 1e-9 for least, all_of_it in zip(known, exact, strict=True))
        assert 1 <= model.asked[1] <= model.asked[0] == len(tree.requests)
        asked.append((model.asked[0], model.asked[1]))
    of_all, of_lazy = map(sum, zip(*asked, strict=True))
    assert of_lazy < 0.8 * of_all


def test_label_that_leads_at_once_takes_one_request() -> None:
    tree = exact_tree([[(1,)], [(2, 1)], [(2, 2)]], is_exact=False)
    assert tree.mean_requests == pytest.approx(5 / 3)
    assert tree.next_requests({}) == [0]
    assert tree.next_requests({0: [math.log(0.6), math.log(0.4)]}) == []
    assert tree.next_requests({0: [math.log(0.4), math.log(0.6)]}) == [1]
    assert tree.probabilities({0: [math.log(0.6), math.log(0.4)]}) == pytest.approx([0.6, 0, 0])


def test_questions_are_answered_each_by_itself() -> None:
    answers = exact_tree([[(1,), (3,)], [(2,)]])
    tree = LabelTree.of_questions([(7, 7), (8,)], answers)
    assert [(r.prefix, r.tokens) for r in tree.requests] == [((7, 7), (1, 2, 3)), ((8,), (1, 2, 3))]
    assert tree.most_tokens == 3
    assert tree.next_requests({0: [0.0] * 3}) == [1]
    chances = {0: [0.1, 0.2, 0.1], 1: [0.3, 0.1, 0.3]}
    logprobs = {request: [math.log(p) for p in of_one] for request, of_one in chances.items()}
    assert tree.probabilities(logprobs) == pytest.approx([0.5, 6 / 7])


def test_labels_that_differ_in_their_first_token_take_one_request() -> None:
    tree = LabelTree.of_labels([[[1, 5]], [[2]], [[3, 5]]], [], is_exact=False)
    assert [(r.prefix, r.tokens) for r in tree.requests] == [((), (1, 2, 3))]
    assert tree.most_tokens == 1


def test_tokens_that_all_labels_begin_with_are_part_of_the_prompt() -> None:
    tree = LabelTree.of_labels([[[7, 7, 1]], [[7, 7, 2, 4]]], [], is_exact=False)
    assert [(r.prefix, r.tokens) for r in tree.requests] == [((7, 7), (1, 2))]
    assert tree.most_tokens == 3


def test_many_labels_are_asked_about_in_groups_that_vllm_takes() -> None:
    tree = LabelTree.of_labels([[[i]] for i in range(300)], [], is_exact=True)
    assert [len(r.tokens) for r in tree.requests] == [128, 128, 44]
    logprobs = [[math.log(0.001)] * len(r.tokens) for r in tree.requests]
    logprobs[2][43] = math.log(0.5)
    assert tree.probabilities(dict(enumerate(logprobs)))[299] == pytest.approx(0.5 / (0.5 + 0.299))


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
        LabelTree.of_labels([[label] for label in labels], ends, is_exact=True)


def test_probability_that_is_no_number_fails_its_row() -> None:
    tree = exact_tree([[[1]], [[2]]])
    with pytest.raises(ValueError, match="none of the labels"):
        tree.probabilities({0: [-math.inf, -math.inf]})


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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("opening", ["<think>\n", "[THINK]", "<seed:think>", "<|begin_of_thought|>"])
def test_model_that_thinks_first_is_refused(tmp_path: Path, opening: str) -> None:
    with pytest.raises(SliceError, match="thinking"):
        tokenizer_of(tmp_path, THINKS + opening)


@pytest.mark.slow
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
        tokenizer_of(tmp_path, choices=merged, labels__confidence=True)


def test_choices_that_begin_alike_are_compared_where_most_rows_take_one_request(tmp_path: Path) -> None:
    def is_compared(choices: list[str], **arguments: Any) -> bool:
        [row] = tokenizer_of(tmp_path, choices=choices, **arguments)([request(temperature=0)])
        return LABELS in json.loads(row.params)

    pairs = [f"{letter}#{number}" for letter in "abcd" for number in "12"]
    alone = [*"ijklmnopqrs"]
    assert is_compared([*pairs, *alone])  # eight of them take two requests, and eleven one
    assert not is_compared([*pairs, *alone[:4]])
    with pytest.raises(SliceError, match="would take 5 requests"):
        is_compared([*pairs, *alone], labels__confidence=True)


def test_label_with_a_line_break_is_compared_and_cannot_be_written(tmp_path: Path) -> None:
    [row] = tokenizer_of(tmp_path, choices=["yes\nno", "maybe"])([request()])
    assert row.error is None
    merged = [f"{a}{b}{c}" for a, b, c in itertools.product("ab", "ab", "ab\n")]
    with pytest.raises(SliceError, match=r"choices has 'aa\\n', and vLLM cannot"):
        tokenizer_of(tmp_path, choices=merged)


def first_request(folder: Path, template: str, labels: list[str]) -> set[str]:
    """What is compared, as texts."""
    tokenizer = tokenizer_of(folder, template, choices=labels)
    [row] = tokenizer([request()])
    assert row.error is None
    first, *_ = LabelTree.from_json(json.loads(row.params)[LABELS]).requests
    return {tokenizer._tokenizer.decode([*first.prefix, token]) for token in first.tokens}


#: With what stands before an answer that the model gave.
ANSWERS = "{% for m in messages %}<|{{ m.role }}|>BEFORE{{ m.content }}{% endfor %}<|assistant|>"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "texts"),
    [
        (THINKS, {"no", " no", "on", " on"}),
        (ANSWERS.replace("BEFORE", " "), {"no", " no", "on", " on"}),
        (THINKS + "{{ '\\n' }}", {"no", "on"}),
        (ANSWERS.replace("BEFORE", "\n"), {"\nno", "\non"}),
    ],
)
def test_value_counts_with_and_without_a_space_where_the_model_may_write_one(
    tmp_path: Path, template: str, texts: set[str]
) -> None:
    assert first_request(tmp_path, template, ["no", "on"]) == texts


@pytest.mark.parametrize("before", ["", " "])
def test_labels_that_begin_alike_are_compared_as_the_chat_template_writes_answers(
    tmp_path: Path, before: str
) -> None:
    texts = first_request(tmp_path, ANSWERS.replace("BEFORE", before), ["on a", "on b"])
    assert texts == {f"{before}on a", f"{before}on b"}


def test_questions_follow_the_last_message_and_share_its_prompt(tmp_path: Path) -> None:
    labels = ["Bill {x}", "Spam"]
    tokenizer = tokenizer_of(tmp_path, ENDS, choices=labels, labels__multi=True)
    messages = [{"role": "user", "content": f"hello{i}"} for i in range(2)]
    rows = tokenizer([json.dumps({"messages": [m], "sampling_params": {}, "cells": [[]]}) for m in messages])
    assert len({row.params for row in rows}) == 1
    tree = LabelTree.from_json(json.loads(rows[0].params)[LABELS])
    assert tree.is_exact
    for request_, label in zip(tree.requests, labels, strict=True):
        whole = f"<|user|>hello0{LABEL_QUESTION.format(label=label)}<|assistant|>"
        assert [[*rows[0].tokens, *request_.prefix]] == tokenizer._tokenizer([whole])
    assert rows[0].total_tokens == len(rows[0].tokens) + tree.most_tokens


@pytest.mark.parametrize(
    ("template", "message", "says"),
    [
        (ENDS, {"role": "tool", "content": "x"}, "of the role 'tool'"),
        (ENDS + "{{ messages[-1].name }}", {"role": "user", "content": "x", "name": "n"}, "of the row after"),
        ("{% if messages[-1].name %}x{% else %}" + ENDS + "{% endif %}",
         {"role": "user", "content": "x", "name": "n"}, "leaves the last message out"),
    ],
)  # fmt: skip
def test_row_after_which_nothing_can_be_asked_fails_alone(
    tmp_path: Path, template: str, message: dict[str, str], says: str
) -> None:
    tokenizer = tokenizer_of(tmp_path, template, labels__multi=True)
    bad = json.dumps({"messages": [message], "sampling_params": {}, "cells": [[]]})
    wrong, right = tokenizer([bad, request()])
    assert says in str(wrong.error)
    assert right.error is None
    [wrong] = tokenizer([request(temperature=0.7)])
    assert "temperature" in str(wrong.error)


def test_model_that_cannot_be_asked_by_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SliceError, match=r"labels\.multi=True is not possible.*leaves the last message out"):
        tokenizer_of(tmp_path, "<|user|>{{ messages | length }}<|assistant|>", labels__multi=True)
    with pytest.raises(SliceError, match="thinking"):
        tokenizer_of(tmp_path, THINKS + "<think>", labels__multi=True)
