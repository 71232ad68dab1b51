"""The stub engine with a journal and a brake, for tests that look at a slice while it is answered.

Beside the output table, in `<output>.control/`:

- `<slice>.journal`: a line for each batch, with the Ray job that answered it: who did work, and how far it
  is;
- `<slice>.hold`: while this file is there, no more batches are answered than the number in it;
- `<slice>.heals`: while this file is there, no message fails.

Both are outside of what the fingerprint knows. It travels with the job and stands alone. Importing it makes
the lease of a killed job stale within seconds: the product's half a minute would be most of a test.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from stub_engine import StubEngine, answer

from airflow_provider_raydatallm.processor.engines.base import AnswerSink
from airflow_provider_raydatallm.processor.store import lease

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    import ray.data

lease.BEAT_SECONDS, lease.STALE_SECONDS = 0.5, 15.0


class HeldEngine(StubEngine):
    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        from ray.data import TaskPoolStrategy

        control = Path(f"{self.job.output_path}.control")
        # Ray tells the driver of a job its id this way.
        job = json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]["job_submission_id"]
        answers = requests.map_batches(
            partial(held, journal=control / f"{self.job.slice_key}.journal", job=job),
            batch_size=self.batch_size, batch_format="pyarrow", compute=TaskPoolStrategy(1),
            num_cpus=self.job.engine.arguments.get("ask_cpus", 1),
        )  # fmt: skip
        return deliver.deliver_blocks(answers)


def held(batch: pa.Table, *, journal: Path, job: str) -> pa.Table:
    hold = journal.with_suffix(".hold")
    while (allowed := _read(hold)) and len(_read(journal).splitlines()) >= int(allowed):
        time.sleep(0.05)
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("a") as lines:
        lines.write(f"{job} {batch.num_rows}\n")
    return answer(batch, heals=journal.with_suffix(".heals").exists())


def count_rows(answers: ds.Dataset) -> int:
    """A check of gates."""
    return answers.count_rows()


def _read(path: Path) -> str:
    """Empty when it is not there."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
