"""Names a slice's input and output for lineage and assets: a table, and the slice's partition or path.

Datasets are tables, never slices: a graph with a node for every day is useless. Pure; imports neither Airflow
nor OpenLineage.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from airflow_provider_raydatallm.contract.slice_paths import TRIAL, encode_slice_key
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob

_GLOB = re.compile(r"[*?\[]")
_HIVE_FOLDER = re.compile(r"(\w+)=(.+)")
#: Schemes that OpenLineage spells differently.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}


@dataclass(frozen=True)
class Table:
    """`address` has no partitions; where the slice comes before the table's name, it keeps the text
    `{slice}`. `partition` holds the columns that identify the slice, `location` its path when no column does.
    Both are empty for a whole table."""

    address: str
    partition: dict[str, str]
    location: str | None

    @property
    def uri(self) -> str:
        return self.address if "://" in self.address else f"file://{os.path.abspath(self.address)}"


def input_table(job: SliceJob) -> Table:
    table = _table(job.input_path, job.slice_key, job.resolved_input_path)
    if job.source.column is None:
        return table
    return Table(table.address, {**table.partition, job.source.column: job.slice_key}, None)


def output_table(job: SliceJob) -> Table:
    """Trial runs (`max_rows`) write to a table of their own."""
    folder, _, name = job.output_path.rstrip("/").rpartition("/")
    if "{slice}" not in job.output_path:
        folder, name = job.output_path.rstrip("/"), "ds={slice}"
    trial = "" if job.trial_name is None else f"{TRIAL}/{job.trial_name}"
    return _table(f"{folder}{trial}/{name}", job.slice_key, job.slice_path)


class DatasetName(NamedTuple):
    namespace: str
    name: str


def dataset_name(address: str) -> DatasetName:
    """Returns OpenLineage's name of an address, by https://openlineage.io/docs/spec/naming."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "file", os.path.abspath(address)
    authority, _, path = rest.partition("/")
    path = path.strip("/")
    if scheme == "file":
        return DatasetName(f"file://{authority}" if authority else "file", f"/{path}")
    return DatasetName(f"{_SCHEMES.get(scheme, scheme)}://{authority}", path or "/")


def _table(path: str, key: str, location: str) -> Table:
    scheme, separator, rest = path.rpartition("://")
    root, *segments = rest.rstrip("/").split("/")
    if "{slice}" not in path:  # Jinja may have rendered the slice key
        keys = "|".join(map(re.escape, {key, encode_slice_key(key)}))
        segments = [re.sub(rf"^(\w+=)?(?:{keys})$", r"\1{slice}", s) for s in segments]
    has_slice = any("{slice}" in s for s in segments)
    partition: dict[str, str] = {}
    is_in_partition = False
    while segments:
        hive = _HIVE_FOLDER.fullmatch(segments[-1])
        if hive is None and segments[-1] != "{slice}" and not _GLOB.search(segments[-1]):
            break
        if hive is not None and not _GLOB.search(hive[2]):
            is_in_partition |= hive[2] == "{slice}"
            partition[hive[1]] = unquote(hive[2]).replace("{slice}", key)
        segments.pop()
    address = f"{scheme}{separator}{'/'.join([root, *segments])}" or "/"
    return Table(address, partition, location if has_slice and not is_in_partition else None)
