"""Builds the published files: reads the input again and places the answers beside it by position.

Order, types and memory are right by construction: nothing is sorted or collected. A part that lacks a row is
never finished.
"""

from __future__ import annotations

import collections
import hashlib
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.result.counters import (
    COUNTERS,
    Counter,
)
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.result.row_errors import (
    OF_ANSWERS,
    PROMPT_TOO_LONG,
)
from airflow_provider_raydatallm.processor.columns import (
    COUNT_FIELDS,
    ERROR_FIELDS,
    QUARANTINE_FIELDS,
    SPENT_FIELDS,
)
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.publishable import as_published
from airflow_provider_raydatallm.processor.input.types.convert import empty_table
from airflow_provider_raydatallm.processor.publish.row_details import RowDetails, repaired
from airflow_provider_raydatallm.processor.publish.table_schema import WRITE_OPTIONS
from airflow_provider_raydatallm.processor.publish.value_counts import count_labels, count_reasons
from airflow_provider_raydatallm.processor.publish.value_spread import count_spread
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.file_names import file_name
from airflow_provider_raydatallm.processor.store.fragment_reader import (
    FragmentReader,
    last_failures,
)
from airflow_provider_raydatallm.processor.store.ledger import Pieces, position, unit_and_offset
from airflow_provider_raydatallm.processor.store.versions import PublishedFile

#: Input rows that are joined with their answers at once.
_JOINED_ROWS = 8192
_ROW_GROUP_ROWS = 65_536
_ROW_GROUP_BYTES = 64 << 20


@dataclass
class Totals:
    """Counts of parts. `counters`: by name; None where the engine does not report it, or of no row yet.
    `known`: of those that count rows, the rows of which it is known, whatever the others are."""

    rows: int = 0
    quarantined: int = 0
    invalid: int = 0
    repaired: int = 0
    too_long: int = 0
    counters: dict[str, int | None] = field(
        default_factory=lambda: {c.name: None if c.section == "tokens" else 0 for c in COUNTERS}
    )
    known: collections.Counter[str] = field(default_factory=collections.Counter)
    labels: collections.Counter[str] = field(default_factory=collections.Counter)
    reasons: collections.Counter[str] = field(default_factory=collections.Counter)
    #: Of the labels: their sum, and of how many rows.
    probability: float = 0.0
    rows_with_probability: int = 0
    #: By column: the rows of each number or length.
    spreads: dict[str, collections.Counter[str]] = field(default_factory=dict)

    @property
    def confidence(self) -> float | None:
        """The mean probability."""
        return self.probability / self.rows_with_probability if self.rows_with_probability else None

    def __add__(self, other: Totals) -> Totals:
        empty: collections.Counter[str] = collections.Counter()
        return Totals(
            self.rows + other.rows,
            self.quarantined + other.quarantined,
            self.invalid + other.invalid,
            self.repaired + other.repaired,
            self.too_long + other.too_long,
            {c.name: c.add(self.counters[c.name], other.counters[c.name]) for c in COUNTERS},
            self.known + other.known,
            self.labels + other.labels,
            self.reasons + other.reasons,
            self.probability + other.probability,
            self.rows_with_probability + other.rows_with_probability,
            {
                column: self.spreads.get(column, empty) + other.spreads.get(column, empty)
                for column in self.spreads.keys() | other.spreads.keys()
            },
        )


@dataclass(frozen=True)
class PartPlan:
    """All that a task needs to build and stage one published file. `plan` holds only that file's units, and
    `answered` and `failed` where their rows are; `staged` is the version's folder among the staged files."""

    url: str
    plan: Plan
    folder: str
    answered: Pieces
    failed: Pieces
    fields: Sequence[pa.Field]
    staging_url: str
    staged: str
    number: int
    index: int
    count: int
    #: The input file whose rows it holds, with `file_per_input`.
    input: str | None = None
    #: The column whose values are counted.
    labels: str | None = None
    #: The column whose mean is told.
    probability: str | None = None
    #: The columns whose numbers or lengths are counted.
    measured: Sequence[str] = ()
    #: Columns of `publish.details`.
    details: Sequence[pa.Field] = ()
    #: Of the file: what its readers may want to know.
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Part:
    """A staged file, and that of its quarantined rows."""

    data: PublishedFile
    quarantine: PublishedFile | None
    totals: Totals = field(default_factory=Totals)


