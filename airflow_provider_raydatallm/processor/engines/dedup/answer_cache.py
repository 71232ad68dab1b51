"""The answer cache: answers that slices share through storage.

It never raises and no slice waits for it: its own threads read and write storage. The first failure is
logged, and the slice continues without the cache. Answers that were not stored when the process dies are
inferred again by later slices.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.errors import SliceError, log_text
from airflow_provider_raydatallm.processor.columns import CUT_BY, ENTRY_SCHEMA
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheFiles, CacheNamespace, warn
from airflow_provider_raydatallm.processor.engines.dedup.cache_index import CacheIndex
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import ALL_KEYS, Shard
from airflow_provider_raydatallm.processor.storage.store import Store

#: How long new answers wait for a file to fill, for each shard: more shards write no more files.
_FLUSH_SECONDS = 30.0
#: New answers that may wait for a slow store; more are dropped.
_MAX_PENDING_FILES = 4


def check_address(url: str) -> None:
    """:raises SliceError: when no filesystem has such addresses, or its package is not installed here."""
    try:
        Store(url)
    except SliceError as e:
        advice = "Give an address such as s3://bucket/answers, or a path that every node has"
        failure = e.failure.about("engine.cache")
        raise SliceError.of(replace(failure, advice=(*failure.advice, advice))) from e


class AnswerCache:
    """A shard's part of a namespace. Thread-safe."""

    def __init__(self, namespace: CacheNamespace, files: CacheFiles, shard: Shard) -> None:
        self._namespace = namespace
        self._files = files
        self._shard = shard
        self._index = CacheIndex([])
        self._loaded = threading.Event()
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._lock, self._flush_lock = threading.Lock(), threading.Lock()
        self._flush_due, self._closed = threading.Event(), threading.Event()
        self._has_warned = False
        for run in (self._load, self._flush_periodically):
            threading.Thread(target=run, name=f"ray-llm-answers{run.__name__}", daemon=True).start()

    @classmethod
    def open(cls, namespace: CacheNamespace, shard: Shard = ALL_KEYS) -> AnswerCache | None:
        """Returns None, and logs why, when the store cannot be opened."""
        try:
            return cls(namespace, CacheFiles(namespace), shard)
        except Exception as e:
            _warn_of_failure(namespace, e)
            return None

    @property
    def is_loaded(self) -> bool:
        return self._loaded.is_set()

    def wait_until_loaded(self, timeout_s: float) -> None:
        self._loaded.wait(timeout_s)

    def find(self, keys: Sequence[bytes]) -> np.ndarray:
        """`CacheIndex.find`."""
        return self._index.find(keys)

    def entries_at(self, positions: np.ndarray) -> pa.Table:
        """`CacheIndex.entries_at`."""
        return self._index.entries_at(positions)

    def add(self, keys: Sequence[bytes], answers: pa.Table) -> None:
        """Takes new answers, to be stored soon. Those with an error, and invalid ones, are left out.

        :param answers: a row for each key: the engine's columns of `ENTRY_SCHEMA`, `error` and `is_invalid`.
        """
        is_valid = pc.invert(pc.fill_null(answers.column("is_invalid"), False))
        is_good = pc.and_(answers.column("error").is_null(), is_valid)
        if not self._namespace.keep_truncated:
            is_cut = pc.is_in(answers.column("finish_reason"), pa.array(CUT_BY))
            is_good = pc.and_not(is_good, is_cut)
        columns = {n: answers.column(n) for n in ENTRY_SCHEMA.names if n in answers.schema.names}
        columns |= {"key": pa.array(keys, pa.binary(16)), "answered_at": [int(time.time())] * len(keys)}
        entries = pa.table(columns).select(ENTRY_SCHEMA.names).cast(ENTRY_SCHEMA)
        entries = entries.filter(pc.and_(is_good, self._namespace.fit(entries)))
        with self._lock:
            if self._pending_bytes >= _MAX_PENDING_FILES * self._files.file_bytes:
                return  # the store does not respond, and memory is limited
            self._pending.append(entries)
            self._pending_bytes += entries.nbytes
            if self._pending_bytes >= self._files.file_bytes:
                self._flush_due.set()

    def close(self) -> None:
        """Stores what is pending."""
        self._closed.set()
        self._flush_due.set()
        self._flush()

    def _load(self) -> None:
        tables: dict[str, pa.Table] = {}
        with self._warn_on_failure():
            if self._namespace.read_existing:
                tables = self._files.read(self._shard)
                self._index = CacheIndex(list(tables.values()))
        self._loaded.set()
        if self._shard.index == 0:
            with self._warn_on_failure():
                # Files are merged as a whole, with the entries of all shards.
                self._files.compact(tables if self._shard.count == 1 else self._files.read())

    def _flush_periodically(self) -> None:
        while not self._closed.is_set():
            self._flush_due.wait(_FLUSH_SECONDS * self._shard.count)
            self._flush_due.clear()
            self._flush()

    def _flush(self) -> None:
        with self._flush_lock:
            with self._lock:
                pending, self._pending, self._pending_bytes = self._pending, [], 0
            entries = pa.concat_tables([ENTRY_SCHEMA.empty_table(), *pending])
            if entries.num_rows:
                files = -(-entries.nbytes // self._files.file_bytes)
                rows = -(-entries.num_rows // files)
                with self._warn_on_failure():
                    for first in range(0, entries.num_rows, rows):
                        self._files.write(entries.slice(first, rows))
                    self._files.remove_expired()

    @contextlib.contextmanager
    def _warn_on_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as e:
            if not self._has_warned:
                self._has_warned = True
                _warn_of_failure(self._namespace, e)


def _warn_of_failure(namespace: CacheNamespace, error: Exception) -> None:
    # The store's own error, without the advice for a slice whose output fails.
    cause = error.__cause__ or error
    warn(f"{namespace.url}: {log_text(cause)}. The slice continues without it")
