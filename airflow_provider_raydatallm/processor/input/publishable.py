"""Rows as they are published: with the table's types, and with values that every reader reads.

Requests are built of rows that are known to be publishable: damage in a column that no request reads would
else be found when every row is paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.processor.input.plan import InputReader, Plan
from airflow_provider_raydatallm.processor.input.trial import Trial
from airflow_provider_raydatallm.processor.input.types.convert import convert
from airflow_provider_raydatallm.processor.input.types.plain import outline
from airflow_provider_raydatallm.processor.input.types.validity import find_invalid

#: What is checked before the first row, of the units that come next: in most slices, all.
_AHEAD_BYTES = 256 << 20
#: Rows of checked units that are kept until they are asked for; others are read again.
_KEPT_BYTES = 32 << 20


class CheckedReader:
    """Reads columns of units once all of a unit's rows are known to be publishable."""

    def __init__(self, plan: Plan, columns: Sequence[str]) -> None:
        self._plan = plan
        self._trial: Trial | None = None
        self._columns = list(columns)
        self._all_columns = list(dict.fromkeys([*plan.columns, *columns]))
        self._reader: InputReader = plan.reader()
        self._checked: set[int] = set()
        self._kept: dict[int, list[pa.Table]] = {}
        self._kept_bytes = 0

    def check_ahead(self, indices: Iterable[int], *, is_retry: bool = False) -> None:
        """Checks the first of some units.

        :param is_retry: whether a process that read them has died: from now on each is read by another one
            first.
        :raises SliceError: when a row of one cannot be published, or a unit ends the process.
        """
        if is_retry and self._trial is None:
            self._trial = Trial(self._plan, self._all_columns)
        checked_bytes = 0
        for index in indices:
            if checked_bytes >= _AHEAD_BYTES:
                return
            checked_bytes += self._check(index)

    def read(self, index: int) -> Iterator[pa.Table]:
        """
        :raises SliceError: before the first row, when one of the unit cannot be published.
        """
        if index not in self._checked:
            self._check(index)
        kept = self._kept.pop(index, None)
        if kept is None:
            yield from self._reader.read(self._plan.units[index], self._columns)
            return
        self._kept_bytes -= sum(table.nbytes for table in kept)
        yield from kept

    def _check(self, index: int) -> int:
        """Returns the bytes of the unit's rows."""
        unit = self._plan.units[index]
        kept: list[pa.Table] = []
        all_bytes = kept_bytes = offset = 0

        def locate(row: int) -> str:
            return self._plan.locate_in(unit, offset + row)

        def place_of(row: int | None) -> Place:
            return self._plan.place_in(unit, None if row is None else offset + row)

        if self._trial is not None:
            self._trial.read(index)
        for table in self._reader.read(unit, self._all_columns):
            as_published(self._plan, table, locate, place_of)
            offset += table.num_rows
            all_bytes += table.nbytes
            own = table.select(self._columns)
            kept_bytes += own.nbytes
            if self._kept_bytes + kept_bytes <= _KEPT_BYTES:
                kept.append(own)
        self._checked.add(index)
        if self._kept_bytes + kept_bytes <= _KEPT_BYTES:
            self._kept[index] = kept
            self._kept_bytes += kept_bytes
        return all_bytes


def as_published(
    plan: Plan,
    table: pa.Table,
    locate: Callable[[int], str],
    place_of: Callable[[int | None], Place] = lambda row: Place(),
) -> pa.Table:
    """
    :param locate: says where a row of the table is.
    :param place_of: the same, for the record of a failure; None stands for a row that is not known.
    :raises SliceError: naming the column, and where the row is.
    """
    columns = []
    for field in plan.schema:
        try:
            column = convert(table.column(field.name), field.type)
        except pa.ArrowException as e:
            raise SliceError(
                f"{locate(0)} or a later one: column {field.name!r} is no {outline(field.type)}, as it is "
                "published",
                kind="input",
                advice="Leave it out with columns=, or give it a type in source.column_types",
                place=replace(place_of(None), column=field.name),
                row_texts=(f"{field.type}: {str(e).strip()[:200]}",),
            ) from e
        if (invalid := find_invalid(column)) is not None:
            row, kind = invalid
            why, advice = _why(kind)
            raise SliceError(
                f"{locate(row)}: column {field.name!r} {why}",
                kind="input",
                advice=f"{advice}, or leave the column out with columns=",
                place=replace(place_of(row), column=field.name),
            )
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=plan.schema)


def _why(kind: pa.DataType) -> tuple[str, str]:
    """What is wrong with a value, and what to do."""
    if pa.types.is_decimal(kind):
        return f"holds a decimal of more digits than {kind} has", "Write it with a wider type"
    advice = "Set source.on_invalid_text='replace' to put U+FFFD there"
    return "holds text that is not valid UTF-8", advice
