"""`SliceJob`, the contract from Airflow to Ray: what to do. `report` is the way back.

* Unknown fields and invalid values fail before anything is submitted. Fields are flat; people write most of
  them in groups (`groups`), and errors name them so.
* A spec holds no secrets: it is shipped to the cluster, stored and shown.

DAG files import this module, so it imports only pydantic and the standard library.
"""

from __future__ import annotations

import codecs
import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from airflow_provider_raydatallm.contract.addresses import check_address
from airflow_provider_raydatallm.contract.durations import to_optional_seconds, to_seconds
from airflow_provider_raydatallm.contract.engine_arguments import with_booleans, with_scalars
from airflow_provider_raydatallm.contract.groups import KINDS, is_profile, label
from airflow_provider_raydatallm.contract.json_schema import check_is_self_contained
from airflow_provider_raydatallm.contract.redaction import check_no_secrets
from airflow_provider_raydatallm.contract.slice_paths import (
    METADATA,
    QUARANTINE,
    SlicePaths,
    encode_slice_key,
    slice_folder,
    slice_paths,
)

#: A slice key that comes from a date.
SLICE_FORMAT = "%Y-%m-%d"

_ASCII = r"^[\x01-\x7f]$"
_NAME = r"^[^\W_][\w .@+-]{0,79}$"
_FUNCTION = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
#: An address or an absolute path: every process on every node has to find the same folder.
_FOLDER = re.compile(r"^(/|[A-Za-z][A-Za-z0-9+.-]*://)\S")

#: Fields that are addresses of files.
ADDRESSES = ("input_path", "output_path", "metadata_path", "quarantine_path", "answer_cache")
#: Fields in which people write secrets, which are refused.
MAY_HOLD_SECRETS = ("model_source", "engine_kwargs", "processor_kwargs")

_Workers = Annotated[int, Field(ge=1)]
Concurrency = _Workers | tuple[_Workers, _Workers] | Literal["auto"]
_Seconds = Annotated[float, BeforeValidator(to_seconds), Field(gt=0, allow_inf_nan=False)]
_OptionalSeconds = Annotated[
    Annotated[float, Field(gt=0, allow_inf_nan=False)] | None, BeforeValidator(to_optional_seconds)
]


class Contract(BaseModel):
    # An address that is refused may hold a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True)


class CsvOptions(Contract):
    """How CSV files differ from RFC 4180 in UTF-8."""

    delimiter: str = Field(default=",", pattern=_ASCII)
    quote_char: str = Field(default='"', pattern=_ASCII)
    #: Makes the next character literal, such as a backslash.
    escape_char: str | None = Field(default=None, pattern=_ASCII)
    encoding: str = "utf-8"

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, value: str) -> str:
        try:
            return codecs.lookup(value).name
        except LookupError:
            raise ValueError(f"{value!r} is not a text encoding that Python knows") from None


