"""A job's own chat template, checked before an engine starts: in a feeder, each row would fail of it."""

from __future__ import annotations

import re

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate

#: Of transformers: around what a model is trained to write. It leaves the text as it is.
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")


def check_chat_template(job: SliceJob) -> None:
    """:raises SliceError: when it cannot be compiled, with the line and why."""
    if not isinstance(job.task, Generate) or job.task.chat_template is None:
        return
    from jinja2 import TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    try:
        environment.from_string(_GENERATION.sub("", job.task.chat_template))
    except TemplateSyntaxError as e:
        raise SliceError(
            f"chat_template cannot be compiled as a Jinja template, line {e.lineno}: {e.message}",
            kind="input",
        ) from e
