"""What is wrong with a spec, in the words of those who wrote it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

from airflow_provider_raydatallm.contract.spec.engines import KINDS
from airflow_provider_raydatallm.contract.spec.leaves import (
    LEAVES,
    other_kinds,
    shows_value,
    unknown_argument,
)
from airflow_provider_raydatallm.contract.spec.slice_job import GROUPS

if TYPE_CHECKING:
    import pydantic
    from pydantic_core import ErrorDetails

#: Of one in a list.
_PLACE = re.compile(r"\.\d+$")
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


def describe_problems(error: pydantic.ValidationError) -> str:
    """Names each argument, with its value where that holds no secret."""
    return "; ".join(map(_describe, error.errors(include_url=False)))


def _describe(problem: ErrorDetails) -> str:
    path, kind = _written_path(problem["loc"])
    if problem["type"] == "missing":
        return f"{path} is missing"
    if problem["type"] == "union_tag_invalid":
        known = str(problem.get("ctx", {}).get("expected_tags"))
        return f"{path}: give one of {known} (got {problem.get('ctx', {}).get('tag')!r:.200})"
    if problem["type"] == "extra_forbidden":
        return _describe_unknown(path, kind)
    message = problem["msg"].removeprefix("Value error, ")
    message = message.replace("a valid tuple", "a list").replace("Tuple should", "List should")
    if problem["type"] == "model_type":  # the names of models are nobody's business
        message = "Input should be a dict"
    if problem["type"] == "float_parsing" and (percent := _PERCENT.fullmatch(str(problem["input"]))):
        message = f"a share is from 0 to 1: write {float(percent[1]) / 100:g}"
    if path in ("", "task", *GROUPS):  # the texts of what goes together name the leaves
        return message
    group, *rest = path.split(".")
    leaf = f"{group}.{rest[0]}" if group in GROUPS else group  # without what is inside of a dict
    # Some may hold a secret, and their messages quote the value when not.
    got = f" (got {problem['input']!r:.200})" if shows_value(leaf) else ""
    return f"{path}: {message}{got}"


def _written_path(loc: tuple[int | str, ...]) -> tuple[str, str | None]:
    """Returns the path as people write it, and the kind of the task or the engine that it is of."""
    parts = [str(part) for part in loc]
    if parts[:1] == ["task"]:
        return (".".join(parts[2:]), parts[1]) if len(parts) > 2 else ("task", None)
    if parts[:1] == ["engine"]:
        return ".".join(["engine", *parts[2:]]), parts[1] if len(parts) > 1 else None
    return ".".join(parts), None


def _describe_unknown(path: str, kind: str | None) -> str:
    if kind is not None and (conditions := other_kinds(path)):
        name, separator, values = conditions[0].partition("=")
        kinds = " or ".join([values, *(condition.partition("=")[2] for condition in conditions[1:])])
        is_own = kind == "own"  # people write the class
        engine = "this slice's engine is " + ("a class of your own" if is_own else repr(kind))
        is_now = f"task is {kind!r}" if name == "task" else engine
        instead = KINDS[kind].instead.get(path.rpartition(".")[2]) if kind in KINDS else None
        otherwise = "leave one of them out" if name == "task" else f"leave it out, or set {name}"
        return f"{path} is for {name}{separator}{kinds}, and {is_now}: {instead or otherwise}"
    if path in LEAVES:
        return f"{path} is for a task: leave it out"
    parent = path.rpartition(".")[0]
    if leaf := LEAVES.get(_PLACE.sub("", parent)):  # dicts with fields of their own, such as source.csv
        annotation = leaf.field.annotation
        model: Any = next(m for m in (annotation, *get_args(annotation)) if hasattr(m, "model_fields"))
        return f"there is no {path}: {parent} has {', '.join(model.model_fields)}"
    return unknown_argument(path)
