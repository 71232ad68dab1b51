"""Conversations in a column: which columns hold them, and what is wrong with a row's.

A conversation is a list of messages, each with a `role` and a `content`: a list of structs, or JSON text of
it. Whatever else a message has is left out, but for what chat templates write of the use of tools.

Content is text. Whoever writes rows must not choose what an engine or an endpoint opens, so parts with
addresses and files are refused, and a part of text has its text only: engines tell parts by their fields,
too. An image passes where the sources of images hold its address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pydantic_core import from_json

from airflow_provider_raydatallm.contract.result.errors import SliceError, missing_column
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.spec.media_sources import MediaSources
from airflow_provider_raydatallm.processor.input.types.plain import hidden_names, outline

_ROLES = ("system", "user", "assistant", "tool")
#: What a message may have beside its role and content.
_OF_TOOLS = ("name", "tool_calls", "tool_call_id")
#: Fields of messages that hold more than text.
_NESTED = ("content", "tool_calls", "function_call")
_NOT_TEXT = (Mapping, list, tuple)
#: The type of a part with an image's address, and its field.
_IMAGE = "image_url"
_PART = "{'type': 'text', 'text': 'Hi'}"
_GIVE_PARTS = f"Give text, or a list of parts such as {_PART}"


def check_conversation_column(name: str, schema: pa.Schema) -> None:
    """:raises SliceError: when there is no such column, or its type holds no conversations."""
    if name not in schema.names:
        raise missing_column(
            f"messages is {name!r}, a column which the input does not have",
            name,
            schema.names,
        )
    kind = schema.field(name).type
    if _is_text(kind):
        return
    message = kind.value_type if _is_list(kind) else None
    if message is None or not pa.types.is_struct(message) or not {"role", "content"} <= set(message.names):
        raise SliceError(
            f"messages is {name!r}, and this column is {outline(kind)}",
            kind="input",
            row_texts=hidden_names(kind),
            advice=(
                "Give a column of lists of structs with role and content, or of JSON text of such lists",
                "For a column of texts, use prompt",
            ),
            place=Place(column=name),
        )
    content = message.field("content").type
    is_parts = _is_list(content) and pa.types.is_struct(content.value_type)
    if not (_is_text(content) or is_parts or pa.types.is_null(content)):
        raise SliceError(
            f"messages is {name!r}, whose content is {content}",
            kind="input",
            advice=(_GIVE_PARTS, "Where rows have some of both, give the conversations as JSON text"),
            place=Place(column=name),
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def read_conversation(name: str, value: Any, images: MediaSources | None = None) -> list[dict[str, Any]]:
    """
    :param name: of the column.
    :param value: of a row.
    :param images: where images may lie; None: there may be none.
    :raises SliceError: saying what is wrong with it.
    """
    subject = f"the conversation in column {name!r}"
    if isinstance(value, str):
        try:
            value = from_json(value)
        except ValueError as e:
            raise _invalid(subject, "is not valid JSON", str(e)) from e
    if not isinstance(value, list):
        raise _invalid(subject, "is not a list of messages", f"{value!r:.100}")
    messages = [_read_message(subject, number, message, images) for number, message in enumerate(value, 1)]
    if "user" not in (message["role"] for message in messages):
        raise _invalid(subject, "has no message of the user")
    if messages[-1]["role"] == "assistant":
        raise _invalid(subject, "ends with the assistant's message, which leaves nothing to answer")
    return messages


def check_messages(messages: Any, images: MediaSources | None) -> list[Any]:
    """Returns messages that `preprocess` made, which may put a row's values anywhere.

    :raises SliceError: when one of them has content that is neither text nor parts that are accepted.
    """
    subject = "what preprocess returned"
    if not isinstance(messages, list | tuple):
        raise _invalid(subject, "has no list of messages", f"{messages!r:.100}")
    return [_check_message(subject, number, message, images) for number, message in enumerate(messages, 1)]


def _check_message(subject: str, number: int, message: Any, images: MediaSources | None) -> Mapping[str, Any]:
    if not isinstance(message, Mapping):
        raise _invalid(subject, f"has as message {number} no role and content", f"{message!r:.100}")
    _check_beside(subject, number, message)
    content = message.get("content")
    if not isinstance(content, _NOT_TEXT):  # a number or a date becomes text
        return message
    return {**message, "content": _read_content(subject, number, content, images)}


def _read_message(subject: str, number: int, message: Any, images: MediaSources | None) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _invalid(subject, f"has as message {number} no role and content", f"{message!r:.100}")
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise _invalid(
            subject,
            f"has in message {number} another role than {', '.join(_ROLES)}",
            f"{role!r:.100}",
        )
    beside = {key: message[key] for key in _OF_TOOLS if message.get(key) is not None}
    _check_beside(subject, number, beside)
    if not isinstance(content, str) and not (content is None and "tool_calls" in beside):
        content = _read_content(subject, number, content, images)
    return {"role": role, "content": content, **beside}


def _check_beside(subject: str, number: int, fields: Mapping[str, Any]) -> None:
    """:raises SliceError: where something else than text stands in place of one."""
    for field, value in fields.items():
        if field not in _NESTED and isinstance(value, _NOT_TEXT):
            raise _invalid(
                subject,
                f"has in message {number} a field that is no text",
                f"{field!r:.100}",
                f"{value!r:.100}",
            )


def _read_content(
    subject: str, number: int, content: Any, images: MediaSources | None
) -> list[dict[str, Any]]:
    """Returns the parts of a message's content."""
    is_parts = isinstance(content, list | tuple) and content
    if not is_parts or not all(isinstance(part, Mapping) for part in content):
        raise _invalid(
            subject,
            f"has as content of message {number} no text",
            f"{content!r:.100}",
            advice=_GIVE_PARTS,
        )
    return [
        _read_part(subject, f"part {i} of message {number}", part, images)
        for i, part in enumerate(content, 1)
    ]


def _read_part(
    subject: str, where: str, part: Mapping[str, Any], images: MediaSources | None
) -> dict[str, Any]:
    kind = part.get("type")
    if not isinstance(kind, str):
        raise _invalid(subject, f"has in {where} no type", f"{part!r:.100}", advice=f"Give such as {_PART}")
    if kind == "text":
        if not isinstance(text := part.get("text"), str):
            raise _invalid(subject, f"has in {where} no text", f"{text!r:.100}")
        return {"type": kind, "text": text}
    if kind == _IMAGE and images is not None:
        image = part.get(_IMAGE)
        image = {"url": image} if isinstance(image, str) else image
        if not isinstance(image, Mapping) or not isinstance(url := image.get("url"), str):
            raise _invalid(subject, f"has in {where} no address of an image", f"{image!r:.100}")
        try:
            images.check(url)
        except ValueError as e:
            raise _invalid(subject, f"has in {where} an image that is not accepted", str(e)) from None
        detail = image.get("detail")
        return {"type": kind, _IMAGE: {"url": url} | ({"detail": detail} if isinstance(detail, str) else {})}
    raise _invalid(
        subject,
        f"has in {where} a type that is not accepted",
        f"{kind!r:.100}",
        advice=(
            "Give text",
            f"Images of rows stand in a column (images), and engine 'http' takes parts of type {_IMAGE!r} "
            "whose addresses images.sources holds",
        ),
    )


def _invalid(subject: str, why: str, *row_texts: str, advice: str | Sequence[str] = ()) -> SliceError:
    return SliceError(f"{subject} {why}", kind="input", advice=advice, row_texts=row_texts)
