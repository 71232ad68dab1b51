"""What runs the requests: the engine, its sizes, and which rows it takes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from airflow_provider_raydatallm.contract.base import FOLDER, Options, Seconds
from airflow_provider_raydatallm.contract.durations import to_optional_seconds
from airflow_provider_raydatallm.contract.groups import KINDS, is_profile, label
from airflow_provider_raydatallm.contract.spec.engine_arguments import (
    SPECULATIVE,
    with_scalars,
    with_speculation,
)
from airflow_provider_raydatallm.contract.spec.request import RequestSpec

_Workers = Annotated[int, Field(ge=1)]
Concurrency = _Workers | tuple[_Workers, _Workers] | Literal["auto"]
_OptionalSeconds = Annotated[
    Annotated[float, Field(gt=0, allow_inf_nan=False)] | None, BeforeValidator(to_optional_seconds)
]

#: Sampling parameters that vLLM refuses where it speculates.
_NOT_SPECULATIVE = ("logit_bias", "min_p")
#: Sampling parameters that do not matter where labels are compared.
_COMPARING = ("temperature", "max_tokens", "seed")


class EngineSpec(RequestSpec):
    engine: str = "auto"
    model_source: str = Field(min_length=1)
    engine_kwargs: Options = Field(default_factory=dict)
    accelerator_type: str | None = None
    concurrency: Concurrency = 1
    #: Percentage of the rows that fit into a max_model_len of "auto".
    max_model_len_percentile: float = Field(default=99.0, gt=0, le=100)
    on_too_long: Literal["quarantine", "truncate", "raise_limit", "chunk"] = "quarantine"
    deduplicate: bool | None = None
    #: Folder in which slices of the same model share answers, its size, and their age.
    answer_cache: str | None = None
    answer_cache_max_bytes: int = Field(default=1 << 30, ge=1 << 20)
    answer_cache_max_days: float = Field(default=30, gt=0, allow_inf_nan=False)
    processor_kwargs: Options = Field(default_factory=dict)
    #: Whether the engine stops with the slice, or stays for others that need the same engine.
    engine_scope: Literal["slice", "shared"] = "slice"
    #: Seconds without work after which a shared engine stops; None: never.
    engine_idle_timeout: _OptionalSeconds = 600.0
    #: A slice that needs one more shared engine waits while the cluster has this many.
    max_shared_engines: int | None = Field(default=None, ge=1)
    blocks: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    max_concurrent_batches: int | None = Field(default=None, ge=1)
    #: Seconds to wait until all resources of the engine are free at once.
    queue_timeout: Seconds = 24 * 3600.0
    #: Seconds within which at least one row must finish once the engine runs.
    stall_timeout: Seconds = 1800.0

    @field_validator("engine")
    @classmethod
    def _check_engine(cls, value: str) -> str:
        if is_profile(value):
            raise ValueError(
                f"unknown engine {value!r}: use {', '.join(map(repr, KINDS))} or 'package.module:Class'"
            )
        return value

    @field_validator("concurrency", mode="wrap")
    @classmethod
    def _name_kinds_of_concurrency(cls, value: Any, validate: Any) -> Any:
        try:
            return validate(value)
        except ValidationError:  # one for each of the kinds
            raise ValueError("give a number of at least 1, two of them, (min, max), or 'auto'") from None

    @field_validator("concurrency")
    @classmethod
    def _check_concurrency(cls, value: Concurrency) -> Concurrency:
        if isinstance(value, tuple) and value[0] > value[1]:
            raise ValueError(f"engine.workers {value} has its minimum above its maximum")
        return value

    @field_validator("answer_cache")
    @classmethod
    def _check_answer_cache_folder(cls, value: str | None) -> str | None:
        if value is not None and (not FOLDER.match(value) or "{slice}" in value):
            raise ValueError(
                f"{value!r} is not a folder that slices can share: give an address such as "
                "'s3://bucket/answers', or an absolute path that exists on every node, without {slice}"
            )
        return value

    @field_validator("engine_kwargs")
    @classmethod
    def _to_nested_scalars(cls, value: dict[str, Any]) -> dict[str, Any]:
        return with_speculation(with_scalars(value, nested=True))

    @field_validator("engine_kwargs")
    @classmethod
    def _check_max_model_len(cls, value: dict[str, Any]) -> dict[str, Any]:
        if value.get("max_model_len", 0) is None:
            return {name: v for name, v in value.items() if name != "max_model_len"}
        length = value.get("max_model_len", "auto")
        if length != "auto" and (type(length) is not int or length < -1 or length == 0):
            raise ValueError(f"engine.kwargs['max_model_len'] is {length!r}: a number of tokens, or 'auto'")
        return value

    @model_validator(mode="after")
    def _check_on_too_long(self) -> EngineSpec:
        length = self.engine_kwargs.get("max_model_len", -1)
        if self.on_too_long == "chunk":  # a worker knows its limit
            if self.task != "embed":
                raise ValueError(
                    f"quality.on_too_long='chunk' is for task='embed', and task is {self.task!r}: use "
                    "'truncate' or 'raise_limit'"
                )
        elif self.on_too_long != "quarantine" and length == -1:
            raise ValueError(
                f"quality.on_too_long={self.on_too_long!r} needs engine.kwargs['max_model_len']: a number of "
                "tokens, or 'auto'"
            )
        max_tokens = self.sampling_params.get("max_tokens", 16) if self.of_task.draws else 0
        if max_tokens is None and (length == "auto" or self.on_too_long == "truncate"):
            raise ValueError(
                "sampling_params['max_tokens'] is None, which leaves no room for a prompt: give a number, "
                "with max_model_len='auto' or quality.on_too_long='truncate'"
            )
        are_numbers = type(length) is type(max_tokens) is int
        if self.on_too_long == "truncate" and are_numbers and max_tokens >= length:
            raise ValueError(
                f"quality.on_too_long='truncate' leaves nothing of a prompt: max_tokens is {max_tokens} and "
                f"max_model_len {length}"
            )
        return self

    @model_validator(mode="after")
    def _check_task_of_engine(self) -> EngineSpec:
        engines = self.of_task.engines
        if self.resolved_engine in KINDS and self.resolved_engine not in engines:
            raise ValueError(
                f"task={self.task!r} is for engine {' or '.join(map(repr, sorted(engines)))}, and this "
                f"slice's is {self.resolved_engine!r}"
            )
        return self

    @model_validator(mode="after")
    def _check_speculation(self) -> EngineSpec:
        speculative = sorted(SPECULATIVE & self.engine_kwargs.keys())
        if speculative and (refused := [name for name in _NOT_SPECULATIVE if self.sampling_params.get(name)]):
            raise ValueError(
                f"sampling_params[{refused[0]!r}] and engine.kwargs[{speculative[0]!r}] exclude each other: "
                "vLLM does not take it where it speculates. Leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _check_answers_of_engine(self) -> EngineSpec:
        engine = self.resolved_engine
        for_vllm = {
            "chat_template": self.chat_template is not None,
            "reasoning_parser": self.reasoning_parser is not None,
        }
        for_both = {
            "tools": self.tools is not None,
            "logprobs": self.logprobs,
            "sampling_params['n']": self.answers_per_row > 1,
        }
        refused = {"ray_data_llm": for_vllm | for_both, "http": for_vllm}.get(engine, {})
        for name, is_given in refused.items():
            if is_given:
                raise ValueError(f"{name} is for engine 'vllm', and this slice's is {engine!r}: leave it out")
        if engine == "vllm":
            if "reasoning_parser" in self.engine_kwargs:
                raise ValueError(
                    "engine.kwargs['reasoning_parser'] stands beside engine: give it as reasoning_parser, "
                    "which takes the reasoning out of answers, too"
                )
            if self.reasoning_parser is None and "thinking_token_budget" in self.sampling_params:
                raise ValueError(
                    "sampling_params['thinking_token_budget'] needs reasoning_parser, which tells where "
                    "thinking ends"
                )
        if self.logprobs and self.compares_labels:
            raise ValueError(
                "logprobs=True is for answers that the model writes, and choices are compared: set "
                "labels.confidence=True, or labels.exact=True"
            )
        return self

    @model_validator(mode="after")
    def _check_labels(self) -> EngineSpec:
        if self.task != "generate":  # the model knows the labels
            return self
        for field in ("exact_labels", "label_confidence", "multi_label"):
            if getattr(self, field) and self.choices is None:
                raise ValueError(f"{label(field)}=True needs choices, which are the labels")
        for field in ("label_confidence", "multi_label"):  # which need probabilities
            if getattr(self, field) and (reason := self._writes_labels_reason):
                raise ValueError(f"{label(field)}=True is not possible: {reason}")
        return self

    @model_validator(mode="after")
    def _check_media_of_engine(self) -> EngineSpec:
        if self.image_sources and self.image_column is None:
            has_messages = self.messages is not None or self.preprocess is not None
            if self.resolved_engine == "vllm" or not has_messages:
                raise ValueError(f"{label('image_sources')} needs images.column: the column with the images")
        if self.media is None:
            return self
        argument, many = self.media.argument, f"{self.media.noun}s"
        if self.resolved_engine in KINDS and self.resolved_engine != "vllm":
            raise ValueError(
                f"{argument} is for engine 'vllm', and this slice's is {self.resolved_engine!r}: leave it out"
            )
        # Their tokens are known to vLLM only.
        if self.on_too_long != "quarantine":
            raise ValueError(
                f"quality.on_too_long={self.on_too_long!r} counts a prompt's tokens, and those of {many} are "
                "not known before the engine sees them: leave it out"
            )
        if self.engine_kwargs.get("max_model_len") == "auto":
            raise ValueError(
                f"engine.kwargs['max_model_len']='auto' counts tokens, and those of {many} are not known "
                "before the engine sees them: give a number"
            )
        return self

    @model_validator(mode="after")
    def _check_engine_scope(self) -> EngineSpec:
        if self.engine_scope == "shared" and (reason := self._own_engine_reason):
            raise ValueError(f"engine.scope='shared' is not possible: {reason}")
        return self

    @model_validator(mode="after")
    def _check_answer_cache_engine(self) -> EngineSpec:
        if self.answer_cache is None:
            return self
        if self.deduplicate is False:
            raise ValueError(
                "engine.cache and engine.deduplicate=False contradict each other: a cache exists to avoid "
                "repeated requests. Leave one of them out"
            )
        if self.resolved_engine not in ("vllm", "http"):
            raise ValueError(
                f"engine.cache is for engine 'vllm' or 'http', and this slice's is {self.resolved_engine!r}: "
                "leave it out, or set engine='vllm' if that engine can run the slice"
            )
        return self

    @property
    def resolved_engine(self) -> str:
        """The engine, with "auto" replaced by the faster one that can run the slice. `vllm` generates text
        from text, with a Hugging Face tokenizer that every node can load."""
        if self.engine != "auto":
            return self.engine
        unsupported = self.engine_kwargs.keys() & {"task_type", "tokenizer_mode", "skip_tokenizer_init"}
        is_plain = not (unsupported or self.processor_kwargs or "://" in self.model_source)
        return "vllm" if is_plain else "ray_data_llm"

    @property
    def draws_nothing(self) -> bool:
        """Whether equal requests have equal answers, whatever the sampling parameters."""
        return self.compares_labels or not self.of_task.draws

    @property
    def compares_labels(self) -> bool:
        """Whether the engine asks how probable each of the choices is, in a token, and has none written."""
        return self.task == "generate" and self.choices is not None and self._writes_labels_reason is None

    @property
    def _writes_labels_reason(self) -> str | None:
        if self.exact_labels:
            return "labels.exact=True has the model write them"
        if self.resolved_engine != "vllm":
            return f"it is for engine 'vllm', and this slice's is {self.resolved_engine!r}"
        if self.reasoning_parser is not None:
            return "reasoning_parser has the model think before it answers"
        if speculative := sorted(SPECULATIVE & self.engine_kwargs.keys()):
            return f"with engine.kwargs[{speculative[0]!r}] vLLM does not say how probable given tokens are"
        given = self.sampling_params
        if others := {name for name in given if name not in _COMPARING or isinstance(given[name], str)}:
            return f"sampling_params[{min(others)!r}] decides how one is drawn"
        if given.get("temperature") not in (None, 0):
            return "a temperature draws one at random, and the most probable one is published"
        return None

    @property
    def runs_user_code(self) -> bool:
        """Whether code of users runs around the engine."""
        functions = self.preprocess is not None or self.postprocess is not None
        return functions or ":" in self.engine or bool(self.engine_kwargs.get("trust_remote_code"))

    @property
    def can_share_engine(self) -> bool:
        return self._own_engine_reason is None

    @property
    def _own_engine_reason(self) -> str | None:
        if self.resolved_engine != "vllm":
            return f"it is for engine 'vllm', and this slice's is {self.resolved_engine!r}"
        if self.on_too_long == "raise_limit":
            return "quality.on_too_long='raise_limit' starts engines with limits of the slice's own"
        if self.engine_kwargs.get("max_model_len") == "auto":
            return "max_model_len='auto' depends on the rows of one slice: give a number of tokens"
        return None
