"""A postprocess function declares its columns by its return annotation."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pydantic
import pytest
import typing_extensions

from airflow_provider_raydatallm.processor.request.answers.return_types import declared_columns


class Color(enum.StrEnum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: float | None
    when: dt.datetime


class Row(TypedDict):
    name: str
    size: NotRequired[int]
    points: list[Point]
    kind: Literal["a", "b"]
    anything: Any
    either: int | str
    number: int | float
    data: dict[str, int]
    day: Annotated[dt.date, "a day"]


class Model(pydantic.BaseModel):
    ok: bool
    tags: Sequence[str]
    inner: Point | None = None


class Other(typing_extensions.TypedDict):
    a: str


class Chain(TypedDict):
    next: Chain


def row(row: Any) -> Row: ...  # type: ignore[empty-body]


def model(row: Any) -> Model | None: ...


def point(row: Any) -> Point: ...  # type: ignore[empty-body]


def text(row: Any) -> str | None: ...


def vector(row: Any) -> list[float]: ...  # type: ignore[empty-body]


def plain(row: Any) -> dict[str, Any]: ...  # type: ignore[empty-body]


def mapping(row: Any) -> Mapping[str, str]: ...  # type: ignore[empty-body]


def chain(row: Any) -> Chain: ...  # type: ignore[empty-body]


def unknown(row: Any) -> Missing: ...  # type: ignore[name-defined, empty-body]  # noqa: F821


def other(row: Any) -> Other: ...  # type: ignore[empty-body]


def nothing(row):  # type: ignore[no-untyped-def]
    return row


class Callable:
    def __call__(self, row: Any) -> Point: ...  # type: ignore[empty-body]


POINT = {"x": "bigint", "y": "float", "when": "null"}
ROW = {
    "name": "string", "size": "bigint", "points": {"list": {"struct": POINT}}, "kind": "string",
    "anything": "null", "either": "null", "number": "float", "data": "null", "day": "date",
}  # fmt: skip


@pytest.mark.parametrize(("function", "columns"), [
    (row, ROW), (point, POINT), (Callable(), POINT), (text, {"answer": "string"}),
    (other, {"a": "string"}), (vector, {"answer": {"list": "float"}}),
    (model, {"ok": "bool", "tags": {"list": "string"}, "inner": {"struct": POINT}}),
    (plain, {}), (mapping, {}), (chain, {}), (unknown, {}), (nothing, {}), (len, {}),
])  # fmt: skip
def test_return_annotation_decides_the_columns(function: Any, columns: dict[str, Any]) -> None:
    assert declared_columns(function, "answer") == columns
