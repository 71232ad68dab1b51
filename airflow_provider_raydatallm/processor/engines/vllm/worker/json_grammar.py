"""Answers of a JSON schema that end: little room for whitespace, and none for endless repetition.

A grammar of a JSON schema permits any whitespace between two values, and a model that has nothing to say may
write it until max_tokens. vLLM forbids it for an engine as a whole; here each request says so itself, in the
forms that its two backends read, as slices with other schemas may share the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from airflow_provider_raydatallm.contract.spec.json_schema import subschemas

#: Whitespace between two values of an open schema, in characters: a deep indentation.
_MAX_WHITESPACE = 32
#: vLLM ends an answer whose last tokens are so many times the same few. It looks after each token, for each
#: size, and the GPU waits for it (1,024 answers at once on an H200: 0.2% longer; 16 sizes four times each:
#: 1.5 to 5%). So it is one size, which most shorter ones divide: one token over and over is 24 of them over
#: and over, too. That many times, so that a number for each day of a month is no repetition.
REPETITION = {"min_pattern_size": 24, "max_pattern_size": 24, "min_count": 6}
#: A schema that demands values of so many characters may demand repetition, ...
_LONG = 48
#: ... or of so many items.
_MANY = REPETITION["min_count"]


def bound(params: dict[str, Any], shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """Bounds the repetition of an answer, unless its row says how, and the whitespace in it.

    :param params: vLLM's sampling parameters, which are changed.
    :param shape: their `structured_outputs`, which is returned as it is unless `disable_any_whitespace` says
        whether whitespace is forbidden in its JSON, or bounded.
    """
    schema, is_compact = shape.get("json"), shape.get("disable_any_whitespace")
    if not isinstance(schema, str) or is_compact is None:
        return shape
    if not _may_demand_repetition(schema):
        params.setdefault("repetition_detection", REPETITION)
    return _with_bounded_whitespace(schema, is_compact)


@lru_cache(64)
def _with_bounded_whitespace(text: str, is_compact: bool) -> Mapping[str, Any]:
    """Returns vLLM's `structured_outputs`, as a grammar where xgrammar can write it. Where only llguidance
    reads the schema, whitespace is forbidden or free."""
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features
    from xgrammar import Grammar

    schema = json.loads(text)
    if not has_xgrammar_unsupported_json_features(schema):
        options: Any = {"any_whitespace": False} if is_compact else {"max_whitespace_cnt": _MAX_WHITESPACE}
        try:
            return {"grammar": str(Grammar.from_json_schema(text, **options))}
        except RuntimeError:  # llguidance may know better
            pass
    if is_compact:
        # As json.dumps separates.
        compact = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        schema = {"x-guidance": compact, **schema}
    return {"json": json.dumps(schema)}


@lru_cache(64)
def _may_demand_repetition(schema: str) -> bool:
    """Whether an answer that repeats itself may be just what the schema asks for."""
    for part in subschemas(json.loads(schema)):
        if _demands(part, "minLength", _LONG) or _demands(part, "minItems", _MANY):
            return True
        if "pattern" in part or any(len(text) >= _LONG for text in _constants(part)):
            return True
    return False


def _demands(part: Mapping[str, Any], keyword: str, number: int) -> bool:
    bound = part.get(keyword)
    return isinstance(bound, (int, float)) and bound >= number


def _constants(part: Mapping[str, Any]) -> list[str]:
    """JSON of the values that the schema spells out, names included."""
    enum, properties = part.get("enum"), part.get("properties")
    values = [part.get("const"), *(enum if isinstance(enum, list) else ())]
    names = list(properties) if isinstance(properties, Mapping) else []
    return [json.dumps(value) for value in [*values, *names]]
