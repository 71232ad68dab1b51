"""Cached answers, and their files, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.dedup.answer_cache import AnswerCache
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheFiles, CacheNamespace
from airflow_provider_raydatallm.processor.engines.dedup.cache_index import ENTRY_SCHEMA, CacheIndex
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import ADDED_COLUMNS
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import request_key
from airflow_provider_raydatallm.processor.storage.store import Store

MB = 1 << 20
DAY = 86_400
NOW = 1_800_000_000


def entries(texts: dict[str, str], at: int = NOW) -> pa.Table:
    """:param texts: of answers, by request."""
    rows = [
        {"key": request_key(request), "text": text, "finish_reason": "stop", "shortened": False,
         "input_tokens": 3, "output_tokens": 2, "answered_at": at}
        for request, text in texts.items()
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, ENTRY_SCHEMA)


def new_answers(*texts: str, **columns: list[Any]) -> pa.Table:
    """As an engine adds them."""
    values: dict[str, list[Any]] = {name: [None] * len(texts) for name in ADDED_COLUMNS}
    values |= {"text": list(texts), "finish_reason": ["stop"] * len(texts), "shortened": [False] * len(texts)}
    values |= {"input_tokens": [3] * len(texts), "output_tokens": [2] * len(texts), **columns}
    fields = {**{f.name: f.type for f in ENTRY_SCHEMA}, "is_invalid": pa.bool_()}
    return pa.table({n: pa.array(v, fields.get(n, pa.string())) for n, v in values.items()})


def answers_in(tables: Sequence[pa.Table], *requests: str) -> list[str | None]:
    index = CacheIndex(tables)
    positions = index.find([request_key(r) for r in requests])
    texts = iter(index.entries_at(positions[positions >= 0]).column("text").to_pylist())
    return [next(texts) if position >= 0 else None for position in positions]


def namespace(url: Path | str, **options: Any) -> CacheNamespace:
    return CacheNamespace(**{"url": str(url), "key": "k", "max_bytes": 64 * MB, "max_days": 30.0} | options)


class Cache:
    """The files of a namespace, and a clock."""

    def __init__(self, url: str, **options: Any) -> None:
        self.namespace = namespace(url, **options)
        self.now = NOW
        self.files = CacheFiles(self.namespace, now=lambda: self.now)
        self.store = Store(url)

    @property
    def names(self) -> list[str]:
        return self.store.names(f"_answers-{self.namespace.key}")

    def answers(self, *requests: str) -> list[str | None]:
        return answers_in(list(self.files.read().values()), *requests)


def open_cache(url: Path, **options: Any) -> AnswerCache:
    """Returns it loaded."""
    cache = AnswerCache.open(namespace(url, **options))
    assert cache is not None
    assert cache._loaded.wait(60)
    return cache
