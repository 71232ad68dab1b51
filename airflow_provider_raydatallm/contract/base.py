"""What the parts of the spec have in common."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from airflow_provider_raydatallm.contract.durations import to_seconds

#: An address or an absolute path: every process on every node has to find the same folder.
FOLDER = re.compile(r"^(/|[A-Za-z][A-Za-z0-9+.-]*://)\S")

#: As people write durations.
Seconds = Annotated[float, BeforeValidator(to_seconds), Field(gt=0, allow_inf_nan=False)]


def _refuse_without_order(value: Any) -> Any:
    """A set has another order in each process, and the slice would have another configuration. An iterator
    is empty after the check at parsing."""
    if isinstance(value, set | frozenset | Iterator):
        raise ValueError(
            f"it is a {type(value).__name__}, whose order or content would not stay: give a list"
        )
    return value


Texts = Annotated[tuple[str, ...], BeforeValidator(_refuse_without_order)]


class Contract(BaseModel):
    # An address that is refused may hold a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True)
