"""Golden rows: rows whose right answers are known. They tell how many of a slice's answers are right."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.result.probes import GoldenFigures
from airflow_provider_raydatallm.contract.spec.golden import MOST_GOLDEN_ROWS
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.inference.ray_cluster import InferencePlan
from airflow_provider_raydatallm.processor.input.listing import Listing, list_input, short_hash
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.publishable import CheckedReader
from airflow_provider_raydatallm.processor.input.survey import find_columns, survey_input
from airflow_provider_raydatallm.processor.input.types.codec import schema_to_json
from airflow_provider_raydatallm.processor.input.types.declared import parse_path
from airflow_provider_raydatallm.processor.probes.base import Answered, Probe, Tokens, beside_answers
from airflow_provider_raydatallm.processor.probes.golden_notes import (
    HAS_ANSWER,
    KEY,
    GoldenNote,
    keys_of,
    read_notes,
)
from airflow_provider_raydatallm.processor.probes.statistics import (
    calibration_error,
    confusions,
    wilson_interval,
)
from airflow_provider_raydatallm.processor.publish.value_counts import label_column, probability_column

#: What no answer equals: a right answer that is no value of the answers' type.
_NO_ANSWER = object()
_SHOWN_CHARACTERS = 100

#: How answers are compared: as they are, as sets of labels, or by the JSON in their texts.
_Comparison = Literal["exact", "sets", "json"]


@dataclass(frozen=True, kw_only=True)
class GoldenRows(Probe):
    """Answered as the slice's rows are, by the same engine, after them.

    :ivar columns: of the answers, those whose right values they have.
    :ivar hash: of their files' content.
    """

    name = "golden"
    as_new_as_answers = True
    columns: tuple[str, ...]

    @classmethod
    def find(cls, inference: InferencePlan) -> GoldenRows | None:
        if inference.job.golden_path is None:
            return None
        with _naming_them():
            golden = _find(inference, inference.job.golden_path)
            CheckedReader(golden.plan, golden.columns).check_ahead(range(len(golden.plan.units)))
            golden._check_labels()
        return golden

    def _check_labels(self) -> None:
        """:raises SliceError: when no answer can be right to a row."""
        job = self.inference.job
        labels, name = job.task.labels_of_answers, job.output_column
        if labels is None or name not in self.columns or job.postprocess is not None:
            return
        is_multi = _is_multi_label(job)
        kind, known = pa.list_(pa.string()) if is_multi else pa.string(), set(labels)
        for index, expected in enumerate(self._read([name])):
            for offset, value in enumerate(_as_type(expected.column(0), kind)):
                several = value if is_multi and isinstance(value, list) else [value]
                wrong = [one for one in several if one is _NO_ANSWER or one not in known]
                if wrong:
                    shown = expected.column(0)[offset].as_py() if wrong[0] is _NO_ANSWER else wrong[0]
                    place = self.plan.place_in(self.plan.units[index], offset)
                    raise SliceError(
                        f"{self.plan.locate(index, offset)} has a right answer in column {name!r} that is "
                        "none of the choices",
                        kind="input",
                        advice="Correct it, or leave the row out",
                        place=replace(place, column=name),
                        row_texts=(f"{shown!r:.{_SHOWN_CHARACTERS}}",),
                    )

    def _read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yields the columns of each unit."""
        with self.plan.open() as reader:
            for unit in self.plan.units:
                yield pa.concat_tables(reader.read(unit, columns))

    def look_back(self, answered: Answered, of_slice: Answered, *, is_finished: bool) -> None:
        """Notes what a run was answered that was killed before it could; of some rows only if they were
        wrong: else what the next run is answered stands for them."""
        rows = self._rows(answered)
        note = GoldenNote((rows.to_part(with_failed=is_finished),))
        if is_finished or not all(self._were_right(note, rows, self.columns).values()):
            self._note(note, of_slice)

    def figures(self, answered: Answered, of_slice: Answered) -> GoldenFigures:
        job, ledger = self.inference.job, answered.ledger
        found, tokens = _Found(), Tokens()
        fields = answered.fields()
        rows = self._rows(answered)
        notes = self._note(GoldenNote((rows.to_part(),)), of_slice)
        columns = tuple(name for name in self.columns if name in fields or not len(ledger.rows))
        if not columns:
            raise SliceError(
                f"quality.golden: {self.plan.url} has none of the columns that postprocess returned",
                kind="input",
                advice=(
                    "Name its columns as postprocess does",
                    "Its return annotation has that checked before a row is asked",
                ),
                row_texts=(f"it returned {', '.join(map(repr, fields))}",),
            )
        label, probability = label_column(job), probability_column(job)
        label = label if label in columns and not _is_multi_label(job) else None
        tokens.add_all(answered)
        right = np.zeros((len(columns), len(rows.keys)), bool)
        of_answered = rows.expected.take(pa.array(rows.offsets))
        for number, name in enumerate(columns if len(rows.offsets) else ()):
            right[number, rows.offsets] = _are_equal(
                of_answered.column(name), rows.said.column(name), _comparison(job, name)
            )
        are_right = np.all(right, axis=0)
        if label is not None:
            found.add_labels(rows, label, probability, right[columns.index(label)])
        correct, total = int(are_right.sum()), len(are_right)
        low, high = wilson_interval(correct, total)
        lowest = self._lowest_accuracy(rows, columns, are_right, notes, of_slice)
        return GoldenFigures(
            hash=self.hash,
            columns=columns,
            rows=total,
            correct=correct,
            accuracy=correct / total,
            low=low,
            high=high,
            tokens=tokens.total(),
            confusion=confusions(found.pairs) if label is not None else None,
            calibration_error=calibration_error(found.probabilities, found.labels_are_right),
            before=self.share_before(),
            lowest=lowest if lowest < correct / total else None,
        )

    def _rows(self, answered: Answered) -> _Rows:
        job = self.inference.job
        others = beside_answers(job) - {probability_column(job)}
        fields = [field for name, field in answered.fields().items() if name not in others]
        answers = answered.reader(answered.ledger.rows, fields)
        keys: list[str] = []
        expected, offsets, said = [], [], []
        for index, table in enumerate(self._read(self.plan.columns)):
            of_unit, answers_of_unit = answers.window(index, 0, table.num_rows)
            offsets.append(of_unit + len(keys))
            keys += keys_of(table.select(self.inference.builder.columns).to_pylist())
            expected.append(table.select(self.columns))
            said.append(answers_of_unit)
        return _Rows(
            keys,
            pa.concat_tables(expected, promote_options="permissive"),
            np.concatenate(offsets),
            pa.concat_tables(said, promote_options="permissive"),
        )

    def _note(self, note: GoldenNote, of_slice: Answered) -> dict[int, GoldenNote]:
        """Notes it with the slice's answers of each run of which nothing is noted. Returns the notes on all
        that count, by the runs' epochs."""
        epochs, notes = of_slice.ledger.rows.run_epochs, read_notes(of_slice.checkpoint)
        for epoch in epochs - notes.keys():
            notes[epoch] = note
            note.save(of_slice.checkpoint, epoch)
        return {epoch: notes[epoch] for epoch in epochs}

    def _lowest_accuracy(
        self,
        rows: _Rows,
        columns: Sequence[str],
        are_right: np.ndarray,
        notes: dict[int, GoldenNote],
        of_slice: Answered,
    ) -> float:
        """Returns the lowest accuracy beside any of the slice's answers that count, of the rows that were
        asked with them."""
        lowest = float(are_right.mean())
        for epoch, note in notes.items():
            were_right = self._were_right(note, rows, columns)
            if epoch == max(notes):
                # Those of the newest answers may have been asked once more, and the file may have others.
                wrong = np.flatnonzero(~are_right).tolist()
                keys = {rows.keys[row] for row in wrong if were_right.get(row, True)}
                if keys:
                    more = pa.array([key in keys for key in rows.keys])
                    note = GoldenNote((*note.parts, rows.to_part().filter(more)))
                    note.save(of_slice.checkpoint, epoch)
                    were_right = self._were_right(note, rows, columns)
            if were_right:
                lowest = min(lowest, sum(were_right.values()) / len(were_right))
        return lowest

    def _were_right(self, note: GoldenNote, rows: _Rows, columns: Sequence[str]) -> dict[int, bool]:
        """Returns whether noted answers are right by now, of those of the rows that it has. Of equal rows,
        each has the answer of its like, by their order."""
        were_right: dict[int, bool] = {}
        for part in note.parts:
            of_key: dict[str, deque[int]] = defaultdict(deque)
            for at, key in enumerate(part.column(KEY).to_pylist()):
                of_key[key].append(at)
            noted = [row for row, key in enumerate(rows.keys) if key in of_key]
            if not noted:
                continue
            expected = rows.expected.take(pa.array(noted))
            said = part.take(pa.array([_next(of_key[rows.keys[row]]) for row in noted]))
            right = np.array(said.column(HAS_ANSWER).to_pylist(), bool)
            for name in columns:
                if name not in said.column_names:
                    right[:] = False
                    continue
                kind = _comparison(self.inference.job, name)
                right &= np.array(_are_equal(expected.column(name), said.column(name), kind), bool)
            for row, is_right in zip(noted, right.tolist(), strict=True):
                were_right[row] = were_right.get(row, True) and is_right
        return were_right


