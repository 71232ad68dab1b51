"""How the files of a slice are read, as the spec says it and the plan keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.source import CsvOptions
from airflow_provider_raydatallm.processor.input.types.codec import from_json, to_json
from airflow_provider_raydatallm.processor.input.types.declared import parse_type


@dataclass(frozen=True)
class ReadOptions:
    """
    :ivar columns: those that are wanted; None for all.
    :ivar types: declared ones, by their paths as people write them.
    :ivar csv: of CSV files.
    :ivar encoding: of text files.
    """

    columns: tuple[str, ...] | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    csv: CsvOptions = field(default_factory=CsvOptions)
    encoding: str = "utf-8"
    replaces_invalid_text: bool = False

    @classmethod
    def of(cls, job: SliceJob, csv: Mapping[str, str] = MappingProxyType({})) -> ReadOptions:
        """
        :param csv: options of CSV files that hold where the job sets none.
        :raises SliceError: for a declared type that there is not.
        """
        return cls(
            columns=_wanted_columns(job),
            types={path: parse_type(path, text) for path, text in job.source.column_types.items()},
            csv=CsvOptions(**{**csv, **job.source.csv.model_dump(exclude_defaults=True)}),
            encoding=job.source.encoding,
            replaces_invalid_text=job.source.on_invalid_text == "replace",
        )

    def wants(self, column: str) -> bool:
        return self.columns is None or column in self._chosen

    @cached_property
    def _chosen(self) -> frozenset[str]:
        return frozenset(self.columns or ())

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "types": {path: to_json(kind) for path, kind in self.types.items()},
            "csv": self.csv.model_dump(),
            "encoding": self.encoding,
            "replaces_invalid_text": self.replaces_invalid_text,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ReadOptions:
        return cls(
            columns=None if value["columns"] is None else tuple(value["columns"]),
            types={path: from_json(kind) for path, kind in value["types"].items()},
            csv=CsvOptions(**value["csv"]),
            encoding=value["encoding"],
            replaces_invalid_text=value["replaces_invalid_text"],
        )


def _wanted_columns(job: SliceJob) -> tuple[str, ...] | None:
    """The columns that are published or read for something else; None for all."""
    if job.columns is None:
        return None
    others = [job.source.column, job.task.media.column if job.task.media is not None else None]
    return (*job.columns, *(name for name in others if name is not None and name not in job.columns))
