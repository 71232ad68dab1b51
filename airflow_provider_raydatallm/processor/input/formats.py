"""The registry of input formats."""

from __future__ import annotations

import os
from typing import Literal

from airflow_provider_raydatallm.contract.result.errors import SliceError
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


#: Extensions of formats that people have, and that are not read.
_NOT_READ = {
    ".avro": "Avro", ".orc": "ORC", ".xlsx": "Excel", ".xls": "Excel", ".arrow": "Arrow", ".feather": "Arrow",
    ".zip": "ZIP", ".xml": "XML",
}  # fmt: skip


def guess_format(path: str) -> FormatName | None:
    """The format of a file's extension, before that of its compression; None for an unknown one."""
    name = _without_compression(path)
    return next((fmt for ext, fmt in _EXTENSIONS.items() if name.endswith(ext)), None)


def unknown_format(path: str) -> SliceError:
    """The error for a file of which `guess_format` knows no format: it says what to do."""
    extension = os.path.splitext(_without_compression(path))[1]
    if extension in (".tsv", ".tab"):
        what = (
            "holds columns between tabs, to go by its extension: set source.format='csv' and "
            "source.csv={'delimiter': '\\t'}"
        )
    elif extension in _NOT_READ:
        what = f"is {_NOT_READ[extension]}, which is not read: write the input as Parquet, CSV or JSON Lines"
    else:
        what = (
            f"has an unknown file extension {extension!r}: set source.format to parquet, csv or jsonl, or "
            "leave the file out by a pattern in input_path, such as .../*.parquet"
        )
    return SliceError(f"{path} {what}", kind="input")


def _without_compression(path: str) -> str:
    name = path.lower()
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    return name
