"""`SliceJob`, the contract from Airflow to Ray: what to do. `report` is the way back.

* Unknown fields and invalid values fail before anything is submitted. Fields are named like the operator's
  arguments, so that an error names what the user wrote.
* A spec holds no secrets: it is shipped to the cluster, stored and shown.

DAG files import this module, so it imports only pydantic and the standard library.
"""

from __future__ import annotations

import codecs
import re
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_ASCII = r"^[\x01-\x7f]$"
_FUNCTION = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
#: A folder's address, or its path from the root: every process on every node has to find the same one.
_FOLDER = re.compile(r"^(/|[A-Za-z][A-Za-z0-9+.-]*://)\S")

_Workers = Annotated[int, Field(ge=1)]
Concurrency = _Workers | tuple[_Workers, _Workers] | Literal["auto"]


class Contract(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class CsvOptions(Contract):
    """How a CSV file is written, where it is not RFC 4180 in UTF-8."""

    delimiter: str = Field(default=",", pattern=_ASCII)
    quote_char: str = Field(default='"', pattern=_ASCII)
    #: Character that makes the next one plain, such as a backslash.
    escape_char: str | None = Field(default=None, pattern=_ASCII)
    encoding: str = "utf-8"

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str) -> str:
        try:
            return codecs.lookup(value).name
        except LookupError:
            raise ValueError(f"{value!r} is no text encoding that Python knows") from None


