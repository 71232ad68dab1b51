"""Conversations of a column as messages, and what is wrong with those that cannot be answered."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.media_sources import MediaSources
from airflow_provider_raydatallm.processor.request.conversation import (
    check_conversation_column,
    read_conversation,
)
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder

HI = {"role": "user", "content": "Hi"}
TEXT = {"type": "text", "text": "Hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "s3://a"}}
IMAGES = MediaSources(["s3://a"])
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
        (
            [{"role": "USER", "content": "Hi"}],
            "message 1 another role than .*: 'USER'",
        ),
        ([{"role": ["user"], "content": "Hi"}], "message 1 another role"),
        ([{"role": "user", "content": None}], "content of message 1 no text: None"),
        ([{"role": "user", "content": ["Hi"]}], "content of message 1 no text"),
        ([{"role": "user", "content": []}], "content of message 1 no text"),
        ([HI, {"role": "user", "content": [TEXT, "Hi"]}], "content of message 2 no text"),
        ([{"role": "user", "content": [TEXT, {"text": "Hi"}]}], "part 2 of message 1 no type"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "part 1 of message 1 no text"),
        ([{"role": "system", "content": "Hi"}], "has no message of the user"),
        ([{**HI, "name": {"file_id": "f"}}], "message 1 a field that is no text: 'name'"),
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
    assert [read_conversation("talk", json.dumps(talk), IMAGES) for talk in talks] == talks


def test_part_has_its_own_fields_only() -> None:
    """A struct has the fields of all parts of all rows, and templates ask which fields there are."""
    talk = [{"role": "user", "content": [TEXT, IMAGE]}]
    [of_struct] = pa.array([talk]).to_pylist()
    assert "image_url" in of_struct[0]["content"][0]
    assert read_conversation("talk", of_struct, IMAGES) == talk


def of_column(message: Any, images: MediaSources | None) -> Any:
    return read_conversation("talk", json.dumps([HI, message]), images)


def of_preprocess(message: Any, images: MediaSources | None) -> Any:
    builder = RequestBuilder(["x"], preprocess=lambda row: {"messages": [HI, row["x"]]}, image_sources=images)
    return builder.build({"x": message})["messages"]


def url(address: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address}}


@pytest.mark.parametrize("read", [of_column, of_preprocess])
@pytest.mark.parametrize("images", [None, MediaSources(["https://cdn.example.com/public", "10.0.0.1"])])
@pytest.mark.parametrize("part", [
    url("http://169.254.169.254/latest/meta-data"), url("file:///etc/passwd"), url("/etc/passwd"),
    url("https://cdn.example.com/public/%252e%252e/x"), url("data:image/png;base64,AA"), url("10.0.0.1"),
    {"type": "image_url", "image_url": "file:///etc/passwd"}, {"type": "image_url", "image_url": ["s3://a"]},
    {"type": "image", "image": "https://cdn.example.com/public/a.jpg"}, {"type": "image_url"},
    {"image_url": {"url": "file:///etc/passwd"}}, {"type": "file", "file": {"file_id": "file-1"}},
    {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}, {"type": "input_image"},
    {"type": "audio_url", "audio_url": {"url": "http://10.0.0.1/a"}}, {"type": "video_url"}, {"type": "x"},
    {"type": ["text"], "text": "x"}, "file:///etc/passwd", ["x"], None, [{"type": "text", "text": "x"}],
], ids=str)  # fmt: skip
def test_part_that_is_neither_text_nor_of_a_source_is_refused(
    read: Any, images: MediaSources | None, part: Any
) -> None:
    with pytest.raises(SliceError, match="message 2"):
        read({"role": "user", "content": [TEXT, part]}, images)
    with pytest.raises(SliceError, match="message 2"):
        read({"role": "user", "content": part if isinstance(part, dict) else [part]}, images)


@pytest.mark.parametrize("read", [of_column, of_preprocess])
def test_part_passes_with_the_fields_of_its_type_only(read: Any) -> None:
    images = MediaSources(["https://cdn.example.com", "data:"])
    hidden = {**TEXT, "image_url": {"url": "file:///etc/passwd"}, "file_id": "file-1"}
    shown = {**url("https://cdn.example.com/a.jpg"), "uuid": "1", "image": "/etc/passwd"}
    shown["image_url"] |= {"detail": "low", "headers": {"Authorization": "x"}}
    inline = url("data:image/png;base64,AA")
    talk = read({"role": "user", "content": [hidden, shown, inline]}, images)
    low = {"url": "https://cdn.example.com/a.jpg", "detail": "low"}
    assert talk[-1]["content"] == [TEXT, {"type": "image_url", "image_url": low}, inline]


@pytest.mark.parametrize("beside", [{"audio": {"id": "a"}}, {"images": ["/etc/passwd"]}, {"file": {"x": 1}}])
def test_message_of_preprocess_has_nothing_nested_but_its_content_and_tools(beside: dict[str, Any]) -> None:
    with pytest.raises(SliceError, match=next(iter(beside))):
        of_preprocess({**HI, **beside}, None)
    call = {"role": "assistant", "content": 5, "tool_calls": [{"id": "1"}], "reasoning_content": "so"}
    assert of_preprocess(call, None)[-1] == call


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
    with pytest.raises(SliceError, match=r"messages is 'talk', whose content is .*Give text, or a list"):
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
