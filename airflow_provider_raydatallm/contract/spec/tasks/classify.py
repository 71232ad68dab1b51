"""`task="classify"`: one of the labels that the model's classification head was trained for."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator

from airflow_provider_raydatallm.contract.base import Group, Texts
from airflow_provider_raydatallm.contract.spec.field import Affects, leaf
from airflow_provider_raydatallm.contract.spec.tasks.base import Task
from airflow_provider_raydatallm.contract.spec.tasks.choices import CHOICES, check_choices


class HeadLabels(Group):
    """Columns beside the label."""

    confidence: bool = leaf(False, affects=Affects.REQUEST)


class Classify(Task):
    """One of the labels that the model's classification head was trained for."""

    pools: ClassVar[bool] = True
    answers_labels: ClassVar[bool] = True

    kind: Literal["classify"] = leaf(affects=Affects.ANSWERS)
    choices: Texts | None = leaf(None, affects=Affects.REQUEST, doc=CHOICES, stand_in=("x", "y"))
    labels: HeadLabels = HeadLabels()

    @field_validator("choices")
    @classmethod
    def _check_choices(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return check_choices(value)

    @property
    def shapes(self) -> list[str]:
        return ["choices"] if self.choices is not None else []

    @property
    def labels_of_answers(self) -> tuple[str, ...] | None:
        return self.choices

    @property
    def has_confidence(self) -> bool:
        return self.labels.confidence

    @property
    def numbers_per_answer(self) -> int | None:
        return len(self.choices or ()) or None
