"""What is wrong with a spec, in the words in which people write it."""

from __future__ import annotations

import difflib

import pydantic

from airflow_provider_raydatallm.contract.groups import label
from airflow_provider_raydatallm.contract.spec.slice_job import ADDRESSES, MAY_HOLD_SECRETS, SliceJob

_NOT_SHOWN = [(name,) for name in (*ADDRESSES, *MAY_HOLD_SECRETS)]


def spec_problems(error: pydantic.ValidationError) -> str:
    """Returns each problem with its argument and, unless it may hold a secret, the value."""
    problems = []
    for problem in error.errors(include_url=False):
        location = problem["loc"]
        field = ".".join([label(str(part)) for part in location[:1]] + [str(part) for part in location[1:]])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden" and len(location) == 1:
            of_task = field != location[0]  # a leaf of `limits` that no job has
            message = "it is for a task: leave it out" if of_task else f"no such argument{_nearest(field)}"
        is_shown = problem["type"] not in ("extra_forbidden", "missing") and location[:1] not in _NOT_SHOWN
        got = f" (got {problem['input']!r:.200})" if is_shown else ""
        problems.append(f"{field}: {message}{got}" if field else message)
    return "; ".join(problems)


def _nearest(name: str) -> str:
    nearest = difflib.get_close_matches(name, map(label, SliceJob.model_fields), 1, 0.7)
    return f": did you mean {nearest[0]!r}?" if nearest else ""
