"""An engine whose workers are a fixed pool of actors that hold CPUs, as vLLM's hold GPUs: for tests of what
happens when jobs want more than there is.

`engine.kwargs`: `workers` (actors), `each` (CPUs of one), `pause` (seconds a batch), `journal` (a folder for
each actor's file), `gate` (a file: nobody answers before it is there). Nor does anybody before all workers
are there: on a busy machine the first could be done with everything by then.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from stub_engine import StubEngine, answer

from airflow_provider_raydatallm.processor.engines.base import AnswerSink
from airflow_provider_raydatallm.processor.sizing.facts import Resources

if TYPE_CHECKING:
    import ray.data


class PoolEngine(StubEngine):
    @property
    def resources(self) -> Resources:
        workers, each = self.job.engine.arguments["workers"], self.job.engine.arguments["each"]
        return Resources(
            cpus=workers * each + 1, gpus=0, breakdown=f"{workers} workers of {each} CPUs, 1 to read"
        )

    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        kwargs = self.job.engine.arguments
        answers = requests.map_batches(
            _Worker,
            fn_constructor_args=(
                self.job.slice_key, kwargs["workers"], float(kwargs.get("pause", 0)), kwargs["journal"],
                kwargs.get("gate"),
            ),
            batch_size=self.batch_size, batch_format="pyarrow",
            concurrency=(kwargs["workers"], kwargs["workers"]), num_cpus=kwargs["each"],
        )  # fmt: skip
        return deliver.deliver_blocks(answers)


class _Worker:
    def __init__(self, key: str, workers: int, pause: float, journal: str, gate: str | None) -> None:
        self._answer = partial(answer, pause=pause)
        self._file = Path(journal, f"{key}-{os.getpid()}")
        self._all = workers, f"{key}-*"
        self._gate = gate and Path(gate)
        self._note()

    def __call__(self, batch: pa.Table) -> pa.Table:
        workers, files = self._all
        while len(list(self._file.parent.glob(files))) < workers:
            time.sleep(0.1)
        while self._gate and not self._gate.exists():
            time.sleep(0.1)
        answered = self._answer(batch)
        self._note()
        return answered

    def _note(self) -> None:
        with self._file.open("a") as file:
            file.write(f"{time.time()}\n")
