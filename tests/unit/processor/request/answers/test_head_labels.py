"""The labels of a classification head, and what a model's files must say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import answer_table
from airflow_provider_raydatallm.processor.engines.vllm.pooling_models import check_pooling_model
from airflow_provider_raydatallm.processor.request.answers.head_labels import head_labels
from airflow_provider_raydatallm.processor.request.answers.numbers import INVALID_SCORE, ScoreParser
from airflow_provider_raydatallm.processor.request.answers.parsers import open_parser
from tests.support.in_process import job_of

HEAD = {"architectures": ["BertForSequenceClassification"]}
NAMED = {**HEAD, "id2label": {"0": "ham", "1": "spam", "2": "list"}}
UNNAMED = {**HEAD, "id2label": {str(i): f"LABEL_{i}" for i in range(3)}}


def job(folder: Path, config: dict[str, Any] | None, **arguments: Any) -> SliceJob:
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    given = {"task": "classify", "engine": "vllm", "model_source": str(folder), **arguments}
    return job_of(input_path="/i", output_path="/o", **given)


@pytest.mark.parametrize(
    ("config", "choices", "labels"),
    [
        (NAMED, None, ("ham", "spam", "list")),
        (NAMED, ("list", "spam", "ham"), ("ham", "spam", "list")),
        (UNNAMED, ("a", "b", "c"), ("a", "b", "c")),
        (HEAD, ("a", "b"), ("a", "b")),
        (None, ("a", "b"), ("a", "b")),
    ],
)
def test_labels_stand_in_the_order_of_the_head(
    tmp_path: Path, config: dict[str, Any] | None, choices: Any, labels: tuple[str, ...]
) -> None:
    assert head_labels(job(tmp_path, config, choices=choices)) == labels


@pytest.mark.parametrize(
    ("config", "choices", "says"),
    [
        (None, None, "not on the head's machine.*by choices"),
        (UNNAMED, None, "does not name its 3 labels.*by choices"),
        (NAMED, ("ham", "spam"), "has 3 labels, and choices has 2"),
        (NAMED, ("ham", "spam", "none"), "choices has 'none'"),
        ({**NAMED, "problem_type": "multi_label_classification"}, None, "multi_label_classification"),
        ({**HEAD, "id2label": {"0": "x"}}, None, "one number a text"),
    ],
)
def test_head_without_these_labels_is_refused(
    tmp_path: Path, config: dict[str, Any] | None, choices: Any, says: str
) -> None:
    with pytest.raises(SliceError, match=says):
        head_labels(job(tmp_path, config, choices=choices))


@pytest.mark.parametrize(
    ("config", "task", "says"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "classify", "task='generate' with choices"),
        ({"architectures": ["BertModel"]}, "score", "use task='embed'"),
        ({"architectures": ["BertForTokenClassification"]}, "classify", "labels tokens"),
        (NAMED, "score", "3 numbers a text"),
    ],
)
def test_model_without_the_head_is_refused(
    tmp_path: Path, config: dict[str, Any], task: str, says: str
) -> None:
    arguments = {"task": task, **({"query": "q"} if task == "score" else {})}
    with pytest.raises(SliceError, match=says):
        check_pooling_model(job(tmp_path, config, **arguments))
    check_pooling_model(job(tmp_path, {**HEAD, "num_labels": 1 if task == "score" else 2}, **arguments))


def answers(numbers: list[list[float] | None]) -> pa.Table:
    rows = len(numbers)
    ids = pa.table({
        "__unit": pa.array([0] * rows, pa.int32()), "__offset": pa.array(range(rows), pa.int64()),
        "__request": ["{}"] * rows,
    })  # fmt: skip
    return answer_table(
        ids,
        numbers=pa.array(numbers, pa.list_(pa.float32())),
        error=["ValueError: no" if n is None else None for n in numbers],
        deduplicated=[False] * rows,
    )


def answers_of_rows(numbers: list[list[float] | None]) -> pa.Table:
    return answers(numbers).append_column("__row", pa.array(["{}"] * len(numbers)))


def test_label_is_the_most_probable_one_and_says_how_sure_the_head_is(tmp_path: Path) -> None:
    parser = open_parser(job(tmp_path, NAMED, labels__confidence=True), None, [])
    rows, failed = parser(answers([[0.25, 0.7, 0.05], None, [np.nan, 0.5, 0.5], [1.0, 0.0, 0.0]]))
    assert rows.column("answer").to_pylist() == ["spam", "ham"]
    assert rows.column("answer_runner_up").to_pylist() == ["ham", "spam"]
    assert rows.column("answer_probability").to_pylist() == pytest.approx([0.7, 1.0])
    assert failed.column("error_type").to_pylist() == ["EngineError", "InvalidOutput"]
    with pytest.raises(SliceError, match="has 2 labels, and choices has 3"):
        parser(answers([[0.5, 0.5]]))


def test_several_labels_are_those_that_apply_and_may_be_none(tmp_path: Path) -> None:
    several = {
        "task": "generate",
        "engine": "vllm",
        "choices": ["ham", "spam", "bill"],
        "labels__multi": True,
    }
    parser = open_parser(job(tmp_path, None, **several, labels__confidence=True), None, [])
    numbers: list[list[float] | None] = [[0.6, 0.5, 0.9], [0.1, 0.2, 0.3], None, [np.nan, 0.6, 0.6]]
    rows, failed = parser(answers(numbers))
    assert rows.column("answer").to_pylist() == [["ham", "bill"], []]
    assert rows.column("answer_probability").to_pylist(maps_as_pydicts="strict") == [
        pytest.approx({"ham": 0.6, "spam": 0.5, "bill": 0.9}),
        pytest.approx({"ham": 0.1, "spam": 0.2, "bill": 0.3}),
    ]
    assert failed.column("error_type").to_pylist() == ["EngineError", "InvalidOutput"]
    alone, _ = open_parser(job(tmp_path, None, **several), None, [])(answers(numbers))
    assert alone.column("answer").to_pylist() == [["ham", "bill"], []]
    assert "answer_probability" not in alone.column_names
    said = open_parser(job(tmp_path, None, **several), lambda row: {"all": len(row["answer"])}, [])
    rows, _ = said(answers_of_rows(numbers[:2]))
    assert rows.column("all").to_pylist() == [2, 0]


def test_score_that_is_no_number_fails_alone(tmp_path: Path) -> None:
    parser = ScoreParser(job(tmp_path, None, task="score", query="{q}", output_column="fit"))
    rows, failed = parser(answers([[0.5], [np.inf], None, [-2.0]]))
    assert rows.column("fit").to_pylist() == [0.5, -2.0]
    assert sorted(failed.column("error_type").to_pylist()) == ["EngineError", INVALID_SCORE]
    rows, _ = parser(answers([None]))
    assert rows.schema.field("fit").type == pa.float32()
