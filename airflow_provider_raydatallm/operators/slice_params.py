"""Params of a DAG for the trigger form, the REST API and the page's actions, which know them by these names.

A Param does nothing by itself: the task's templates use it, as in the example DAG `customers_operated`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from airflow.sdk import Param

from airflow_provider_raydatallm.contract.spec.quality import Quality
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.task.arguments import check_list


def slice_params(
    *, models: Sequence[str] = (), engines: Sequence[str] = (), ranges: bool = False
) -> dict[str, Param]:
    """Returns Params that ask for a slice and what to do with it. `{**slice_params(), "slice": Param(...)}`
    replaces one, such as that of a table whose slices are no days.

    | Param | template |
    |---|---|
    | `slice` | none: the operator reads it |
    | `model` | `model_source="{{ params.model }}"` |
    | `engine` | `engine="{{ params.engine }}"` |
    | `max_rows` | `source={"max_rows": "{{ params.max_rows }}"}` |
    | `retry_quarantined` | `rerun={"retry_quarantined": "{{ params.retry_quarantined }}"}` |
    | `force` | `rerun={"force": "{{ params.force }}"}` |
    | `max_quarantine` | `quality={"max_quarantine": "{{ params.max_quarantine }}"}` |

    :param models: to choose from, the usual one first. Without any there is no Param `model`.
    :param engines: engine profiles of the connection, likewise.
    :param ranges: whether there is a Param `last_slice`, too, for a task that is mapped over `slices_asked`.
    """
    params = {
        "slice": Param(
            None, type=["null", "string"], format="date", title="Day", description="Empty: that of the run"
        )
    }
    if ranges:
        params["last_slice"] = Param(
            None, type=["null", "string"], format="date", title="Last day",
            description="Of several, from Day on. Empty: that day only",
        )  # fmt: skip
    if models:
        params["model"] = _choice("Model", "Another one replaces the day's answers", models)
    if engines:
        params["engine"] = _choice("Engine", "A profile of the Ray connection", engines)
    return {
        **params,
        "max_rows": Param(
            None, type=["null", "integer"], minimum=1, title="Rows of a trial",
            description="Empty: the whole day. Else so many rows, into a table of their own",
        ),
        "retry_quarantined": Param(
            False, type="boolean", title="Answer quarantined rows again", description="Of a published day"
        ),
        "force": Param(
            False, type="boolean", title="Answer all rows again", description="Also where nothing changed"
        ),
        "max_quarantine": Param(
            Quality.model_fields["max_quarantine"].default, type="number", minimum=0, maximum=1,
            title="Share of rows that may fail", description="From 0 to 1. Above it nothing is published",
        ),
    }  # fmt: skip


def slices_asked(params: Mapping[str, Any]) -> list[str]:
    """Returns the days from the Param `slice` to `last_slice`, to map a task over.

    :raises RayLLMInputError: when there is no first day, or the last one is before it.
    """
    first, last = params.get("slice"), params.get("last_slice")
    if not first:
        raise RayLLMInputError(
            "the Param 'slice' is empty", advice="Trigger the DAG with its first day, as 2026-01-31"
        )
    try:
        begin, end = date.fromisoformat(first), date.fromisoformat(last or first)
    except (TypeError, ValueError) as e:
        raise RayLLMInputError(
            f"the Params 'slice' and 'last_slice' are {first!r} and {last!r}: {e}"
        ) from None
    if end < begin:
        raise RayLLMInputError(f"the Param 'last_slice' is {last!r}, before 'slice', which is {first!r}")
    return [str(begin + timedelta(days=i)) for i in range((end - begin).days + 1)]


def _choice(title: str, description: str, values: Sequence[str]) -> Param:
    check_list(f"what to choose from for the Param {title!r}", values)
    return Param(values[0], type="string", enum=list(values), title=title, description=description)
