"""The files of one cache namespace in storage, which many jobs write, read, merge and remove at once.

A file is a table of entries (`arrow_files`), written in one step and never changed. Its name has the time of
its newest entry and the hash of its bytes. There are no locks: a merged file is written before its sources
are removed, so a crash in between leaves duplicate entries, which are harmless, and a reader whose file is
gone lists the files again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.errors import log_text
from airflow_provider_raydatallm.processor.columns import ENTRY_SCHEMA
from airflow_provider_raydatallm.processor.engines.dedup import doubted_answers
from airflow_provider_raydatallm.processor.engines.dedup.cache_index import CacheIndex, key_array
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import ALL_KEYS, Shard
from airflow_provider_raydatallm.processor.storage import arrow_files
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.ledger import content_hash

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(?P<newest>\d{12})-(?P<sha>[0-9a-f]{16})\.arrow")
#: Readers of tables skip names with a leading underscore, should the folder lie inside one.
_FOLDER = "_answers-"
_NAMESPACE = b"answer_space"
_DAY = 86_400
#: A file's size at most. Files are not compressed: a reader's memory holds as many bytes as storage.
_MAX_FILE_BYTES = 32 << 20
#: A file's share of `max_bytes` at most: the limit is kept by removing whole files.
_FILE_SHARE = 1 / 8
#: So many files under half of the size are merged.
_MERGE_FILES = 16
#: Files read in parallel.
_READERS = 16
#: How often a reader lists the files, when some are gone because they were merged.
_LISTINGS = 3


@dataclass(frozen=True)
class CacheNamespace:
    """Which answers may be shared, and where they are stored.

    :param key: `contract.fingerprint.answer_cache_key`: within it, identical requests have identical answers.
    :param model_source: of the job.
    :param read_existing: whether to use existing answers, or only to replace them.
    :param keep_truncated: whether to store answers that max_tokens cut: they may lack the required shape,
        which another attempt may have.
    :param numbers: how many numbers each answer has; None where answers are texts, or it is not known.
    """

    url: str
    key: str
    max_bytes: int
    max_days: float
    model_source: str = ""
    read_existing: bool = True
    keep_truncated: bool = True
    numbers: int | None = None

    def fit(self, entries: pa.Table) -> pa.ChunkedArray:
        """Whether each entry has as many numbers as all of the namespace."""
        if self.numbers is None:
            return pa.chunked_array([pa.repeat(True, entries.num_rows)])
        is_right = pc.equal(pc.list_value_length(entries.column("numbers")), self.numbers)
        return pc.fill_null(is_right, False)


def warn(text: str) -> None:
    logger.warning("engine.cache: %s", text)


class CacheFiles:
    """
    :param now: epoch seconds.
    :raises SliceError: from here and all methods, when the store fails.
    """

    def __init__(self, namespace: CacheNamespace, now: Callable[[], float] = time.time) -> None:
        self._namespace = namespace
        self._now = now
        self._store = Store(namespace.url)
        self._folder = f"{_FOLDER}{namespace.key}"
        self.file_bytes = min(_MAX_FILE_BYTES, int(namespace.max_bytes * _FILE_SHARE))

    def write(self, entries: pa.Table) -> str:
        """Writes entries (`ENTRY_SCHEMA`, at least one) as a file. Returns its name, which is equal for equal
        entries: jobs that merge the same files write one."""
        schema = ENTRY_SCHEMA.with_metadata({_NAMESPACE: self._namespace.key})
        content = arrow_files.encode(entries.cast(schema), compress=False)
        name = f"{pc.max(entries.column('answered_at')).as_py():012d}-{content_hash(content)}.arrow"
        self._store.create(f"{self._folder}/{name}", content)
        return name

    def read(self, shard: Shard = ALL_KEYS) -> dict[str, pa.Table]:
        """A shard's entries by file, without expired and doubted ones, and those that do not fit. Skips files
        that it cannot read, and logs them."""
        tables: dict[str, pa.Table] = {}
        skipped: dict[str, str] = {}
        gone: set[str] = set()
        doubted = doubted_answers.spans(self._store, self._namespace.model_source)
        read = partial(self._try_read, shard=shard, doubted=doubted)
        with ThreadPoolExecutor(_READERS) as pool:
            for _ in range(_LISTINGS):
                live, _, foreign = self._list_files()
                skipped |= dict.fromkeys(foreign, "its name is not of this cache")
                new = [n for n in live if n not in tables and n not in skipped and n not in gone]
                results = dict(zip(new, pool.map(read, new), strict=True))
                for name, result in results.items():
                    if isinstance(result, pa.Table):
                        tables[name] = result
                    elif result is not None:
                        skipped[name] = log_text(result)
                missing = {name for name, result in results.items() if result is None}
                gone |= missing
                if not missing:
                    break
        if skipped:
            name, why = next(iter(skipped.items()))
            folder = self._store.path(self._folder)
            warn(f"skipping {len(skipped):,} file(s) of {folder}, such as {name} ({why})")
        return tables

    def compact(self, tables: Mapping[str, pa.Table]) -> None:
        """Merges the small ones among files that were read, and removes what is expired or over max_bytes."""
        small = [name for name in sorted(tables) if tables[name].nbytes < self.file_bytes / 2]
        if len(small) >= _MERGE_FILES:
            for group in self._merge_groups(small, tables):
                entries = CacheIndex([tables[name] for name in group]).all_entries()
                merged = self.write(entries) if entries.num_rows else None
                self._remove(self._folder, (name for name in group if name != merged))
        self.remove_expired()
        for folder in self._store.names():
            if folder.startswith(_FOLDER) and folder != self._folder:  # its model may be out of use
                self._remove(folder, (f.name for f in self._store.files(folder) if self._is_expired(f.name)))
                self._store.remove_empty(folder)
        self._store.remove_scratch(self._folder, older_than=_DAY)
        doubted_answers.forget(self._store, self._oldest)

    def remove_expired(self) -> None:
        """Removes what is expired or over max_bytes."""
        _, expired, _ = self._list_files()
        self._remove(self._folder, expired)

    def _list_files(self) -> tuple[list[str], list[str], list[str]]:
        """Names of live files, the newest first; of files that are expired or over max_bytes; and of files
        that do not belong to the cache."""
        live: list[str] = []
        expired: list[str] = []
        foreign: list[str] = []
        size = 0
        for file in reversed(self._store.files(self._folder)):
            if not _NAME.fullmatch(file.name):
                foreign.append(file.name)
                continue
            size += file.size
            is_over = size > self._namespace.max_bytes
            (expired if is_over or self._is_expired(file.name) else live).append(file.name)
        return live, expired, foreign

    @property
    def _oldest(self) -> float:
        return self._now() - self._namespace.max_days * _DAY

    def _is_expired(self, name: str) -> bool:
        match = _NAME.fullmatch(name)
        return match is not None and int(match["newest"]) < self._oldest

    def _try_read(
        self, name: str, shard: Shard, doubted: Sequence[tuple[int, int]]
    ) -> pa.Table | Exception | None:
        try:
            table = self._read(name)
        except Exception as e:  # users may put any file there
            return e
        if table is None:
            return None
        is_wanted = pc.greater_equal(table.column("answered_at"), self._oldest)
        is_wanted = pc.and_(is_wanted, self._namespace.fit(table))
        for first, last in doubted:
            at = table.column("answered_at")
            is_doubted = pc.and_(pc.greater_equal(at, first), pc.less_equal(at, last))
            is_wanted = pc.and_not(is_wanted, is_doubted)
        if shard.count > 1:
            is_wanted = pc.and_(is_wanted, pa.array(shard.holds(key_array(table))))
        return table if pc.all(is_wanted, min_count=0).as_py() else table.filter(is_wanted)

    def _read(self, name: str) -> pa.Table | None:
        """None when the file is gone."""
        path = f"{self._folder}/{name}"
        try:
            content = self._store.read_start(path, arrow_files.MAX_FILE_BYTES)
        except FileNotFoundError:
            return None
        match = _NAME.fullmatch(name)
        try:
            if match is None or content_hash(content) != match["sha"]:
                raise ValueError("its content does not match the hash in its name")
            table = arrow_files.decode(content, max_bytes=len(content))
            if (table.schema.metadata or {}).get(_NAMESPACE) != self._namespace.key.encode():
                raise ValueError("it belongs to another cache namespace")
            table = table.replace_schema_metadata()
            if table.schema != ENTRY_SCHEMA or any(
                table.column(n).null_count for n in ("key", "answered_at")
            ):
                raise ValueError("it does not hold cache entries")
        except ValueError as e:
            raise CorruptFileError(self._store, path, str(e)) from e
        return table

    def _merge_groups(self, names: Iterable[str], tables: Mapping[str, pa.Table]) -> Iterator[list[str]]:
        """Groups of two or more files that fit into one."""
        group: list[str] = []
        size = 0
        for name in names:
            if size + tables[name].nbytes > self.file_bytes:
                yield from [group] * (len(group) > 1)
                group, size = [], 0
            group.append(name)
            size += tables[name].nbytes
        yield from [group] * (len(group) > 1)

    def _remove(self, folder: str, names: Iterable[str]) -> None:
        for name in names:
            self._store.remove(f"{folder}/{name}")
