"""How the slices of a table agree on its columns, with types as JSON (`input.types.codec`): without Arrow, so
that a staged version can be committed where there is none.

The columns are the newest of the documents `columns-000001.json`, `columns-000002.json`, ... beside the
slices' metadata, put create-only. A run proposes its columns before a row is paid and confirms them when it
commits. What no other slice publishes gives way to a proposal; what another one publishes stays, unless the
job accepts a change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.file_names import NUMBER, following
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders

#: In the table's metadata; slices' folders never begin so.
_FOLDER = "_columns"
_NAME = re.compile(rf"columns-({NUMBER})\.json")
#: Of a document: some hundred bytes for each column, which may have many fields.
_MAX_BYTES = 256 << 20
#: Slices that are remembered of a column: one of them may be asked again with another type.
_MOST_SLICES = 2
#: The type of a column that no slice has decided.
UNDECIDED = "null"


class ColumnsChangedError(SliceError):
    """Another slice of the table was published with other columns."""


def table_metadata(folders: SliceFolders) -> Store:
    """The folder of a table's metadata, in which that of a slice is."""
    return Store(folders.metadata.url.rpartition("/")[0])


@dataclass(frozen=True)
class TableColumn:
    """:ivar kind: its type as JSON; `UNDECIDED` where no slice has decided it.
    :ivar slices: keys of some that publish it; none where it is proposed.
    """

    kind: Any
    is_answer: bool
    slices: tuple[str, ...] = ()

    def others(self, key: str) -> list[str]:
        """The slices but this one that publish it."""
        return [other for other in self.slices if other != key]


def type_name(kind: Any) -> str:
    """Without the names of fields, which may be keys of data."""
    return kind if isinstance(kind, str) else "a nested type"


@dataclass(frozen=True)
class ColumnAgreement:
    """:ivar number: of the newest document; 0 without one."""

    store: Store
    number: int
    columns: Mapping[str, TableColumn]

    @classmethod
    def read(
        cls,
        store: Store,
        before: ColumnAgreement | None = None,
        check_type: Callable[[Any], Any] = type_name,
    ) -> ColumnAgreement:
        """
        :param store: of the table's metadata.
        :param before: what was read before, which holds when no document came since.
        :param check_type: raises ValueError for what is no type.
        """
        numbers = sorted(int(match[1]) for match in map(_NAME.fullmatch, store.names(_FOLDER)) if match)
        if before is not None and before.number == (numbers[-1] if numbers else 0):
            return before
        for number in reversed(numbers):
            try:
                body = store.read_document(_name(number), _MAX_BYTES)
                return cls(store, numbers[-1], _from_document(body, check_type))
            except (CorruptFileError, ValueError):
                continue  # the one before it is better than none
        return cls(store, numbers[-1] if numbers else 0, {})

    def agree(
        self,
        key: str,
        own: Mapping[str, TableColumn],
        *,
        accepts_change: bool,
        is_published: bool = False,
        name_type: Callable[[Any], str] = type_name,
    ) -> ColumnAgreement:
        """Puts a slice's columns as the table's, unless they are.

        :param key: of the slice.
        :param own: its columns.
        :param is_published: whether the slice publishes them now; else it proposes them.
        :param name_type: how an error names a type.
        :raises ColumnsChangedError: when the table has other ones.
        """
        known = self
        while True:
            if not accepts_change:
                known.check(key, own, name_type)
            columns = known._with(key, own, is_published)
            if columns == known.columns:
                return known
            body = [[name, c.kind, c.is_answer, list(c.slices)] for name, c in columns.items()]
            number = following(known.number, self.store.path(_name(known.number)))
            if self.store.create_document(_name(number), body):
                return replace(known, number=number, columns=columns)
            known = ColumnAgreement.read(self.store)

    def _with(self, key: str, own: Mapping[str, TableColumn], is_published: bool) -> dict[str, TableColumn]:
        columns = {}
        for name, column in own.items():
            known = self.columns.get(name)
            if known is not None and column.kind == UNDECIDED:
                column = replace(column, kind=known.kind)
            is_same = known is not None and known.kind in (column.kind, UNDECIDED)
            slices = known.slices if known is not None and is_same else ()
            if is_published and key not in slices and len(slices) < _MOST_SLICES:
                slices = (*slices, key)
            columns[name] = replace(column, slices=slices)
        # Answers that are not known yet may be those that the table has.
        has_answers = any(column.is_answer for column in own.values())
        left = {n: c for n, c in self.columns.items() if n not in columns and c.is_answer and not has_answers}
        return columns | left

    def check(
        self, key: str, own: Mapping[str, TableColumn], name_type: Callable[[Any], str] = type_name
    ) -> None:
        """:raises ColumnsChangedError: when another slice publishes other columns than this one would."""
        bound = {name: column for name, column in self.columns.items() if column.others(key)}
        for name, column in own.items():
            known = bound.get(name)
            if known is not None and UNDECIDED not in (known.kind, column.kind) and known.kind != column.kind:
                own_type, other_type = name_type(column.kind), name_type(known.kind)
                other_type = f"another {other_type}" if other_type == own_type else other_type
                raise _changed(
                    f"{'the answer' if column.is_answer else 'the input'}'s column {name!r} is {own_type}, "
                    f"and {other_type} in the table (slice {known.others(key)[0]!r})",
                    known,
                    column.kind,
                    known.kind,
                )
            if bound and known is None:
                other = next(iter(bound.values())).others(key)[0]
                raise _changed(
                    f"the table has no column {name!r} (slice {other!r}), and this slice has it as "
                    f"{name_type(column.kind)}",
                    column,
                    column.kind,
                )
        has_answers = any(column.is_answer for column in own.values())
        for name, known in bound.items():
            if name not in own and (has_answers or not known.is_answer):
                raise _changed(
                    f"the table has a column {name!r} of {name_type(known.kind)} (slice "
                    f"{known.slices[0]!r}), and this slice would lack it",
                    known,
                    known.kind,
                )


def _changed(problem: str, known: TableColumn, *kinds: Any) -> ColumnsChangedError:
    if isinstance(known.kind, dict) and "fixed_size_list" in known.kind:
        advice = "Give the model, embedding.dtype and embedding.dimensions that make such vectors"
    elif known.is_answer:
        advice = "Choose another output_path"
    else:
        advice = "Set source.column_types, or leave the column out with columns="
    return ColumnsChangedError(
        f"{problem}: readers of the whole table would fail, or read it wrong",
        kind="input",
        row_texts=tuple(json.dumps(kind) for kind in kinds if not isinstance(kind, str)),
        advice=(
            f"{advice}, to keep the table's columns",
            "Or set publish.on_schema_change='accept' to publish it so, and run the table's other slices "
            "again, which costs no token where the request stays the same",
        ),
    )


def _name(number: int) -> str:
    return f"{_FOLDER}/columns-{number:06}.json"


def _from_document(body: Any, check_type: Callable[[Any], Any]) -> dict[str, TableColumn]:
    """:raises ValueError: when no provider wrote that."""
    try:
        columns = {}
        for name, kind, is_answer, slices in body:
            check_type(kind)
            columns[str(name)] = TableColumn(kind, bool(is_answer), tuple(map(str, slices)))
        return columns
    except (TypeError, AttributeError) as e:
        raise ValueError(str(e)) from e
