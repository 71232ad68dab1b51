"""Reads and decodes the media of many rows at once, on threads of a feeder.

Reading waits for disks, stores and sites, so it has many threads. Decoding has as many as it may keep busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.media_sources import MediaSources, is_url
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.contract.spec.tasks.transcribe import Transcribe
from airflow_provider_raydatallm.processor.columns import describe_error
from airflow_provider_raydatallm.processor.media.audio import decode_audio
from airflow_provider_raydatallm.processor.media.cells import MediaFile
from airflow_provider_raydatallm.processor.media.folders import read_file
from airflow_provider_raydatallm.processor.media.images import decode_image
from airflow_provider_raydatallm.processor.media.medium import (
    Allowance,
    InvalidMedia,
    MediaUnavailable,
    Medium,
    RowAllowances,
)
from airflow_provider_raydatallm.processor.media.sites import read_url
from airflow_provider_raydatallm.processor.storage.store import Store

_READING_THREADS = 16
#: Of a feeder, which has a CPU for itself and is not alone on its node.
_DECODING_THREADS = 2
#: Of a row's files together, unless one of them alone may have more.
_MOST_FILE_BYTES = 1 << 30
_RETRY_WAITS_SECONDS = (0.5, 2.0)

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")


class MediaReader:
    """Thread-safe."""

    def __init__(self, job: SliceJob) -> None:
        assert job.task.media is not None
        self._task, self._media = job.task, job.task.media
        self._max_pixels = job.task.images.max_pixels if isinstance(job.task, Generate) else 0
        self._sources = MediaSources(self._media.sources, self._media.argument)
        self._reading = ThreadPoolExecutor(_READING_THREADS, "ray-llm-media-read")
        self._decoding = ThreadPoolExecutor(_DECODING_THREADS, "ray-llm-media-decode")

    def read(self, rows: Sequence[Sequence[MediaFile]]) -> list[list[bytes] | Exception]:
        """Returns the content of each row's files, or why they cannot be read."""
        most = max(_MOST_FILE_BYTES, self._media.max_bytes)
        return _map_nested(self._reading, self._read_file, rows, lambda: Allowance(most, "bytes"))

    def decode(self, rows: Sequence[Sequence[bytes]]) -> list[list[Medium] | Exception]:
        """Returns each row's media, or why they cannot be shown to a model."""
        return [
            list(chain.from_iterable(row)) if isinstance(row, list) else row
            for row in _map_nested(self._decoding, self._decode_file, rows, RowAllowances)
        ]

    def _decode_file(self, data: bytes, row: RowAllowances) -> list[Medium]:
        if isinstance(self._task, Transcribe):
            return decode_audio(data, self._task.audio.max_seconds, row)
        return [decode_image(data, self._max_pixels, row)]

    def _read_file(self, file: MediaFile, row_bytes: Allowance) -> bytes:
        row_bytes.take(0)  # one more is not even read when others were too much
        data = self._read_content(file)
        row_bytes.take(len(data))
        return data

    def _read_content(self, file: MediaFile) -> bytes:
        if file.data is not None:
            self._check_size(file.data, f"the {self._media.noun}")
            return file.data
        for wait in (*_RETRY_WAITS_SECONDS, None):
            try:
                return self._read_address(file.address or "")
            except MediaUnavailable:
                if wait is None:
                    raise
                time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _read_address(self, address: str) -> bytes:
        if is_url(address):
            return read_url(
                address,
                self._sources,
                max_bytes=self._media.max_bytes,
                timeout_s=self._media.timeout_s,
            )
        try:
            self._sources.check(address)
        except ValueError as e:
            raise InvalidMedia(str(e)) from None
        folder, _, name = address.removeprefix("file://").rpartition("/")
        limit = self._media.max_bytes + 1
        try:
            store = Store(folder or "/")
            if store.is_local:
                folders = self._sources.disk_folders
                data = read_file(store.path(name), folders, self._media.argument, limit)
            else:
                data = store.read_start(name, limit)
        except FileNotFoundError:
            raise InvalidMedia(f"{address!r:.200} does not exist") from None
        except SliceError as e:
            why = describe_error(e.__cause__ or e)
            raise MediaUnavailable(f"{address!r:.200} could not be read: {why}") from e
        self._check_size(data, repr(address)[:200])
        return data

    def _check_size(self, data: bytes, name: str) -> None:
        if len(data) > self._media.max_bytes:
            limit = f"{self._media.argument}.max_bytes, {self._media.max_bytes:,} bytes"
            raise InvalidMedia(f"{name} has more than {limit}")


def _map_nested(
    pool: ThreadPoolExecutor,
    function: Callable[[T, A], R],
    rows: Sequence[Sequence[T]],
    allowance_of_row: Callable[[], A],
) -> list[list[R] | Exception]:
    """Calls a function for each value of each row. Returns its first error in place of a row."""

    def attempt(value: T, allowance: A) -> R | Exception:
        try:
            return function(value, allowance)
        except Exception as e:
            return e

    allowances = [allowance_of_row() for _ in rows]
    values = [(value, a) for row, a in zip(rows, allowances, strict=True) for value in row]
    results = pool.map(attempt, *(zip(*values, strict=True) if values else ((), ())))
    mapped: list[list[R] | Exception] = []
    for row in rows:
        of_row = [next(results) for _ in row]
        error = next((result for result in of_row if isinstance(result, Exception)), None)
        mapped.append(error or [result for result in of_row if not isinstance(result, Exception)])
    return mapped
