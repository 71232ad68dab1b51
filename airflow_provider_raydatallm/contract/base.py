"""What the parts of the spec have in common."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from airflow_provider_raydatallm.contract.durations import to_seconds

#: An address or an absolute path: every process on every node has to find the same folder.
FOLDER = re.compile(r"^(/|[A-Za-z][A-Za-z0-9+.-]*://)\S")

#: As people write durations.
Seconds = Annotated[float, BeforeValidator(to_seconds), Field(gt=0, allow_inf_nan=False)]


def check_ordered(value: Any) -> Any:
    """:raises ValueError: for a set, whose order is another one in each process, and with it the
    fingerprint."""
    if isinstance(value, Set):
        raise ValueError("a set has no order: give a list")
    return value


class Contract(BaseModel):
    # An address that is refused may hold a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True)
