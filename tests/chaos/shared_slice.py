"""One slice of a trial on shared engines: its rows, its task's attempts, and what became of them."""

from __future__ import annotations

import logging
import random
import threading
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from airflow.sdk import DAG

from airflow_provider_raydatallm.exceptions import RayLLMJobError
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.processor.publish.published import current_report
from tests.chaos import shipped
from tests.chaos.audit import Promise, audit
from tests.chaos.life import Outcome
from tests.support.arguments import written
from tests.support.context import context_of
from tests.support.tiny_model import tiny_model

_MOST_ATTEMPTS = 6
#: Seconds after which an attempt counts as one that hangs.
_LIMIT = 900.0


class SharedSlice:
    """Rows of which each has one answer that is right, asked for by an operator as tasks have it."""

    def __init__(
        self, folder: Path, notes: Path, name: str, rows: int, rng: random.Random, **given: Any
    ) -> None:
        self.name, self.notes = name, notes / name
        self.notes.touch()
        self.rows = [
            {"id": i, "slice": name, "name": f"{name}-{i}", "note": None if i % 7 else "é" * (i % 5)}
            for i in range(rows)
        ]
        folder.mkdir(parents=True)
        pq.write_table(
            pa.Table.from_pylist(self.rows), folder / "in.parquet", row_group_size=rng.randint(40, 150)
        )
        with DAG(f"c{uuid.uuid4().hex[:8]}", schedule=None):
            self._operator = RayLLMBatchOperator(**written(**{
                "task_id": "t", "slice_key": name, "input_path": f"{folder}/in.parquet",
                "output_path": f"{folder}/out", "model_source": str(tiny_model()),
                "preprocess": "shipped:exact_request", "postprocess": "shipped:note_exact_answer",
                "code_paths": [shipped.__file__], "runtime_env": {"env_vars": {shipped.NOTES: str(notes)}},
                "sampling_params": {"temperature": 0, "max_tokens": 600},
                "engine__kwargs": {"max_model_len": 1024, "max_num_seqs": 16}, "engine__scope": "shared",
                "poll_interval": 1.0, **given,
            }))  # fmt: skip
        # A task's log is its own.
        log = logging.FileHandler(folder / "task.log")
        log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._operator._cached_logger = logging.Logger(name, logging.INFO)
        self._operator._cached_logger.addHandler(log)
        #: What ended the attempts that published nothing.
        self.errors: list[Exception] = []
        self._attempt: threading.Thread | None = None

    def start(self) -> None:
        """Begin an attempt, as Airflow begins a try of the task."""
        self._attempt = threading.Thread(target=self._try, name=self.name, daemon=True)
        self._attempt.start()

    def _try(self) -> None:
        try:
            self._operator.execute(context_of(self._operator))
        except Exception as e:
            self.errors.append(e)

    @property
    def is_tried(self) -> bool:
        return self._attempt is not None and self._attempt.is_alive()

    @property
    def is_published(self) -> bool:
        return current_report(self._job) is not None

    @property
    def _job(self) -> Any:
        job, _ = self._operator.slice_job(context_of(self._operator))
        return job

    @property
    def answered(self) -> int:
        """Rows that came from an engine once at least."""
        return len(set(self.notes.read_bytes().splitlines()))

    def wait(self) -> None:
        """For the end of this attempt.

        :raises TimeoutError: when it hangs.
        """
        assert self._attempt is not None
        self._attempt.join(_LIMIT)
        if self._attempt.is_alive():
            raise TimeoutError(f"{self.name} hangs with {self.answered} of {len(self.rows)} rows")
        self._attempt = None

    def finish(self) -> None:
        """Try until it is published, or often enough: the audit tells."""
        for _ in range(_MOST_ATTEMPTS):
            if self._attempt is None and self.is_published:
                return
            if self._attempt is None:
                self.start()
            self.wait()

    def audit(self, outcome: Outcome) -> None:
        """Add what there is to say of it."""
        wanted = [{**row, "answer": shipped.exact_answer(str(row["name"]))} for row in self.rows]
        found = audit(self._job.slice_path, Promise(wanted))
        outcome.rows += found.rows
        outcome.lost += found.lost
        outcome.duplicated += found.duplicated
        outcome.altered += found.altered
        again = self.notes.read_bytes().count(b"\n") - len(self.rows)
        outcome.again += again
        faults = list(found.faults)
        if again < 0:
            faults.append(f"{-again} published rows never came from an engine")
        # Airflow retries these, and knows by their class what happened.
        odd = [e for e in self.errors if not isinstance(e, RayLLMJobError) or type(e) is RayLLMJobError]
        faults += [f"an attempt ended with {type(e).__name__}: {e}" for e in odd]
        outcome.faults += [f"{self.name}: {f}" for f in faults]
