"""`task="generate"`: a text, a label, or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from airflow_provider_raydatallm.contract.base import Group, Options, Several, Texts, to_json_value
from airflow_provider_raydatallm.contract.spec.engine_arguments import (
    with_biases,
    with_booleans,
    with_scalars,
)
from airflow_provider_raydatallm.contract.spec.field import Affects, Spec, leaf
from airflow_provider_raydatallm.contract.spec.json_schema import (
    check_is_schema,
    check_is_self_contained,
    is_closed,
)
from airflow_provider_raydatallm.contract.spec.tasks.adapter import Adapter
from airflow_provider_raydatallm.contract.spec.tasks.base import MediaColumn, Task
from airflow_provider_raydatallm.contract.spec.tasks.choices import CHOICES, check_choices
from airflow_provider_raydatallm.contract.spec.tasks.images import Images

#: What follows the last message of a row, for each label, where it may have several. A change is one of
#: answers: it is in the fingerprint.
LABEL_QUESTION = '\n\nDoes the label "{label}" apply? Answer yes or no.'

#: Sampling parameters that do not matter where labels are compared.
_COMPARING = ("temperature", "max_tokens", "seed")


def _answers_if_compared(job: Spec) -> Affects:
    """Where the model writes its choice anyway, another value changes nothing."""
    is_written = isinstance(job.task, Generate) and job.task.cannot_compare_reason(job) is not None
    return Affects.NOTHING if is_written else Affects.ANSWERS


class Labels(Group):
    """How one of `choices`, or several, are found. By default, engine `vllm` asks how probable each of them
    is, mostly in a single token, and the most probable one is published. With a `temperature`, or other
    sampling parameters that decide how an answer is drawn, the model writes its choice."""

    # `Generate.derived` says more of what they change.
    confidence: bool = leaf(
        False,
        affects=Affects.REQUEST,
        doc="publish also the columns `<output>_probability`, `<output>_runner_up`, "
        "`<output>_runner_up_probability` and `<output>_entropy` (bits). The probabilities are of the "
        "choices alone: together they are 1.",
    )
    exact: bool = leaf(
        False,
        affects=_answers_if_compared,
        doc="have the model write its choice in full, by a grammar.",
    )
    multi: bool = leaf(
        False,
        affects=Affects.ANSWERS,
        doc="a row may have several of the choices, or none: the model is asked about each whether it "
        "applies, and `<output>` is a list of those that do. `confidence` then publishes the probability "
        "of each, in the map `<output>_probability`.",
    )


class Generate(Task):
    """A text."""

    draws: ClassVar[bool] = True

    kind: Literal["generate"] = leaf(affects=Affects.NOTHING)
    messages: str | None = leaf(
        None,
        affects=Affects.REQUEST,
        doc="column of conversations to continue, instead of `prompt`: lists of structs with `role` and "
        "`content`, or JSON text of such lists.",
        stand_in="x",
    )
    system_prompt: str | None = leaf(
        None,
        affects=Affects.REQUEST,
        doc="system message, with `{column}` fields as in `prompt`.",
        of_row=True,
    )
    choices: Texts | None = leaf(None, affects=Affects.REQUEST, doc=CHOICES, stand_in=("x", "y"))
    labels: Labels = Labels()
    images: Images = Images()
    adapter: Adapter = Adapter()
    output_schema: dict[str, Any] | None = leaf(
        None,
        affects=Affects.REQUEST,
        doc="the answer is JSON of this schema: a pydantic model class or a JSON schema. Published as a "
        "struct when the schema fixes every field, else as JSON text. Rows with an invalid answer (cut at "
        "max_tokens, or with a key that the struct lacks) go to quarantine. `$ref` may point into the "
        "schema only.",
        template=False,
    )
    output_mode: Literal["columns", "struct", "json"] = leaf(
        "struct",
        affects=Affects.REQUEST,
        doc="how its answers are published: `struct` (JSON text, where the schema leaves fields open), "
        "`columns`: one for each of its properties, or `json`: the text as the model wrote it.",
    )
    regex: str | None = leaf(
        None, affects=Affects.REQUEST, doc="the answer matches this expression.", stand_in="x"
    )
    grammar: str | None = leaf(
        None, affects=Affects.REQUEST, doc="the answer follows this grammar (EBNF).", stand_in="x"
    )
    sampling_params: Options = leaf(
        dict,
        affects=Affects.REQUEST,
        doc='vLLM\'s sampling parameters. A value that is exactly `"{column}"` comes from the row. With `n` '
        "over 1, answers are lists.",
        of_row=True,
    )
    chat_template: str | None = leaf(
        None,
        affects=Affects.ANSWERS,
        doc="a Jinja template in place of the model's own: its text, which Airflow does not render.",
        template=False,
    )
    chat_template_kwargs: Options = leaf(
        dict,
        affects=Affects.ANSWERS,
        doc='arguments of the chat template, such as `{"enable_thinking": False}`.',
    )
    tools: Several[dict[str, Any]] | None = leaf(
        None,
        affects=Affects.ANSWERS,
        doc="functions that the model may ask to be called, as OpenAI describes them. The chat template "
        "tells the model; what it answers is published as it is.",
        min_length=1,
    )
    reasoning_parser: str | None = leaf(
        None,
        affects=Affects.REQUEST,
        doc="vLLM's parser, such as `qwen3` or `deepseek_r1`, that tells what a model thinks from its "
        "answer: it goes to a column of its own, `<output_column>_reasoning`. `sampling_params` may limit "
        "it by `thinking_token_budget`.",
    )
    logprobs: bool = leaf(
        False,
        affects=Affects.REQUEST,
        doc="publish how probable the model finds its answer: the logarithm, and its tokens "
        "(`<output_column>_logprob`, `<output_column>_logprob_tokens`).",
    )

    @field_validator("choices")
    @classmethod
    def _check_choices(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return check_choices(value)

    @field_validator("output_schema")
    @classmethod
    def _check_output_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            value = to_json_value(value)
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
        for tool in map(to_json_value, value or ()):
            function = tool.get("function")
            if tool.get("type") != "function" or not isinstance(function, dict) or not function.get("name"):
                raise ValueError(
                    f"{tool!r:.200} is not a tool as OpenAI describes them: give "
                    "{'type': 'function', 'function': {'name': ..., 'parameters': <a JSON schema>}}"
                )
        return value

    @model_validator(mode="after")
    def _check_shape(self) -> Generate:
        shapes = self.shapes
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
        return self

    @model_validator(mode="after")
    def _check_several_answers(self) -> Generate:
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
    def request_arguments(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "messages": self.messages, "system_prompt": self.system_prompt}

    @property
    def sampling(self) -> Mapping[str, Any]:
        return self.sampling_params

    @property
    def texts(self) -> list[str]:
        return [text for text in (self.prompt, self.system_prompt) if text is not None]

    @property
    def shapes(self) -> list[str]:
        return [n for n in ("choices", "output_schema", "regex", "grammar") if getattr(self, n) is not None]

    @property
    def labels_of_answers(self) -> tuple[str, ...] | None:
        return self.choices

    @property
    def has_confidence(self) -> bool:
        return self.labels.confidence and not self.labels.multi

    @property
    def answers_per_row(self) -> int:
        return int(self.sampling_params.get("n") or 1)

    @property
    def lora(self) -> Adapter:
        return self.adapter

    @property
    def media(self) -> MediaColumn | None:
        images = self.images
        if images.column is None:
            return None
        return MediaColumn("images", "image", images.column, images.max_bytes, images.sources, images.timeout)

    def given(self, job: Spec) -> set[str]:
        is_given = {
            "chat_template": self.chat_template is not None,
            "reasoning_parser": self.reasoning_parser is not None,
            "tools": self.tools is not None,
            "logprobs": self.logprobs,
            "sampling_params['n']": self.answers_per_row > 1,
            "regex": self.regex is not None,
            "grammar": self.grammar is not None,
            "adapter": bool(self.adapter),
            "images": self.images.column is not None,
        }
        return {name for name, is_set in is_given.items() if is_set}

    @property
    def is_compact(self) -> bool:
        """Whether answers are JSON without free whitespace: the schema fixes all that they may hold. Where it
        leaves something open, models answer worse without it (xgrammar's maintainers)."""
        return self.output_schema is not None and is_closed(self.output_schema)

    def derived(self, job: Spec) -> Mapping[str, Any]:
        if self.output_schema is not None and job.engine.bounds_json:
            return {"whitespace": "none" if self.is_compact else "bounded"}
        if not job.compares_labels:
            return {}
        if self.labels.multi:
            return {"labels": ["asked", LABEL_QUESTION]}
        # Each other one's probability is told exactly only where it is published.
        return {"labels": ["compared", self.labels.confidence]}

    def check(self, job: Spec) -> None:
        if self.output_mode == "columns" and job.postprocess is not None:
            raise ValueError(
                "output_mode='columns' and postprocess both decide the published columns: give one of them"
            )
        if self.images.sources and self.images.column is None:
            has_messages = self.messages is not None or job.preprocess is not None
            if not (job.engine.capabilities.reads_media_in_messages and has_messages):
                raise ValueError("images.sources needs images.column: the column with the images")
        for name in ("exact", "confidence", "multi"):
            if getattr(self.labels, name) and self.choices is None:
                raise ValueError(f"labels.{name}=True needs choices, which are the labels")
        for name in ("confidence", "multi"):  # which need probabilities
            if getattr(self.labels, name) and (reason := self.writes_labels_reason(job)):
                raise ValueError(f"labels.{name}=True is not possible: {reason}")
        if self.logprobs and job.compares_labels:
            raise ValueError(
                "logprobs=True is for answers that the model writes, and choices are compared: set "
                "labels.confidence=True, or labels.exact=True"
            )

    def writes_labels_reason(self, job: Spec) -> str | None:
        """Returns why the model writes its choice, where it cannot be asked how probable each is."""
        if self.labels.exact:
            return "labels.exact=True has the model write them"
        return self.cannot_compare_reason(job)

    def cannot_compare_reason(self, job: Spec) -> str | None:
        """Returns why choices cannot be compared, whatever `labels` says."""
        reason: str | None = job.engine.cannot_compare_reason
        if reason is not None:
            return reason
        if self.reasoning_parser is not None:
            return "reasoning_parser has the model think before it answers"
        given = self.sampling_params
        if others := {name for name in given if name not in _COMPARING or isinstance(given[name], str)}:
            return f"sampling_params[{min(others)!r}] decides how one is drawn"
        if given.get("temperature") not in (None, 0):
            return "a temperature draws one at random, and the most probable one is published"
        return None
