"""What the parts of the spec have in common."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from airflow_provider_raydatallm.contract.durations import to_optional_seconds, to_seconds

_Item = TypeVar("_Item")

#: An address or an absolute path: every process on every node has to find the same folder.
FOLDER = re.compile(r"^(/|[A-Za-z][A-Za-z0-9+.-]*://)\S")

#: As people write durations.
Seconds = Annotated[float, BeforeValidator(to_seconds), Field(gt=0, allow_inf_nan=False)]
#: None, or "never": without an end.
OptionalSeconds = Annotated[
    Annotated[float, Field(gt=0, allow_inf_nan=False)] | None, BeforeValidator(to_optional_seconds)
]


def _refuse_without_order(value: Any) -> Any:
    """A set has another order in each process, and the slice would have another configuration. An iterator
    is empty after the check at parsing."""
    if isinstance(value, set | frozenset | Iterator):
        raise ValueError(
            f"it is a {type(value).__name__}, whose order or content would not stay: give a list"
        )
    return value


#: A list as people write it.
Several = Annotated[tuple[_Item, ...], BeforeValidator(_refuse_without_order)]
Texts = Several[str]


def plain_text(value: Any) -> Any:
    """Returns the text that a member of an `Enum` of texts stands for, whose hash is another; other values as
    they are."""
    return value.value if isinstance(value, Enum) and isinstance(value, str) else value


def to_json_value(value: Any) -> Any:
    """Returns a value as JSON has it on the way to the cluster, so that both sides have one fingerprint:
    whole numbers that are keys become text, at any depth.

    :raises ValueError: for what JSON has not, or has otherwise: sets, whose order is another in each process,
        iterators, numbers that are not finite, and keys that are neither text nor whole numbers, or a number
        beside its own text.
    """
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number, and JSON has no other")
    if value is None or isinstance(value, str | int | float):
        return plain_text(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"it holds a {type(value).__name__}: give text, numbers, lists and dicts")
    keys = {key: str(key) if type(key) is int else key for key in value}
    if wrong := [key for key in keys.values() if not isinstance(key, str)]:
        raise ValueError(f"the key {wrong[0]!r} is a {type(wrong[0]).__name__}: give text or a whole number")
    if len(set(keys.values())) < len(keys):
        raise ValueError(f"of the keys {list(keys)!r:.200} two have the same text: leave one of them out")
    return {keys[key]: to_json_value(item) for key, item in value.items()}


#: Arguments that are passed on as they are, such as vLLM's.
Options = Annotated[dict[str, Any], AfterValidator(to_json_value)]


class Contract(BaseModel):
    # An address that is refused may hold a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True)


class Group(Contract):
    """Arguments that people write as one dict, such as `limits`; texts call a leaf `limits.queue`."""

    #: What people may write in place of the dict: texts that stand for leaves.
    short_forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: The leaf that any other text alone sets.
    short_leaf: ClassVar[str | None] = None
    #: What that text is.
    short_text: ClassVar[str] = ""
    #: Whether people write its leaves beside the job's own arguments.
    stands_beside_job: ClassVar[bool] = False

    def __hash__(self) -> int:
        """Equal for equal groups, whose dicts have none. Pydantic copies defaults that have no hash, which
        takes as long as all of the parsing of a task."""
        return hash(type(self))

    @classmethod
    def expand(cls, name: str, value: Any, leaves: Iterable[str] = ()) -> dict[str, Any]:
        """Returns the leaves that a value sets, whichever form it has.

        :param name: of the group.
        :param leaves: for the error; by default this model's.
        :raises ValueError: when it is of none.
        """
        value = plain_text(value)
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, str) and value in cls.short_forms:
            return dict(cls.short_forms[value])
        if isinstance(value, str) and cls.short_leaf is not None:
            return {cls.short_leaf: value}
        short = f", or one of {', '.join(map(repr, cls.short_forms))}" if cls.short_forms else ""
        short += f", or {cls.short_text}" if cls.short_text else ""
        # Of other kinds it may hold a secret.
        shown = repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
        raise ValueError(
            f"{name} is {shown:.200}: give a dict with any of {', '.join(leaves or cls.model_fields)}{short}"
        )
