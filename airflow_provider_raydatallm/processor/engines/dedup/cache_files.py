"""Answers in storage, for slices to come: the files of one key space, which many jobs write, read, merge and
remove at once.

A file is an Arrow stream of entries. Its name says when its newest entry was answered and what its bytes
must hash to; it is put in one step and never changed. Nobody waits for anybody: a merged file is there before
those that it was made of go, so that what dies in between leaves entries twice, which does no harm, and a
reader whose file went looks again.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.processor.columns import ENTRY_SCHEMA
from airflow_provider_raydatallm.processor.engines.dedup.cache_index import CacheIndex
from airflow_provider_raydatallm.processor.storage import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.ledger import content_hash

_NAME = re.compile(r"(?P<newest>\d{12})-(?P<sha>[0-9a-f]{16})\.arrow")
#: Readers of tables skip names that begin so, should the folder lie in one's.
_FOLDER = "_answers-"
_SPACE = b"answer_space"
_DAY = 86_400
#: Bytes of a file, at most. They are not compressed: what storage holds is what a reader's memory will.
_FILE_BYTES = 32 << 20
#: A store is bounded by whole files: each is at most such a share of it.
_FILE_SHARE = 1 / 8
#: So many files that are not half as large are merged.
_MANY_SMALL = 16
#: Files that are read at once.
_READERS = 16
#: How often a reader whose files went looks for those that they were merged into.
_LOOKS = 3


@dataclass(frozen=True)
class CacheNamespace:
    """Which answers are kept, and where.

    :param key: `SliceJob.answer_space`: answers to the same request are the same in it.
    :param read: whether kept answers are used, or only replaced by new ones.
    :param keep_cut: whether an answer that max_tokens cut is worth keeping: it may not have the shape that is
        asked for, which another try may give it.
    """

    url: str
    key: str
    max_bytes: int
    max_days: float
    read: bool = True
    keep_cut: bool = True


class CacheFiles:
    """
    :param now: epoch seconds.
    :raises SliceError: here and from all methods, when the store fails.
    """

    def __init__(self, space: CacheNamespace, now: Callable[[], float] = time.time) -> None:
        self._space = space
        self._now = now
        self._store = Store(space.url)
        self._folder = f"{_FOLDER}{space.key}"
        self.file_bytes = min(_FILE_BYTES, int(space.max_bytes * _FILE_SHARE))

    def write(self, entries: pa.Table) -> str:
        """Put entries (`ENTRY_SCHEMA`, at least one) as a file. Returns its name: the same for the same
        entries, so that who merges the same files makes one."""
        schema = ENTRY_SCHEMA.with_metadata({_SPACE: self._space.key})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_table(entries.cast(schema).combine_chunks())
        content = sink.getvalue().to_pybytes()
        name = f"{pc.max(entries.column('answered_at')).as_py():012d}-{content_hash(content)}.arrow"
        self._store.create(f"{self._folder}/{name}", content)
        return name

    def read(self) -> dict[str, pa.Table]:
        """Entries by file, without those that are too old. Files that cannot be read are left out, which is
        said."""
        found: dict[str, pa.Table] = {}
        left_out: dict[str, str] = {}
        gone: set[str] = set()
        with ThreadPoolExecutor(_READERS) as pool:
            for _ in range(_LOOKS):
                kept, _, foreign = self._listed()
                left_out |= dict.fromkeys(foreign, "its name is not of this cache")
                new = [n for n in kept if n not in found and n not in left_out and n not in gone]
                went = False
                for name, table in zip(new, pool.map(self._tried, new), strict=True):
                    if isinstance(table, pa.Table):
                        found[name] = self._young(table)
                    elif table is None:
                        gone.add(name)
                        went = True
                    else:
                        left_out[name] = f"{type(table).__name__}: {table}"
                if not went:
                    break
        if left_out:
            name, why = next(iter(left_out.items()))
            print(
                f"warning: answer_cache: {len(left_out):,} file(s) of {self._store.path(self._folder)} are "
                f"left out, such as {name} ({why})",
                file=sys.stderr,
                flush=True,
            )
        return found

    def tidy(self, tables: Mapping[str, pa.Table]) -> None:
        """Merge what is small among files that were read, and remove what is too old, or too much."""
        small = [name for name in sorted(tables) if tables[name].nbytes < self.file_bytes / 2]
        if len(small) >= _MANY_SMALL:
            for group in self._groups(small, tables):
                entries = CacheIndex([tables[name] for name in group]).entries()
                made = self.write(entries) if entries.num_rows else None
                self._remove(self._folder, (name for name in group if name != made))
        self.drop()
        for folder in self._store.names():
            if (
                folder.startswith(_FOLDER) and folder != self._folder
            ):  # of a model that nobody may ask any more
                self._remove(folder, (f.name for f in self._store.files(folder) if self._is_old(f.name)))
                self._store.remove_empty(folder)
        self._store.remove_scratch(self._folder, older_than=_DAY)

    def drop(self) -> None:
        """Remove what is too old, or too much."""
        _, dropped, _ = self._listed()
        self._remove(self._folder, dropped)

    def _listed(self) -> tuple[list[str], list[str], list[str]]:
        """Names of files that count, the newest first; of those that are too old, or too much; and of those
        that are none of ours."""
        kept: list[str] = []
        dropped: list[str] = []
        foreign: list[str] = []
        size = 0
        for file in reversed(self._store.files(self._folder)):
            if not _NAME.fullmatch(file.name):
                foreign.append(file.name)
                continue
            size += file.size
            (dropped if self._is_old(file.name) or size > self._space.max_bytes else kept).append(file.name)
        return kept, dropped, foreign

    @property
    def _oldest(self) -> float:
        return self._now() - self._space.max_days * _DAY

    def _is_old(self, name: str) -> bool:
        match = _NAME.fullmatch(name)
        return match is not None and int(match["newest"]) < self._oldest

    def _young(self, table: pa.Table) -> pa.Table:
        young = pc.greater_equal(table.column("answered_at"), self._oldest)
        return table if pc.all(young, min_count=0).as_py() else table.filter(young)

    def _tried(self, name: str) -> pa.Table | Exception | None:
        try:
            return self._read(name)
        except Exception as e:  # whatever a file is that somebody put there
            return e

    def _read(self, name: str) -> pa.Table | None:
        """None when it is gone."""
        path = f"{self._folder}/{name}"
        content = self._store.read(path)
        if content is None:
            return None
        match = _NAME.fullmatch(name)
        if match is None or content_hash(content) != match["sha"]:
            raise CorruptFileError(self._store, path, "its content is not what its name says")
        with pa.ipc.open_stream(pa.BufferReader(content)) as stream:
            table = stream.read_all()
        if (table.schema.metadata or {}).get(_SPACE) != self._space.key.encode():
            raise CorruptFileError(self._store, path, "it holds answers to other questions")
        return table.replace_schema_metadata().select(ENTRY_SCHEMA.names).cast(ENTRY_SCHEMA)

    def _groups(self, names: Iterable[str], tables: Mapping[str, pa.Table]) -> Iterator[list[str]]:
        """Names of what fits one file together, more than one each."""
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
