"""Code of users, which is another for each hash that a job has of it."""

from __future__ import annotations

from typing import Any

from airflow_provider_raydatallm.contract.spec.engines.base import ClusterEngine
from tests.support.stub_engine import StubEngine

_THIS = "tests.support.effects.functions"
ASK, ASK_OTHERWISE = f"{_THIS}:ask", f"{_THIS}:ask_otherwise"
READ, READ_OTHERWISE = f"{_THIS}:read", f"{_THIS}:read_otherwise"
ENGINE, OTHER_ENGINE = f"{_THIS}:OwnEngine", f"{_THIS}:OtherEngine"

#: The hash of the code that runs now.
running_code = ""


def run_code(code_hash: str) -> None:
    global running_code
    running_code = code_hash


def ask(row: dict[str, Any]) -> str:
    return f"{running_code}: {row['a']}"


def ask_otherwise(row: dict[str, Any]) -> str:
    return f"{running_code}! {row['a']}"


def read(row: dict[str, Any]) -> dict[str, str]:
    return {"label": f"{running_code}: {row['answer']}"}


def read_otherwise(row: dict[str, Any]) -> dict[str, str]:
    return {"label": f"{running_code}! {row['answer']}"}


class OwnEngine(StubEngine):
    """Does with its arguments what vLLM does. `arguments` decide its answers."""

    @property
    def arguments(self) -> dict[str, Any]:
        given = dict(self.engine_kwargs)
        if given.get("max_model_len") == "auto":
            given["max_model_len"] = f"of {self.job.engine_as(ClusterEngine).max_model_len_percentile} %"
        return {"class": type(self).__name__, "code": running_code, "model": self.job.model_source, **given}


class OtherEngine(OwnEngine):
    """Another class, and so another engine."""
