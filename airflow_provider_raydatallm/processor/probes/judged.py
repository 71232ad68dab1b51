"""Judged answers: random ones of the slice, of which a second model says whether they are right.

It runs once the slice's rows are answered and their engine has ended. What it is asked lies beside what it
says: a file of the sampled rows with their answers, named after its content, which is read as any input is.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.probes import JudgeFigures
from airflow_provider_raydatallm.contract.spec.judge import Judge
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.adapters.slice_adapters import SliceAdapters
from airflow_provider_raydatallm.processor.inference.planning import plan_inference, request_builder
from airflow_provider_raydatallm.processor.inference.ray_cluster import InferencePlan
from airflow_provider_raydatallm.processor.input.listing import list_input, short_hash
from airflow_provider_raydatallm.processor.input.survey import survey_input
from airflow_provider_raydatallm.processor.probes.base import Answered, Probe, Tokens
from airflow_provider_raydatallm.processor.probes.sample import all_but, by_unit, sample_rows
from airflow_provider_raydatallm.processor.probes.statistics import wilson_interval
from airflow_provider_raydatallm.processor.request.answers.shape import TextParser
from airflow_provider_raydatallm.processor.request.prompt import Template

_YES, _NO = "yes", "no"
_VERDICT = "verdict"


class _VerdictParser(TextParser):
    def _parse_text(self, text: str | None, *, was_cut: bool) -> Any:
        # Not every engine makes a model write a choice as it is.
        plain = text and text.strip(string.whitespace + string.punctuation).casefold()
        return super()._parse_text(plain, was_cut=was_cut)


@dataclass(frozen=True, kw_only=True)
class JudgedAnswers(Probe):
    """
    :ivar positions: of the sampled rows, counted over the slice's plan.
    """

    name = "judge"
    shares_engine = False
    positions: np.ndarray

    @classmethod
    def find(cls, inference: InferencePlan) -> JudgedAnswers | None:
        judge, plan = inference.job.quality.judge, inference.plan
        if judge is None:
            return None
        known = [field.name for field in inference.shape.known_fields]
        if known:  # else only answers tell
            _columns(judge.prompt, plan.source_schema.names, known)
        positions = sample_rows(plan, judge.rows)
        return cls(
            # Until there are answers to judge: for what its engine needs.
            inference=plan_inference(
                _judging(inference.job), plan, inference.shape, inference.builder, SliceAdapters()
            ),
            hash=short_hash(judge.model_dump(mode="json")),
            unasked=all_but(plan, positions),
            positions=positions,
        )

    def open(self, of_slice: Answered) -> JudgedAnswers:
        job, rows = _judging(self.inference.job), self._rows(of_slice)
        if not rows.num_rows:
            return replace(
                self, inference=replace(self.inference, plan=replace(self.plan, units=())), unasked=None
            )
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink)
        content = sink.getvalue().to_pybytes()
        folder = self.checkpoint(of_slice.checkpoint).folder
        checksum = hashlib.sha256(content).hexdigest()
        name = f"{folder}/rows-{checksum[:16]}.parquet"
        store = of_slice.checkpoint.store
        if store.sha256(name) != checksum:  # it is not there, or damaged
            store.put(name, content)
        source: dict[str, Any] = {"column": None, "max_rows": None, "format": "auto", "column_types": {}}
        job = job.model_copy(update={"input_path": f"{store.url}/{name}"}).changed(source=source)
        survey = survey_input(job, list_input(job))
        plan = survey.plan(rows.column_names)
        builder = request_builder(job, plan, SliceAdapters())
        shape = _VerdictParser(job, None, plan.columns)
        return replace(
            self, inference=plan_inference(job, plan, shape, builder, SliceAdapters()), unasked=None
        )

    def _rows(self, of_slice: Answered) -> pa.Table:
        """Returns the sampled rows that are answered, with their answers: those columns that are asked of."""
        plan, known = of_slice.plan, self.inference.shape.fields
        if not len(of_slice.ledger.rows):
            return pa.table({})
        fields = {field.name: field for field in known} if known is not None else of_slice.fields()
        inputs, asked = _columns(self._judge.prompt, plan.source_schema.names, list(fields))
        reader = of_slice.reader(of_slice.ledger.rows, [fields[name] for name in asked])
        tables = []
        with plan.open() as input_rows:
            for index, offsets in by_unit(plan, self.positions).items():
                found, answers = reader.window(index, int(offsets[0]), int(offsets[-1]) + 1)
                is_wanted = np.isin(found, offsets)
                answers = answers.filter(pa.array(is_wanted))
                # Without a column, a table has no rows.
                of_unit = pa.concat_tables(input_rows.read(plan.units[index], inputs or plan.columns[:1]))
                of_unit = of_unit.take(pa.array(found[is_wanted])).select(inputs)
                for name in asked:
                    of_unit = of_unit.append_column(name, answers.column(name))
                tables.append(of_unit)
        return pa.concat_tables(tables)

    @property
    def _judge(self) -> Judge:
        judge = self.inference.job.quality.judge
        assert judge is not None
        return judge

    def figures(self, answered: Answered, of_slice: Answered) -> JudgeFigures:
        tokens = Tokens()
        tokens.add_all(answered)
        rows, approved, judged = answered.plan.rows, 0, 0
        if rows:
            verdicts = answered.reader(answered.ledger.rows, [pa.field(_VERDICT, pa.string())])
            for index, unit in enumerate(answered.plan.units):
                said = verdicts.window(index, 0, unit.rows)[1].column(_VERDICT)
                judged += len(said)
                approved += pc.sum(pc.equal(said, _YES)).as_py() or 0
        low, high = wilson_interval(approved, judged)
        return JudgeFigures(
            hash=self.hash,
            model=self._judge.model,
            rows=rows,
            approved=approved,
            failed=rows - judged,
            share=approved / judged if judged else None,
            low=low,
            high=high,
            tokens=tokens.total(),
            before=self.share_before(),
        )


def _judging(job: SliceJob) -> SliceJob:
    """The job of asking the second model."""
    judge = job.quality.judge
    assert judge is not None
    nothing = {"preprocess": None, "postprocess": None, "columns": None, "code_hash": ""}
    task = Generate(kind="generate", prompt=judge.prompt, choices=(_YES, _NO))
    asked = job.model_copy(
        update={"model_source": judge.model, "task": task, "output_column": _VERDICT, **nothing}
    ).changed(publish={"details": ()}, quality={"repair": 0, "on_too_long": "quarantine"})
    return (
        asked.changed(engine={"kwargs": judge.kwargs}) if "kwargs" in type(job.engine).model_fields else asked
    )


def _columns(prompt: str, inputs: Sequence[str], answers: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the columns of the input and of the answers that the question names.

    :raises SliceError: when there is none of a name, or none of the answers.
    """
    lack = "neither the input nor the answers have"
    named = Template(prompt, [*inputs, *answers], argument="quality.judge", lack=lack).columns
    asked = [name for name in named if name in answers]
    if not asked:
        raise SliceError(
            f"quality.judge asks nothing about the answers: {prompt!r:.100}",
            kind="input",
            advice=f"Name a column of them in its prompt, such as {{{answers[0]}}}" if answers else (),
        )
    return [name for name in named if name not in asked], asked
