"""The registry of input formats."""

from __future__ import annotations

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


#: Extensions of files that are no input, and what to do about them.
_OTHERS = {
    ".tsv": "set source.format='csv' and source.csv={'delimiter': '\\t'}",
    ".txt": "set source.format to csv or jsonl",
    ".avro": "Avro is not read: write the input as Parquet",
    ".orc": "ORC is not read: write the input as Parquet",
    ".zip": "zip archives are not read: unpack them, or compress files with gzip",
    ".xlsx": "spreadsheets are not read: save the table as CSV",
}


def guess_format(path: str) -> FormatName:
    """The format of a file's extension, before that of its compression.

    :raises SliceError: for an unknown one, with what to do.
    """
    name = path.lower()
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    found = next((fmt for ext, fmt in _EXTENSIONS.items() if name.endswith(ext)), None)
    if found is None:
        advice = next((what for ext, what in _OTHERS.items() if name.endswith(ext)), None)
        raise SliceError(
            f"{path}: unknown file extension; {advice or 'set source.format to parquet, csv or jsonl'}",
            kind="input",
        )
    return found
