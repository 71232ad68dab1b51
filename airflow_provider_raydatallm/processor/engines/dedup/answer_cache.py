"""Answers that other slices got, and this one's for those to come: `answer_cache`, beside a slice at work.

It never raises and keeps nobody waiting: storage is read and written in threads of its own, and what fails is
said once, whereupon the slice goes on without it. What was not put when the process dies is asked again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.columns import ENTRY_SCHEMA
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheFiles, CacheNamespace
from airflow_provider_raydatallm.processor.engines.dedup.cache_index import CacheIndex
from airflow_provider_raydatallm.processor.storage import Store

#: How long new answers wait to be put, unless they fill a file before.
_FLUSH_SECONDS = 30.0
#: Files' worth of new answers that wait for a store.
_MOST_PENDING = 4


def check_address(url: str) -> None:
    """:raises SliceError: when no filesystem has such addresses, or its package is not installed here."""
    try:
        Store(url)
    except SliceError as e:
        raise SliceError(
            f"answer_cache: {e}. Give an address such as s3://bucket/answers, or a path that every node has",
            kind=e.kind,
        ) from e


class AnswerCache:
    """For several threads."""

    def __init__(self, space: CacheNamespace, files: CacheFiles) -> None:
        self._space = space
        self._files = files
        self._index = CacheIndex([])
        self._loaded = threading.Event()
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._lock, self._putting = threading.Lock(), threading.Lock()
        self._due, self._closed = threading.Event(), threading.Event()
        self._said = False
        for work in (self._load, self._flush_in_time):
            threading.Thread(target=work, name=f"ray-llm-answers{work.__name__}", daemon=True).start()

    @classmethod
    def open(cls, space: CacheNamespace) -> AnswerCache | None:
        """None when it cannot be, which is said."""
        try:
            return cls(space, CacheFiles(space))
        except Exception as e:
            _say(space, e)
            return None

    @property
    def is_loaded(self) -> bool:
        """Whether what there is to find is there."""
        return self._loaded.is_set()

    def find(self, keys: Sequence[bytes]) -> np.ndarray:
        """`AnswerIndex.find`."""
        return self._index.find(keys)

    def take(self, places: np.ndarray) -> pa.Table:
        """`AnswerIndex.take`."""
        return self._index.take(places)

    def add(self, keys: Sequence[bytes], answers: pa.Table) -> None:
        """Take new answers, to be put soon.

        :param answers: a row for each key, with the columns of `ENTRY_SCHEMA` that an engine tells, and
            `error`. Only good ones are kept.
        """
        good = answers.column("error").is_null()
        if not self._space.keep_cut:
            good = pc.and_(good, pc.fill_null(pc.not_equal(answers.column("finish_reason"), "length"), True))
        told = {n: answers.column(n) for n in ENTRY_SCHEMA.names if n in answers.schema.names}
        at = [int(time.time())] * len(keys)
        made = pa.table({"key": pa.array(keys, pa.binary(16)), **told, "answered_at": at})
        kept = made.select(ENTRY_SCHEMA.names).cast(ENTRY_SCHEMA).filter(good)
        with self._lock:
            if self._pending_bytes >= _MOST_PENDING * self._files.file_bytes:
                return  # the store does not answer, and memory ends
            self._pending.append(kept)
            self._pending_bytes += kept.nbytes
            if self._pending_bytes >= self._files.file_bytes:
                self._due.set()

    def close(self) -> None:
        """Put what is pending."""
        self._closed.set()
        self._due.set()
        self._flush()

    def _load(self) -> None:
        tables: dict[str, pa.Table] = {}
        with self._unless_it_fails():
            if self._space.read:
                tables = self._files.read()
                self._index = CacheIndex(list(tables.values()))
        self._loaded.set()
        with self._unless_it_fails():
            self._files.tidy(tables)

    def _flush_in_time(self) -> None:
        while not self._closed.is_set():
            self._due.wait(_FLUSH_SECONDS)
            self._due.clear()
            self._flush()

    def _flush(self) -> None:
        with self._putting:
            with self._lock:
                pending, self._pending, self._pending_bytes = self._pending, [], 0
            entries = pa.concat_tables([ENTRY_SCHEMA.empty_table(), *pending])
            if entries.num_rows:
                files = -(-entries.nbytes // self._files.file_bytes)
                rows = -(-entries.num_rows // files)
                with self._unless_it_fails():
                    for first in range(0, entries.num_rows, rows):
                        self._files.write(entries.slice(first, rows))
                    self._files.drop()

    @contextlib.contextmanager
    def _unless_it_fails(self) -> Iterator[None]:
        try:
            yield
        except Exception as e:
            if not self._said:
                self._said = True
                _say(self._space, e)


def _say(space: CacheNamespace, error: Exception) -> None:
    # The store's own error, without what a slice whose output fails is told.
    why = error.__cause__ or error
    print(
        f"warning: answer_cache {space.url}: {type(why).__name__}: {why}. The slice goes on without it",
        file=sys.stderr,
        flush=True,
    )
