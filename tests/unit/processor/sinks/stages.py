"""What each kind of sink takes to be in the behaviour suite: to be read by those who know no commits, and to
lose or damage a file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.sinks.base import Sink
from airflow_provider_raydatallm.processor.sinks.folder import SUCCESS, FolderSink
from airflow_provider_raydatallm.processor.store.versions import Version
from tests.support.toy_sink import ORIGINALS, ToySink, read_toy_table, rows_name


class NotWholeError(Exception):
    """A reader sees that what it reads is not whole."""


class Stage(ABC):
    kind: type[Sink]

    @abstractmethod
    def read(self, job: SliceJob) -> pa.Table:
        """The rows that a reader of the table gets.

        :raises NotWholeError: when there is no whole version for it, which it sees.
        """

    @abstractmethod
    def read_quarantine(self, job: SliceJob) -> pa.Table: ...

    @abstractmethod
    def shown_file(self, job: SliceJob, version: Version) -> Path:
        """A file that the table shows of a version."""

    @abstractmethod
    def lose(self, job: SliceJob, version: Version) -> None:
        """Removes what the table shows of a version, and all from which it could be shown again."""


class FolderStage(Stage):
    kind = FolderSink

    def read(self, job: SliceJob) -> pa.Table:
        marker = Path(job.slice_path, SUCCESS)
        try:
            before = os.stat(marker).st_ino
            table = pq.read_table(job.slice_path, partitioning=None)
            after = os.stat(marker).st_ino
        except FileNotFoundError as e:
            raise NotWholeError from e
        if before != after:
            raise NotWholeError
        return table

    def read_quarantine(self, job: SliceJob) -> pa.Table:
        return pq.read_table(job.paths.quarantine, partitioning=None)

    def shown_file(self, job: SliceJob, version: Version) -> Path:
        return Path(job.slice_path, version.files[0].name)

    def lose(self, job: SliceJob, version: Version) -> None:
        self.shown_file(job, version).unlink()


class ToyStage(Stage):
    kind = ToySink

    def read(self, job: SliceJob) -> pa.Table:
        try:
            return read_toy_table(job.slice_path, job.slice_path)
        except FileNotFoundError as e:
            raise NotWholeError from e

    def read_quarantine(self, job: SliceJob) -> pa.Table:
        return read_toy_table(job.slice_path, job.paths.quarantine)

    def shown_file(self, job: SliceJob, version: Version) -> Path:
        return Path(job.slice_path, rows_name(version.staged))

    def lose(self, job: SliceJob, version: Version) -> None:
        self.shown_file(job, version).unlink()
        originals = Path(job.paths.staging, ORIGINALS, f"{version.number:06}")
        (originals / version.files[0].plain_name).unlink()
