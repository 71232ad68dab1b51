from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.request.prompt import (
    RequestBuilder,
    Template,
    as_text,
    structured_outputs,
)

COLUMNS = ["Company", "First Name", "budget"]


def test_fields_are_replaced_and_other_braces_stay() -> None:
    template = Template('Is {Company} of {First Name} like {"a": {1,2}} or {}?', COLUMNS)
    assert template.render({"Company": "A {First Name} B", "First Name": "Bo"}) == (
        'Is A {First Name} B of Bo like {"a": {1,2}} or {}?'
    )
    assert template.columns == ["Company", "First Name"]


def test_braces_that_look_like_a_missing_column_say_which_there_are() -> None:
    with pytest.raises(SliceError, match=r"'company'.*'Company', 'First Name'"):
        Template("Is {company} big?", COLUMNS)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), ("x", "x"), (3, "3"), (True, "True"), (dt.date(2026, 1, 31), "2026-01-31"),
        ({"a": [1]}, '{"a": [1]}'),
        ([dt.date(2026, 1, 31), None], '["2026-01-31", null]'), (b"bytes", "bytes"),
    ],
)  # fmt: skip
def test_values_read_well_in_a_prompt(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_request_has_system_and_user_message_and_shape() -> None:
    builder = RequestBuilder(
        COLUMNS,
        prompt="{Company}?",
        system_prompt="For {First Name}",
        sampling_params={"temperature": 0, "max_tokens": "{budget}", "stop": ["{"]},
        structured_outputs=structured_outputs(
            choices=["a", "b"], output_schema=None, regex=None, grammar=None
        ),
    )
    assert builder.columns == ["First Name", "Company", "budget"]
    request = builder.build({"Company": "C", "First Name": "F", "budget": 9})
    assert request == {
        "messages": [{"role": "system", "content": "For F"}, {"role": "user", "content": "C?"}],
        "sampling_params": {
            "temperature": 0, "max_tokens": 9, "stop": ["{"], "structured_outputs": {"choice": ["a", "b"]},
        },
    }  # fmt: skip
    without = builder.build({"Company": "C", "First Name": "F", "budget": None})
    assert "max_tokens" not in without["sampling_params"]


def test_per_row_parameter_of_a_missing_column_is_refused() -> None:
    with pytest.raises(SliceError, match="sampling_params"):
        RequestBuilder(COLUMNS, prompt="x", sampling_params={"max_tokens": "{nope}"})


@pytest.mark.parametrize(
    ("made", "content"),
    [("hi", "hi"), ({"prompt": "hi"}, "hi"), ({"messages": [{"role": "user", "content": "hi"}]}, "hi")],
)
def test_preprocess_makes_the_request(made: Any, content: str) -> None:
    builder = RequestBuilder(COLUMNS, prompt=None, preprocess=lambda row: made)
    assert builder.columns == COLUMNS
    assert builder.build({})["messages"][-1]["content"] == content


@pytest.mark.parametrize(
    "made", [None, 3, {}, {"prompt": "a", "messages": []}, {"prompt": "a", "temperature": 1}]
)
def test_preprocess_that_makes_no_request_is_an_error(made: Any) -> None:
    with pytest.raises(SliceError, match="preprocess"):
        RequestBuilder(COLUMNS, prompt=None, preprocess=lambda row: made).build({})


def test_shapes_become_vllms_structured_outputs() -> None:
    none = dict.fromkeys(("choices", "output_schema", "regex", "grammar"))
    assert structured_outputs(**none) is None
    assert structured_outputs(**{**none, "regex": "a+"}) == {"regex": "a+"}
    schema = structured_outputs(**{**none, "output_schema": {"type": "object"}})
    assert schema is not None
    assert json.loads(schema["json"]) == {"type": "object"}
