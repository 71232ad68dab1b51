"""The columns of a table, which its slices agree on: who reads the whole table expects one type of each.

They are the newest of the documents `columns-000001.json`, `columns-000002.json`, ... beside the slices'
metadata, put create-only. A run proposes its columns before a row is paid and confirms them when it commits.
What no other slice publishes gives way to a proposal; what another one publishes stays, unless the job
accepts a change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.types.codec import from_json, to_json
from airflow_provider_raydatallm.processor.input.types.known import KnownColumns
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.file_names import NUMBER, following
from airflow_provider_raydatallm.processor.store.versions import SliceFolders

#: In the table's metadata; slices' folders never begin so.
_FOLDER = "_columns"
_NAME = re.compile(rf"columns-({NUMBER})\.json")
#: Of a document: some hundred bytes for each column, which may have many fields.
_MAX_BYTES = 256 << 20
#: Slices that are remembered of a column: one of them may be asked again with another type.
_MOST_SLICES = 2


class ColumnsChangedError(SliceError):
    """Another slice of the table was published with other columns."""


def table_metadata(folders: SliceFolders) -> Store:
    """The folder of a table's metadata, in which that of a slice is."""
    return Store(folders.metadata.url.rpartition("/")[0])


@dataclass(frozen=True)
class TableColumn:
    """:ivar kind: null where no slice has decided it.
    :ivar slices: keys of some that publish it; none where it is proposed.
    """

    kind: pa.DataType
    is_answer: bool
    slices: tuple[str, ...] = ()

    def binds(self, key: str) -> bool:
        """Whether another slice than this publishes it."""
        return any(other != key for other in self.slices)


@dataclass(frozen=True)
class TableColumns:
    """:ivar number: of the newest document; 0 without one."""

    store: Store
    number: int
    columns: Mapping[str, TableColumn]

    @classmethod
    def read(cls, store: Store, before: TableColumns | None = None) -> TableColumns:
        """
        :param store: of the table's metadata.
        :param before: what was read before, which holds when no document came since.
        """
        numbers = sorted(int(match[1]) for match in map(_NAME.fullmatch, store.names(_FOLDER)) if match)
        if before is not None and before.number == (numbers[-1] if numbers else 0):
            return before
        for number in reversed(numbers):
            try:
                body = store.read_document(_name(number), _MAX_BYTES)
                return cls(store, numbers[-1], _from_document(body))
            except (CorruptFileError, ValueError):
                continue  # the one before it is better than none
        return cls(store, numbers[-1] if numbers else 0, {})

    def inputs(self, key: str) -> KnownColumns:
        """The input's columns, as a slice finds them."""
        own = {name: column for name, column in self.columns.items() if not column.is_answer}
        schema = pa.schema([(name, column.kind) for name, column in own.items()])
        return KnownColumns(schema, frozenset(name for name, column in own.items() if column.binds(key)))

    @property
    def answers(self) -> dict[str, pa.DataType]:
        """The columns of answers."""
        return {name: c.kind for name, c in self.columns.items() if c.is_answer}

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
        known = self
        while True:
            columns = known._with(key, inputs, list(answers), accepts_change, is_published)
            if columns == known.columns:
                return known
            body = [_to_json(name, column) for name, column in columns.items()]
            number = following(known.number, self.store.path(_name(known.number)))
            if self.store.create_document(_name(number), body):
                return replace(known, number=number, columns=columns)
            known = TableColumns.read(self.store)

    def check(self, key: str, inputs: pa.Schema, answers: Iterable[pa.Field]) -> None:
        """:raises ColumnsChangedError: when another slice publishes other columns than this one would."""
        self._with(key, inputs, list(answers), False, False)

    def _with(
        self,
        key: str,
        inputs: pa.Schema,
        answers: Sequence[pa.Field],
        accepts_change: bool,
        is_published: bool,
    ) -> dict[str, TableColumn]:
        own = {field.name: TableColumn(field.type, False) for field in inputs}
        own |= {field.name: TableColumn(field.type, True) for field in answers}
        if not accepts_change:
            self._check(key, own)
        columns = {}
        for name, column in own.items():
            known = self.columns.get(name)
            if known is not None and pa.types.is_null(column.kind):
                column = replace(column, kind=known.kind)
            is_same = known is not None and known.kind in (column.kind, pa.null())
            slices = known.slices if known is not None and is_same else ()
            if is_published and key not in slices and len(slices) < _MOST_SLICES:
                slices = (*slices, key)
            columns[name] = replace(column, slices=slices)
        # Answers that are not known yet may be those that the table has.
        left = {n: c for n, c in self.columns.items() if n not in columns and c.is_answer and not answers}
        return columns | left

    def _check(self, key: str, own: Mapping[str, TableColumn]) -> None:
        bound = {name: column for name, column in self.columns.items() if column.binds(key)}
        for name, column in own.items():
            known = bound.get(name)
            if known is not None and pa.null() not in (known.kind, column.kind) and known.kind != column.kind:
                raise _changed(
                    f"{'the answer' if column.is_answer else 'the input'}'s column {name!r} is "
                    f"{column.kind}, and {known.kind} in the table (slice {known.slices[0]!r})",
                    known,
                )
            if bound and known is None:
                raise _changed(
                    f"the table has no column {name!r} (slice {next(iter(bound.values())).slices[0]!r}), and "
                    f"this slice has it as {column.kind}",
                    column,
                )
        has_answers = any(column.is_answer for column in own.values())
        for name, known in bound.items():
            if name not in own and (has_answers or not known.is_answer):
                raise _changed(
                    f"the table has a column {name!r} of {known.kind} (slice {known.slices[0]!r}), and this "
                    "slice would lack it",
                    known,
                )


def _changed(problem: str, known: TableColumn) -> ColumnsChangedError:
    if pa.types.is_fixed_size_list(known.kind):
        advice = "give the model, embedding.dtype and embedding.dimensions that make such vectors"
    elif known.is_answer:
        advice = "choose another output_path"
    else:
        advice = "set source.column_types, or leave the column out with columns="
    return ColumnsChangedError(
        f"{problem}: readers of the whole table would fail, or read it wrong. Keep the table's columns "
        f"({advice}); or set publish.on_schema_change='accept' to publish it so, and run the table's other "
        "slices again, which costs no token where the request stays the same",
        kind="input",
    )


def _name(number: int) -> str:
    return f"{_FOLDER}/columns-{number:06}.json"


def _to_json(name: str, column: TableColumn) -> list[Any]:
    return [name, to_json(column.kind), column.is_answer, list(column.slices)]


def _from_document(body: Any) -> dict[str, TableColumn]:
    """:raises ValueError: when no provider wrote that."""
    try:
        return {
            str(name): TableColumn(from_json(kind), bool(is_answer), tuple(map(str, slices)))
            for name, kind, is_answer, slices in body
        }
    except (TypeError, AttributeError, pa.ArrowException) as e:
        raise ValueError(str(e)) from e
