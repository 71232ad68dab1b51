"""Finished rows on their way to publication: fragments in the attempt's checkpoint folder.

A fragment is one immutable Arrow file of row ids and answer columns, put in one step. Publishing asks for the
answers of one unit after another, in order, so that only the fragments of the units in hand are in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.processor.answers import MEASURED
from airflow_provider_raydatallm.processor.errors import SliceError
from airflow_provider_raydatallm.processor.store import Store

FRAGMENT_ROWS = 65_536


@dataclass
class Fragments:
    """Fragments of one attempt. `add` answers as they come, `flush` at the end, then take `of_unit` for each
    unit in order.

    `expected`: the answer columns, where they are known before the first answer.
    """

    store: Store
    folder: str
    expected: list[pa.Field] | None = None
    _pending: list[pa.Table] = field(default_factory=list)
    _units: dict[int, list[str]] = field(
        default_factory=dict
    )  # unit index -> names of the fragments that hold its rows
    _last_unit: dict[str, int] = field(default_factory=dict)
    _open: dict[str, pa.Table] = field(default_factory=dict)
    _schema: pa.Schema | None = None

    def add(self, answers: pa.Table) -> None:
        self._pending.append(answers.drop_columns([c for c in MEASURED if c in answers.schema.names]))
        if sum(t.num_rows for t in self._pending) >= FRAGMENT_ROWS:
            self.flush()

    def flush(self) -> None:
        if not self._pending:
            return
        try:
            table = pa.concat_tables(self._pending, promote_options="permissive").combine_chunks()
            schema = pa.unify_schemas(
                [self._schema or table.schema, table.schema], promote_options="permissive"
            )
        except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
            raise SliceError(f"postprocess returned values of different types for one column: {e}") from e
        self._schema, self._pending = schema, []
        name = f"{self.folder}/fragment-{len(self._last_unit):06d}.arrow"
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        self.store.put_bytes(name, sink.getvalue().to_pybytes())
        units = pc.unique(table.column("__unit")).to_pylist()
        for unit in units:
            self._units.setdefault(unit, []).append(name)
        self._last_unit[name] = max(units)

    @property
    def fields(self) -> list[pa.Field]:
        """Answer columns, with the types that fit all fragments."""
        if self._schema is None:
            return self.expected or []
        return [f for f in self._schema if not f.name.startswith("__")]

    def of_unit(self, unit: int, rows: int) -> pa.Table:
        """The unit's answers by offset.

        :raises SliceError: when they are not exactly one for each of its rows. A slice never publishes short.
        """
        parts = []
        for name in self._units.get(unit, []):
            if name not in self._open:
                with pa.ipc.open_file(
                    pa.BufferReader(self.store.fs.cat_file(self.store.path(name)))
                ) as reader:
                    self._open[name] = reader.read_all()
            table = self._open[name]
            parts.append(table.filter(pc.equal(table.column("__unit"), unit)))
            if self._last_unit[name] == unit:
                del self._open[name]
        found = sum(p.num_rows for p in parts)
        if not parts:
            raise SliceError(f"unit {unit} has no answers for its {rows} rows", kind="run")
        answers = pa.concat_tables(parts, promote_options="permissive").sort_by("__offset")
        if found != rows or not answers.column("__offset").equals(
            pa.chunked_array([range(rows)], pa.int64())
        ):
            raise SliceError(f"unit {unit} has {found} answers for {rows} rows, or one twice", kind="run")
        shape = pa.schema(self.fields)
        columns = [
            answers.column(f.name).cast(f.type) if f.name in answers.schema.names else pa.nulls(rows, f.type)
            for f in shape
        ]
        return pa.Table.from_arrays(columns, schema=shape)
