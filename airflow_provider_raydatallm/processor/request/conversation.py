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


def check_conversation_column(name: str, schema: pa.Schema) -> None:
    """:raises SliceError: when there is no such column, or its type holds no conversations."""
    if name not in schema.names:
        raise SliceError(
            f"messages is {name!r}, a column which the input does not have. Columns: "
            f"{', '.join(map(repr, schema.names))}",
            kind="input",
        )
    if not _may_hold_conversations(kind := schema.field(name).type):
        raise SliceError(
            f"messages is {name!r}, and this column is {kind}: give a column of lists of structs with role "
            "and content, or of JSON text of such lists. For a column of texts, use prompt",
            kind="input",
        )


def _may_hold_conversations(kind: pa.DataType) -> bool:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return True
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    message = kind.value_type
    return bool(pa.types.is_struct(message) and {"role", "content"} <= {field.name for field in message})


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
    is_text = isinstance(content, str) or (
        isinstance(content, list) and all(isinstance(part, Mapping) for part in content)
    )
    if not is_text and not (content is None and "tool_calls" in beside):
        raise _invalid(name, f"has as content of message {number} no text: {content!r:.100}")
    return {"role": role, "content": content, **beside}


def _invalid(name: str, why: str) -> SliceError:
    return SliceError(f"the conversation in column {name!r} {why}", kind="input")
