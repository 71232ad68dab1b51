"""What is wrong with a spec, in the words of those who wrote it."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from airflow_provider_raydatallm.contract.groups import label
from airflow_provider_raydatallm.contract.spec.slice_job import (
    ADDRESSES,
    MAY_HOLD_SECRETS,
    CsvOptions,
    SliceJob,
)

if TYPE_CHECKING:
    import pydantic
    from pydantic_core import ErrorDetails


def describe_problems(error: pydantic.ValidationError) -> str:
    """Names each argument, with its value where that holds no secret."""
    return "; ".join(map(_describe, error.errors(include_url=False)))


def _describe(problem: ErrorDetails) -> str:
    field, *inside = map(str, problem["loc"]) if problem["loc"] else ("",)
    name = ".".join([label(field), *inside])
    if problem["type"] == "missing":
        return f"{name} is missing"
    if problem["type"] == "extra_forbidden" and not inside and name != field:
        return f"{name} is for a task: leave it out"
    if problem["type"] == "extra_forbidden":
        return f"there is no {name}{_nearest(field, *inside)}"
    message = problem["msg"].removeprefix("Value error, ").replace("a valid tuple", "a list")
    # Some may hold a secret, and their messages quote the value when not.
    is_shown = field not in (*ADDRESSES, *MAY_HOLD_SECRETS)
    got = f" (got {problem['input']!r:.200})" if is_shown else ""
    return f"{name}: {message}{got}" if field else message


def _nearest(field: str, leaf: str | None = None) -> str:
    if leaf is not None:
        return f": {label(field)} has {', '.join(CsvOptions.model_fields)}"
    near = difflib.get_close_matches(field, SliceJob.model_fields, n=1)
    return f": did you mean {label(near[0])}?" if near else ""
