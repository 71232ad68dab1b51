"""What each row asks of the model, and the shape of its answer."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from airflow_provider_raydatallm.contract.base import Options, Texts
from airflow_provider_raydatallm.contract.groups import label
from airflow_provider_raydatallm.contract.spec.audio import AudioSpec
from airflow_provider_raydatallm.contract.spec.engine_arguments import (
    with_biases,
    with_booleans,
    with_scalars,
)
from airflow_provider_raydatallm.contract.spec.json_schema import check_is_schema, check_is_self_contained
from airflow_provider_raydatallm.contract.spec.tasks import TASKS, Task, fields_of_other_tasks, tasks_with

#: What follows the last message of a row, for each label, where it may have several. A change is one of
#: answers: it is in the fingerprint.
LABEL_QUESTION = '\n\nDoes the label "{label}" apply? Answer yes or no.'

_FUNCTION = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")


class RequestSpec(AudioSpec):
    #: What is asked of the model (`tasks`).
    task: Literal["generate", "classify", "embed", "score", "transcribe"] = "generate"
    system_prompt: str | None = None
    prompt: str | None = None
    #: Column of conversations, each of which the model is to continue.
    messages: str | None = None
    #: What the text of a row is scored against; may hold {column} fields, as `prompt` does.
    query: str | None = None
    choices: Texts | None = None
    #: Whether a grammar makes the model write its choice, rather than comparing how probable they are.
    exact_labels: bool = False
    #: Whether to publish how probable the label is, and the next one.
    label_confidence: bool = False
    #: Whether a row may have several of the choices, or none: each is asked about by itself.
    multi_label: bool = False
    #: Numbers of a vector, for models trained to have it cut; the model's own without it.
    embedding_dimensions: int | None = Field(default=None, ge=1)
    embedding_dtype: Literal["float32", "float16", "int8"] = "float32"
    #: Whether vectors have length 1.
    embedding_normalize: bool = True
    output_schema: dict[str, Any] | None = None
    #: How an answer of `output_schema` is published: the text of its JSON, a struct (the same text where the
    #: schema leaves fields open), or a column for each property.
    output_mode: Literal["columns", "struct", "json"] = "struct"
    regex: str | None = None
    grammar: str | None = None
    sampling_params: Options = Field(default_factory=dict)
    #: In place of the model's own: the text of a Jinja template.
    chat_template: str | None = None
    chat_template_kwargs: Options = Field(default_factory=dict)
    #: What the chat template, or an endpoint, tells the model of functions that it may ask to be called.
    tools: tuple[dict[str, Any], ...] | None = Field(default=None, min_length=1)
    #: vLLM's name of what tells the model's thoughts from its answer.
    reasoning_parser: str | None = None
    #: Whether to publish how probable the model finds its answer.
    logprobs: bool = False
    preprocess: str | None = None
    postprocess: str | None = None
    #: Hash of the user's shipped code; "" when there is none.
    code_hash: str = ""

    @field_validator("preprocess", "postprocess")
    @classmethod
    def _check_function_reference(cls, value: str | None) -> str | None:
        if value is not None and not _FUNCTION.match(value):
            raise ValueError(f"{value!r} is not of the form 'package.module:function'")
        return value

    @field_validator("choices")
    @classmethod
    def _check_choices(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (len(set(value)) != len(value) or len(value) < 2 or "" in value):
            raise ValueError(f"choices must be at least two different, non-empty texts, got {list(value)!r}")
        if bad := [choice for choice in value or () if "\0" in choice]:
            raise ValueError(f"choices must not hold NUL, which databases take in no text, got {bad[0]!r}")
        return value

    @field_validator("output_schema")
    @classmethod
    def _check_output_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            check_is_schema(value)
            check_is_self_contained(value)
        return value

    @field_validator("sampling_params")
    @classmethod
    def _to_scalars(cls, value: dict[str, Any]) -> dict[str, Any]:
        # Nested ones are texts: a regular expression, choices.
        return with_biases(with_scalars(value, nested=False))

    @field_validator("chat_template_kwargs")
    @classmethod
    def _to_booleans(cls, value: dict[str, Any]) -> dict[str, Any]:
        return with_booleans(value)

    @field_validator("chat_template")
    @classmethod
    def _check_chat_template(cls, value: str | None) -> str | None:
        if value is not None and "messages" not in value:
            raise ValueError(
                f"{value!r:.100} does not use messages, and so would ask all rows the same: give the text of "
                "a chat template, not its name"
            )
        return value

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, value: tuple[dict[str, Any], ...] | None) -> tuple[dict[str, Any], ...] | None:
        for tool in value or ():
            function = tool.get("function")
            if tool.get("type") != "function" or not isinstance(function, dict) or not function.get("name"):
                raise ValueError(
                    f"{tool!r:.200} is not a tool as OpenAI describes them: give "
                    "{'type': 'function', 'function': {'name': ..., 'parameters': <a JSON schema>}}"
                )
        return value

    @model_validator(mode="after")
    def _check_task(self) -> RequestSpec:
        for name in sorted(fields_of_other_tasks(self.task) & type(self).model_fields.keys()):
            default = type(self).model_fields[name].get_default(call_default_factory=True)
            if getattr(self, name) != default:
                raise ValueError(
                    f"{label(name)} is for task={' or '.join(map(repr, tasks_with(name)))}, and task is "
                    f"{self.task!r}: leave one of them out"
                )
        if self.task == "score" and (self.query is None or self.preprocess is not None):
            raise ValueError(
                "task='score' compares two texts of a row: give query and prompt, both with {column} fields"
            )
        if self.task == "transcribe" and self.audio_column is None:
            raise ValueError("task='transcribe' writes down recordings: give audio, the column with them")
        return self

    @model_validator(mode="after")
    def _check_request_and_answer_shape(self) -> RequestSpec:
        given = [n for n in ("prompt", "messages", "preprocess") if getattr(self, n) is not None]
        if not given and self.task != "transcribe":
            raise ValueError(
                "prompt is missing: give a prompt with {column} fields, messages (a column of conversations) "
                "or a preprocess function"
            )
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} both build the request: give one of them")
        shapes = self.answer_shapes
        if len(shapes) > 1:
            raise ValueError(f"{' and '.join(shapes)} exclude each other: an answer has one shape")
        if shapes and "structured_outputs" in self.sampling_params:
            raise ValueError(
                f"sampling_params['structured_outputs'] and {shapes[0]} both set the answer's shape: give one"
            )
        if self.output_mode != "struct" and self.output_schema is None:
            raise ValueError(
                f"output_mode is {self.output_mode!r}, which is for answers of an output_schema: give one, "
                "or leave output_mode out"
            )
        if self.output_mode == "columns" and self.postprocess is not None:
            raise ValueError(
                "output_mode='columns' and postprocess both decide the published columns: give one of them"
            )
        return self

    @model_validator(mode="after")
    def _check_several_answers(self) -> RequestSpec:
        n = self.sampling_params.get("n") or 1
        if type(n) is not int or n < 1:
            raise ValueError(f"sampling_params['n'] is {n!r}: give a number of answers a row, at least 1")
        if n == 1:
            return self
        if self.choices is not None:
            raise ValueError(
                f"sampling_params['n'] is {n}, and with choices a row has one answer: leave n out. How sure "
                "the model is, labels.confidence says"
            )
        if self.output_mode == "columns":
            raise ValueError(
                f"sampling_params['n'] is {n}, and output_mode='columns' takes one answer a row apart: leave "
                "one of them out"
            )
        if self.sampling_params.get("temperature") == 0:
            raise ValueError(
                f"sampling_params['n'] is {n}, and with temperature 0 all {n} answers are equal: raise it, "
                "or leave n out"
            )
        return self

    @property
    def answers_per_row(self) -> int:
        return int(self.sampling_params.get("n") or 1)

    @property
    def of_task(self) -> Task:
        return TASKS[self.task]

    @property
    def answer_shapes(self) -> list[str]:
        """Names of the arguments that fix what an answer must be; one at most is valid."""
        return [n for n in ("choices", "output_schema", "regex", "grammar") if getattr(self, n) is not None]
