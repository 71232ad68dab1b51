"""An engine of the user's own: `"package.module:Class"`."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import field_validator

from airflow_provider_raydatallm.contract.spec.engines.base import SELDOM, Capabilities, ClusterEngine
from airflow_provider_raydatallm.contract.spec.field import Affects, leaf

_CLASS = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")


class Own(ClusterEngine):
    """A class of the user's, which says on the cluster what it cannot do."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        "", tasks=None, follows=SELDOM - {"adapter"}, reads_media_in_messages=True, loads_model=True
    )

    kind: str = leaf(affects=Affects.ANSWERS)

    @field_validator("kind")
    @classmethod
    def _check_reference(cls, value: str) -> str:
        if not _CLASS.match(value):
            raise ValueError(f"{value!r} is not of the form 'package.module:Class'")
        return value

    @property
    def reference(self) -> str:
        return self.kind

    @property
    def is_users_code(self) -> bool:
        return True
