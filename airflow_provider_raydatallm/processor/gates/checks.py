"""Checks of users: functions that look at a slice's answered rows before they are published."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyarrow.dataset as ds

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.load_function import load_function
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs


@dataclass(frozen=True)
class CheckPlan:
    """
    :param reference: `"package.module:function"`.
    :param files: addresses of the staged files.
    """

    reference: str
    files: tuple[str, ...]


def run_check(plan: CheckPlan) -> float:
    """Returns what the function says of the rows.

    :raises SliceError: when it raises, or returns no number.
    """
    function = load_function(plan.reference)
    assert function is not None
    opened = [open_fs(file) for file in plan.files]
    rows = ds.dataset([path for _, path in opened], filesystem=opened[0][0], format="parquet")
    try:
        value = function(rows)
    except Exception as e:
        raise SliceError(
            f"the check {plan.reference!r} raised a {type(e).__name__}",
            kind="input",
            advice="Its rows are kept: mend it and clear the task, which asks the model nothing",
            row_texts=(str(e),),
        ) from e
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise SliceError(
            f"the check {plan.reference!r} returned a {type(value).__name__}, which is no finite number",
            kind="input",
            row_texts=(repr(value)[:200],),
        )
    return float(value)