def stage_part(part: PartPlan) -> Part:
    """Builds a published file, and its quarantine, and stages them under names that no other attempt has.

    :raises SliceError: when a row has neither an answer nor an error, or the input changed.
    :raises CorruptFileError: naming a damaged fragment.
    """
    plan, store = part.plan, Store(part.url)
    schema = pa.schema([*plan.schema, *part.fields, *part.details], part.metadata or None)
    quarantine_schema = pa.schema([*QUARANTINE_FIELDS, *plan.schema])
    with tempfile.TemporaryDirectory(prefix="ray-llm-publish-") as scratch:
        data, quarantine = Path(scratch, "data.parquet"), Path(scratch, "quarantine.parquet")
        totals = Totals()
        plan.check_unchanged(plan.units)
        with _ParquetFile(data, schema) as rows, _ParquetFile(quarantine, quarantine_schema) as failed:
            for answered, quarantined, counts in _join_answers(part, store, schema, quarantine_schema):
                rows.write(answered)
                failed.write(quarantined)
                totals += counts
        plan.check_unchanged(plan.units)
        staged = _stage(part, "part", data, totals.rows)
        staged_failed = (
            _stage(part, "quarantine", quarantine, totals.quarantined) if totals.quarantined else None
        )
    return Part(staged, staged_failed, totals)