def _next(of_key: deque[int]) -> int:
    """The last one stands for all that come after it."""
    return of_key.popleft() if len(of_key) > 1 else of_key[0]


@dataclass(frozen=True)
class _Rows:
    """Golden rows and their answers.

    :ivar expected: right answers.
    :ivar offsets: of the rows that are answered.
    :ivar said: their answers.
    """

    keys: list[str]
    expected: pa.Table
    offsets: np.ndarray
    said: pa.Table

    def to_part(self, *, with_failed: bool = True) -> pa.Table:
        """Returns what is noted of them, in their order."""
        of_row = dict(zip(self.offsets.tolist(), range(len(self.offsets)), strict=True))
        rows = range(len(self.keys)) if with_failed else list(of_row)
        keys = pa.array([self.keys[row] for row in rows], pa.string())
        has_answer = pa.array([row in of_row for row in rows], pa.bool_())
        said = self.said.take(pa.array([of_row.get(row) for row in rows], pa.int64()))
        answers = dict(zip(said.column_names, said.columns, strict=True))
        return pa.table({**answers, KEY: keys, HAS_ANSWER: has_answer})


@dataclass
class _Found:
    """What is found out of golden rows, unit by unit."""

    #: Of single labels that are wrong: the right one, and the answer.
    pairs: list[tuple[str, str | None]] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    labels_are_right: list[bool] = field(default_factory=list)

    def add_labels(self, rows: _Rows, label: str, probability: str | None, right: np.ndarray) -> None:
        offsets, answered = rows.offsets, rows.said
        said = dict(zip(offsets.tolist(), answered[label].to_pylist(), strict=True)) if len(offsets) else {}
        for offset, value in enumerate(rows.expected.column(label).to_pylist()):
            if value is not None and not right[offset]:
                answer = said.get(offset)
                shown = str(answer)[:_SHOWN_CHARACTERS] if answer is not None else None
                self.pairs.append((str(value)[:_SHOWN_CHARACTERS], shown))
        if probability is not None and probability in answered.column_names:
            of_rows = zip(offsets.tolist(), answered.column(probability).to_pylist(), strict=True)
            known = [(offset, value) for offset, value in of_rows if value is not None]
            self.probabilities += [value for _, value in known]
            self.labels_are_right += [bool(right[offset]) for offset, _ in known]


