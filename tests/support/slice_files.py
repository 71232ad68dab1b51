"""What lies in a slice's folders: tests look at it, and damage it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.sinks.folder import marker_name
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import Version, newest_version


def folders_of(job: SliceJob) -> SliceFolders:
    return SliceFolders.open(job.paths)


def newest(job: SliceJob) -> Version:
    version = newest_version(folders_of(job).metadata)
    assert version is not None
    return version


def staged_marker(job: SliceJob) -> str:
    """Path of the newest version's marker, below the folder of staged files."""
    return marker_name(newest(job).staged).removeprefix("staged/")


def shown(job: SliceJob) -> set[str]:
    """Names in the slice's folder in the table."""
    folder = Path(job.slice_path)
    return {p.name for p in folder.iterdir()} if folder.exists() else set()


def parts(job: SliceJob) -> list[Path]:
    """The Parquet files of the slice, in order."""
    return sorted(Path(job.slice_path).glob("*.parquet"))


def metadata(job: SliceJob) -> Path:
    return Path(job.paths.metadata)


def files_below(folder: Path) -> set[str]:
    """All files below a folder; where a name has a nonce, without it and what follows."""
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    return {name[:12] + "..." if name.startswith("plans/") else name for name in names}


def checkpoint_folders(job: SliceJob) -> list[Path]:
    return sorted((metadata(job) / "checkpoint").glob("*"))


def answers(job: SliceJob, column: str = "answer") -> list[str]:
    """The answers that a reader of the folder gets."""
    values: list[str] = pq.read_table(job.slice_path, partitioning=None).column(column).to_pylist()
    return values
