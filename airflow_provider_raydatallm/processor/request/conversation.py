"""Conversations in a column: which columns hold them, and what is wrong with a row's.

A conversation is a list of messages, each with a `role` and a `content`: a list of structs, or JSON text of
it. Whatever else a message has is left out, but for what chat templates write of the use of tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pydantic_core import from_json

from airflow_provider_raydatallm.contract.result.errors import SliceError

_ROLES = ("system", "user", "assistant", "tool")
#: What a message may have beside its role and content.
_OF_TOOLS = ("name", "tool_calls", "tool_call_id")
_PART = "{'type': 'text', 'text': 'Hi'}"


def check_conversation_column(name: str, schema: pa.Schema) -> None:
    """:raises SliceError: when there is no such column, or its type holds no conversations."""
    if name not in schema.names:
        raise SliceError(
            f"messages is {name!r}, a column which the input does not have. Columns: "
            f"{', '.join(map(repr, schema.names))}",
            kind="input",
        )
    kind = schema.field(name).type
    if _is_text(kind):
        return
    message = kind.value_type if _is_list(kind) else None
    if message is None or not pa.types.is_struct(message) or not {"role", "content"} <= set(message.names):
        raise SliceError(
            f"messages is {name!r}, and this column is {kind}: give a column of lists of structs with role "
            "and content, or of JSON text of such lists. For a column of texts, use prompt",
            kind="input",
        )
    content = message.field("content").type
    is_parts = _is_list(content) and pa.types.is_struct(content.value_type)
    if not (_is_text(content) or is_parts or pa.types.is_null(content)):
        raise SliceError(
            f"messages is {name!r}, whose content is {content}: give text, or a list of parts such as "
            f"{_PART}. Where rows have some of both, give the conversations as JSON text",
            kind="input",
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def read_conversation(name: str, value: Any) -> list[dict[str, Any]]:
    """
    :param name: of the column.
    :param value: of a row.
    :raises SliceError: saying what is wrong with it.
    """
    if isinstance(value, str):
        try:
            value = from_json(value)
        except ValueError as e:
            raise _invalid(name, f"is not valid JSON: {e}") from e
    if not isinstance(value, list):
        raise _invalid(name, f"is not a list of messages: {value!r:.100}")
    messages = [_read_message(name, number, message) for number, message in enumerate(value, start=1)]
    if "user" not in (message["role"] for message in messages):
        raise _invalid(name, "has no message of the user")
    if messages[-1]["role"] == "assistant":
        raise _invalid(name, "ends with the assistant's message, which leaves nothing to answer")
    return messages


def _read_message(name: str, number: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _invalid(name, f"has as message {number} no role and content: {message!r:.100}")
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise _invalid(name, f"has as role of message {number} {role!r:.100}: use {', '.join(_ROLES)}")
    beside = {key: message[key] for key in _OF_TOOLS if message.get(key) is not None}
    if isinstance(content, list) and content and all(isinstance(part, Mapping) for part in content):
        content = [_read_part(name, f"part {i} of message {number}", p) for i, p in enumerate(content, 1)]
    elif not isinstance(content, str) and not (content is None and "tool_calls" in beside):
        raise _invalid(
            name,
            f"has as content of message {number} no text: {content!r:.100}. Give text, or a list of parts "
            f"such as {_PART}",
        )
    return {"role": role, "content": content, **beside}


def _read_part(name: str, where: str, part: Mapping[str, Any]) -> Any:
    if not isinstance(part.get("type"), str):
        raise _invalid(name, f"has in {where}, {part!r:.100}, no type: give such as {_PART}")
    if part["type"] == "text" and not isinstance(part.get("text"), str):
        raise _invalid(name, f"has in {where} no text: {part.get('text')!r:.100}")
    return _without_nulls(part)


def _without_nulls(value: Any) -> Any:
    """A struct of Arrow has the fields of all parts of all rows."""
    if not isinstance(value, Mapping):
        return value
    return {key: _without_nulls(item) for key, item in value.items() if item is not None}


def _invalid(name: str, why: str) -> SliceError:
    return SliceError(f"the conversation in column {name!r} {why}", kind="input")
