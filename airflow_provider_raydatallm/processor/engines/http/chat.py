"""OpenAI's chat completions: from a row's request to a body, and from a reply to an answer. Pure.

What `sampling_params` hold goes into the body as it is; what they leave out, the endpoint decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_json

from airflow_provider_raydatallm.contract.spec.json_schema import subschemas
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import is_unicode, one_or_several, storable
from airflow_provider_raydatallm.processor.engines.http.api import Api, count, mapping
from airflow_provider_raydatallm.processor.engines.http.replies import ROW_REFUSED, PassingError, broken_reply
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import TokenizedRequest

#: The key of a choice in the object that the endpoint answers: a schema's root must be an object.
_CHOICE = "answer"
#: Why an answer ended that its server did not finish.
_BROKEN_OFF = ("abort", "cancelled", "error")
#: Of an answer that only shows that there is one.
_FEW_TOKENS = 16


class ChatApi(Api):
    path = "/chat/completions"

    def __init__(self, job: SliceJob) -> None:
        super().__init__(job)
        self._fixed: dict[str, Any] = {"model": job.model_source, "stream": False}
        if job.tools is not None:
            self._fixed["tools"] = job.tools
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
        if type(texts := params.get("n")) is int:
            max_tokens *= max(1, texts)
        return TokenizedRequest(params=to_json(body).decode(), total_tokens=max_tokens)

    def with_text(self, body: str, text: str) -> str:
        request = json.loads(body)
        limits = {name: _FEW_TOKENS for name in ("max_tokens", "max_completion_tokens") if request.get(name)}
        return json.dumps({**request, "messages": [{"role": "user", "content": text}], **limits})

    def read(self, body: bytes, redact: Callable[[str], str] = str) -> dict[str, Any]:
        try:
            reply = json.loads(body)
            texts = [_read_text(choice) for choice in reply["choices"]]
            refusals = [choice["message"].get("refusal") for choice in reply["choices"]]
            if not texts:
                raise ValueError("no choices")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
            raise broken_reply(body, "is not a chat completion", redact) from e
        usage = mapping(reply.get("usage"))
        columns = {
            "input_tokens": count(usage.get("prompt_tokens")),
            "output_tokens": count(usage.get("completion_tokens")),
            "cached_tokens": count(mapping(usage.get("prompt_tokens_details")).get("cached_tokens")),
            "reasoning_tokens": count(
                mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")
            ),
        }
        for text, refusal in zip(texts, refusals, strict=True):
            if problem := _find_problem(text, redact(_text(refusal) or "")):
                reason = text["finish_reason"]
                return {**columns, "finish_reason": reason, "error_type": ROW_REFUSED, "error": problem}
            if text["text"] is not None and self.job.choices is not None:
                text["text"] = unwrap_choice(text["text"])
        return {**columns, **one_or_several(texts)}


def _read_text(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a text of an answer, or of its calls of tools as JSON."""
    message, reason = choice["message"], _text(choice.get("finish_reason"))
    of_tokens = mapping(choice.get("logprobs")).get("content")
    calls = message.get("tool_calls")
    return {
        "text": json.dumps(calls, ensure_ascii=False) if calls else _text(message.get("content")),
        "finish_reason": reason and storable(reason),
        "logprob": sum(float(token["logprob"]) for token in of_tokens) if of_tokens else None,
        "logprob_tokens": len(of_tokens) if of_tokens else None,
    }


def _find_problem(text: Mapping[str, Any], refusal: str) -> str | None:
    """Returns why the endpoint refuses a row.

    :raises PassingError: when its server did not finish the answer.
    """
    reason = text["finish_reason"]
    if reason in _BROKEN_OFF:
        raise PassingError(
            f"the endpoint did not finish its answer (finish_reason {reason!r})", may_have_cost=True
        )
    if reason == "content_filter":
        return f"the endpoint filtered its answer (finish_reason {reason!r}): {refusal!r:.500}"
    if text["text"] is None and reason != "length":  # nor did max_tokens cut it before it began
        return f"the endpoint answered no text (finish_reason {reason!r}): {refusal!r:.500}"
    if text["text"] is not None and not is_unicode(text["text"]):
        return "the endpoint's answer is not valid Unicode"
    return None


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
    except (ValueError, RecursionError):
        return text
    choice = answer.get(_CHOICE) if isinstance(answer, dict) else None
    return choice if isinstance(choice, str) else text
