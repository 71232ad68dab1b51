"""`SliceJob`, the contract from Airflow to Ray: what to do. `result.report` is the way back.

* Unknown fields and invalid values fail before anything is submitted. Fields are flat; people write most of
  them in groups (`groups`), and errors name them so.
* A spec holds no secrets: it is shipped to the cluster, stored and shown.

DAG files import this module, so it imports only pydantic and the standard library.
"""

from __future__ import annotations

import codecs
import datetime as dt
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from airflow_provider_raydatallm.contract.addresses import (
    ancestors,
    canonical,
    check_address,
    check_fields,
    holds,
)
from airflow_provider_raydatallm.contract.base import FOLDER, Contract, Texts
from airflow_provider_raydatallm.contract.groups import label
from airflow_provider_raydatallm.contract.log.redaction import check_no_secrets
from airflow_provider_raydatallm.contract.slice_paths import (
    METADATA,
    QUARANTINE,
    SlicePaths,
    encode_slice_key,
    slice_folder,
    slice_paths,
)
from airflow_provider_raydatallm.contract.spec.adapter import AdapterSpec
from airflow_provider_raydatallm.contract.spec.input_formats import InputFormat

#: A slice key that comes from a date.
SLICE_FORMAT = "%Y-%m-%d"

#: Two instants that no directive writes alike, of one digit and of two.
UNLIKE_INSTANTS = (
    dt.datetime(1987, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    dt.datetime(2010, 11, 12, 13, 14, 15, tzinfo=dt.UTC),
)

_NAME = r"^[^\W_][\w .@+-]{0,79}$"

#: Python's text encodings that no file is written in.
_OF_HOST_NAMES = ("idna", "punycode")
#: Fields that are addresses of files.
ADDRESSES = ("input_path", "output_path", "metadata_path", "quarantine_path", "answer_cache")
#: Fields in which people write secrets, which are refused.
MAY_HOLD_SECRETS = (
    "model_source", "engine_kwargs", "processor_kwargs", "endpoint_url", "adapter_path", "adapter_paths",
)  # fmt: skip


def check_slice_format(value: str) -> str:
    """:raises ValueError: when it formats all dates alike: all days would be one slice; or by the machine."""
    if "%s" in value.replace("%%", ""):
        raise ValueError(f"slice_format {value!r}: %s depends on the machine's timezone. Use %Y%m%dT%H%M%S")
    first, second = (instant.strftime(value) for instant in UNLIKE_INSTANTS)
    if first == second:
        raise ValueError(
            f"slice_format {value!r} writes each date as {first!r}: give directives of strftime, such as "
            f"{SLICE_FORMAT!r}"
        )
    return value


class CsvOptions(Contract):
    """How CSV files differ from RFC 4180."""

    delimiter: str = ","
    quote_char: str = '"'
    #: Makes the next character literal, such as a backslash.
    escape_char: str | None = None

    @field_validator("delimiter", "quote_char", "escape_char")
    @classmethod
    def _check_character(cls, value: str | None) -> str | None:
        if value is not None and not (len(value) == 1 and "\0" < value <= "\x7f"):
            raise ValueError("give one ASCII character")
        return value


class SliceJob(AdapterSpec):
    """Everything the Ray side needs to run one slice. The operator's docs explain each field to users."""

    version: Literal[1] = 1

    # The slice
    #: As a folder's name it may stand beside the provider's own, and readers skip those that begin so.
    slice_key: str = Field(min_length=1, pattern=r"^[^_.]")
    #: ISO instant that `slice_key` was formatted from; only scheduled and backfill runs have one.
    slice_instant: str | None = None
    #: The keys that it has in other timezones, in which another version of Airflow may have formatted it.
    other_slice_keys: tuple[str, ...] = ()
    slice_column: str | None = None
    slice_format: str = SLICE_FORMAT
    slice_timezone: str = "UTC"

    # Input and output
    input_path: str = Field(min_length=1)
    input_format: InputFormat = "auto"
    columns: Texts | None = None
    column_types: dict[str, str] = Field(default_factory=dict)
    csv_options: CsvOptions = CsvOptions()
    #: Of text files.
    encoding: str = "utf-8"
    #: What becomes of text that is not valid in its encoding.
    on_invalid_text: Literal["fail", "replace"] = "fail"
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
    #: What happens when a slice's columns are not the table's.
    on_schema_change: Literal["fail", "accept"] = "fail"
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
    #: The same for rows whose answer lacks its shape. None: they count as all others.
    max_invalid_fraction: float | None = Field(default=None, ge=0, le=1)
    #: How often a row is asked again, with what was wrong, when its answer is invalid.
    repair: int = Field(default=0, ge=0, le=10)

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, value: str) -> str:
        try:
            "a".encode(value)  # also refuses codecs that are none of text, such as rot13 and base64
            name = codecs.lookup(value).name
        except (LookupError, UnicodeError):
            name = None
        if name is None or name in _OF_HOST_NAMES:
            raise ValueError(
                f"{value!r} is not an encoding of text files that Python knows: give one such as 'latin-1', "
                "'cp1252' or 'utf-16'"
            )
        return name

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (not value or len(set(value)) != len(value)):
            raise ValueError(f"columns must be different names, at least one, got {list(value)!r}")
        return value

    @field_validator("metadata_path", "quarantine_path")
    @classmethod
    def _check_folder_beside_table(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and (not FOLDER.match(value) or "{slice}" in value):
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

    @field_validator("input_path", "output_path")
    @classmethod
    def _check_fields_of_address(cls, value: str, info: ValidationInfo) -> str:
        check_fields(str(info.field_name), value)
        return value

    @field_validator("slice_format")
    @classmethod
    def _check_slice_format(cls, value: str) -> str:
        return check_slice_format(value)

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

    @model_validator(mode="after")
    def _check_answers(self) -> SliceJob:
        if self.token_budget is not None and self.repair:
            raise ValueError(
                "engine.token_budget is counted anew for each attempt of quality.repair, and so would not "
                "hold: leave one of them out"
            )
        if self.repair and self.answers_per_row > 1:
            raise ValueError(
                f"quality.repair goes on with a row's answer, and sampling_params['n'] asks for "
                f"{self.answers_per_row}: leave one of them out"
            )
        limits = {"repair": self.repair > 0, "max_invalid_fraction": self.max_invalid_fraction is not None}
        if (given := [name for name, is_given in limits.items() if is_given]) and not self.answer_shapes:
            raise ValueError(
                f"{label(given[0])} is for answers that lack their shape, and these have none: give choices, "
                "output_schema, regex or grammar, or leave it out"
            )
        if self.output_mode == "columns" and self.output_column != "answer":
            raise ValueError(
                f"output_column is {self.output_column!r}, and with output_mode='columns' the columns have "
                "the names of output_schema's properties: leave output_column out"
            )
        return self

    @model_validator(mode="after")
    def _check_folders(self) -> SliceJob:
        """Where the slice runs, links are followed, too, and other tables looked for (`store.ownership`)."""
        table = self.output_table
        for field in ("metadata_path", "quarantine_path"):
            name, folder = label(field), getattr(self, field)
            if folder is None:
                continue
            if self.has_tables_for_slices:
                raise ValueError(
                    f"{name} holds folders named like the slices', and output_path {self.output_path!r} has "
                    "{slice} above its last folder: leave it out, or put {slice} into the last folder only"
                )
            if field == "quarantine_path" and len(list(ancestors(canonical(folder)))) == 1:
                raise ValueError(
                    f"{name} {folder!r} is the root of a bucket or disk, and there is no place beside it for "
                    "what says whose it is: give a folder in it"
                )
            if holds(canonical(table), canonical(folder)):
                raise ValueError(
                    f"{name} {folder!r} lies inside the table {table}/, whose readers would meet it there: "
                    "give a folder outside"
                )
        return self

    @property
    def row_rule(self) -> dict[str, Any]:
        """What decides, beside the files themselves, which rows are the slice's and how they read.

        Unit ids and the fingerprint cover it: rows that were planned by another rule are other rows. Types
        of columns are not in it: unit ids cover those that a file's columns really have.
        """
        rule: dict[str, Any] = {
            "input_format": self.input_format,
            "csv_options": self.csv_options.model_dump(mode="json", exclude_defaults=True),
            "encoding": self.encoding,
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
    def has_tables_for_slices(self) -> bool:
        """Whether each slice is a table of its own: `{slice}` is above the last folder."""
        return "{slice}" in self.output_path.rstrip("/").rpartition("/")[0]

    @property
    def table_paths(self) -> SlicePaths:
        """The folders of the table that readers read as one."""
        return self.paths if self.has_tables_for_slices else self.paths.of_table

    @property
    def resolved_input_path(self) -> str:
        return self.input_path.replace("{slice}", encode_slice_key(self.slice_key))
