"""The newest answers of a slice, in Arrow tables: Python objects would cost several times as much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.dedup.cache_index import take_rows

#: Memory of a key where it is kept: here, and in the coordinator's dict.
_BYTES_PER_KEY = 250
#: A table's share of the limit at most: the oldest table goes as a whole.
_TABLE_SHARE = 1 / 16


@dataclass(frozen=True)
class _Part:
    keys: list[bytes]
    answers: pa.Table
    size: int


class RecentAnswers:
    """An answer's position never changes."""

    def __init__(self, schema: pa.Schema, max_bytes: int) -> None:
        self._schema = schema
        self._max_bytes = max_bytes
        self._bytes = 0
        self._parts: list[_Part] = []
        self._first = 0
        self.end = 0

    def append(self, keys: list[bytes], answers: pa.Table) -> list[bytes]:
        """Puts answers at the positions from `end`. Returns the keys of those that leave for them.

        :param answers: of the schema, a row for each key, in memory that nobody else has a say in.
        """
        size = answers.nbytes + len(keys) * _BYTES_PER_KEY
        self._bytes += size
        self.end += len(keys)
        # A table is merged when about as much came after it: so there are few tables, and each answer is
        # copied a few times only.
        merged = [_Part(keys, answers, size)]
        while self._parts and self._parts[-1].size < 2 * size:
            if size + self._parts[-1].size > self._max_bytes * _TABLE_SHARE:
                break
            merged.insert(0, self._parts.pop())
            size += merged[0].size
        if len(merged) > 1:
            answers = pa.concat_tables([part.answers for part in merged]).combine_chunks()
            merged = [_Part([key for part in merged for key in part.keys], answers, size)]
        self._parts += merged
        evicted: list[bytes] = []
        while self._bytes > self._max_bytes and len(self._parts) > 1:
            oldest = self._parts.pop(0)
            self._bytes -= oldest.size
            self._first += len(oldest.keys)
            evicted += oldest.keys
        return evicted

    def take(self, positions: Sequence[int]) -> pa.Table:
        """The answers at some positions, in their order."""
        tables = [part.answers for part in self._parts]
        return take_rows(tables, np.array(positions, np.int64) - self._first, self._schema)
