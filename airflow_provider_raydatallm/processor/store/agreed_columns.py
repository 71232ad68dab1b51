"""The types of the columns that a postprocess function returns, or of a model's vectors, agreed by all tasks
of a slice.

What a function or a model answers is known when it has answered it. The first group of answers decides the
columns' types, and later groups widen them (`value_types.merge`). Each decision is the next one of the
documents `columns-000001.json`, `columns-000002.json`, ... in the checkpoint folder, put create-only before a
row of these types is delivered: two tasks, two nodes or two runs never hold rows that do not fit into one
table. A damaged document is skipped: it takes back a widening, and publishing checks types again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.value_types import ColumnTypes, TypeMismatch, merge_columns


class AgreedColumns:
    """Thread-safe and picklable."""

    def __init__(self, declared: ColumnTypes, url: str | None = None, folder: str | None = None) -> None:
        """:param declared: types that the function's annotation declares.
        :param url, folder: of the checkpoint; None: nobody else is to agree."""
        self._init_arguments = (declared, url, folder)
        self._declared = declared
        self._url = url
        self._folder = folder
        self._types: ColumnTypes | None = None
        self._documents = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return AgreedColumns, self._init_arguments

    def agree(self, widen: Callable[[ColumnTypes], ColumnTypes]) -> ColumnTypes:
        """Returns the agreed types once `widen` adds nothing to them, or what it adds is agreed too.

        :param widen: called with the agreed types, until no other task agrees on others at the same time.
        :raises SliceError: when the folder cannot be written.
        """
        with self._lock:
            if self._types is None:
                self._types = dict(self._declared)
                self._read_documents()
            while True:
                wanted = widen(self._types)
                if wanted == self._types or self._put_document(wanted):
                    self._types = wanted
                    return wanted
                self._read_documents()

    @cached_property
    def _store(self) -> Store:
        assert self._url is not None
        return Store(self._url)

    def _name(self, number: int) -> str:
        return f"{self._folder}/columns-{number:06}.json"

    def _put_document(self, types: ColumnTypes) -> bool:
        if self._url is None:
            return True
        created = self._store.create_document(self._name(self._documents + 1), types)
        self._documents += created
        return created

    def _read_documents(self) -> None:
        while self._url is not None:
            try:
                types = self._store.read_document(self._name(self._documents + 1))
            except CorruptFileError:
                self._documents += 1
                continue
            if types is None:
                return
            self._documents += 1
            try:
                self._types = merge_columns(types, self._declared)
            except TypeMismatch:  # rows of a carried-over version are of other types
                self._types = types
