"""Answers by the keys of their requests, as they lie in files: millions fit, where objects would not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.processor.columns import ENTRY_SCHEMA

#: numpy sorts and finds texts of 16 bytes in machine code. It takes zeros at their end for none, which makes
#: no two alike that are equally long.
_KEY = "S16"


class CacheIndex:
    """Entries of some tables, the newest one of each key. It never changes: for several threads."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        """:param tables: of `ENTRY_SCHEMA`. They are kept as they are, and not copied."""
        self._tables = list(tables)
        self._starts = np.cumsum([0, *(t.num_rows for t in self._tables)])[:-1]
        keys = np.concatenate([np.empty(0, _KEY), *map(_keys, self._tables)])
        times = [t.column("answered_at").to_numpy() for t in self._tables]
        newest = np.argsort(-np.concatenate([np.empty(0, np.int64), *times]), kind="stable")
        places = newest[np.argsort(keys[newest], kind="stable")]
        keys = keys[places]
        first = np.ones(len(keys), bool)
        first[1:] = keys[1:] != keys[:-1]
        self._keys, self._places = keys[first], places[first]

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, keys: Sequence[bytes]) -> np.ndarray:
        """Where the keys' answers are, for `take`; -1 where there is none."""
        wanted = np.frombuffer(b"".join(keys), _KEY)
        at = np.searchsorted(self._keys, wanted)
        there = at < len(self._keys)
        there[there] = self._keys[at[there]] == wanted[there]
        places = np.full(len(wanted), -1, np.int64)
        places[there] = self._places[at[there]]
        return places

    def take(self, places: np.ndarray) -> pa.Table:
        """The entries at some places, in their order."""
        # Table by table: Arrow would first make one of them all.
        of = np.searchsorted(self._starts, places, side="right") - 1
        pieces = [
            self._tables[i].take(pa.array(places[of == i] - self._starts[i])) for i in np.unique(of).tolist()
        ]
        together = np.argsort(np.argsort(of, kind="stable"), kind="stable")
        return pa.concat_tables([ENTRY_SCHEMA.empty_table(), *pieces]).take(pa.array(together))

    def entries(self) -> pa.Table:
        """All of them, by their keys."""
        return self.take(self._places)


def _keys(table: pa.Table) -> np.ndarray:
    return np.concatenate([np.empty(0, _KEY), *map(_bytes, table.column("key").chunks)])


def _bytes(keys: pa.FixedSizeBinaryArray) -> np.ndarray:
    if not len(keys):
        return np.empty(0, _KEY)
    return np.frombuffer(keys.buffers()[1], _KEY, count=len(keys), offset=16 * keys.offset)
