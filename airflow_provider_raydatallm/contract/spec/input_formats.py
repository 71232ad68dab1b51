"""The names of the input formats. Each is a class of the Ray side (`processor/input/formats`), which the
Airflow side cannot import; a test compares the two."""

from __future__ import annotations

from typing import Literal, TypeAlias

FormatName: TypeAlias = Literal["parquet", "csv", "jsonl"]
#: `source.format`; "auto" goes by the files' extensions.
InputFormat: TypeAlias = Literal["auto", FormatName]
