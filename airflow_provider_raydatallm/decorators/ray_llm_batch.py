"""`@task.ray_llm_batch`: a `RayLLMBatchOperator` whose request is made by the decorated function.

The function runs on the cluster, once for each row. Its parameters say what it gets: `row` is the whole row
(a dict), one that the task's call gives is the same for every row, one with a default keeps it, and any other
is the column of its name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.processor.request.row_function import ROW
from airflow_provider_raydatallm.submit import packages

#: The operator's arguments that a call may give too, by name: those that a template could.
_OPERATORS = tuple(name for name in RayLLMBatchOperator.template_fields if name != "prompt")


def ray_llm_batch_task(
    python_callable: Callable[..., Any] | None = None, *, multiple_outputs: bool = False, **kwargs: Any
) -> TaskDecorator:
    """Make a function into a task that asks an LLM about every row of a slice.

    The function returns a prompt (text), or a dict with either `prompt` or `messages`, and optionally
    `sampling_params`. It goes to the cluster by value, with what it uses of its own module.

    A call of the task, `.partial` and `.expand` give parameters of the function and templated arguments of
    the operator, by name; `.override` gives any argument of the operator.

    :param multiple_outputs: push each figure of the report to XCom under its own name too.
    :param kwargs: arguments of `RayLLMBatchOperator`, without `prompt` and `preprocess`.
    :raises TypeError: when what is decorated cannot make requests.
    """
    if python_callable is None:
        return functools.partial(  # type: ignore[return-value]
            ray_llm_batch_task, multiple_outputs=multiple_outputs, **kwargs
        )
    return task_decorator_factory(
        _called_as_a_task(python_callable),
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_RayLLMBatchDecoratedOperator,
        **kwargs,
    )


class _RayLLMBatchDecoratedOperator(DecoratedOperator, RayLLMBatchOperator):
    custom_operator_name = "@task.ray_llm_batch"
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *RayLLMBatchOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **RayLLMBatchOperator.template_fields_renderers,
    }

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
        name, parameters = self._function.__name__, inspect.signature(self._function).parameters
        for taken in ("prompt", "preprocess"):
            if kwargs.get(taken) is not None:
                raise ValueError(
                    f"{taken} and the function {name!r} both make the request: leave {taken} out"
                )
        if op_args:
            raise TypeError(f"{name}() takes its arguments by name: {name}({', '.join(parameters)}=...)")
        given = dict(op_kwargs or {})
        operators = {n: given.pop(n) for n in list(given) if n in _OPERATORS and n not in parameters}
        if unknown := sorted(n for n in given if n not in parameters or n == ROW):
            raise TypeError(
                f"{name}() cannot be given {unknown[0]!r}: a call gives parameters of the function other "
                f"than {ROW!r}, and these arguments of the operator: {', '.join(_OPERATORS)}. For others: "
                f"{name}.override({unknown[0]}=...)()"
            )
        self._named = [n for n, p in parameters.items() if n not in given and p.default is p.empty]
        if of_airflow := sorted(KNOWN_CONTEXT_KEYS.intersection(parameters) - given.keys()):
            raise TypeError(
                f"{name}(): the parameter {of_airflow[0]!r} names a part of Airflow's context, which the "
                f"cluster does not have. Give it in the call: {name}({of_airflow[0]}=...), or take "
                f"a column of that name from the parameter {ROW!r}"
            )
        super().__init__(
            python_callable=python_callable,
            task_id=task_id,
            op_kwargs=given,
            # Named after its content when the task runs.
            preprocess="ray_llm_function:function",
            **{**kwargs, **operators},
        )

    def _user_packages(self, base: Path | None) -> list[packages.Package]:
        # Parsing a DAG file pickles nothing: names that the function uses may not be there yet.
        from airflow_provider_raydatallm.submit import pickled_function

        shipped = pickled_function.pickle_function(self._function, self._named, self.op_kwargs)
        self.preprocess = shipped.reference
        others = [f for f in (self.postprocess, self.engine) if f and ":" in f]
        users = packages.user_packages([*others, *shipped.modules], self.code_paths, base)
        return [*users, shipped.package]

    def _hook_apply_defaults(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        # A parameter is a column, whatever default_args says of an operator's argument of that name.
        return args, kwargs


def _called_as_a_task(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the signature that a call of its task has."""
    name = getattr(function, "__name__", repr(function))
    if not inspect.isfunction(function):
        raise TypeError(f"@task.ray_llm_batch takes a function, got {function!r}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{name}() is async or a generator: the function must return a request")
    parameters = inspect.signature(function).parameters
    for p in parameters.values():
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise TypeError(
                f"{name}(): the parameter {str(p)!r} has no name that a column or an argument could have: "
                f"name the columns that the function needs, or take the whole row as {ROW!r}"
            )
    takes = dict.fromkeys([*(n for n in parameters if n != ROW), *_OPERATORS])

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in takes]
    )
    return called
