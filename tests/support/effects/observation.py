"""Runs a job and notes what came of it."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.dataset as pads

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.embed import Embed
from airflow_provider_raydatallm.processor.columns import FILES_FIELD
from airflow_provider_raydatallm.processor.engines.base import Engine, answer_table
from airflow_provider_raydatallm.processor.engines.feeding.token_lengths import (
    sample_rows,
    sample_token_lengths,
)
from airflow_provider_raydatallm.processor.engines.feeding.tokenized_request import name_media
from airflow_provider_raydatallm.processor.inference.ray_cluster import InferenceRun, OnUpdate
from airflow_provider_raydatallm.processor.input.listing import list_input
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.media import cells
from airflow_provider_raydatallm.processor.sizing.facts import SizingInputs
from tests.support.effects.asked import Asked, asked_of_model, files_of
from tests.support.effects.bench import VECTOR_SIZE, bench
from tests.support.effects.functions import run_code
from tests.support.effects.sharing import shared_draws
from tests.support.in_process import InProcess, run_in_process

#: Of a row: the id of its unit, and its offset there.
Row = tuple[str, int]
#: What happens to the third row when it is first asked.
Mishap = Literal["invalid", "error"]


@dataclass
class Observation:
    """
    :ivar place: where the slice is published.
    :ivar input: hash of its files.
    :ivar rows: what requests read, by row.
    :ivar requests: those of each row, each once.
    :ivar asked: what a model gets for a request, where it gets it.
    :ivar stored: of each row that is answered, the columns that are kept for the next run.
    :ivar shared: `shared_draws`.
    :ivar published: of each row that is published, its columns.
    :ivar schema: of the published table; None where nothing is published.
    :ivar engine_kwargs: vLLM's, of the engine that ran.
    """

    place: str
    input: str
    rows: dict[Row, Any] = field(default_factory=dict)
    requests: dict[Row, list[str]] = field(default_factory=lambda: defaultdict(list))
    asked: dict[str, Any] = field(default_factory=dict)
    stored: dict[Row, Any] = field(default_factory=dict)
    shared: list[int] = field(default_factory=list)
    published: dict[Row, Any] = field(default_factory=dict)
    schema: Any = None
    engine_kwargs: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None


def observe(job: SliceJob, answer: str, mishap: Mishap, out: Path) -> Observation:
    """
    :param answer: of a model that writes.
    :param out: the folder of all that the job writes.
    """
    shutil.rmtree(out, ignore_errors=True)
    run_code(job.code_hash)
    with bench():
        seen = Observation(job.slice_path, list_input(job).hash)
        watch = _Watch(job, seen, answer, mishap)
        try:
            run_in_process(job, watch)
        except SliceError as e:  # nothing is published
            seen.failure = str(e)
            return seen
        if watch.plan is None or watch.engine is None:
            return seen
        _note_rows(seen, watch.plan, watch.columns)
        seen.asked = _asked(watch.engine, watch.asked)
        seen.engine_kwargs = dict(watch.engine.engine_kwargs)
        _note_published(seen, watch.order)
        shutil.rmtree(out, ignore_errors=True)
        seen.shared = shared_draws(job, watch.first_requests)
    return seen


class _Watch(InProcess):
    def __init__(self, job: SliceJob, seen: Observation, answer: str, mishap: Mishap) -> None:
        super().__init__(answer=self._answer)
        self._job, self._seen, self._text, self._mishap = job, seen, answer, mishap
        self.plan: Plan | None = None
        self.engine: Engine | None = None
        self.columns: list[str] = []
        self.asked: list[Asked] = []
        self.first_requests: list[str] = []

    @property
    def order(self) -> list[Row]:
        """The answered rows, as they are published."""
        assert self.plan is not None
        units = [unit.id for unit in self.plan.units]
        return sorted(self._seen.stored, key=lambda row: (units.index(row[0]), row[1]))

    def run_inference(self, run: InferenceRun, on_update: OnUpdate) -> None:
        if run.is_probe:  # of which nothing is published
            InProcess().run_inference(run, on_update)
            return
        inference = run.inference
        self.plan, self.engine, self.columns = inference.plan, inference.engine, inference.builder.columns
        if self.engine.needs_token_lengths(raised=False):
            rows = sample_rows(run.missing)
            lengths = sample_token_lengths(self.engine.open_tokenizer, self.plan, rows, inference.builder)
            self.engine.choose_sizes(SizingInputs(None, lengths))
        shape = _Parser(inference.shape, self._note_stored)
        inference = replace(inference, shape=shape)
        super().run_inference(replace(run, inference=inference, next_run=lambda: None), on_update)

    def _rows(self, table: pa.Table) -> list[Row]:
        assert self.plan is not None
        ids = zip(table.column("__unit").to_pylist(), table.column("__offset").to_pylist(), strict=True)
        return [(self.plan.units[unit].id, offset) for unit, offset in ids]

    def _note_stored(self, rows: pa.Table) -> None:
        columns = rows.select([name for name in rows.column_names if not name.startswith("__")])
        values = [
            [(f.name, str(f.type), value[f.name]) for f in columns.schema] for value in columns.to_pylist()
        ]
        self._seen.stored.update(zip(self._rows(rows), values, strict=True))

    def _answer(self, batch: pa.Table) -> pa.Table:
        rows, texts = self._rows(batch), batch.column("__request").to_pylist()
        contents: Sequence[Any] = [()] * len(texts)
        if FILES_FIELD.name in batch.column_names:
            contents = files_of(self._job, cells.from_array(batch.column(FILES_FIELD.name)))
            batch = batch.drop_columns([FILES_FIELD.name])
        is_first = []
        for row, text, files in zip(rows, texts, contents, strict=True):
            is_first.append(row not in self._seen.requests)
            if isinstance(files, Exception):
                continue
            named = name_media(text, files) if files else text
            if named not in self._seen.requests[row]:
                self._seen.requests[row].append(named)
                self.asked.append((named, files))
            if is_first[-1]:
                self.first_requests.append(named)
        return self._answers(
            batch, [first and row[1] == 2 for first, row in zip(is_first, rows, strict=True)]
        )

    def _answers(self, batch: pa.Table, has_mishap: list[bool]) -> pa.Table:
        job, count = self._job, batch.num_rows
        told: dict[str, Any] = {"reasoning": ["hm"] * count, "logprob": [-1.0] * count}
        errors = [is_bad and self._mishap == "error" for is_bad in has_mishap]
        if numbers := _numbers(job):
            told["numbers"] = [None if error else numbers for error in errors]
        else:
            told["text"] = [
                None if error else "?" if is_bad else self._text
                for is_bad, error in zip(has_mishap, errors, strict=True)
            ]
            if (several := job.task.answers_per_row) > 1:
                told["texts"] = [[{"text": text, "finish_reason": "stop"}] * several for text in told["text"]]
        told["error"] = ["it broke" if error else None for error in errors]
        told["error_type"] = ["ValueError" if error else None for error in errors]
        return answer_table(batch, **told, logprob_tokens=[2] * count, finish_reason=["stop"] * count,
                            input_tokens=[7] * count, output_tokens=[3] * count,
                            engine_seconds=[0.1] * count, finished_at=[0.0] * count)  # fmt: skip


def _numbers(job: SliceJob) -> list[float]:
    """The answer of a model that writes nothing; none for the others."""
    if isinstance(job.task, Embed):
        size = job.task.embedding.dimensions or VECTOR_SIZE
        return [0.1 * (i + 1) for i in range(size)]
    if job.task.kind == "score":
        return [0.3]
    if job.task.kind == "classify" or job.compares_labels:
        labels = job.task.labels_of_answers or ()
        return [0.7, *(0.3 / (len(labels) - 1) for _ in labels[1:])]
    return []


class _Parser:
    """Tells somebody which columns of answers are kept."""

    def __init__(self, parser: Any, note: Callable[[pa.Table], None]) -> None:
        self._parser, self._note = parser, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def agreeing_in(self, url: str, folder: str) -> _Parser:
        return _Parser(self._parser.agreeing_in(url, folder), self._note)

    def __call__(self, answers: pa.Table) -> tuple[pa.Table, pa.Table]:
        rows, failed = self._parser(answers)
        self._note(rows)
        return rows, failed


def _note_rows(seen: Observation, plan: Plan, columns: Sequence[str]) -> None:
    for unit in plan.units:
        rows = [sorted(row.items()) for table in plan.read(unit, columns) for row in table.to_pylist()]
        seen.rows.update({(unit.id, offset): row for offset, row in enumerate(rows)})


def _asked(engine: Engine, requests: Sequence[Asked]) -> dict[str, Any]:
    """Rows that are refused are left out: they have no answer."""
    got = asked_of_model(engine, requests)
    return {text: one for (text, _), one in zip(requests, got, strict=True) if one is not None}


def _note_published(seen: Observation, order: Sequence[Row]) -> None:
    files = sorted(str(path) for path in Path(seen.place).iterdir() if not path.name.startswith(("_", ".")))
    table = pads.dataset(files).to_table()
    seen.schema = [(column.name, str(column.type)) for column in table.schema]
    seen.published = dict(zip(order, table.to_pylist(), strict=True))
