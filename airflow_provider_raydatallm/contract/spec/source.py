"""How the input is read."""

from __future__ import annotations

import codecs
import datetime as dt
from typing import Literal

from pydantic import field_validator

from airflow_provider_raydatallm.contract.base import Contract, Group
from airflow_provider_raydatallm.contract.slice_paths import METADATA, QUARANTINE
from airflow_provider_raydatallm.contract.spec.field import Affects, Spec, leaf
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


def rows_if_filtered(job: Spec) -> Affects:
    """Dates matter to the rows where a column selects them."""
    return Affects.NOTHING if job.source.column is None else Affects.ROWS


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


class Source(Group):
    """How the input is read."""

    format: InputFormat = leaf(
        "auto", affects=Affects.ROWS, doc="of the files; `auto` goes by their extensions."
    )
    column: str | None = leaf(
        None,
        affects=Affects.ROWS,
        doc="reads only rows (or Hive folders) of the dataset `input_path` whose column equals the slice "
        "key.",
    )
    slice_format: str = leaf(
        SLICE_FORMAT,
        affects=rows_if_filtered,
        doc="`strftime` format of a slice key that comes from a date. Default: `%Y-%m-%d`. An hourly DAG "
        "needs an hourly one.",
    )
    column_types: dict[str, str] = leaf(
        dict,
        affects=Affects.PUBLISHED,  # ids of units cover the types that the request's columns really have
        doc='Arrow types of columns, and of fields in them: `{"amount": "decimal(12, 2)", "user.id": '
        '"int64", "orders[].at": "timestamp[us, tz=UTC]"}`. CSV columns are text by default.',
    )
    csv: CsvOptions = leaf(
        CsvOptions,
        affects=Affects.ROWS,
        counts=lambda csv: csv.model_dump(exclude_defaults=True),
        doc="`delimiter`, `quote_char`, `escape_char` of CSV files other than RFC 4180.",
    )
    encoding: str = leaf("utf-8", affects=Affects.ROWS, doc="of text files. Default: `utf-8`.")
    on_invalid_text: Literal["fail", "replace"] = leaf(
        "fail",
        affects=Affects.NOTHING,
        doc="text that is not valid in its encoding: `fail`, or `replace` it with U+FFFD.",
    )
    max_rows: int | None = leaf(
        None,
        affects=Affects.PUBLISHED,
        doc="a trial: answer only the first rows, into a table of its own. Empty: all.",
        ge=1,
    )
    trial: str | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="name of the trial's table, `<table>.trial/<name>/`. Default: `first-<n>`. Give people tables of "
        'their own: `"{{ dag_run.triggering_user_name }}"`.',
        pattern=_NAME,
    )
    on_empty: Literal["fail", "skip", "publish"] = leaf(
        "fail",
        affects=Affects.NOTHING,
        doc="when the slice has no rows: `fail`; `skip` the task, which leaves what was published before; or "
        "`publish` an empty slice. Where no file tells its columns, they are those of the table's published "
        "slices.",
    )

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

    @field_validator("trial")
    @classmethod
    def _check_trial(cls, value: str | None) -> str | None:
        if value is not None and value.endswith((METADATA, QUARANTINE)):
            raise ValueError(f"{value!r} ends like the folders beside a trial's table: choose another name")
        return value

    @field_validator("slice_format")
    @classmethod
    def _check_slice_format(cls, value: str) -> str:
        return check_slice_format(value)
