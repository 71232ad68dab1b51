"""`task="embed"`: the vector of a text."""

from __future__ import annotations

from typing import ClassVar, Literal

from airflow_provider_raydatallm.contract.base import Group
from airflow_provider_raydatallm.contract.spec.field import Affects, leaf
from airflow_provider_raydatallm.contract.spec.tasks.base import Task


class Embedding(Group):
    """The vectors of `task="embed"`."""

    dimensions: int | None = leaf(
        None,
        affects=Affects.ANSWERS,
        doc="numbers of a vector, for models that are trained to have it cut (Matryoshka). Default: the "
        "model's own.",
        ge=1,
    )
    dtype: Literal["float32", "float16", "int8"] = leaf(
        "float32",
        affects=Affects.REQUEST,
        doc="`float32`, `float16`, or `int8`, a quarter of the size: times the column `<output>_scale` it is "
        "the vector, each number within half a scale.",
    )
    normalize: bool = leaf(
        True,
        affects=Affects.ANSWERS,
        doc="whether vectors have length 1, so that their product is the cosine. Default: True.",
    )


class Embed(Task):
    """The vector of a text."""

    pools: ClassVar[bool] = True
    answers_vectors: ClassVar[bool] = True
    functions: ClassVar[frozenset[str]] = frozenset({"preprocess"})

    kind: Literal["embed"] = leaf(affects=Affects.ANSWERS)
    embedding: Embedding = Embedding()

    @property
    def numbers_per_answer(self) -> int | None:
        return self.embedding.dimensions
