"""Automatic sizes and their arithmetic. Pure: numbers in, numbers out.

The formulas are from the Ray Data LLM guides for batch inference; the constants are measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Default rows per batch. On one H200, an engine lost a third of its speed with batches of 16 short rows.
BATCH = 128
_SMALLEST_BATCH = 16
#: With fewer batches per worker, workers idle at the end.
_BATCHES_PER_WORKER = 4
#: vLLM's default on a large GPU.
DEFAULT_MAX_NUM_SEQS = 1024
#: With fixed batches: rows in flight per row that the engine runs at once. A batch leaves with its last row:
#: with answers of mixed lengths only about a third of the rows in flight are running.
_ROWS_PER_SEQUENCE = 4
#: Admitted one by one, so many rows wait in an engine for each that runs, and at least this many: short rows
#: finish by the hundred until more arrive.
_WAITING_PER_SEQUENCE = 1
_WAITING_ROWS = 256
#: Tokens of prompts in flight in each worker: Python's integers take 36 bytes of memory each.
TOKENS_IN_FLIGHT = 8_000_000
#: Rows that travel together to a feeder, at most; fewer where feeders would get less than 4 blocks.
_BLOCK = 2048
#: The same for rows with files, which a feeder holds, by the argument that names them: 32 MB of images of
#: 1 MB each, or 64 MB of recordings of 8 MB.
MEDIA_BLOCK = {"images": 32, "audio": 8}
#: Rows that wait in a feeder to be sent, at most: 220 MB where they have 100 tokens. Feeders share a slice's
#: rows, so that those that start first do not take them all.
_WINDOW_ROWS, _SMALLEST_WINDOW = 200_000, 2048
#: On an H200 a start with cached compilations took 66 s, an eager one 47 s; eager inference is a third
#: slower, so that compiling pays off after a minute.
_COMPILING_SECONDS = 60.0
#: The same in rows, while no slice has been measured: any GPU answers these in less time.
_UNKNOWN_ROWS = 500
#: Workers for each actor that finds identical requests, and the most such actors: each gets a call for each
#: block, and for a block's few keys the call itself is what costs.
_WORKERS_PER_SHARD = 16
_MAX_SHARDS = 8
#: Tokens of a step for which a CUDA graph is captured: vLLM's own up to 512 (on Blackwell 1,024), where it
#: stops. It launches the kernels of larger steps one by one: an H100 that ran 1,024 rows of an 8B model
#: waited for that 10% of the time. Up to 2,048 it did not, for 3 s of its start and 0.4 GiB; still larger
#: steps take long enough.
_GRAPH_SIZES = (
    1,
    2,
    4,
    *range(8, 256, 8),
    *range(256, 512, 16),
    *range(512, 1024, 32),
    *range(1024, 2049, 128),
)
_VLLM_GRAPH_TOKENS = 512
#: GPUs with so much memory run 1,024 rows at once by vLLM's default, others 256.
_LARGE_GPU_BYTES = 70 * 1024**3
#: Lengths are rounded up: a slightly higher limit costs nothing.
_LENGTH_STEP = 64


#: A slice with so few rows, in so few units, runs in one process: it reads them, unit by unit, in less time
#: than more processes take to start.
_FEW_ROWS = 4096
_FEW_UNITS = 16


@dataclass(frozen=True)
class TaskSpread:
    """How rows become tasks.

    rows_per_block: rows that travel together. rows_per_task: rows that a worker takes at once, in whole
    blocks, at least a batch. tasks: of the slice. tasks_per_worker: mean.
    """

    rows_per_block: int
    rows_per_task: int
    tasks: int
    tasks_per_worker: int


def spread_tasks(rows: int, blocks: int, batch_size: int, workers: int) -> TaskSpread:
    """Example: 10,000 rows in 256 blocks with batches of 128 and 4 workers make 39 rows per block, 156 per
    task, 64 tasks, 16 per worker."""
    per_block = max(1, rows // blocks)
    per_task = math.ceil(batch_size / per_block) * per_block
    tasks = max(1, round(rows / per_task))
    return TaskSpread(per_block, per_task, tasks, math.ceil(tasks / workers))


def gpus(workers: tuple[int, int], per_worker: int) -> tuple[int, int]:
    """Returns the GPUs of the minimum and maximum of workers."""
    return workers[0] * per_worker, workers[1] * per_worker


def fewest_blocks(workers: int, *, varied: bool) -> int:
    """Returns the blocks that keep workers busy until the end: 2 per worker, 4 if rows vary in length."""
    return workers * (4 if varied else 2)


def percentile(values: Sequence[int], percent: float) -> int:
    """Returns the smallest value with at least `percent` of the values at or below it.

    :raises ValueError: for a percentile outside 0-100, or without values.
    """
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile is between 0 and 100, not {percent:g}")
    if not values:
        raise ValueError("a percentile needs at least one value")
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def fitting_max_model_len(lengths: Sequence[int], percent: float, positions: int | None = None) -> int:
    """Returns the tokens of prompt and answer that fit `percent` of the rows, in steps of 64. A row's share
    of the cache grows with it, so the longest row is a poor measure.

    :param lengths: tokens of each row's prompt plus its longest possible answer.
    :param positions: the model's maximum.
    """
    length = math.ceil(percentile(lengths, percent) / _LENGTH_STEP) * _LENGTH_STEP
    return min(length, positions) if positions is not None else length


def default_workers(gpus: int, gpus_per_worker: int, rows: int, ranks: int = 1) -> tuple[int, int]:
    """Returns the minimum, 1, and the maximum: as many as there are GPUs and work for, since each takes a
    minute to start.

    :param ranks: data-parallel ranks of a worker.
    """
    return 1, max(1, min(gpus // gpus_per_worker, rows // (_BATCHES_PER_WORKER * BATCH * ranks)))


def workers_needed(rows: float, seconds_per_row: float, seconds: float) -> int:
    """:param seconds_per_row: of one worker."""
    return math.ceil(rows * seconds_per_row / seconds)


def batch_size_for(workers: int, current_workers: int, batch_size: int) -> int:
    """Returns the batch size that keeps the tasks per worker: twice the workers, half the batch."""
    return max(1, batch_size * current_workers // workers)


def is_worth_compiling(rows: int, rows_per_s: float | None) -> bool:
    """Returns whether inference saves more time than compiling and capturing CUDA graphs take.

    :param rows_per_s: of an earlier slice; None when unknown.
    """
    return rows / rows_per_s > _COMPILING_SECONDS if rows_per_s else rows > _UNKNOWN_ROWS


def graph_sizes(max_num_seqs: int | None, gpu_bytes: int | None) -> list[int]:
    """Returns tokens of steps to capture CUDA graphs for; [] where vLLM's own are enough.

    :param max_num_seqs: of a rank, where the job sets it.
    :param gpu_bytes: memory of the smallest GPU.
    """
    if max_num_seqs is None:
        if gpu_bytes is None or gpu_bytes < _LARGE_GPU_BYTES:
            return []
        max_num_seqs = DEFAULT_MAX_NUM_SEQS
    largest = 2 * max_num_seqs  # running rows, and the prompts that follow finished ones
    if largest <= _VLLM_GRAPH_TOKENS:
        return []
    return [size for size in _GRAPH_SIZES if size <= largest]


def engine_batch_size(rows: int, ranks: int, largest: int = BATCH) -> int:
    """Returns rows per batch: `largest`, or fewer so that each rank gets 4 batches, but at least 16.

    :param ranks: data-parallel ranks of all workers; a worker is one, unless it has several.
    """
    return max(_SMALLEST_BATCH, min(largest, math.ceil(rows / (ranks * _BATCHES_PER_WORKER))))


def batches_in_flight(batch_size: int, max_num_seqs: int = DEFAULT_MAX_NUM_SEQS) -> int:
    """Returns the batches per worker: four times the rows that its engine runs at once, at least 4
    batches."""
    return max(4, math.ceil(_ROWS_PER_SEQUENCE * max_num_seqs / batch_size))


def rows_in_flight(max_num_seqs: int, batches: int | None = None) -> int:
    """Returns the rows in each worker where rows are admitted one by one.

    :param batches: of the default size, where the job sets max_concurrent_batches only.
    """
    if batches is not None:
        return batches * BATCH
    return max_num_seqs + max(_WAITING_ROWS, _WAITING_PER_SEQUENCE * max_num_seqs)


def block_rows(rows: int, feeders: int) -> int:
    """Returns rows per block where rows are admitted one by one."""
    return max(_SMALLEST_BATCH, min(_BLOCK, math.ceil(rows / (feeders * _BATCHES_PER_WORKER))))


def window_rows(rows: int, feeders: int) -> int:
    """Returns how many rows may wait in each feeder to be sent."""
    return min(_WINDOW_ROWS, max(_SMALLEST_WINDOW, math.ceil(rows / feeders)))


def fits_one_process(rows: int, units: int) -> bool:
    """Returns whether one process reads, feeds and writes a slice."""
    return rows <= _FEW_ROWS and units <= _FEW_UNITS


def dedup_shards(workers: int) -> int:
    """Returns the actors that share the keys of identical requests: one for 16 workers, up to 8."""
    return min(_MAX_SHARDS, max(1, math.ceil(workers / _WORKERS_PER_SHARD)))


def read_tasks(units: int, cpus: float) -> int:
    """Returns the reading tasks: one per unit, up to 4 per CPU, however many small files a table has."""
    return max(1, min(units, int(cpus * 4)))


def light_tasks(cpus: float) -> int:
    """Returns the concurrent tasks of each step around the engine (read, parse): a quarter of the CPUs, so
    that they leave CPUs to the engine."""
    return max(1, int(cpus / 4))
