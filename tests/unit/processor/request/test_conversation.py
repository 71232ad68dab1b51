"""Conversations of a column as messages, and what is wrong with those that cannot be answered."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.request.conversation import (
    check_conversation_column,
    read_conversation,
)
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder

HI = {"role": "user", "content": "Hi"}
TEXT = {"type": "text", "text": "Hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "s3://a"}}
PART = pa.struct([("type", pa.string()), ("text", pa.string())])
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "is not a list of messages: None"),
        ("", "is not valid JSON"),
        ("[" * 10_000, "is not valid JSON"),
        ('[{"role": "user", "content": "\\ud800"}]', "is not valid JSON"),
        ('{"role": "user"}', "is not a list of messages"),
        ([], "has no message of the user"),
        (["Hi"], "message 1 no role and content: 'Hi'"),
        ([HI, None], "message 2 no role and content: None"),
        ([{"role": "USER", "content": "Hi"}], "role of message 1 'USER': use system, user, assistant, tool"),
        ([{"role": ["user"], "content": "Hi"}], "role of message 1"),
        ([{"role": "user", "content": None}], "content of message 1 no text: None"),
        ([{"role": "user", "content": ["Hi"]}], "content of message 1 no text"),
        ([{"role": "user", "content": []}], "content of message 1 no text"),
        ([HI, {"role": "user", "content": [TEXT, "Hi"]}], "content of message 2 no text"),
        ([{"role": "user", "content": [TEXT, {"text": "Hi"}]}], "part 2 of message 1, .* no type"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "part 1 of message 1 no text"),
        ([{"role": "system", "content": "Hi"}], "has no message of the user"),
        ([HI, {"role": "assistant", "content": "Hi"}], "ends with the assistant's message"),
    ],
)
def test_invalid_conversation_says_what_is_wrong(value: Any, why: str) -> None:
    with pytest.raises(SliceError, match=f"column 'talk' .*{why.replace('[', '.')}"):
        read_conversation("talk", value)


def test_messages_keep_their_text_and_the_use_of_tools_only() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    result = {"role": "tool", "content": "7", "tool_call_id": "1", "name": None}
    noted = {**HI, "sent_at": "2026-01-01", "tool_calls": None}
    parts = {"role": "user", "content": [TEXT]}
    expected = [HI, call, {"role": "tool", "content": "7", "tool_call_id": "1"}, parts]
    talk = [noted, call, result, parts]
    assert read_conversation("talk", talk) == read_conversation("talk", json.dumps(talk)) == expected


def test_text_and_parts_may_alternate_between_rows_and_turns_of_json_text() -> None:
    talks = [[HI], [{"role": "user", "content": [TEXT]}], [HI, {"role": "user", "content": [TEXT, IMAGE]}]]
    assert [read_conversation("talk", json.dumps(talk)) for talk in talks] == talks


def test_part_has_its_own_fields_only() -> None:
    """A struct has the fields of all parts of all rows, and templates ask which fields there are."""
    talk = [{"role": "user", "content": [TEXT, IMAGE]}]
    [of_struct] = pa.array([talk]).to_pylist()
    assert "image_url" in of_struct[0]["content"][0]
    assert read_conversation("talk", of_struct) == talk


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.list_(MESSAGE),
        pa.list_(pa.struct([("role", pa.string()), ("content", pa.null()), ("name", pa.string())])),
        pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(PART))])),
        pa.large_list(pa.struct([*MESSAGE, ("n", pa.int8())])),
    ],
    ids=str,
)
def test_columns_that_may_hold_conversations_are_accepted(kind: pa.DataType) -> None:
    check_conversation_column("talk", pa.schema([("talk", kind)]))


@pytest.mark.parametrize(
    "kind",
    [pa.int64(), pa.null(), MESSAGE, pa.list_(pa.string()), pa.list_(pa.struct([("role", pa.string())]))],
    ids=str,
)  # fmt: skip
def test_column_of_another_kind_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(SliceError, match="messages is 'talk', and this column is"):
        check_conversation_column("talk", pa.schema([("talk", kind)]))


@pytest.mark.parametrize("content", [pa.int64(), PART, pa.list_(pa.string()), pa.binary()], ids=str)
def test_column_whose_content_is_neither_text_nor_parts_is_refused(content: pa.DataType) -> None:
    talk = pa.list_(pa.struct([("role", pa.string()), ("content", content)]))
    with pytest.raises(SliceError, match=r"messages is 'talk', whose content is .*: give text, or a list"):
        check_conversation_column("talk", pa.schema([("talk", talk)]))


def test_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(SliceError, match="messages is 'talk', a column which the input does not have"):
        check_conversation_column("talk", pa.schema([("text", pa.string())]))


def test_all_text_of_a_conversation_is_the_rows_and_the_system_prompt_goes_before() -> None:
    builder = RequestBuilder(["a", "talk"], messages="talk", system_prompt="For {a}")
    assert builder.columns == ["talk", "a"]
    system = {"role": "system", "content": "For A"}
    assert builder.build({"a": "A", "talk": [HI]}) == {
        "messages": [system, HI], "cells": [[(4, 5)], None], "sampling_params": {},
    }  # fmt: skip
