"""Golden rows: rows whose right answers are known."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from airflow_provider_raydatallm.contract.addresses import check_absolute, check_address, check_fields
from airflow_provider_raydatallm.contract.base import Contract

#: How many there may be: one process compares them all.
MOST_GOLDEN_ROWS = 100_000


class Golden(Contract):
    """Rows whose right answers are known.

    path: a file of them, or a folder or pattern of files, in any input format, by their extensions. They have
        the input's columns that the request reads, and one or more of the answers' columns. `{slice}` stands
        for the slice key.
    """

    path: Annotated[str, Field(min_length=1)]

    @field_validator("path")
    @classmethod
    def _check_path(cls, value: str) -> str:
        check_address(value)  # first: the others name it
        check_absolute("quality.golden", value)
        check_fields("quality.golden", value)
        return value
