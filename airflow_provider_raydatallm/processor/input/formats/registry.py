"""The registry of input formats."""

from __future__ import annotations

import os
from typing import Literal

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.formats.base import FileFormat
from airflow_provider_raydatallm.processor.input.formats.csv_files import CsvFormat
from airflow_provider_raydatallm.processor.input.formats.json_lines import JsonLinesFormat
from airflow_provider_raydatallm.processor.input.formats.parquet import ParquetFormat
from airflow_provider_raydatallm.processor.input.formats.text import COMPRESSIONS

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


def guess_format(path: str) -> FormatName:
    """The format of a file's extension, before that of its compression.

    :raises SliceError: for an unknown one, with what to do.
    """
    name = path.lower()
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    found = next((fmt for ext, fmt in _EXTENSIONS.items() if name.endswith(ext)), None)
    if found is not None:
        return found
    extension = os.path.splitext(name)[1]
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
    raise SliceError(f"{path} {what}", kind="input")