def _stage(part: PartPlan, kind: Literal["part", "quarantine"], path: Path, rows: int) -> PublishedFile:
    name = file_name(kind, part.number, part.index, part.count, uuid.uuid4().hex[:8])
    with open(path, "rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    file = PublishedFile(name, rows, path.stat().st_size, digest, part.input)
    Store(part.staging_url).put_file(f"{part.staged}/{file.plain_name}", path)
    return file


def _join_answers(
    part: PartPlan, store: Store, schema: pa.Schema, quarantine_schema: pa.Schema
) -> Iterator[tuple[pa.Table, pa.Table, Totals]]:
    plan = part.plan
    details = RowDetails(part.details)
    ids = {unit.id: i for i, unit in enumerate(plan.units)}
    answers, attempts = (
        FragmentReader(store, part.folder, pieces, ids, fields)
        for pieces, fields in (
            (part.answered, [*part.fields, *COUNT_FIELDS, *details.fields]),
            (part.failed, [*ERROR_FIELDS, *SPENT_FIELDS]),
        )
    )
    for positions, table in _input_rows(plan):
        first, end = int(positions[0]), int(positions[-1]) + 1
        answered_at, answered = answers.between(first, end)
        attempted_at, failed_attempts = attempts.between(first, end, every=True)
        failed_at, failures = last_failures(attempted_at, failed_attempts)
        unanswered = ~np.isin(failed_at, answered_at)  # a later attempt may have answered the row
        failed_at, failures = failed_at[unanswered], failures.filter(pa.array(unanswered))
        if len(answered_at) + len(failed_at) != table.num_rows:
            raise SliceError(
                f"of {table.num_rows} rows from {_locate(plan, first)} on, {len(answered_at)} are answered "
                f"and {len(failed_at)} have failed",
                kind="transient",
            )
        inputs = table if not len(failed_at) else _take(table, positions, answered_at)
        columns = [*inputs.columns, *answered.columns[: len(part.fields)]]
        columns += details.of(answered, answered_at, attempted_at, failed_attempts)
        failed_inputs = _take(table, positions, failed_at)
        yield (
            pa.Table.from_arrays(columns, schema=schema),
            _quarantined(plan, failed_at, failures, failed_inputs, quarantine_schema),
            replace(
                _totals(answered, failures, failed_attempts, part),
                repaired=int(repaired(answered_at, attempted_at, failed_attempts).sum()),
            ),
        )


def _input_rows(plan: Plan) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """Yields rows as they are published, with their positions; those of small units together."""
    waiting: list[pa.Table] = []
    positions: list[np.ndarray] = []
    rows = bytes_ = 0
    with plan.open() as reader:
        for index, unit in enumerate(plan.units):
            offset = 0
            for table in reader.read(unit):
                waiting.append(table)
                positions.append(position(index, np.arange(offset, offset + table.num_rows)))
                offset += table.num_rows
                rows, bytes_ = rows + table.num_rows, bytes_ + table.nbytes
                if rows >= _JOINED_ROWS or bytes_ >= _ROW_GROUP_BYTES:
                    yield _published(plan, positions, waiting)
                    waiting, positions, rows, bytes_ = [], [], 0, 0
    if waiting:
        yield _published(plan, positions, waiting)


def _published(
    plan: Plan, positions: Sequence[np.ndarray], tables: Sequence[pa.Table]
) -> tuple[np.ndarray, pa.Table]:
    where = np.concatenate(positions)
    table = pa.concat_tables(tables).combine_chunks()

    def place_of(row: int | None) -> Place:
        indices, offsets = unit_and_offset(where if row is None else where[row : row + 1])
        if len({plan.units[i].file.path for i in np.unique(indices).tolist()}) > 1:
            return Place()
        return plan.place_in(plan.units[int(indices[0])], None if row is None else int(offsets[0]))

    return where, as_published(plan, table, lambda row: _locate(plan, int(where[row])), place_of)


def _locate(plan: Plan, at: int) -> str:
    unit, offset = unit_and_offset(np.array([at]))
    return plan.locate(int(unit[0]), int(offset[0]))


def _take(table: pa.Table, positions: np.ndarray, some: np.ndarray) -> pa.Table:
    return table.take(pa.array(np.searchsorted(positions, some)))


def _quarantined(
    plan: Plan, positions: np.ndarray, failures: pa.Table, inputs: pa.Table, schema: pa.Schema
) -> pa.Table:
    indices, offsets = unit_and_offset(positions)
    units = [plan.units[i] for i in indices.tolist()]
    first = 1 if plan.slice_filter is not None else np.array([u.range.first_row + 1 for u in units], np.int64)
    values = [[unit.file.path for unit in units], offsets + first, [unit.id for unit in units], offsets]
    columns = [pa.array(v, f.type) for v, f in zip(values, QUARANTINE_FIELDS, strict=False)]
    columns += [*failures.select([f.name for f in ERROR_FIELDS]).columns, *inputs.columns]
    return pa.Table.from_arrays(columns, schema=schema)


def _totals(answered: pa.Table, failures: pa.Table, failed_attempts: pa.Table, part: PartPlan) -> Totals:
    """
    :param failures: of rows in quarantine.
    :param failed_attempts: of all rows, which took tokens, too.
    """

    def failed_as(kind: str) -> int:
        return int(pc.sum(pc.equal(failures.column("error_type"), kind), min_count=0).as_py())

    def total(counter: Counter) -> int | None:
        column = answered.column(name := f"__{counter.name}")
        if counter.section == "tokens":
            return counter.add(pc.sum(column).as_py(), pc.sum(failed_attempts.column(name)).as_py())
        failed = failed_as(counter.failed_as) if counter.failed_as is not None else 0
        known[counter.name] = int(pc.sum(column, min_count=0).as_py()) + failed
        return None if column.null_count else known[counter.name]

    known: collections.Counter[str] = collections.Counter()
    has_probability = part.probability is not None and part.probability in answered.column_names
    probabilities = answered.column(part.probability) if has_probability else pa.nulls(0, pa.float32())
    return Totals(
        rows=answered.num_rows,
        quarantined=failures.num_rows,
        invalid=sum(map(failed_as, OF_ANSWERS)),
        too_long=failed_as(PROMPT_TOO_LONG),
        counters={c.name: total(c) for c in COUNTERS},
        known=known,
        labels=count_labels(answered, part.labels),
        reasons=count_reasons(failures),
        probability=pc.sum(probabilities, min_count=0).as_py(),
        rows_with_probability=len(probabilities) - probabilities.null_count,
        spreads={name: count_spread(answered, name) for name in part.measured},
    )


class _ParquetFile:
    """Writes tables of any size into row groups of a good size."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema, **WRITE_OPTIONS)
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0
        self._groups = 0

    def __enter__(self) -> _ParquetFile:
        return self

    def write(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        self._pending.append(table)
        self._pending_rows += table.num_rows
        self._pending_bytes += table.nbytes
        if self._pending_rows >= _ROW_GROUP_ROWS or self._pending_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._put(pa.concat_tables(self._pending))
        self._pending = []
        self._pending_rows = self._pending_bytes = 0
        self._groups += 1

    def _put(self, table: pa.Table) -> None:
        try:
            self._writer.write_table(table)
        except OSError as e:
            raise SliceError(
                f"{e.strerror or e}: cannot write {self._path}",
                kind="transient",
                advice="Free space there (or set TMPDIR) and run the slice again",
            ) from e

    def __exit__(self, kind: Any, *rest: object) -> None:
        try:
            if kind is None and self._pending:
                self._flush()
            if kind is None and not self._groups:
                self._put(empty_table(self._schema))
        finally:
            self._writer.close()
