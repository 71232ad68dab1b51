"""Sizes that users need not choose, and the arithmetic behind them. Pure: numbers in, numbers out.

The formulas are those of the Ray Data LLM guides for batch inference; the constants are measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Rows in a batch where nothing speaks for less. On one H200, with batches of 16 short rows, an engine
#: lost a third of its speed.
_BATCH = 128
_SMALLEST_BATCH = 16
#: Batches for each worker below which the last ones leave the others idle.
_BATCHES_PER_WORKER = 4
#: What vLLM runs at once on a large GPU unless it is told otherwise.
DEFAULT_MAX_NUM_SEQS = 1024
#: Rows in flight for each that the engine runs at once. A batch leaves when its last row is done: with
#: answers of mixed lengths only about a third of the rows in flight are running.
_ROWS_PER_SEQUENCE = 4
#: On an H200 a start with kept compilations took 66 s, an eager one 47 s: work of a minute, a third slower,
#: would lose that.
_COMPILING_SECONDS = 60.0
#: Rows that any GPU answers in less, where no slice has shown how long it takes.
_UNKNOWN_ROWS = 500
#: A limit that is a little too high costs nothing.
_LENGTH_STEP = 64


@dataclass(frozen=True)
class TaskSpread:
    """How rows become tasks.

    rows_per_block: rows that travel together. rows_per_task: rows that a worker takes at once: whole blocks,
    at least a batch. tasks: of the slice. tasks_per_worker: of them, on average.
    """

    rows_per_block: int
    rows_per_task: int
    tasks: int
    tasks_per_worker: int


def spread_tasks(rows: int, blocks: int, batch_size: int, workers: int) -> TaskSpread:
    """How a slice's rows are spread.

    10,000 rows in 256 blocks with batches of 128 and 4 workers: 39 rows a block, 156 a task, 64 tasks, 16 for
    each worker.
    """
    per_block = max(1, rows // blocks)
    per_task = math.ceil(batch_size / per_block) * per_block
    tasks = max(1, round(rows / per_task))
    return TaskSpread(per_block, per_task, tasks, math.ceil(tasks / workers))


def is_saturated(batch_size: int, batches: int, max_num_seqs: int) -> bool:
    """Whether the batches that a worker holds cover what its engine runs at once."""
    return batch_size * batches >= max_num_seqs


def gpus(workers: tuple[int, int], tensor_parallel: int, pipeline_parallel: int) -> tuple[int, int]:
    """GPUs of the fewest and of the most workers."""
    each = tensor_parallel * pipeline_parallel
    return workers[0] * each, workers[1] * each


def fewest_blocks(workers: int, *, varied: bool) -> int:
    """Blocks below which workers wait for each other at the end: 2 for each, 4 where rows vary in length."""
    return workers * (4 if varied else 2)


def percentile(values: Sequence[int], percent: float) -> int:
    """The smallest of the values that is not exceeded by so many percent of them.

    :raises ValueError: for a percentile outside 0-100, or without values.
    """
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile lies between 0 and 100, not at {percent:g}")
    if not values:
        raise ValueError("there is no percentile of nothing")
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def fitting_max_model_len(lengths: Sequence[int], percent: float, most: int | None = None) -> int:
    """Tokens of prompt and answer that so many percent of the rows need at most, in steps of 64. The memory
    of an engine's cache grows with it, so that the longest row is a poor measure.

    :param lengths: tokens of the rows' prompts with the longest answers that they may have.
    :param most: what the model has places for.
    """
    fitting = math.ceil(percentile(lengths, percent) / _LENGTH_STEP) * _LENGTH_STEP
    return min(fitting, most) if most is not None else fitting


def default_workers(gpus: int, gpus_each: int, rows: int) -> tuple[int, int]:
    """One worker at least, and as many as there are GPUs for: of those that a slice gives enough to do, since
    each takes a minute to start."""
    return 1, max(1, min(gpus // gpus_each, rows // (_BATCHES_PER_WORKER * _BATCH)))


def workers_needed(rows: int, seconds_per_row: float, seconds: float) -> int:
    """Workers that answer so many rows in time, at so many seconds a row for one worker."""
    return math.ceil(rows * seconds_per_row / seconds)


def batch_size_for(workers: int, now: int, batch_size: int) -> int:
    """The batch size that leaves each worker as many tasks as `now` workers had: twice the workers, half the
    batch."""
    return max(1, batch_size * now // workers)


def is_worth_compiling(rows: int, rows_per_s: float | None) -> bool:
    """Whether an engine answers faster by more than the time that it takes to compile and to capture CUDA
    graphs.

    :param rows_per_s: as an earlier slice was answered; None when not known.
    """
    return rows / rows_per_s > _COMPILING_SECONDS if rows_per_s else rows > _UNKNOWN_ROWS


def engine_batch_size(rows: int, workers: int, largest: int = _BATCH) -> int:
    """Rows in a batch: the largest, fewer when the slice would give a worker less than 4 batches, never fewer
    than 16."""
    return max(_SMALLEST_BATCH, min(largest, math.ceil(rows / (workers * _BATCHES_PER_WORKER))))


def batches_in_flight(batch_size: int, max_num_seqs: int = DEFAULT_MAX_NUM_SEQS) -> int:
    """Batches that a worker holds at once: four times the rows that its engine runs at once, and at least 4
    batches."""
    return max(4, math.ceil(_ROWS_PER_SEQUENCE * max_num_seqs / batch_size))


def read_tasks(units: int, cpus: float) -> int:
    """Reading tasks: one a unit, up to 4 for each CPU, so that a table of many small files is no flood of
    tasks."""
    return max(1, min(units, int(cpus * 4)))


def light_tasks(cpus: float) -> int:
    """Tasks at once for each step around the engine (read, shape): a quarter of the CPUs, so that they do not
    crowd the stages."""
    return max(1, int(cpus / 4))
