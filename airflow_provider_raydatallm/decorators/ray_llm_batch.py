"""`@task.ray_llm_batch`: a `RayLLMBatchOperator` whose requests are built by the decorated function.

The function runs on the cluster, once per row. A parameter named `row` gets the whole row (a dict); one that
the task's call passes has the same value for every row; one with a default keeps it; any other gets the
column of its name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, overload

from airflow.sdk.bases.decorator import DecoratedOperator, _TaskDecorator
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.processor.request.row_function import ROW
from airflow_provider_raydatallm.submit import packages
from airflow_provider_raydatallm.task.mapped_task import CheckedMapping

if TYPE_CHECKING:
    from airflow.sdk import DAG, XComArg

    from airflow_provider_raydatallm.submit.pickled_function import PickledFunction

_TEMPLATE_FIELDS = RayLLMBatchOperator.template_fields
#: The operator's arguments that the task's call may pass too.
_OPERATOR_ARGUMENTS = tuple(name for name in _TEMPLATE_FIELDS if name not in ("prompt", "messages"))


class RowTask(Protocol):
    """A decorated function as a DAG calls it. Rows set the parameters that the call leaves out."""

    def __call__(self, **arguments: Any) -> XComArg: ...
    def partial(self, **arguments: Any) -> RowTask: ...
    def expand(self, **arguments: Any) -> XComArg: ...
    def override(self, **arguments: Any) -> RowTask: ...


@overload
def ray_llm_batch_task(python_callable: Callable[..., Any]) -> RowTask: ...
@overload
def ray_llm_batch_task(
    *, multiple_outputs: bool = False, **kwargs: Any
) -> Callable[[Callable[..., Any]], RowTask]: ...
def ray_llm_batch_task(
    python_callable: Callable[..., Any] | None = None, *, multiple_outputs: bool = False, **kwargs: Any
) -> RowTask | Callable[[Callable[..., Any]], RowTask]:
    """Turns a function into a task that asks an LLM about every row of a slice.

    The function returns a prompt (text), or a dict with either `prompt` or `messages`, and optionally
    `sampling_params`. It is sent to the cluster by value, with what it uses of its own module.

    The task's call, `.partial` and `.expand` take parameters of the function and templated arguments of the
    operator, by name; `.override` takes any argument of the operator.

    `@task.ray_llm_batch` is the same. Type checkers, which know no decorators of providers, then take the
    function's parameters for the call's: import this one where they shall be content.

    :param multiple_outputs: push each key of the result to XCom under its own name too.
    :param kwargs: arguments of `RayLLMBatchOperator`, without `prompt`, `messages` and `preprocess`.
    :raises TypeError: when the decorated object cannot build requests.
    """

    def decorate(function: Callable[..., Any]) -> RowTask:
        decorated = _RowTaskDecorator(
            function=_with_call_signature(function),
            multiple_outputs=multiple_outputs,
            operator_class=_RayLLMBatchDecoratedOperator,
            kwargs=dict(kwargs),
        )
        return cast("RowTask", decorated)

    return decorate if python_callable is None else decorate(python_callable)


class _RayLLMBatchDecoratedOperator(DecoratedOperator, RayLLMBatchOperator):
    custom_operator_name = "@task.ray_llm_batch"
    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *_TEMPLATE_FIELDS)
    template_fields_renderers: ClassVar[dict[str, str]] = (
        DecoratedOperator.template_fields_renderers | RayLLMBatchOperator.template_fields_renderers
    )

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        task_id: str,
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._function = python_callable.__wrapped__  # type: ignore[attr-defined]
        self._pickled: PickledFunction | None = None
        name, parameters = self._function.__name__, inspect.signature(self._function).parameters
        for argument in ("prompt", "messages", "preprocess"):
            if kwargs.get(argument) is not None:
                raise ValueError(
                    f"{argument} and the function {name!r} both build the request: leave {argument} out"
                )
        if op_args:
            raise TypeError(f"{name}() takes its arguments by name: {name}({', '.join(parameters)}=...)")
        values = dict(op_kwargs or {})
        for argument in (n for n in _OPERATOR_ARGUMENTS if n in values and n not in parameters):
            kwargs[argument] = values.pop(argument)
        if unknown := sorted(n for n in values if n not in parameters or n == ROW):
            raise TypeError(
                f"{name}() does not accept {unknown[0]!r}: a call passes parameters of the function other "
                f"than {ROW!r}, and these arguments of the operator: {', '.join(_OPERATOR_ARGUMENTS)}. For "
                f"others: {name}.override({unknown[0]}=...)()"
            )
        self._column_parameters = [
            n for n, p in parameters.items() if n not in values and p.default is p.empty
        ]
        if context_keys := sorted(KNOWN_CONTEXT_KEYS.intersection(parameters) - values.keys()):
            raise TypeError(
                f"{name}(): the parameter {context_keys[0]!r} is a key of Airflow's context, which the "
                f"cluster does not have. Pass it in the call: {name}({context_keys[0]}=...), or read a "
                f"column of that name from the parameter {ROW!r}"
            )
        super().__init__(
            python_callable=python_callable,
            task_id=task_id,
            op_kwargs=values,
            preprocess="ray_llm_function:function",  # replaced by the function's package when the task runs
            **kwargs,
        )

    def _user_packages(self, dag_folder: Path | None) -> list[packages.Package]:
        # Not while the DAG file is parsed: names that the function uses may not be defined yet. And once: its
        # file may change while the task holds its submission.
        if (pickled := self._pickled) is None:
            from airflow_provider_raydatallm.submit.pickled_function import pickle_function

            pickled = pickle_function(self._function, self._column_parameters, self.op_kwargs)
            self._pickled = pickled
        self.preprocess = pickled.reference
        modules = [*self._postprocess_and_engine, *pickled.modules]
        return [*packages.user_packages(modules, self.code_paths, dag_folder), pickled.package]

    def _written_code(self, dag: DAG) -> dict[str, Any]:
        return {**super()._written_code(dag), "preprocess": self.preprocess}

    def _hook_apply_defaults(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        # A parameter is a column, even when default_args has an operator argument of that name.
        return args, kwargs


class _RowTaskDecorator(CheckedMapping, _TaskDecorator):  # type: ignore[type-arg]
    pass


def _with_call_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with the signature of its task's call."""
    name = getattr(function, "__name__", repr(function))
    if not inspect.isfunction(function):
        raise TypeError(f"@task.ray_llm_batch takes a function, got {function!r}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{name}() is async or a generator: the function must return a request")
    parameters = inspect.signature(function).parameters
    for p in parameters.values():
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise TypeError(
                f"{name}(): the parameter {str(p)!r} cannot be passed by name: name the columns that the "
                f"function needs, or take the whole row as {ROW!r}"
            )

    @functools.wraps(function)
    def task_call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    names = dict.fromkeys([*(n for n in parameters if n != ROW), *_OPERATOR_ARGUMENTS])
    task_call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in names]
    )
    return task_call
