"""The slices that trials make: their input, the job that makes them, and the rows that must come out.

All of it follows from the name of a scenario and a seed, so that the process that makes the input, those that
answer it, the one that audits and whoever runs a trial again agree without a word. The answer of a row is its
own text in the prompt, so that the audit can tell whose answer a row has.
"""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from tests.support.in_process import job_of, numbers_of

#: Of the version before, of the one in the making, and of whoever replaces both.
QUESTIONS = ("{name} is what?", "{name} is where?", "{name} is who?")
LABELS = ("yes", "no", "maybe")
#: How many numbers an answer has.
NUMBERS = {"embed": 4, "score": 1, "classify": len(LABELS)}
COLUMNS = ("id", "name", "amount", "note")

Row = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """`before`: what the job of the version that is there already differs in; None when there is none.
    `judged`: whether there are golden rows, rows that are asked twice, a second model, and gates of them and
    of an own check."""

    given: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] | None = None
    question: int = 0
    csv: bool = False
    failing: bool = False
    healed: bool = False
    new_file: bool = False
    judged: bool = False


_PARTS = {"publish__file_per_input": True}
#: Below what the contract takes: a slice of some kilobytes is cut into several files.
_SMALL = {"publish__max_file_bytes": 2500}
_RECOMPUTE = {"rerun__on_config_change": "recompute"}
_FAILING = {"quality__max_quarantine": 1.0}

SCENARIOS: dict[str, Scenario] = {
    "new": Scenario(),
    "csv": Scenario({"source__column_types": {"id": "int64", "amount": "float64"}}, csv=True),
    "parts": Scenario(_PARTS), "small parts": Scenario(_SMALL), "failing": Scenario(_FAILING, failing=True),
    "failing twice": Scenario({**_FAILING, "quality__max_attempts": 2}, failing=True),
    "failing parts": Scenario({**_FAILING, **_PARTS}, failing=True), "recompute": Scenario(_RECOMPUTE, {}, 1),
    "recompute failing": Scenario({**_RECOMPUTE, **_FAILING}, {}, 1, failing=True),
    "recompute parts": Scenario({**_RECOMPUTE, **_PARTS}, {}, 1),
    "one to parts": Scenario({**_RECOMPUTE, **_PARTS}, {"publish__file_per_input": False}, 1),
    "parts to one": Scenario({**_RECOMPUTE}, _PARTS, 1),
    "not kept": Scenario({**_RECOMPUTE, "publish__keep_versions": 0}, {}, 1),
    "not kept parts": Scenario({**_RECOMPUTE, **_PARTS, "publish__keep_versions": 0}, {}, 1),
    "failing to none": Scenario({**_RECOMPUTE, **_FAILING}, {}, 1, failing=True, healed=True),
    "forced": Scenario({"rerun__force": True}, {"rerun__force": False}),
    "extend": Scenario({"rerun__on_input_change": "extend"}, {}, new_file=True),
    "extend parts": Scenario({"rerun__on_input_change": "extend", **_PARTS}, {}, new_file=True),
    "retry": Scenario(
        {**_FAILING, "rerun__retry_quarantined": True}, {"rerun__retry_quarantined": False}, failing=True,
        healed=True,
    ),
    # The numbers of tasks that answer with them: a vector, a score, and the probabilities of labels.
    "vectors": Scenario({**_FAILING, "task": "embed"}, failing=True),
    "vectors recompute": Scenario({**_RECOMPUTE, "task": "embed"}, {}, 1),
    "scores": Scenario({**_FAILING, **_PARTS, "task": "score", "query": "{note}"}, failing=True),
    "labels": Scenario({"task": "classify", "choices": LABELS, "labels__confidence": True}),
    "judged": Scenario(judged=True),
    "judged failing": Scenario({**_FAILING, **_PARTS}, failing=True, judged=True),
    "judged recompute": Scenario(_RECOMPUTE, {}, 1, judged=True),
    "retry parts": Scenario(
        {**_FAILING, **_PARTS, "rerun__retry_quarantined": True}, {"rerun__retry_quarantined": False},
        failing=True, healed=True,
    ),
}  # fmt: skip


