"""Checks mapped tasks when the DAG is parsed, as Airflow does with all others: it builds their operators when
they run only.

One of a task's operators is built, in which what is mapped counts as rendered later. Where only the run knows
which arguments are mapped, those that the DAG writes are checked one by one.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseOperator
from airflow.sdk.bases.decorator import DecoratedMappedOperator
from airflow.sdk.definitions._internal.setup_teardown import SetupTeardownContext
from airflow.sdk.definitions.mappedoperator import OperatorPartial

from airflow_provider_raydatallm.task.arguments import is_rendered_later

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import MappedOperator

T = TypeVar("T")


class CheckedMapping:
    """What a DAG file calls `expand` of; for the bases of Airflow's class."""

    def expand(self, **mapped: Any) -> Any:
        return _checked(super().expand(**mapped))  # type: ignore[misc]

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> Any:
        return _checked(super().expand_kwargs(kwargs, strict=strict))  # type: ignore[misc]


class _CheckedPartial(CheckedMapping, OperatorPartial):
    pass


class CheckedWhenMapped(BaseOperator):
    """An operator whose mapped tasks are checked when the DAG is parsed."""

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        plain = super().partial(**kwargs)
        plain._expand_called = True  # or it warns that it was never mapped
        return _CheckedPartial(operator_class=plain.operator_class, kwargs=plain.kwargs, params=plain.params)

    @classmethod
    def check_written(cls, task_id: str, arguments: Mapping[str, Any]) -> None:
        """Checks some of the arguments, as they are written in the DAG.

        :raises ValueError: for one that no other could make right.
        """


def written_arguments(task: MappedOperator) -> dict[str, Any]:
    """Returns the arguments of a mapped task that are not mapped. The call of a decorated task passes
    arguments of the operator with those of the function."""
    written = dict((task.dag.default_args if task.dag is not None else None) or {})
    written |= (task.task_group.default_args if task.task_group is not None else None) or {}
    return written | task.partial_kwargs | (task.partial_kwargs.get("op_kwargs") or {})


def function_parameters(task: Any) -> Collection[str]:
    """The parameters of a decorated function; none of another task."""
    is_decorated = isinstance(task, DecoratedMappedOperator)
    return inspect.signature(task.python_callable.__wrapped__).parameters if is_decorated else ()


def _checked(mapped: T) -> T:
    """
    :param mapped: the task, or its output.
    """
    task: Any = getattr(mapped, "operator", mapped)
    expanded = task._get_specified_expand_input().value
    is_decorated = isinstance(task, DecoratedMappedOperator)
    one = _stand_ins(expanded, None if is_decorated else task.template_fields)
    parameters = function_parameters(task)
    for written in (*_written_to_map(expanded), *([written_arguments(task)] if one is None else ())):
        own = {name: value for name, value in written.items() if name not in parameters}
        task.operator_class.check_written(task.task_id, own)
    is_known = one is not None and _LATER not in one.values()
    if one is None or not (is_known or _is_made_by_provider(task.operator_class)):
        return mapped
    # The operator is no task of the DAG, nor of what a setup task is there for.
    in_context, SetupTeardownContext.active = SetupTeardownContext.active, False
    try:
        task.unmap({"op_kwargs": one} if is_decorated else one)
    finally:
        SetupTeardownContext.active = in_context
    return mapped


def _written_to_map(expanded: Any) -> Iterator[Mapping[str, Any]]:
    """The values to map over that the DAG has."""
    if isinstance(expanded, Mapping):
        for name, values in expanded.items():
            if isinstance(values, (list, tuple)):
                yield from ({name: value} for value in values)
    elif isinstance(expanded, (list, tuple)):
        yield from (arguments for arguments in expanded if isinstance(arguments, Mapping))


def _stand_ins(expanded: Any, templated: Any) -> dict[str, Any] | None:
    """Returns a value for each mapped argument; None where the run alone knows which are mapped, or a value
    that cannot be rendered later.

    :param templated: names of those that can; None: all.
    """
    if isinstance(expanded, Mapping):
        first = {n: v[0] if isinstance(v, (list, tuple)) and v else _LATER for n, v in expanded.items()}
    elif isinstance(expanded, (list, tuple)) and expanded and isinstance(expanded[0], Mapping):
        first = dict(expanded[0])
    else:
        return None
    later = {name for name, value in first.items() if value is _LATER or is_rendered_later(value)}
    if templated is not None and not later <= {*templated}:
        return None
    return first | dict.fromkeys(later, _LATER)


def _is_made_by_provider(operator: type) -> bool:
    """Whether no class of a user's has code that makes it, which may need what only the run has."""
    package = __name__.partition(".")[0]
    users = itertools.takewhile(lambda c: c.__module__.partition(".")[0] != package, operator.__mro__)
    return not any("__init__" in vars(c) for c in users)


class _Later:
    def resolve(self, context: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "<mapped>"


_LATER = _Later()
