"""The registry of input formats."""

from __future__ import annotations

from typing import Literal

from airflow_provider_raydatallm.processor.input.base import FileFormat
from airflow_provider_raydatallm.processor.input.parquet import ParquetFormat
from airflow_provider_raydatallm.processor.input.text import COMPRESSIONS, CsvFormat, JsonLinesFormat

FormatName = Literal["parquet", "csv", "jsonl"]

FORMATS: dict[FormatName, type[FileFormat]] = {
    "parquet": ParquetFormat, "csv": CsvFormat, "jsonl": JsonLinesFormat,
}  # fmt: skip

_EXTENSIONS: dict[str, FormatName] = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".json": "jsonl",
}  # fmt: skip


def guess_format(path: str) -> FormatName | None:
    """The format of a file's extension, before that of its compression; None for an unknown one."""
    name = path.lower()
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    return next((fmt for ext, fmt in _EXTENSIONS.items() if name.endswith(ext)), None)