#: Rows whose answers are known. All rows are asked twice, and all answers judged.
GOLDEN = 3
_JUDGED: Mapping[str, Any] = {
    "repeat": 10_000,
    "judge": {"model": "m/judge", "prompt": "Is {answer} right?", "rows": 10_000},
    "gates": [
        {"of": "golden", "min": 1}, {"of": "repeat", "max": 0}, {"of": "judge", "min": 1},
        {"of": "sql:SELECT count(*) - count(DISTINCT id) FROM answers", "max": 0},
        {"of": "spread:answer", "against": 1, "max": 100, "then": "warn"},
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Slice:
    """One slice of a trial. `root`: folder or `s3://` URL that holds its input and its output."""

    root: str
    scenario_name: str
    seed: str

    @property
    def scenario(self) -> Scenario:
        return SCENARIOS[self.scenario_name]

    @cached_property
    def files(self) -> list[list[Row]]:
        """Rows of each input file, in their order."""
        rng = random.Random(f"rows {self.seed}")
        files: list[list[Row]] = []
        total = 0
        for _ in range(rng.choice((2, 3, 4))):
            rows = [_row(i, rng, self.scenario.failing) for i in range(total, total + rng.randint(12, 30))]
            total += len(rows)
            files.append(rows)
        return files

    @cached_property
    def row_group(self) -> int:
        return random.Random(f"groups {self.seed}").randint(5, 14)

    def rows(self, before: bool = False) -> list[Row]:
        files = self.files[:-1] if before and self.scenario.new_file else self.files
        return [row for rows in files for row in rows]

    def expected(self, *, before: bool = False, question: int | None = None) -> tuple[list[Row], list[Row]]:
        """Published rows with their answers, and rows in quarantine; of the version before, if asked for."""
        if question is None:
            question = 0 if before else self.scenario.question
        fails = self.scenario.failing and (before or not self.scenario.healed)
        published, aside = [], []
        for row in self.rows(before):
            if fails and row["name"].startswith("fail"):
                aside.append(row)
            else:
                published.append({**row, **self._answer(QUESTIONS[question].replace("{name}", row["name"]))})
        return published, aside

    def _answer(self, text: str) -> Row:
        task = self.scenario.given.get("task", "generate")
        if task == "generate":
            return {"answer": text}
        numbers = numbers_of(text, NUMBERS[task])
        if task == "embed":
            return {"answer": numbers}
        if task == "score":
            return {"answer": numbers[0]}
        first, second, _ = sorted(range(len(LABELS)), key=lambda i: -numbers[i])
        entropy = -sum(n * math.log2(n) for n in numbers)
        return {
            "answer": LABELS[first], "answer_probability": numbers[first], "answer_runner_up": LABELS[second],
            "answer_runner_up_probability": numbers[second],
            "answer_entropy": float(np.float32(entropy)),
        }  # fmt: skip

    @property
    def to_answer(self) -> int:
        """Rows that an engine is asked for when nothing is killed."""
        rows, failing = self.rows(), sum(r["name"].startswith("fail") for r in self.rows())
        if self.scenario.new_file:
            return len(rows) - len(self.rows(before=True))
        if self.scenario.healed and self.scenario.given.get("rerun__retry_quarantined"):
            return failing
        attempts = self.scenario.given.get("quality__max_attempts", 1)
        judged = self.scenario.judged * (GOLDEN + len(rows) + len(self.expected()[0]))
        return len(rows) + (attempts - 1) * failing * self.scenario.failing + judged

    @property
    def slice_path(self) -> str:
        return self.job().slice_path

    def job(self, *, before: bool = False, **more: Any) -> SliceJob:
        given = {**self.scenario.given, **(self.scenario.before or {} if before else {}), **more}
        question = given.pop("question", 0 if before else self.scenario.question)
        max_file_bytes = given.pop("publish__max_file_bytes", None)
        if self.scenario.judged:
            given |= {f"quality__{name}": value for name, value in _JUDGED.items()}
            given["quality__golden"] = {"path": f"{self.root}/golden-{question}.jsonl"}
        job = job_of(
            input_path=f"{self.root}/in", output_path=f"{self.root}/out", prompt=QUESTIONS[question], **given
        )
        return job if max_file_bytes is None else job.changed(publish={"max_file_bytes": max_file_bytes})

    def write_input(self, fs: fsspec.AbstractFileSystem, path: str, *, new: bool) -> None:
        """Put the input files: those that were there before, or the one that is new."""
        fs.makedirs(f"{path}/in", exist_ok=True)
        for number, question in enumerate(QUESTIONS if self.scenario.judged else ()):
            names = [f"golden {i}" for i in range(GOLDEN)]
            rows = [{"name": name, "answer": question.replace("{name}", name)} for name in names]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            fs.pipe_file(f"{path}/golden-{number}.jsonl", lines.encode())
        for index, rows in enumerate(self.files):
            if new != (self.scenario.new_file and index == len(self.files) - 1):
                continue
            suffix, content = (
                ("csv", _csv(rows)) if self.scenario.csv else ("parquet", _parquet(rows, self.row_group))
            )
            fs.pipe_file(f"{path}/in/{index:03}.{suffix}", content)


def _row(i: int, rng: random.Random, failing: bool) -> Row:
    fails = failing and rng.random() < 0.15
    return {
        "id": i,
        "name": f"{'fail' if fails else 'row'} {i} {rng.getrandbits(32):x}",
        "amount": None if rng.random() < 0.2 else round(rng.uniform(-1e6, 1e6), 3),
        "note": rng.choice(('said "no", left', "two\nlines", "zażółć 寿司", "x" * rng.randint(1, 60))),
    }


def _parquet(rows: list[Row], row_group: int) -> bytes:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(rows, pa.schema(_FIELDS))
    pq.write_table(table, sink, row_group_size=row_group)
    return sink.getvalue()


_FIELDS = [("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("note", pa.string())]


def _csv(rows: list[Row]) -> bytes:
    lines = [",".join(COLUMNS)]
    for row in rows:
        name, note = (f'"{row[c].replace(chr(34), chr(34) * 2)}"' for c in ("name", "note"))
        lines.append(f"{row['id']},{name},{'' if row['amount'] is None else row['amount']},{note}")
    return ("\n".join(lines) + "\n").encode()
