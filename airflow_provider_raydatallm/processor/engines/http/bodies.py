"""From a row's request to the body of a chat completion. Pure.

What `sampling_params` hold goes into the body as it is; what they leave out, the endpoint decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from airflow_provider_raydatallm.contract.json_schema import subschemas
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import TokenizedRequest

#: The key of a choice in the object that the endpoint answers: a schema's root must be an object.
_CHOICE = "answer"


class RequestBodies:
    """Takes the tokenizer's place in a feeder: an endpoint has its own, so `params` is the whole body."""

    def __init__(self, job: SliceJob) -> None:
        self._fixed: dict[str, Any] = {"model": job.model_source, "stream": False}
        if job.chat_template_kwargs:  # of vLLM's server
            self._fixed["chat_template_kwargs"] = job.chat_template_kwargs
        self._has_shape = job.choices is not None or job.output_schema is not None

    def __call__(self, requests: Sequence[str]) -> list[TokenizedRequest]:
        """:param requests: JSON text of messages and sampling_params."""
        return [self._body(request) for request in requests]

    def _body(self, text: str) -> TokenizedRequest:
        try:
            return self._to_body(from_json(text))
        except Exception as e:  # preprocess may return anything
            return TokenizedRequest(error=e)

    def _to_body(self, request: Mapping[str, Any]) -> TokenizedRequest:
        params: dict[str, Any] = request["sampling_params"]
        max_tokens = params.get("max_completion_tokens") or params.get("max_tokens")
        body = {**params, "messages": request["messages"], **self._fixed}
        if self._has_shape:
            body |= _response_format(body.pop("structured_outputs"))
        max_tokens = max_tokens if type(max_tokens) is int else 0
        return TokenizedRequest(params=to_json(body).decode(), total_tokens=max_tokens)


def _response_format(shape: Mapping[str, Any]) -> dict[str, Any]:
    """The standard's form of vLLM's `structured_outputs`, which other servers do not know."""
    if "choice" in shape:
        schema = {
            "type": "object",
            "properties": {_CHOICE: {"type": "string", "enum": list(shape["choice"])}},
            "required": [_CHOICE],
            "additionalProperties": False,
        }
    elif "json" in shape:
        schema = json.loads(shape["json"]) if isinstance(shape["json"], str) else shape["json"]
    else:  # of a row's own, for a server of vLLM
        return {"structured_outputs": shape}
    form = {"name": "answer", "schema": schema, "strict": _is_strict(schema)}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def _is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether OpenAI can enforce the schema: objects require all their properties and no others."""
    objects = [part for part in subschemas(schema) if part.get("type") == "object" or "properties" in part]
    return all(
        part.get("additionalProperties") is False
        and set(part.get("required", ())) == set(part.get("properties", ()))
        for part in objects
    )


def unwrap_choice(text: str) -> str:
    """The choice in an answer; the text itself where the endpoint ignored the form that was asked for."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return text
    choice = answer.get(_CHOICE) if isinstance(answer, dict) else None
    return choice if isinstance(choice, str) else text
