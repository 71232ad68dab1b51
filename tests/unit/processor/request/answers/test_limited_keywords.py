"""Answers that take a schema's keywords time without end are invalid."""

from __future__ import annotations

import itertools
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.request.answers.limits import keywords as limited_keywords
from airflow_provider_raydatallm.processor.request.answers.output_schema import AnswerSchema, InvalidOutput

UNIQUE = {"type": "array", "uniqueItems": True}
#: Checked twice at each level of what is no answer.
_BRANCH = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
BRANCHES = {"anyOf": [_BRANCH, {**_BRANCH, "maxProperties": 9}, {"const": 1}]}


def nested(value: Any, depth: int) -> str:
    return '{"a":' * depth + json.dumps(value) + "}" * depth


def test_many_objects_are_compared_in_linear_time() -> None:
    """jsonschema compares each with each other: half a minute."""
    answers, items = AnswerSchema(UNIQUE), [{"n": i, "of": {"text": str(i)}} for i in range(5000)]
    began = time.thread_time()
    answers.parse(json.dumps(items))
    with pytest.raises(InvalidOutput, match=r"\$: \{'n': 7, .*occurs more than once"):
        answers.parse(json.dumps([*items, items[7]]))
    assert time.thread_time() - began < 5


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 1) | st.sampled_from([0.0, -0.0, 0.5, 1.0, 1e300, 10**300])
    | st.sampled_from(["", "1", "true"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


def are_equal(one: Any, other: Any) -> bool:
    """As JSON Schema has it: `false` is not 0. jsonschema overlooks equal items between."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.mark.slow
@given(st.lists(json_values, max_size=4))
@example([[{"a": False}, 0], [{"a": False}, False], [{"a": False}, 0]])
def test_items_are_unique_as_json_schema_has_it(items: list[Any]) -> None:
    try:
        AnswerSchema(UNIQUE).parse(json.dumps(items))
        is_valid = True
    except InvalidOutput:
        is_valid = False
    assert is_valid != any(are_equal(*pair) for pair in itertools.combinations(items, 2))


def test_answer_whose_checks_double_with_each_level_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()
    #: A second passes between two looks.
    monkeypatch.setattr(limited_keywords, "time", SimpleNamespace(thread_time=lambda: float(next(looks))))
    monkeypatch.setattr(limited_keywords, "_SECONDS", (32, 4))
    answers = AnswerSchema(BRANCHES)

    def looks_at(answer: str) -> int:
        before = next(looks)
        with pytest.raises(InvalidOutput, match="takes too long to check by output_schema"):
            answers.parse(answer)
        return next(looks) - before

    # Each halves the limit of later ones. A row's start is a look, too.
    assert [looks_at(nested(2, 40)) - 2 for _ in range(6)] == [32, 16, 8, 4, 4, 4]
    assert answers.parse(nested(1, 40)) == nested(1, 40)


def test_schema_by_which_nothing_can_be_checked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_keywords, "_SECONDS", (0.1, 0.01))
    twice = {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)}
    with pytest.raises(SliceError, match="takes too long to check any answer"):
        AnswerSchema({"$ref": "#/$defs/0", "$defs": {**twice, "40": {"const": 1}}})
