"""OpenAI's chat completions: from a row's request to a body, and from a reply to an answer. Pure.

What `sampling_params` hold goes into the body as it is; what they leave out, the endpoint decides.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_json

from airflow_provider_raydatallm.contract.spec.json_schema import subschemas
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.columns import is_unicode, one_or_several, storable
from airflow_provider_raydatallm.processor.engines.feeding.tokenized_request import TokenizedRequest
from airflow_provider_raydatallm.processor.engines.http.api import Api, count, mapping
from airflow_provider_raydatallm.processor.engines.http.replies import (
    ROW_REFUSED,
    PassingError,
    RowRefusedError,
)

#: The key of a choice in the object that the endpoint answers: a schema's root must be an object.
_CHOICE = "answer"
#: Why an answer ended, in lower case, as servers of many vendors say it: it is whole, its server did not
#: finish it, or filtered it. All other reasons cut it, also unknown ones.
_WHOLE = (
    "stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete", "completed", "tool_calls",
    "tool_use", "function_call",
)  # fmt: skip
_BROKEN_OFF = ("abort", "cancelled", "error", "insufficient_system_resource")
_FILTERED = (
    "content_filter", "content_filtered", "guardrail_intervened", "safety", "recitation", "blocklist",
    "prohibited_content", "spii", "refusal",
)  # fmt: skip
_CUT = "length"
#: Of an answer that only shows that there is one.
_FEW_TOKENS = 16


class ChatApi(Api):
    path = "/chat/completions"
    _reply_name = "a chat completion"

    def __init__(self, job: SliceJob) -> None:
        super().__init__(job)
        self._fixed: dict[str, Any] = {"model": job.model_source, "stream": False}
        task = job.task_as(Generate)
        if task.tools is not None:
            self._fixed["tools"] = task.tools
        if task.chat_template_kwargs:  # of vLLM's server
            self._fixed["chat_template_kwargs"] = task.chat_template_kwargs
        self._has_shape = bool(task.shapes)

    def to_body(self, request: Mapping[str, Any]) -> TokenizedRequest:
        params: dict[str, Any] = request["sampling_params"]
        max_tokens = params.get("max_completion_tokens") or params.get("max_tokens")
        body = {**params, "messages": request["messages"], **self._fixed}
        if self._has_shape:
            body |= _response_format(body.pop("structured_outputs"))
        max_tokens = max_tokens if type(max_tokens) is int else 0
        if type(texts := params.get("n")) is int:
            max_tokens *= max(1, texts)
        return TokenizedRequest(params=to_json(body).decode(), total_tokens=max_tokens, max_tokens=max_tokens)

    def with_text(self, body: str, text: str) -> str:
        request = json.loads(body)
        limits = dict.fromkeys(_limits(request), _FEW_TOKENS)
        return json.dumps({**request, "messages": [{"role": "user", "content": text}], **limits})

    def plain(self, body: str, text: str) -> str:
        messages = [{"role": "user", "content": text}]
        least = {"model": self.job.model_source, "messages": messages}
        return json.dumps({**least, **_limits(json.loads(body))})

    def _read(self, reply: Any, asked: bytes, redact: Callable[[str], str]) -> dict[str, Any]:
        if not reply["choices"]:
            raise ValueError("no choices")
        usage = mapping(reply.get("usage"))
        columns = {
            "input_tokens": count(usage.get("prompt_tokens")),
            "output_tokens": count(usage.get("completion_tokens")),
            "cached_tokens": count(mapping(usage.get("prompt_tokens_details")).get("cached_tokens")),
            "reasoning_tokens": count(
                mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")
            ),
        }
        wanted, choices = _wanted_texts(asked), _in_order(reply["choices"])
        texts = []
        for choice in choices[:wanted]:
            reason = _text(choice.get("finish_reason"))
            try:
                texts.append(self._read_text(choice, reason, asked, redact))
            except RowRefusedError as e:
                reason = reason and storable(reason)
                return {**columns, "finish_reason": reason, "error_type": ROW_REFUSED, "error": str(e)}
        if len(texts) < wanted:
            error = f"the endpoint answered {len(texts)} of {wanted} texts (sampling_params n)"
            return {**columns, "error_type": ROW_REFUSED, "error": error}
        return {**columns, **one_or_several(texts)}

    def _read_text(
        self, choice: Mapping[str, Any], reason: str | None, asked: bytes, redact: Callable[[str], str]
    ) -> dict[str, Any]:
        """Returns `TEXT_FIELDS` of a text of an answer, or of its calls of tools as JSON.

        :raises RowRefusedError: when it is no answer.
        :raises PassingError: when its server did not finish it.
        """
        message, ended = choice["message"], f"(finish_reason {reason!r:.100})"
        refusal = redact(_text(message.get("refusal")) or "")
        kind = (reason or "stop").strip().lower()
        if kind in _BROKEN_OFF:
            raise PassingError(f"the endpoint did not finish its answer {ended}", may_have_cost=True)
        if kind in _FILTERED:
            raise RowRefusedError(f"the endpoint filtered its answer {ended}: {refusal!r:.500}")
        if refusal:
            raise RowRefusedError(f"the model refused to answer {ended}: {refusal!r:.500}")
        was_cut, text = kind not in _WHOLE, _join_parts(message.get("content"))
        if calls := message.get("tool_calls"):
            if not json.loads(asked).get("tools"):
                raise RowRefusedError(f"the endpoint called tools, and was given none {ended}")
            text = json.dumps(calls, ensure_ascii=False)
        thoughts = message.get("reasoning_content") or message.get("reasoning")
        if not was_cut and (text is None or (not text and thoughts)):
            what = "thoughts only" if thoughts else "no text"
            raise RowRefusedError(f"the endpoint answered {what} {ended}")
        if text is not None and not is_unicode(text):
            raise RowRefusedError("the endpoint's answer is not valid Unicode")
        if text is not None and self.job.task.labels_of_answers is not None:
            text = unwrap_choice(text)
        logprob, logprob_tokens = _read_logprobs(choice.get("logprobs"))
        return {
            "text": text,
            "finish_reason": _CUT if was_cut else reason,
            "logprob": logprob,
            "logprob_tokens": logprob_tokens,
        }


def _wanted_texts(asked: bytes) -> int:
    wanted = json.loads(asked).get("n")
    return wanted if type(wanted) is int and wanted > 0 else 1


def _in_order(choices: list[Any]) -> list[Any]:
    """By their index, where all have one."""
    if all(type(choice.get("index")) is int for choice in choices):
        return sorted(choices, key=lambda choice: int(choice["index"]))
    return choices


def _limits(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: request[name] for name in ("max_tokens", "max_completion_tokens") if request.get(name)}


def _join_parts(content: Any) -> str | None:
    """Returns the text of a content that may be a list of parts; those of thoughts are left out."""
    if not isinstance(content, list):
        return _text(content)
    texts = [part["text"] for part in content if part.get("type") in ("text", "output_text")]
    return "".join(texts) if texts else None


def _read_logprobs(logprobs: Any) -> tuple[float | None, int | None]:
    """Returns the logarithm of the probability of all tokens together, and their number.

    :raises RowRefusedError: when they are no numbers.
    """
    of_tokens = mapping(logprobs).get("content")
    if not of_tokens:
        return None, None
    try:
        numbers = [token["logprob"] for token in of_tokens]
        if all(type(number) in (int, float) for number in numbers):
            logprob = math.fsum(map(float, numbers))
            if math.isfinite(logprob):
                return logprob, len(numbers)
    except (LookupError, TypeError, ArithmeticError, ValueError):
        pass
    raise RowRefusedError("the endpoint's logprobs are no numbers")


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