class SliceJob(Contract):
    """Everything the Ray side needs to run one slice. The operator's docs explain each field to users."""

    version: Literal[1] = 1

    # The slice
    slice_key: str = Field(min_length=1)
    #: ISO instant that `slice_key` was formatted from; only scheduled and backfill runs have one.
    slice_instant: str | None = None
    slice_column: str | None = None
    slice_format: str = SLICE_FORMAT
    slice_timezone: str = "UTC"

    # Input and output
    input_path: str = Field(min_length=1)
    input_format: Literal["auto", "parquet", "csv", "jsonl"] = "auto"
    columns: tuple[str, ...] | None = None
    column_types: dict[str, str] = Field(default_factory=dict)
    csv_options: CsvOptions = CsvOptions()
    max_rows: int | None = Field(default=None, ge=1)
    #: Name of the trial's table, for a slice of `max_rows`; by default one for each number of rows.
    trial: str | None = Field(default=None, pattern=_NAME)
    on_empty: Literal["fail", "skip", "publish"] = "fail"
    output_path: str = Field(min_length=1)
    output_column: str = Field(default="answer", min_length=1)
    #: Object stores copy files of up to 5 GB in one request, which publishing needs.
    max_file_bytes: int = Field(default=1 << 30, ge=1 << 20, le=4 << 30)
    file_per_input: bool = False
    keep_versions: int = Field(default=1, ge=0)
    #: Folders of the table's metadata and quarantine; beside the table by default, and for trials.
    metadata_path: str | None = None
    quarantine_path: str | None = None
    #: How a finished slice is checked: by the commit and a listing, or also by its files' checksums.
    verify: Literal["listing", "content"] = "listing"

    # When the slice is published already, or another run holds it
    on_config_change: Literal["fail", "recompute"] = "fail"
    on_input_change: Literal["fail", "recompute", "extend"] = "fail"
    on_running: Literal["attach", "fail"] = "attach"
    force_rerun: bool = False
    retry_quarantined: bool = False

    # Rows that fail for their own reasons
    max_row_attempts: int = Field(default=1, ge=1)
    max_quarantine_fraction: float = Field(default=0.1, ge=0, le=1)

    # Requests
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

    # The engine
    engine: str = "auto"
    model_source: str = Field(min_length=1)
    engine_kwargs: dict[str, Any] = Field(default_factory=dict)
    accelerator_type: str | None = None
    concurrency: Concurrency = 1
    #: Percentage of the rows that fit into a max_model_len of "auto".
    max_model_len_percentile: float = Field(default=99.0, gt=0, le=100)
    on_too_long: Literal["quarantine", "truncate", "raise_limit"] = "quarantine"
    deduplicate: bool | None = None
    #: Folder in which slices of the same model share answers, its size, and their age.
    answer_cache: str | None = None
    answer_cache_max_bytes: int = Field(default=1 << 30, ge=1 << 20)
    answer_cache_max_days: float = Field(default=30, gt=0, allow_inf_nan=False)
    processor_kwargs: dict[str, Any] = Field(default_factory=dict)
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
    queue_timeout: _Seconds = 24 * 3600.0
    #: Seconds within which at least one row must finish once the engine runs.
    stall_timeout: _Seconds = 1800.0

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
        return value

    @field_validator("output_schema")
    @classmethod
    def _check_output_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            check_is_self_contained(value)
        return value

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (not value or len(set(value)) != len(value)):
            raise ValueError(f"columns must be different names, at least one, got {list(value)!r}")
        return value

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
        if value is not None and (not _FOLDER.match(value) or "{slice}" in value):
            raise ValueError(
                f"{value!r} is not a folder that slices can share: give an address such as "
                "'s3://bucket/answers', or an absolute path that exists on every node, without {slice}"
            )
        return value

    @field_validator("metadata_path", "quarantine_path")
    @classmethod
    def _check_folder_beside_table(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and (not _FOLDER.match(value) or "{slice}" in value):
            raise ValueError(
                f"{label(str(info.field_name))} is {value!r}: give the folder of the whole table, as an "
                "address or an absolute path, without {slice}"
            )
        return value

    @field_validator("trial")
    @classmethod
    def _check_trial(cls, value: str | None) -> str | None:
        if value is not None and value.endswith((METADATA, QUARANTINE)):
            raise ValueError(f"{value!r} ends like the folders beside a trial's table: choose another name")
        return value

    @field_validator(*ADDRESSES)
    @classmethod
    def _check_address(cls, value: str | None) -> str | None:
        return value if value is None else check_address(value)

    @field_validator(*MAY_HOLD_SECRETS)
    @classmethod
    def _check_no_secrets(cls, value: Any, info: ValidationInfo) -> Any:
        check_no_secrets(label(str(info.field_name)), value)
        return value

    @field_validator("output_column")
    @classmethod
    def _check_output_column(cls, value: str) -> str:
        if value.startswith("__"):
            raise ValueError(f"{value!r}: names that begin with __ are reserved; choose another")
        return value

    @field_validator("engine_kwargs", "sampling_params")
    @classmethod
    def _to_scalars(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        # Sampling parameters hold texts in dicts: a regular expression, choices.
        return with_scalars(value, nested=info.field_name == "engine_kwargs")

    @field_validator("chat_template_kwargs")
    @classmethod
    def _to_booleans(cls, value: dict[str, Any]) -> dict[str, Any]:
        return with_booleans(value)

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
    def _check_folders(self) -> SliceJob:
        table = self.output_table + "/"
        for name in ("metadata_path", "quarantine_path"):
            folder = getattr(self, name)
            if folder is None:
                continue
            if "{slice}" in self.output_path.rstrip("/").rpartition("/")[0]:
                raise ValueError(
                    f"{name} holds folders named like the slices', and output_path {self.output_path!r} has "
                    "{slice} above its last folder: leave it out, or put {slice} into the last folder only"
                )
            if f"{folder.rstrip('/')}/".startswith(table):
                raise ValueError(
                    f"{name} {folder!r} lies inside the table {table}, whose readers would meet it there: "
                    "give a folder outside"
                )
        return self

    @model_validator(mode="after")
    def _check_on_too_long(self) -> SliceJob:
        length = self.engine_kwargs.get("max_model_len", -1)
        if self.on_too_long != "quarantine" and length == -1:
            raise ValueError(
                f"quality.on_too_long={self.on_too_long!r} needs engine.kwargs['max_model_len']: a number of "
                "tokens, or 'auto'"
            )
        max_tokens = self.sampling_params.get("max_tokens", 16)
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
    def _check_engine_scope(self) -> SliceJob:
        if self.engine_scope == "shared" and (reason := self._own_engine_reason):
            raise ValueError(f"engine.scope='shared' is not possible: {reason}")
        return self

    @model_validator(mode="after")
    def _check_answer_cache_engine(self) -> SliceJob:
        if self.answer_cache is None:
            return self
        if self.deduplicate is False:
            raise ValueError(
                "engine.cache and engine.deduplicate=False contradict each other: a cache exists to avoid "
                "repeated requests. Leave one of them out"
            )
        if self.resolved_engine != "vllm":
            raise ValueError(
                f"engine.cache is for engine 'vllm', and this slice's is {self.resolved_engine!r}: leave it "
                "out, or set engine='vllm' if that engine can run the slice"
            )
        return self

    @model_validator(mode="after")
    def _check_request_and_answer_shape(self) -> SliceJob:
        if self.prompt is None and self.preprocess is None:
            raise ValueError(
                "prompt is missing: give a prompt with {column} fields, or a preprocess function"
            )
        if self.prompt is not None and self.preprocess is not None:
            raise ValueError("prompt and preprocess both build the request: give one of them")
        shapes = [n for n in ("choices", "output_schema", "regex", "grammar") if getattr(self, n) is not None]
        if len(shapes) > 1:
            raise ValueError(f"{' and '.join(shapes)} exclude each other: an answer has one shape")
        if shapes and "structured_outputs" in self.sampling_params:
            raise ValueError(
                f"sampling_params['structured_outputs'] and {shapes[0]} both set the answer's shape: give one"
            )
        n = self.sampling_params.get("n")
        if n not in (None, 1):
            raise ValueError(f"sampling_params['n'] is {n!r}: one answer per row is published, leave n out")
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

    @property
    def row_rule(self) -> dict[str, Any]:
        """What decides, beside the files themselves, which rows are the slice's and how they read.

        Unit ids and the fingerprint cover it: rows that were planned by another rule are other rows. Types
        of columns are not in it: unit ids cover those that a file's columns really have.
        """
        rule: dict[str, Any] = {
            "input_format": self.input_format,
            "csv_options": self.csv_options.model_dump(mode="json", exclude_defaults=True),
            "slice_column": self.slice_column,
        }
        if self.slice_column is not None:
            rule |= {"slice_format": self.slice_format, "slice_timezone": self.slice_timezone}
        return rule

    @property
    def slice_path(self) -> str:
        """Folder of the published slice; `slice_folder` says where it is."""
        return slice_folder(self.output_path, self.slice_key, self.trial_name)

    @property
    def trial_name(self) -> str | None:
        """Name of the trial's table; None for a whole slice."""
        return None if self.max_rows is None else self.trial or f"first-{self.max_rows}"

    @property
    def output_table(self) -> str:
        """The table's folder, which holds those of its slices."""
        return slice_folder(self.output_path, self.slice_key).rpartition("/")[0]

    @property
    def paths(self) -> SlicePaths:
        if self.max_rows is not None:  # a trial is a table of its own, with everything beside it
            return slice_paths(self.slice_path)
        return slice_paths(self.slice_path, self.metadata_path, self.quarantine_path)

    @property
    def resolved_input_path(self) -> str:
        return self.input_path.replace("{slice}", encode_slice_key(self.slice_key))
