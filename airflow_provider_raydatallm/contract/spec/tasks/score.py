"""`task="score"`: how well a text answers a query."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from airflow_provider_raydatallm.contract.spec.field import Affects, leaf
from airflow_provider_raydatallm.contract.spec.tasks.base import Task


class Score(Task):
    """How well a text answers a query."""

    pools: ClassVar[bool] = True
    scores_pairs: ClassVar[bool] = True
    functions: ClassVar[frozenset[str]] = frozenset()

    kind: Literal["score"] = leaf(affects=Affects.ANSWERS)
    query: str | None = leaf(
        None,
        affects=Affects.REQUEST,
        doc='what the texts of `task="score"` are compared with, with `{column}` fields as in `prompt`.',
        of_row=True,
        stand_in="x",
    )

    @model_validator(mode="after")
    def _check_query(self) -> Score:
        if self.query is None:
            raise ValueError(
                "task='score' compares two texts of a row: give query and prompt, both with {column} fields"
            )
        return self

    @property
    def request_arguments(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "query": self.query}

    @property
    def numbers_per_answer(self) -> int:
        return 1

    @property
    def texts(self) -> list[str]:
        return [text for text in (self.prompt, self.query) if text is not None]
