"""Own checks of users, which read a slice's answered rows before these are published."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.gate import OF_SQL
from airflow_provider_raydatallm.processor.gates.sql import MEND, open_query
from airflow_provider_raydatallm.processor.load_function import load_function
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs

if TYPE_CHECKING:
    import pyarrow.dataset as ds


@dataclass(frozen=True)
class CheckPlan:
    """
    :param check: as the gate says it.
    :param files: addresses of the staged files.
    """

    check: str
    files: tuple[str, ...]


def load_check(check: str) -> Callable[[ds.Dataset], Any]:
    """:raises SliceError: when it is none that could run here."""
    if check.startswith(OF_SQL):
        return open_query(check.removeprefix(OF_SQL))
    function = load_function(check)
    assert function is not None
    return function


def open_rows(files: Sequence[str]) -> ds.Dataset:
    """
    :param files: addresses of staged files, in one place.
    """
    import pyarrow.dataset as ds  # with pandas, which few runs need

    opened = [open_fs(file) for file in files]
    return ds.dataset([path for _, path in opened], filesystem=opened[0][0], format="parquet")


def run_check(plan: CheckPlan) -> float | None:
    """Returns what the check says of the rows; None where it knows nothing, such as of no rows.

    :raises SliceError: when it raises, or returns anything else than a number.
    """
    check, rows = load_check(plan.check), open_rows(plan.files)
    try:
        value = check(rows)
    except SliceError:
        raise
    except Exception as e:
        raise SliceError(
            f"the check {plan.check!r} raised a {type(e).__name__}",
            kind="input",
            advice=MEND,
            row_texts=(str(e),),
        ) from e
    if value is None:
        return None
    if (number := _number(value)) is None:
        raise SliceError(
            f"the check {plan.check!r} returned a {type(value).__name__}, which is no finite number",
            kind="input",
            advice=MEND,
            row_texts=(f"{value!r:.200}",),
        )
    return number


def _number(value: Any) -> float | None:
    """Returns None where it is no finite number. NumPy's are such as Python's are."""
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
