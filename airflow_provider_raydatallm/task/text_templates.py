"""Templates of a task render as text, also in a DAG that renders them natively, and never to nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_raydatallm.contract.spec.slice_job import GROUPS
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.task.mapped_task import function_parameters

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment

#: Arguments that a form may leave empty, and those of a decorated function.
_MAY_BE_NONE = ("source.trial", "source.max_rows", "op_args", "op_kwargs")


class TextTemplates(BaseOperator):
    """An operator whose arguments take text for whatever they need.

    With `render_template_as_native_obj`, Airflow would make a number of the label "1" and of the key
    "20260131", templates or not.

    The output of another task may be None. An argument with that is refused, not taken as left out: the task
    would take another slice, or all rows.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.render_template_as_native_obj = False

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        from jinja2.exceptions import TemplateNotFound, TemplateSyntaxError
        from jinja2.nativetypes import NativeEnvironment

        if isinstance(jinja_env, NativeEnvironment):  # the DAG's, which Airflow passes to a mapped task
            jinja_env = self.get_template_env()
        if isinstance(content, Enum) and isinstance(content, str):  # as text, Jinja would take its name
            content = content.value
        try:
            return super().render_template(content, context, jinja_env, seen_oids)
        except (TemplateSyntaxError, TemplateNotFound) as e:
            raise RayLLMInputError(
                f"the template {str(content)!r:.200} cannot be rendered: {e!r:.200}",
                advice="Text that is no template is written as airflow.sdk.literal(...)",
            ) from e

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: Environment,
        seen_oids: set[int],
    ) -> None:
        # Of a mapped task Airflow calls this, and not `render_template_fields`.
        written = {name: getattr(parent, name, None) for name in template_fields}
        super()._do_render_template_fields(parent, list(written), context, jinja_env, seen_oids)
        task = context["dag"].task_dict.get(self.task_id) if "dag" in context else None
        mapped = _outputs_mapped(task, context)
        for name, value in written.items():
            if name in mapped or hasattr(value, "resolve"):
                _check_output(name, getattr(parent, name, None))
            else:
                _check_given(name, value, getattr(parent, name, None))


def _check_given(path: str, written: Any, rendered: Any) -> None:
    """:raises RayLLMInputError: where another task's output was written, and is None."""
    if path in _MAY_BE_NONE:
        return
    if hasattr(written, "resolve"):
        _check_output(path, rendered)
    elif isinstance(written, Mapping):
        for name, value in written.items():
            _check_given(f"{path}.{name}", value, rendered[name])
    elif isinstance(written, (list, tuple)):
        for i, value in enumerate(written):
            _check_given(f"{path}[{i}]", value, rendered[i])


def _check_output(path: str, value: Any) -> None:
    """Checks an argument, or all of a group."""
    if value is None and path not in _MAY_BE_NONE:
        raise RayLLMInputError(
            f"{path} is the output of another task, or of a Param, and that is None",
            advice="Have it return a value, or leave the argument out",
        )
    if path in GROUPS and isinstance(value, Mapping):
        for name, leaf in value.items():
            _check_output(f"{path}.{name}", leaf)


def _outputs_mapped(task: Any, context: Context) -> set[str]:
    """The arguments to which `expand` gives what other tasks return, not what the DAG has."""
    names: set[str] = set()
    inputs: list[Any] = [getattr(task, name, None) for name in ("expand_input", "op_kwargs_expand_input")]
    for given in inputs:
        written = getattr(given, "value", None)
        if isinstance(written, (list, tuple)):
            written = written[context["ti"].map_index or 0]
        if isinstance(written, Mapping):
            names |= {name for name, value in written.items() if _is_output(value)}
        elif written is not None:
            names |= given.resolve(context)[0].keys()
    return names - {*function_parameters(task)}


def _is_output(value: Any) -> bool:
    return hasattr(value, "resolve") or (isinstance(value, (list, tuple)) and any(map(_is_output, value)))
