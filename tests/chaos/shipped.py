"""What a trial ships with its jobs: a slow stub engine, and functions that note what leaves a real one, and
that leave it no choice in what it answers.

It stands alone, since nothing else of the tests is on the cluster. Importing it makes a killed run's lease
stale within seconds: the product's half a minute would be most of a trial.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.base import AnswerSink, Engine, answer_table
from airflow_provider_raydatallm.processor.sizing.facts import Resources
from airflow_provider_raydatallm.processor.store import lease

if TYPE_CHECKING:
    import ray.data

lease.BEAT_SECONDS, lease.STALE_SECONDS = 0.5, 5.0

#: Set in the job's environment: where rows are noted, and how long a batch of the stub takes.
NOTES, SECONDS = "CHAOS_NOTES", "CHAOS_SECONDS"


class SlowEngine(Engine):
    """Answers in an actor of Ray Data, as real engines do."""

    @property
    def resources(self) -> Resources:
        return Resources(cpus=2, gpus=0, breakdown="a slow stub")

    @property
    def batch_size(self) -> int:
        return self.job.engine.batch_size or 20

    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        from ray.data import ActorPoolStrategy

        answers = requests.map_batches(
            SlowEngineActor, batch_size=self.batch_size, batch_format="pyarrow",
            compute=ActorPoolStrategy(size=1),
        )  # fmt: skip
        return deliver.deliver_blocks(answers)


class SlowEngineActor:
    def __call__(self, batch: pa.Table) -> pa.Table:
        ids = zip(batch.column("__unit").to_pylist(), batch.column("__offset").to_pylist(), strict=True)
        _note(f"{unit} {offset}" for unit, offset in ids)
        seconds = float(os.environ[SECONDS])
        time.sleep(seconds)
        while _is_held():
            time.sleep(0.05)
        texts = [json.loads(t)["messages"][-1]["content"] for t in batch.column("__request").to_pylist()]
        n = batch.num_rows
        return answer_table(
            batch, text=texts, input_tokens=[7] * n, output_tokens=[3] * n,
            engine_seconds=[seconds] * n, finished_at=[time.time()] * n,
        )  # fmt: skip


def _is_held() -> bool:
    """Whether as many rows are noted as `<notes>.hold` says, if that is there."""
    notes = Path(os.environ[NOTES])
    try:
        most = int(Path(f"{notes}.hold").read_text() or 0)
    except FileNotFoundError:
        return False
    return len(set(notes.read_bytes().splitlines())) >= most


def slow_request(row: dict[str, Any]) -> dict[str, Any]:
    """A preprocess function: rows are read for as long as they are answered."""
    time.sleep(0.03)
    return {"prompt": row["name"]}


def note_answer(row: dict[str, Any]) -> dict[str, Any]:
    """A postprocess function."""
    while _is_held():
        time.sleep(0.05)
    _note([row["name"]])
    return {"answer": row["answer"]}


def exact_answer(name: str) -> str:
    """What a row of that name is to be answered with: one row in four is long."""
    rng = random.Random(name)
    length = rng.randint(150, 400) if rng.random() < 0.25 else rng.randint(5, 60)
    return f"{name}: {rng.randbytes(length).hex()[:length]}"


def exact_request(row: dict[str, Any]) -> dict[str, Any]:
    """A preprocess function: the engine has one answer to choose from, so the audit knows each of them."""
    return {
        "prompt": row["name"],
        "sampling_params": {"structured_outputs": {"choice": [exact_answer(row["name"])]}},
    }


def note_exact_answer(row: dict[str, Any]) -> dict[str, Any]:
    """A postprocess function. Slices note in files of their own: variables of their own would give each an
    engine of its own."""
    _note([row["name"]], row["slice"])
    return {"answer": row["answer"]}


def _note(lines: Any, file: str = "") -> None:
    """:param file: in the folder of notes."""
    path = os.path.join(os.environ[NOTES], file) if file else os.environ[NOTES]
    notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(notes, "".join(f"{line}\n" for line in lines).encode())
    finally:
        os.close(notes)
