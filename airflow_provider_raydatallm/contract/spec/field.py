"""Declares arguments: each once, with its type, default, documentation and what it affects.

Fingerprint, cache key, template fields, TypedDicts, errors and the reference pages derive from the
declarations (`contract.fingerprint`, `contract.spec.leaves`, `docs_build`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Protocol, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from airflow_provider_raydatallm.contract.base import Group


class Affects(Enum):
    """What another value of an argument changes."""

    #: The answer to a request, and so the key of the answer cache.
    ANSWERS = "answers"
    #: The answers, through the requests, which the answer cache knows by their content.
    REQUEST = "request"
    #: Which columns and files are published, but no answer.
    PUBLISHED = "published"
    #: Which rows the slice has, or how they are read; ids of units cover it.
    ROWS = "rows"
    #: The input, whose identity the plan keeps.
    INPUT = "input"
    NOTHING = "nothing"


class Spec(Protocol):
    """The job (`slice_job`), as its parts see it, which it is made of."""

    @property
    def task(self) -> Any: ...
    @property
    def engine(self) -> Any: ...
    @property
    def source(self) -> Any: ...
    @property
    def quality(self) -> Any: ...
    @property
    def preprocess(self) -> str | None: ...
    @property
    def postprocess(self) -> str | None: ...
    @property
    def compares_labels(self) -> bool: ...


#: What a value affects, where that depends on the rest of the job.
AffectsOf: TypeAlias = Callable[[Spec], Affects]


@dataclass(frozen=True)
class Declaration:
    """
    :param affects: what another value changes.
    :param doc: for users.
    :param counts: the part of a value that has the effect; None: all of it.
    :param is_template: whether the operator renders it, where it stands in no group.
    :param may_hold_secret: whether people write secrets in it, which are refused and never shown.
    :param is_address: whether it is an address of files.
    :param is_of_row: whether it may bring a row's own into its request: a column, or a text with its fields.
    :param stand_in: what stands for it when the DAG is parsed and its value is not rendered yet, so that what
        needs it is checked; None where nothing does.
    """

    affects: Affects | AffectsOf
    doc: str
    counts: Callable[[Any], Any] | None = None
    is_template: bool = True
    may_hold_secret: bool = False
    is_address: bool = False
    is_of_row: bool = False
    stand_in: Any = None

    def affects_of(self, job: Spec) -> Affects:
        return self.affects if isinstance(self.affects, Affects) else self.affects(job)


def leaf(
    default: Any = ...,
    *,
    affects: Affects | AffectsOf,
    doc: str = "",
    counts: Callable[[Any], Any] | None = None,
    template: bool = True,
    secret: bool = False,
    address: bool = False,
    of_row: bool = False,
    stand_in: Any = None,
    **constraints: Any,
) -> Any:
    """Declares an argument: a field of a group, a task, an engine, or of the job itself.

    :param default: its value, or the class of an empty one (`dict`); required without it.
    :param constraints: pydantic's.
    """
    made = {"default_factory": default} if isinstance(default, type) else {"default": default}
    field = Field(**made, **constraints)
    field.metadata.append(Declaration(affects, doc, counts, template, secret, address, of_row, stand_in))
    return field


def declaration(field: FieldInfo) -> Declaration | None:
    """Returns how a leaf is declared; None for a group, a task or an engine."""
    return next((m for m in field.metadata if isinstance(m, Declaration)), None)


def models_of(annotation: Any) -> list[type[Group]]:
    """Returns the models that a field's value may be: one for a group, several for tasks and engines."""
    if isinstance(annotation, type) and issubclass(annotation, Group):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_of(part)]


def kinds_of(annotation: Any) -> dict[str, type[Group]]:
    """Returns the models of tasks, or engines, by the kinds that people write."""
    kinds = {}
    for model in models_of(annotation):
        for kind in get_args(model.model_fields["kind"].annotation):
            kinds[kind] = model
    return kinds


def default_of(field: FieldInfo) -> Any:
    """Returns the default; `...` where a value is required."""
    return ... if field.is_required() else field.get_default(call_default_factory=True)


@cache
def _declared(model: type[BaseModel]) -> list[tuple[str, FieldInfo, Declaration | None]]:
    return [(name, field, declaration(field)) for name, field in model.model_fields.items()]


def leaves_of(model: BaseModel, group: str = "") -> Iterator[tuple[str, Any, FieldInfo, Declaration]]:
    """Yields the path as people write it, the value, field and declaration of each leaf.

    :raises TypeError: for a field without a declaration.
    """
    for name, field, declared in _declared(type(model)):
        value, path = getattr(model, name), f"{group}.{name}" if group else name
        if declared is not None:
            yield path, value, field, declared
        elif isinstance(value, Group):
            yield from leaves_of(value, group if value.stands_beside_job else path)
        else:
            raise TypeError(
                f"{type(model).__name__}.{name} does not say what it affects: declare it by leaf()"
            )


def affected(job: Any, *effects: Affects) -> dict[str, Any]:
    """Returns the values, by their paths and as JSON has them, that have one of these effects and are not the
    default, so that a new argument changes no published slice."""
    values = {}
    for path, value, field, declared in leaves_of(job):
        if declared.affects_of(job) in effects:
            counts = declared.counts or _all
            if field.is_required() or counts(value) != counts(default_of(field)):
                values[path] = to_jsonable_python(counts(value))
    return values


def _all(value: Any) -> Any:
    return value


def is_collection(annotation: Any) -> bool:
    """Whether values are lists, dicts or groups, and never text."""
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        return any(map(is_collection, kinds)) and str not in kinds
    if get_origin(annotation) is Annotated:
        return is_collection(get_args(annotation)[0])
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, (dict, list, tuple, BaseModel))
