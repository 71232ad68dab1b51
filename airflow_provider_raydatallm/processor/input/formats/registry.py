"""The registry of input formats."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.spec.input_formats import FormatName
from airflow_provider_raydatallm.processor.input.formats.base import FileFormat
from airflow_provider_raydatallm.processor.input.formats.csv_files import CsvFormat
from airflow_provider_raydatallm.processor.input.formats.json_lines import JsonLinesFormat
from airflow_provider_raydatallm.processor.input.formats.parquet import ParquetFormat
from airflow_provider_raydatallm.processor.input.formats.text import COMPRESSIONS
from airflow_provider_raydatallm.processor.input.problems import Refusal

#: The first one is that of an input without files, where any would do.
FORMATS: Mapping[FormatName, type[FileFormat]] = {
    one.name: one for one in (ParquetFormat, CsvFormat, JsonLinesFormat)
}

#: What people have beside the formats that are read, by extension.
_OTHERS = {
    ".avro": "Avro", ".orc": "ORC", ".xlsx": "Excel", ".xls": "Excel", ".arrow": "Arrow", ".feather": "Arrow",
    ".zip": "ZIP", ".xml": "XML",
}  # fmt: skip


@dataclass(frozen=True)
class FoundFormat:
    """:ivar csv: options of `source.csv` that the files' extension stands for."""

    name: FormatName
    csv: Mapping[str, str] = field(default_factory=dict)


def find_format(paths: Iterable[str]) -> FoundFormat:
    """Returns the format of a slice's files, by their extensions.

    :raises SliceError: for files of several formats, and for an unknown extension, with what to do.
    """
    found: list[FoundFormat] = []
    examples: list[str] = []
    for path in paths:
        if (one := _format_of(path)) not in found:
            found.append(one)
            examples.append(path)
    if len(found) > 1:
        raise SliceError(
            f"input_path matches files of several formats: {', '.join(examples)}",
            kind="input",
            advice="Narrow it",
        )
    return found[0] if found else FoundFormat(next(iter(FORMATS)))


def _format_of(path: str) -> FoundFormat:
    name = path.lower()
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    extension = os.path.splitext(name)[1]
    for one in FORMATS.values():
        if name.endswith(one.extensions):
            return FoundFormat(one.name)
        if extension in one.csv_by_extension:
            return FoundFormat(one.name, one.csv_by_extension[extension])
    why, advice = _unread(extension)
    raise SliceError(f"{path} {why}", kind="input", advice=advice, place=Place(file=path))


def _unread(extension: str) -> Refusal:
    """Why files of an extension are not read as they are, and what to do."""
    if extension in _OTHERS:
        titles = _either([one.title for one in FORMATS.values()])
        return Refusal(f"is {_OTHERS[extension]}, which is not read", f"Write the input as {titles}")
    example = next(iter(FORMATS.values())).extensions[0]
    return Refusal(
        f"has an unknown file extension {extension!r}",
        f"Set source.format to {_either(list(FORMATS))}, or leave the file out by a pattern in input_path, "
        f"such as .../*{example}",
    )


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
