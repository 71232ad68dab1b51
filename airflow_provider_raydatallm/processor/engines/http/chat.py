"""OpenAI's chat completions: from a row's request to a body, and from a reply to an answer. Pure.

What `sampling_params` hold goes into the body as it is; what they leave out, the endpoint decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from airflow_provider_raydatallm.contract.json_schema import subschemas
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.engines.http.api import Api, count
from airflow_provider_raydatallm.processor.engines.http.replies import ROW_REFUSED, broken_reply
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import TokenizedRequest

#: The key of a choice in the object that the endpoint answers: a schema's root must be an object.
_CHOICE = "answer"
#: Of an answer that only shows that there is one.
_FEW_TOKENS = 16


class ChatApi(Api):
    path = "/chat/completions"

    def __init__(self, job: SliceJob) -> None:
        super().__init__(job)
        self._fixed: dict[str, Any] = {"model": job.model_source, "stream": False}
        if job.chat_template_kwargs:  # of vLLM's server
            self._fixed["chat_template_kwargs"] = job.chat_template_kwargs
        self._has_shape = job.choices is not None or job.output_schema is not None

    def to_body(self, request: Mapping[str, Any]) -> TokenizedRequest:
        params: dict[str, Any] = request["sampling_params"]
        max_tokens = params.get("max_completion_tokens") or params.get("max_tokens")
        body = {**params, "messages": request["messages"], **self._fixed}
        if self._has_shape:
            body |= _response_format(body.pop("structured_outputs"))
        max_tokens = max_tokens if type(max_tokens) is int else 0
        return TokenizedRequest(params=to_json(body).decode(), total_tokens=max_tokens)

    def with_text(self, body: str, text: str) -> str:
        request = json.loads(body)
        limits = {name: _FEW_TOKENS for name in ("max_tokens", "max_completion_tokens") if request.get(name)}
        return json.dumps({**request, "messages": [{"role": "user", "content": text}], **limits})

    def read(self, body: bytes) -> dict[str, Any]:
        try:
            reply = json.loads(body)
            [choice, *_] = reply["choices"]
            message, reason = choice["message"], _text(choice.get("finish_reason"))
            text, refusal = _text(message.get("content")), message.get("refusal")
            usage = reply.get("usage") or {}
            columns = {
                "finish_reason": reason,
                "input_tokens": count(usage.get("prompt_tokens")),
                "output_tokens": count(usage.get("completion_tokens")),
                "cached_tokens": count((usage.get("prompt_tokens_details") or {}).get("cached_tokens")),
            }
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
            raise broken_reply(body, "is not a chat completion") from e
        if text is None and reason != "length":  # nor did max_tokens cut it before it began
            why = f"the endpoint answered no text (finish_reason {reason!r}): {refusal!r:.500}"
            return {**columns, "error_type": ROW_REFUSED, "error": why}
        if text is not None and self.job.choices is not None:
            text = unwrap_choice(text)
        return {**columns, "text": text}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


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
    except ValueError:
        return text
    choice = answer.get(_CHOICE) if isinstance(answer, dict) else None
    return choice if isinstance(choice, str) else text
