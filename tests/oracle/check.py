"""Runs a case in this process, and judges what came out of it.

The promise: the run is refused before a row is paid, naming a file and a column; or each published value
equals that of the input, row by row in order, for every reader that can read the input.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from tests.oracle.case import HEADERS, Case, Truth
from tests.oracle.cells import Cell, cells
from tests.oracle.judges import Columns, View, read_published
from tests.oracle.prompts import is_beyond_python, says
from tests.oracle.scratch import SCRATCH
from tests.oracle.small_steps import small_steps
from tests.support.in_process import InProcess, job_of, run_in_process

#: So that no text is an order to the stub engine.
_MARK = "v="


class Violation(AssertionError):
    """The promise does not hold.

    :ivar cause: which part of it, and how: the same for cases of one cause, as far as that can be.
    """

    def __init__(self, kind: str, what: str, *, detail: str = "", cause: str = "") -> None:
        super().__init__(f"{kind}: {what}\n{detail}".rstrip())
        self.cause = f"{kind}: {cause or _shape_of(what)}"
        self.features: Sequence[str] = ()


@dataclass(frozen=True)
class Checked:
    """What became of a case for which the promise holds: published, or refused with a message."""

    outcome: str
    features: Sequence[str]
    message: str = ""


def check(case: Case, during: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext) -> Checked:
    """
    :param during: what the run happens in.
    :raises Violation: when the promise does not hold.
    """
    folder = Path(tempfile.mkdtemp(prefix="oracle-", dir=SCRATCH))
    try:
        (folder / "in").mkdir()
        truth = case.write(folder / "in")
        truth.features = [*truth.features, f"steps {'small' if case.steps else 'large'}"]
        with _counted_as(truth.counted_as):
            return _run(case, truth, folder, during)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _counted_as(features: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except Violation as violation:
        violation.features = features
        raise


def _run(
    case: Case, truth: Truth, folder: Path, during: Callable[[], AbstractContextManager[None]]
) -> Checked:
    asked = case.prompt if case.prompt in truth.columns else None
    job = job_of(
        input_path=f"{folder}/in/", output_path=f"{folder}/out", quality__max_quarantine=1.0,
        prompt=_MARK if asked is None else f"{_MARK}{{{asked}}}", **case.arguments,
    )  # fmt: skip
    cluster = InProcess(batch=100, flush_every=100)
    try:
        with during(), small_steps(2, 64) if case.steps else contextlib.nullcontext():
            run_in_process(job, cluster)
    except SliceError as e:
        message = str(e).replace(str(folder), "")
        _check_refusal(message, e.kind, cluster.answered, truth)
        return Checked("refused", truth.counted_as, message)
    except Exception as e:
        raise Violation("crashed", f"{type(e).__name__}: {str(e).strip():.200}") from e
    _check_published(job, truth, asked)
    return Checked("published", truth.counted_as)


def _check_refusal(message: str, kind: str, answered: int, truth: Truth) -> None:
    names = [name for name in truth.columns if name in message or repr(name)[1:-1] in message]
    shape = message
    for name in sorted(names, key=len, reverse=True):
        shape = shape.replace(repr(name), "'COLUMN'")
    if answered:
        raise Violation("paid", f"{answered} rows were answered, then: {message}", cause=_shape_of(shape))
    if kind != "input":
        raise Violation("kind", f"it is {kind!r}: {message}", cause=f"{kind} {_shape_of(shape)}")
    if truth.must == "publish":
        raise Violation("refused", f"{message} ({truth.why})", cause=_shape_of(shape))
    if not any(Path(path).name in message for path in truth.rows):
        raise Violation("unnamed", f"no file: {message}", cause=f"no file: {_shape_of(shape)}")
    if truth.columns and truth.why != HEADERS and not names:
        raise Violation("unnamed", f"no column: {message}", cause=f"no column: {_shape_of(shape)}")


def _check_published(job: SliceJob, truth: Truth, asked: str | None) -> None:
    """:param asked: the column that the prompt shows."""
    if truth.must == "refuse":
        raise Violation("accepted", truth.why)
    table, views = read_published(job.slice_path)
    failed = _quarantined(job, truth)
    count = sum(truth.rows.values())
    answered = [i for i in range(count) if i not in failed]
    if table.num_rows != len(answered):
        raise Violation("rows", f"{count} planned, {table.num_rows} published, {len(failed)} in quarantine")
    if missing := [name for name in truth.columns if name not in table.column_names]:
        raise Violation("columns", f"{missing} are not published")
    if more := set(table.column_names) - {*truth.columns, job.output_column}:
        raise Violation("columns", f"{sorted(more)} are published, and the input has none such")
    wanted = _rows_of(truth.columns, answered)
    others = _rows_of(truth.others, answered)
    for name, column in wanted.items():
        kind = table.schema.field(name).type
        arrow = views["pyarrow"].columns
        assert arrow is not None, views["pyarrow"].problem
        if arrow[name] not in (column, others.get(name)):
            raise _difference("changed", name, truth, kind, column, arrow[name])
        if problem := truth.type_problem(name, kind):
            types = _types(truth.types.get(name, ()))
            raise Violation("type", f"{name!r} is {types}, and published as {kind}: {problem}", cause=problem)
    for reader in ("duckdb", "polars"):
        seen = truth.views.get(reader)
        _check_reader(
            reader, views[reader], seen and _rows_of(seen, answered), wanted, others, table.schema, truth
        )
    answers = table.column(job.output_column).to_pylist()
    shown = [None] * len(answers) if asked is None else wanted[asked]
    _check_prompts(answers, shown, others.get(asked, shown) if asked is not None else shown)
    _check_quarantine(truth, failed, truth.columns[asked] if asked is not None else None)


def _rows_of(columns: Columns, rows: Sequence[int]) -> Columns:
    return {name: [column[i] for i in rows] for name, column in columns.items()}


def _check_reader(
    reader: str, view: View, seen: Columns | None, wanted: Columns, others: Columns, schema: pa.Schema,
    truth: Truth,
) -> None:  # fmt: skip
    """:param seen: what it sees in the input: its own view of values counts, too."""
    if view.columns is None:
        if seen is not None:
            raise Violation("unreadable", f"{reader} reads the input, not the slice: {view.problem}")
        return
    for name, column in wanted.items():
        published = view.columns.get(name)
        if published is None and name:  # DuckDB makes up a name for a column that has none
            raise Violation("unreadable", f"{reader} sees no column {name!r}, but {list(view.columns)}")
        if published is None or seen is None or name not in seen:
            continue
        if published not in (column, others.get(name), seen[name]):
            kind = schema.field(name).type
            raise _difference(f"changed for {reader}", name, truth, kind, column, published)


def _check_prompts(answers: Sequence[str], asked: Sequence[Cell], others: Sequence[Cell]) -> None:
    """The stub engine answers with the prompt."""
    for answer, value, other in zip(answers, asked, others, strict=True):
        said = answer.removeprefix(_MARK)
        if not answer.startswith(_MARK) or not (says(said, value) or says(said, other)):
            raise Violation(
                "prompt", f"it says {answer[:300]!r}, the row has {value!r:.300}", cause=_kind_of(value)
            )


def _quarantined(job: SliceJob, truth: Truth) -> dict[int, dict[str, Cell]]:
    """Rows in quarantine, by their number over all files; "" is the error."""
    folder = Path(job.paths.quarantine.removeprefix("file://"))
    if not folder.is_dir():
        return {}
    table = pq.read_table(str(folder), partitioning=None)
    first, firsts = 0, {}
    for path, rows in truth.rows.items():
        firsts[path] = first
        first += rows
    columns = {name: cells(table.column(name)) for name in table.column_names if name in truth.columns}
    columns[""] = table.column("__error").to_pylist()
    places = zip(table.column("__file").to_pylist(), table.column("__row").to_pylist(), strict=True)
    return {
        firsts[file] + row - 1: {name: column[i] for name, column in columns.items()}
        for i, (file, row) in enumerate(places)
    }


def _check_quarantine(
    truth: Truth, failed: Mapping[int, Mapping[str, Cell]], asked: Sequence[Cell] | None
) -> None:
    """Only a row that Python cannot hold has no prompt; its values are as they were."""
    for i, values in failed.items():
        if asked is None or not is_beyond_python(asked[i]):
            raise Violation("quarantine", f"{values['']}, for {asked and asked[i]!r:.200}")
        for name, column in truth.columns.items():
            if values[name] not in (column[i], truth.others.get(name, column)[i]):
                raise Violation(
                    "changed in quarantine", f"{name!r}: {column[i]!r} became {values[name]!r}",
                    cause=_leaf_difference(column[i], values[name]),
                )  # fmt: skip


def _difference(
    kind: str, name: str, truth: Truth, published: pa.DataType, wanted: Sequence[Cell], found: Sequence[Cell]
) -> Violation:
    pairs = [(w, f) for w, f in zip(wanted, found, strict=False) if w != f]
    return Violation(
        kind, f"{name!r} is {_types(truth.types.get(name, ()))}, and published as {published}",
        detail="\n".join(f"  {w!r:.400}\n  became {f!r:.400}" for w, f in pairs[:3]),
        cause=_leaf_difference(*pairs[0]) if pairs else "another number of values",
    )  # fmt: skip


def _leaf_difference(wanted: Cell, found: Cell) -> str:
    """How the first value inside of both differs."""
    kinds = _kind_of(wanted), _kind_of(found)
    if kinds[0] == kinds[1] and kinds[0] in ("list", "struct", "map"):
        if kinds[0] == "struct":
            left, right = dict(wanted[1]), dict(found[1])
            inside = [(left.get(name), right.get(name)) for name in {**left, **right}]
        else:
            inside = list(zip(wanted[1], found[1], strict=False))
            if len(wanted[1]) != len(found[1]):
                return f"{kinds[0]} of another length"
            if kinds[0] == "map":
                inside = [pair for (a, b), (c, d) in inside for pair in ((a, c), (b, d))]
        return next(_leaf_difference(w, f) for w, f in inside if w != f)
    return " became ".join(kinds) if kinds[0] != kinds[1] else f"{kinds[0]} became another"


def _kind_of(value: Cell) -> str:
    return str(value[0]) if isinstance(value, tuple) else type(value).__name__.lower()


def _types(kinds: Sequence[pa.DataType]) -> str:
    return " beside ".join(dict.fromkeys(map(str, kinds))) or "of a text format"


def _shape_of(message: str) -> str:
    """A message without what differs from case to case: names, values, types of columns."""
    message = re.sub(r"/in/part-\d[^\s:,]*", "FILE", message)
    message = re.sub(r"\b(struct|list|large_list|map|fixed_size_list)<.*>(\[\d+\])?", "TYPE", message)
    message = re.sub(r"'[^']*'|\"[^\"]*\"", "NAME", message)
    return re.sub(r"#?\d[\d,.]*", "N", message)[:110]
