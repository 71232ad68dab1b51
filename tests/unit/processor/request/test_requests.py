from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder

COLUMNS = ["Company", "First Name", "budget"]


def test_request_has_system_and_user_message_and_sampling_parameters() -> None:
    builder = RequestBuilder(
        COLUMNS, prompt="{Company}?", system_prompt="For {First Name}",
        sampling_params={"temperature": 0, "max_tokens": "{budget}", "stop": ["{"]},
        structured_outputs={"choice": ["a", "b"]},
    )  # fmt: skip
    assert builder.columns == ["First Name", "Company", "budget"]
    request = builder.build({"Company": "C", "First Name": "F", "budget": 9})
    assert request == {
        "messages": [{"role": "system", "content": "For F"}, {"role": "user", "content": "C?"}],
        "sampling_params": {
            "temperature": 0, "max_tokens": 9, "stop": ["{"], "structured_outputs": {"choice": ["a", "b"]},
        },
        "cells": [[(4, 5)], [(0, 1)]],
    }  # fmt: skip
    without_budget = builder.build({"Company": "C", "First Name": "F", "budget": None})
    assert "max_tokens" not in without_budget["sampling_params"]


def test_per_row_parameter_of_an_unknown_column_is_refused() -> None:
    with pytest.raises(SliceError, match="sampling_params"):
        RequestBuilder(COLUMNS, prompt="x", sampling_params={"max_tokens": "{nope}"})


@pytest.mark.parametrize(
    ("result", "content"),
    [("hi", "hi"), ({"prompt": "hi"}, "hi"), ({"messages": [{"role": "user", "content": "hi"}]}, "hi")],
)
def test_preprocess_returns_the_request(result: Any, content: str) -> None:
    builder = RequestBuilder(COLUMNS, prompt=None, preprocess=lambda row: result)
    assert builder.columns == COLUMNS
    assert builder.build({})["messages"][-1]["content"] == content


@pytest.mark.parametrize(
    "result", [None, 3, {}, {"prompt": "a", "messages": []}, {"prompt": "a", "temperature": 1}]
)
def test_preprocess_that_returns_no_request_is_an_error(result: Any) -> None:
    with pytest.raises(SliceError, match="preprocess"):
        RequestBuilder(COLUMNS, prompt=None, preprocess=lambda row: result).build({})


def test_biases_of_a_row_are_those_of_its_tokens() -> None:
    builder = RequestBuilder(["bias"], prompt="x", sampling_params={"logit_bias": "{bias}"})
    request = builder.build({"bias": {"42": 5, "7": None}})  # a struct has the fields of all rows
    assert request["sampling_params"] == {"logit_bias": {"42": 5}}
    of_code = RequestBuilder(
        [], prompt=None, preprocess=lambda row: {"prompt": "x", "sampling_params": {"logit_bias": {42: 5}}}
    )
    assert of_code.build({})["sampling_params"] == {"logit_bias": {"42": 5}}


def test_row_whose_bias_is_of_no_token_fails_by_itself() -> None:
    builder = RequestBuilder(["bias"], prompt="x", sampling_params={"logit_bias": "{bias}"})
    with pytest.raises(SliceError, match="'logit_bias' has the key 'abc'"):
        builder.build({"bias": {"abc": 5}})