class SliceJob(Contract):
    """Everything the Ray side needs to answer one slice. See the operator for what each field means to a
    user."""

    version: Literal[1] = 1

    # The slice
    slice_key: str = Field(min_length=1)
    #: ISO instant that `slice_key` was formatted from; set for scheduled and backfill runs only.
    slice_instant: str | None = None
    slice_column: str | None = None
    slice_format: str = "%Y-%m-%d"
    slice_timezone: str = "UTC"

    # Where rows come from and where answers go
    input_path: str = Field(min_length=1)
    input_format: Literal["auto", "parquet", "csv", "jsonl"] = "auto"
    columns: tuple[str, ...] | None = None
    column_types: dict[str, str] = Field(default_factory=dict)
    csv_options: CsvOptions = CsvOptions()
    max_rows: int | None = Field(default=None, ge=1)
    on_empty: Literal["fail", "skip", "publish"] = "fail"
    output_path: str = Field(min_length=1)
    output_column: str = Field(default="answer", min_length=1)
    max_file_bytes: int = Field(default=1 << 30, ge=1 << 20)
    file_per_input: bool = False
    keep_versions: int = Field(default=0, ge=0)

    # What happens when the slice is there already, or another run is at it
    on_config_change: Literal["fail", "recompute"] = "fail"
    on_input_change: Literal["fail", "recompute", "extend"] = "fail"
    on_running: Literal["attach", "fail"] = "attach"
    force_rerun: bool = False
    retry_quarantined: bool = False

    # Rows that fail for their own reasons
    max_row_attempts: int = Field(default=1, ge=1)
    max_quarantine_fraction: float = Field(default=0.1, ge=0, le=1)

    # What is asked about a row
    system_prompt: str | None = None
    prompt: str | None = None
    choices: tuple[str, ...] | None = None
    output_schema: dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    sampling_params: dict[str, Any] = Field(default_factory=dict)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    preprocess: str | None = None
    postprocess: str | None = None
    #: Hash of the user's shipped code; "" when there is none.
    code_hash: str = ""

    # Who answers
    engine: str = "auto"
    model_source: str = Field(min_length=1)
    engine_kwargs: dict[str, Any] = Field(default_factory=dict)
    accelerator_type: str | None = None
    concurrency: Concurrency = 1
    #: Of the rows, that fit into a max_model_len of "auto".
    max_model_len_percentile: float = Field(default=99.0, gt=0, le=100)
    on_too_long: Literal["quarantine", "truncate", "raise_limit"] = "quarantine"
    deduplicate: bool | None = None
    #: Folder of answers that slices of the same model have from each other; its size and age.
    answer_cache: str | None = None
    answer_cache_max_bytes: int = Field(default=1 << 30, ge=1 << 20)
    answer_cache_max_days: float = Field(default=30, gt=0, allow_inf_nan=False)
    processor_kwargs: dict[str, Any] = Field(default_factory=dict)
    #: Whether the engine ends with the slice, or is left to others that ask for the same.
    engine_scope: Literal["slice", "shared"] = "slice"
    #: Seconds without work after which a shared engine ends; None: never.
    engine_idle_timeout: float | None = Field(default=600, gt=0, allow_inf_nan=False)
    #: Shared engines that a cluster may hold when one more is to be started.
    max_shared_engines: int | None = Field(default=None, ge=1)
    blocks: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    max_concurrent_batches: int | None = Field(default=None, ge=1)
    #: Seconds to wait until all that the engine needs is free at once.
    queue_timeout: float = Field(default=24 * 3600, gt=0, allow_inf_nan=False)
    #: Seconds in which at least one row must finish once the engine is there.
    stall_timeout: float = Field(default=1800, gt=0, allow_inf_nan=False)

    @field_validator("preprocess", "postprocess")
    @classmethod
    def _function_reference(cls, value: str | None) -> str | None:
        if value is not None and not _FUNCTION.match(value):
            raise ValueError(f"{value!r} is not of the form 'package.module:function'")
        return value

    @field_validator("choices")
    @classmethod
    def _distinct_choices(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (len(set(value)) != len(value) or len(value) < 2 or "" in value):
            raise ValueError(f"choices must be at least two different, non-empty texts, got {list(value)!r}")
        return value

    @field_validator("columns")
    @classmethod
    def _distinct_columns(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (not value or len(set(value)) != len(value)):
            raise ValueError(f"columns must be different names, at least one, got {list(value)!r}")
        return value

    @field_validator("concurrency")
    @classmethod
    def _ordered_concurrency(cls, value: Concurrency) -> Concurrency:
        if isinstance(value, tuple) and value[0] > value[1]:
            raise ValueError(f"concurrency {value} has its minimum above its maximum")
        return value

    @field_validator("answer_cache")
    @classmethod
    def _folder(cls, value: str | None) -> str | None:
        if value is not None and (not _FOLDER.match(value) or "{slice}" in value):
            raise ValueError(
                f"{value!r} is no folder that slices can share: give an address such as "
                "'s3://bucket/answers', or an absolute path that every node has, without {slice}"
            )
        return value

    @field_validator("output_column")
    @classmethod
    def _free_column(cls, value: str) -> str:
        if value.startswith("__"):
            raise ValueError(f"{value!r}: names that begin with __ are the provider's; choose another")
        return value

    @field_validator("engine_kwargs")
    @classmethod
    def _lengths(cls, value: dict[str, Any]) -> dict[str, Any]:
        if value.get("max_model_len", 0) is None:
            return {name: v for name, v in value.items() if name != "max_model_len"}
        length = value.get("max_model_len", "auto")
        if isinstance(length, str) and length.isdecimal():  # what a template makes of a number
            return {**value, "max_model_len": int(length)}
        if length != "auto" and (type(length) is not int or length < -1 or length == 0):
            raise ValueError(f"engine_kwargs['max_model_len'] is {length!r}: a number of tokens, or 'auto'")
        return value

    @model_validator(mode="after")
    def _limit_to_be_over(self) -> SliceJob:
        length = self.engine_kwargs.get("max_model_len", -1)
        if self.on_too_long != "quarantine" and length == -1:
            raise ValueError(
                f"on_too_long={self.on_too_long!r} needs engine_kwargs['max_model_len']: a number of tokens, "
                "or 'auto'"
            )
        answer = self.sampling_params.get("max_tokens", 16)
        if answer is None and (length == "auto" or self.on_too_long == "truncate"):
            raise ValueError(
                "sampling_params['max_tokens'] is None, which leaves no place for a prompt: give a number, "
                "with max_model_len='auto' or on_too_long='truncate'"
            )
        if self.on_too_long == "truncate" and type(length) is type(answer) is int and answer >= length:
            raise ValueError(
                f"on_too_long='truncate' leaves nothing of a prompt: max_tokens is {answer} and "
                f"max_model_len {length}"
            )
        return self

    @model_validator(mode="after")
    def _engine_to_share(self) -> SliceJob:
        if self.engine_scope == "shared" and (why := self._own_engine_needed):
            raise ValueError(f"engine_scope='shared' cannot be: {why}")
        return self

    @model_validator(mode="after")
    def _answers_to_keep(self) -> SliceJob:
        if self.answer_cache is not None and self.deduplicate is False:
            raise ValueError(
                "answer_cache and deduplicate=False contradict each other: it keeps answers so that what "
                "was asked is not asked again. Leave one of them out"
            )
        if self.answer_cache is not None and self.resolved_engine != "vllm":
            raise ValueError(
                f"answer_cache is for engine 'vllm', and this slice's is {self.resolved_engine!r}: leave it "
                "out, or set engine='vllm' where that can answer"
            )
        return self

    @model_validator(mode="after")
    def _one_question(self) -> SliceJob:
        if self.prompt is None and self.preprocess is None:
            raise ValueError(
                "prompt is missing: give a prompt with {column} fields, or a preprocess function"
            )
        if self.prompt is not None and self.preprocess is not None:
            raise ValueError("prompt and preprocess both make the request: give one of them")
        shapes = [n for n in ("choices", "output_schema", "regex", "grammar") if getattr(self, n) is not None]
        if len(shapes) > 1:
            raise ValueError(f"{' and '.join(shapes)} exclude each other: an answer has one shape")
        if shapes and "structured_outputs" in self.sampling_params:
            raise ValueError(
                f"sampling_params['structured_outputs'] and {shapes[0]} both set the answer's shape: give one"
            )
        n = self.sampling_params.get("n")
        if n not in (None, 1):
            raise ValueError(f"sampling_params['n'] is {n!r}: one answer a row is published, leave n out")
        return self

    @property
    def resolved_engine(self) -> str:
        """The engine, with "auto" decided: the faster one where it can. It generates text from text, with a
        tokenizer of Hugging Face's form that every node can load."""
        if self.engine != "auto":
            return self.engine
        other = self.engine_kwargs.keys() & {"task_type", "tokenizer_mode", "skip_tokenizer_init"}
        other_needed = other or self.processor_kwargs or "://" in self.model_source
        return "ray_data_llm" if other_needed else "vllm"

    @property
    def can_share_engine(self) -> bool:
        return self._own_engine_needed is None

    @property
    def _own_engine_needed(self) -> str | None:
        """Why the slice needs an engine of its own."""
        if self.resolved_engine != "vllm":
            return f"it is for engine 'vllm', and this slice's is {self.resolved_engine!r}"
        if self.on_too_long == "raise_limit":
            return "on_too_long='raise_limit' starts engines with limits of the slice's own"
        if self.engine_kwargs.get("max_model_len") == "auto":
            return "max_model_len='auto' goes by the rows of one slice: give a number of tokens"
        return None

    @property
    def slice_path(self) -> str:
        """Folder that holds the published slice.

        `{slice}` in `output_path` stands for the key; without it the folder is `<output_path>/ds=<key>`. A
        trial run (`max_rows`) goes under `_trial/` beside the real slices, where table readers do not look.
        """
        root = self.output_path.rstrip("/") or "/"
        encoded = encode_slice_key(self.slice_key)
        if "{slice}" in root:
            head, _, folder = root.rpartition("/")
            head, folder = head.replace("{slice}", encoded), folder.replace("{slice}", encoded)
        else:
            head, folder = root, f"ds={encoded}"
        if self.max_rows is not None:
            head = f"{head.rstrip('/')}/_trial"
        return f"{head.rstrip('/')}/{folder}"

    @property
    def report_path(self) -> str:
        return f"{self.slice_path}/_report.json"

    @property
    def resolved_input_path(self) -> str:
        return self.input_path.replace("{slice}", encode_slice_key(self.slice_key))


def encode_slice_key(key: str) -> str:
    """The key as a Hive folder value: percent-encoded where a path or a Hive reader would take a character
    for its own."""
    encoded = quote(key, safe=" -_.~+@,!'()$;")
    return {".": "%2E", "..": "%2E%2E"}.get(encoded, encoded)
