"""The columns of a table, which its slices agree on: who reads the whole table expects one type of each.

`store.column_agreement` has how they agree; here columns are Arrow's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.input.types.codec import from_json, to_json
from airflow_provider_raydatallm.processor.input.types.known import KnownColumns
from airflow_provider_raydatallm.processor.input.types.plain import outline
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.column_agreement import ColumnAgreement, TableColumn


@dataclass(frozen=True)
class TableColumns:
    agreement: ColumnAgreement

    @classmethod
    def read(cls, store: Store, before: TableColumns | None = None) -> TableColumns:
        """
        :param store: of the table's metadata.
        :param before: what was read before, which holds when no document came since.
        """
        known = before.agreement if before is not None else None
        return cls(ColumnAgreement.read(store, known, _check_type))

    @property
    def store(self) -> Store:
        return self.agreement.store

    def inputs(self, key: str) -> KnownColumns:
        """The input's columns, as a slice finds them."""
        own = {name: column for name, column in self.agreement.columns.items() if not column.is_answer}
        schema = pa.schema([(name, from_json(column.kind)) for name, column in own.items()])
        return KnownColumns(schema, frozenset(name for name, column in own.items() if column.others(key)))

    @property
    def answers(self) -> dict[str, pa.DataType]:
        """The columns of answers."""
        return {name: from_json(c.kind) for name, c in self.agreement.columns.items() if c.is_answer}

    @property
    def answer_fields(self) -> list[pa.Field]:
        return [pa.field(name, kind) for name, kind in self.answers.items()]

    def agree(
        self,
        key: str,
        inputs: pa.Schema,
        answers: Iterable[pa.Field],
        *,
        accepts_change: bool,
        is_published: bool = False,
    ) -> TableColumns:
        """Puts a slice's columns as the table's, unless they are.

        :param key: of the slice.
        :param is_published: whether the slice publishes them now; else it proposes them.
        :raises ColumnsChangedError: when the table has other ones.
        """
        agreed = self.agreement.agree(
            key,
            own_columns(inputs, answers),
            accepts_change=accepts_change,
            is_published=is_published,
            name_type=_name_type,
        )
        return TableColumns(agreed)

    def check(self, key: str, inputs: pa.Schema, answers: Iterable[pa.Field]) -> None:
        """:raises ColumnsChangedError: when another slice publishes other columns than this one would."""
        self.agreement.check(key, own_columns(inputs, answers), _name_type)


def own_columns(inputs: pa.Schema, answers: Iterable[pa.Field]) -> dict[str, TableColumn]:
    """The columns of a slice."""
    own = {field.name: TableColumn(to_json(field.type), False) for field in inputs}
    return own | {field.name: TableColumn(to_json(field.type), True) for field in answers}


def _check_type(kind: Any) -> None:
    try:
        from_json(kind)
    except (TypeError, AttributeError, pa.ArrowException) as e:
        raise ValueError(str(e)) from e


def _name_type(kind: Any) -> str:
    return outline(from_json(kind))