def _find(inference: InferencePlan, path: str) -> GoldenRows:
    # Their files are nobody's slice, and no folder gives them a column.
    source: dict[str, Any] = {"column": None, "max_rows": None, "format": "auto", "column_types": {}}
    job = inference.job.model_copy(update={"input_path": path, "columns": None}).changed(source=source)
    listing = Listing(tuple(replace(file, partition=()) for file in list_input(job).files))
    if not listing.files:
        raise SliceError(f"there is no file at {path}", kind="input", advice="Correct the path")
    names, is_untyped = find_columns(job, listing)
    if not names:
        raise _without_rows(path)
    requested = inference.builder.columns
    if missing := [name for name in requested if name not in names]:
        raise SliceError(
            f"{path} lacks the column {missing[0]!r}, which the request reads",
            kind="input",
            advice="Give it all columns of the input that the request reads",
            place=Place(column=missing[0]),
            row_texts=(f"the columns are {', '.join(map(repr, names))}",),
        )
    columns = _expected_columns(inference, names)
    read = list(dict.fromkeys([*requested, *columns]))
    types = {
        text: kind
        for text, kind in inference.job.source.column_types.items()
        if parse_path(text, names)[0] in read
    }
    # Where the slice's rows have types: a request would write the values of others otherwise.
    own = {name: inference.plan.source_schema.field(name).type for name in requested}
    types |= {
        name: str(kind) for name, kind in own.items() if _is_number(kind) or (is_untyped and _is_time(kind))
    }
    job = job.model_copy(update={"columns": tuple(read)}).changed(source={"column_types": types})
    plan = survey_input(job, listing).plan(read)
    if not plan.rows:
        raise _without_rows(path)
    if plan.rows > MOST_GOLDEN_ROWS:
        raise SliceError(
            f"{path} has {plan.rows:,} rows, and may have {MOST_GOLDEN_ROWS:,}",
            kind="input",
            advice="Give some hundred rows whose right answers are known",
        )
    plan, content = _by_content(plan)
    # An answer from before would tell nothing of the engine that answers now.
    builder = inference.builder.asking_again()
    return GoldenRows(inference=replace(inference, plan=plan, builder=builder), hash=content, columns=columns)


