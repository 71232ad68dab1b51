"""How a slice waits for the person who decides whether it is published."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from airflow_provider_raydatallm.contract.base import Contract, Seconds, Several

#: How long a slice that waits is kept.
HOLD_DAYS = 365.0
_Wait = Annotated[Seconds, Field(le=HOLD_DAYS * 86400)]
#: None of them, as an upstream task may say, is an error: it does not mean everybody.
_Users = Annotated[Several[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=100)]


class Hold(Contract):
    """Who decides of a slice that a gate holds, and what happens when nobody does: it goes on waiting.

    users: ids of the Airflow users who may decide. Default: all who may answer the DAG's required actions.
    reject_after: time after which the slice is rejected.
    approve_after: time after which it is published without anybody having looked at it.
    """

    users: _Users = ()
    reject_after: _Wait | None = None
    approve_after: _Wait | None = None

    @model_validator(mode="after")
    def _check_one_end(self) -> Hold:
        if self.reject_after is not None and self.approve_after is not None:
            raise ValueError("reject_after and approve_after exclude each other: give one of them, or none")
        return self
