"""A second model that judges a sample of a slice's answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from airflow_provider_raydatallm.contract.addresses import check_address
from airflow_provider_raydatallm.contract.base import Contract, to_json_value
from airflow_provider_raydatallm.contract.spec.engine_arguments import with_scalars

#: How many answers it judges at most: one process writes them down for it.
MOST_JUDGED_ROWS = 10_000


class Judge(Contract):
    """A second model that is asked of random answers whether they are right.

    model: as `model_source`. It runs on the slice's kind of engine, once the slice's has ended.
    prompt: a question that yes or no answers, with `{column}` fields of the input and of the answers, such as
        "Review: {review} Label: {answer} Is the label right?"
    rows: how many answers it judges.
    kwargs: vLLM's engine arguments for it.
    """

    model: Annotated[str, Field(min_length=1)]
    prompt: Annotated[str, Field(min_length=1)]
    rows: Annotated[int, Field(ge=1, le=MOST_JUDGED_ROWS)] = 200
    kwargs: dict[str, Any] = {}

    @field_validator("model")
    @classmethod
    def _check_model(cls, value: str) -> str:
        return check_address(value) if "://" in value else value

    @field_validator("kwargs")
    @classmethod
    def _check_kwargs(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "trust_remote_code" in value:
            raise ValueError("trust_remote_code would run the judge's own code: leave it out")
        return with_scalars(dict(to_json_value(value)))