def _by_content(plan: Plan) -> tuple[Plan, str]:
    """Returns the plan with units that are the same where their files are written again with the same bytes,
    and a hash of these."""
    files = list(dict.fromkeys(unit.file for unit in plan.units))
    with plan.open() as reader:
        contents = [reader.content_hash(file) for file in files]
    rule = [plan.format, plan.options.to_json(), schema_to_json(plan.source_schema)]
    keyed = {
        file: replace(file, key=short_hash([number, content, rule]))
        for number, (file, content) in enumerate(zip(files, contents, strict=True))
    }
    units = tuple(replace(unit, file=keyed[unit.file]) for unit in plan.units)
    return replace(plan, units=units), short_hash(contents)


def _without_rows(path: str) -> SliceError:
    return SliceError(f"{path} has no row", kind="input", advice="Give it rows whose right answers are known")


def _expected_columns(inference: InferencePlan, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the answers' columns that the rows have; where only answers tell these, all that are not the
    input's.

    :raises SliceError: when there is none.
    """
    job = inference.job
    others = beside_answers(job)  # which no person corrects
    known = [field.name for field in inference.shape.known_fields if field.name not in others]
    if known:
        columns = tuple(name for name in known if name in names)
    else:
        inputs = set(inference.plan.source_schema.names)
        columns = tuple(name for name in names if name not in inputs | others)
    if not columns:
        has = f"none of the answers' columns ({', '.join(map(repr, known[:10]))})"
        raise SliceError(
            f"{job.golden_path} has {has if known else 'no column beside those of the input'}",
            kind="input",
            advice="Add a column with the right answers, named as it is published",
            row_texts=(f"the columns are {', '.join(map(repr, names))}",),
        )
    return columns


@contextmanager
def _naming_them() -> Iterator[None]:
    """Says in errors that they are about golden rows."""
    try:
        yield
    except SliceError as e:
        raise SliceError.of(replace(e.failure, sentence=f"quality.golden: {e.failure.sentence}")) from e


def _is_number(kind: pa.DataType) -> bool:
    """Whether it is a type that a file's values are declared to be of."""
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal128(kind) or pt.is_boolean(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) or pt.is_date32(kind))


def _is_multi_label(job: SliceJob) -> bool:
    return isinstance(job.task, Generate) and job.task.labels.multi


def _comparison(job: SliceJob, column: str) -> _Comparison:
    if column == job.output_column and job.postprocess is None:
        if _is_multi_label(job):
            return "sets"
        if isinstance(job.task, Generate) and job.task.output_schema is not None:
            return "json"
    return "exact"


def _are_equal(expected: pa.ChunkedArray, answered: pa.ChunkedArray, comparison: _Comparison) -> list[bool]:
    """:param expected: the right values, which may be of another type, such as the texts of a CSV file."""
    wanted, said = _as_type(expected, answered.type), answered.to_pylist()
    return [_is_equal(one, other, comparison) for one, other in zip(wanted, said, strict=True)]


def _is_equal(expected: Any, answered: Any, comparison: _Comparison) -> bool:
    if expected is None or answered is None or expected is _NO_ANSWER:
        return expected is answered
    if comparison == "sets":
        return set(expected) == set(answered)
    if comparison == "json" and isinstance(expected, str) and isinstance(answered, str):
        return bool(_plain_json(expected) == _plain_json(answered))
    if comparison == "json" and isinstance(expected, list) and isinstance(answered, list):
        return list(map(_plain_json, expected)) == list(map(_plain_json, answered))
    return bool(expected == answered or (expected != expected and answered != answered))  # which NaN is


def _plain_json(text: Any) -> Any:
    """Returns JSON's text as it is for equal values; what is no JSON as it is."""
    try:
        return json.dumps(json.loads(text, parse_float=_plain_number), sort_keys=True)
    except (ValueError, TypeError, RecursionError):
        return text


def _plain_number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def _as_type(column: pa.ChunkedArray, kind: pa.DataType) -> list[Any]:
    """Returns values of the type; `_NO_ANSWER` for those that are none of it."""
    values = column.to_pylist()
    return values if column.type == kind else [_value_as(value, kind) for value in values]


def _value_as(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    try:
        if pt.is_nested(kind):
            return pa.scalar(json.loads(value) if isinstance(value, str) else value, kind).as_py()
        return pa.scalar(value).cast(kind).as_py()
    except (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException):
        return _NO_ANSWER
