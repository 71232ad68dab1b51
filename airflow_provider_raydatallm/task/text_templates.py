"""Templates of a task render as text, also in a DAG that renders them natively."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment


class TextTemplates(BaseOperator):
    """An operator whose arguments take text for whatever they need.

    With `render_template_as_native_obj`, Airflow would make a number of the label "1" and of the key
    "20260131", templates or not.
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
        from jinja2.nativetypes import NativeEnvironment

        if isinstance(jinja_env, NativeEnvironment):  # the DAG's, which Airflow passes to a mapped task
            jinja_env = self.get_template_env()
        return super().render_template(content, context, jinja_env, seen_oids)
