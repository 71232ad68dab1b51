"""Finds cached answers by the keys of their requests, in Arrow tables: millions fit in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.processor.columns import ENTRY_SCHEMA
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import KEY_TYPE


class CacheIndex:
    """The newest entry of each key in some tables. Immutable, and so thread-safe."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        """:param tables: of `ENTRY_SCHEMA`; they are not copied."""
        self._tables = list(tables)
        keys = np.concatenate([np.empty(0, KEY_TYPE), *map(key_array, self._tables)])
        times = [t.column("answered_at").to_numpy() for t in self._tables]
        newest_first = np.argsort(-np.concatenate([np.empty(0, np.int64), *times]), kind="stable")
        positions = newest_first[np.argsort(keys[newest_first], kind="stable")]
        keys = keys[positions]
        is_newest = np.ones(len(keys), bool)
        is_newest[1:] = keys[1:] != keys[:-1]
        self._keys, self._positions = keys[is_newest], positions[is_newest]

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, keys: Sequence[bytes]) -> np.ndarray:
        """The positions of the keys' entries, for `entries_at`; -1 where there is none."""
        wanted = np.frombuffer(b"".join(keys), KEY_TYPE)
        places = np.searchsorted(self._keys, wanted)
        is_known = places < len(self._keys)
        is_known[is_known] = self._keys[places[is_known]] == wanted[is_known]
        positions = np.full(len(wanted), -1, np.int64)
        positions[is_known] = self._positions[places[is_known]]
        return positions

    def entries_at(self, positions: np.ndarray) -> pa.Table:
        """The entries at some positions, in their order."""
        return take_rows(self._tables, positions, ENTRY_SCHEMA)

    def all_entries(self) -> pa.Table:
        """In the order of their keys."""
        return self.entries_at(self._positions)


def key_array(table: pa.Table) -> np.ndarray:
    """The column `key` of entries."""
    return np.concatenate([np.empty(0, KEY_TYPE), *map(_chunk_keys, table.column("key").chunks)])


def _chunk_keys(keys: pa.FixedSizeBinaryArray) -> np.ndarray:
    if not len(keys):
        return np.empty(0, KEY_TYPE)
    return np.frombuffer(keys.buffers()[1], KEY_TYPE, count=len(keys), offset=16 * keys.offset)


def take_rows(tables: Sequence[pa.Table], positions: np.ndarray, schema: pa.Schema) -> pa.Table:
    """The rows at some positions in the sequence of tables, in the order of the positions."""
    starts = np.cumsum([0, *(t.num_rows for t in tables)])[:-1]
    # Table by table: Arrow would first concatenate all of them.
    numbers = np.searchsorted(starts, positions, side="right") - 1
    pieces = [
        tables[i].take(pa.array(positions[numbers == i] - starts[i])) for i in np.unique(numbers).tolist()
    ]
    order = np.argsort(np.argsort(numbers, kind="stable"), kind="stable")
    return pa.concat_tables([schema.empty_table(), *pieces]).take(pa.array(order))
