"""An engine that answers at once without a model, inside real Ray Data: for tests and benchmarks of what
surrounds the engine.

The answer is the last message's text (or the first choice), so that a test can tell whose answer a row has.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import AnswerSink, Engine, answer_table
from airflow_provider_raydatallm.processor.sizing.facts import Resources

if TYPE_CHECKING:
    import ray.data


class StubEngine(Engine):
    """`engine.kwargs`, beside those of `answer`: `delivered`, a file that gets the number of rows of each
    group that was delivered; `stop_gate`, a file that `stop` waits for; `stalls_from`, a file before which
    no stall is counted; `ask_cpus`, which it waits for and holds; `gpus`, a file with the number of GPUs that
    it says it holds.
    """

    def __init__(self, job: SliceJob, rows: int) -> None:
        super().__init__(job, rows)
        if gate := job.engine.arguments.get("stalls_from"):
            count_stalls_when(lambda: os.path.exists(gate))

    @property
    def resources(self) -> Resources:
        return Resources(
            cpus=1 + int(self.job.engine.arguments.get("ask_cpus", 0)), gpus=0, breakdown="a stub"
        )

    @property
    def batch_size(self) -> int:
        return self.job.engine.batch_size or 128

    def gpus_held(self, workers: int | None) -> float | None:
        file = self.job.engine.arguments.get("gpus")
        return float(open(file).read() or 0) if file and os.path.exists(file) else None

    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        from ray.data import TaskPoolStrategy

        pause, gate = float(self.job.engine.arguments.get("pause", 0)), self.job.engine.arguments.get("gate")
        answers = requests.map_batches(
            partial(answer, pause=pause, gate=gate), batch_size=self.batch_size, batch_format="pyarrow",
            compute=TaskPoolStrategy(1), num_cpus=self.job.engine.arguments.get("ask_cpus", 1),
        )  # fmt: skip
        delivered = deliver.deliver_blocks(answers)
        if file := self.job.engine.arguments.get("delivered"):
            delivered = delivered.map_batches(
                partial(note, file=file), batch_size=None, batch_format="pyarrow"
            )
        return delivered

    def stop(self) -> None:
        gate = self.job.engine.arguments.get("stop_gate")
        while gate and not os.path.exists(gate):
            time.sleep(0.1)


def answer(batch: pa.Table, *, pause: float = 0, gate: str | None = None, heals: bool = False) -> pa.Table:
    """A message that begins with "fail" fails in the engine; one that begins with "stuck" never comes back.

    :param pause: seconds that a batch takes.
    :param gate: a file without which messages that begin with "wait" do not come back. The file
        `<gate>.waits` is made when there is one.
    :param heals: whether no message fails.
    """
    time.sleep(pause)
    texts: list[str | None] = []
    errors: list[str | None] = []
    began = time.time()
    for text in batch.column("__request").to_pylist():
        request = json.loads(text)
        choices = request["sampling_params"].get("structured_outputs", {}).get("choice")
        said = choices[0] if choices else request["messages"][-1]["content"]
        while said.startswith("stuck") or (gate and said.startswith("wait") and not os.path.exists(gate)):
            if gate:
                open(f"{gate}.waits", "a").close()
            time.sleep(0.1)
        failed = said.startswith("fail") and not heals
        texts.append(None if failed else said)
        errors.append("ValueError: it begins with fail" if failed else None)
    n = batch.num_rows
    given, made = ([None if e else count for e in errors] for count in (7, 3))
    return answer_table(
        batch, text=texts, input_tokens=given, output_tokens=made,
        engine_seconds=[time.time() - began] * n, finished_at=[time.time()] * n,
        error_type=[error and "ValueError" for error in errors], error=errors,
    )  # fmt: skip


def note(delivered: pa.Table, *, file: str) -> pa.Table:
    with open(file, "a") as lines:
        lines.write(f"{sum(delivered.column('rows').to_pylist())}\n")
    return delivered


def count_stalls_when(is_time: Callable[[], bool]) -> None:
    """Have no time counted as a stall in this process before that: how long a busy machine takes to start
    what is to stall is not the matter."""
    from airflow_provider_raydatallm.processor.inference.stall import StallWatch

    observe = StallWatch.observe

    def patient(self: StallWatch, finished_rows: int, engine_started: bool) -> None:
        if not is_time():
            self._since = self._clock()
        observe(self, finished_rows, engine_started)

    StallWatch.observe = patient  # type: ignore[method-assign]
