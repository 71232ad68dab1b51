"""Sizes that users need not choose. Pure: numbers in, numbers out."""

from __future__ import annotations

import math

#: Measured on one H200 with short rows: 128 rows x 32 batches in flight fed the engine best; batches of 16
#: cost a third.
_BATCH = 128
_IN_FLIGHT_ROWS = 4096
_SMALLEST_BATCH = 16
#: Batches for each worker below which the last ones leave the others idle.
_BATCHES_PER_WORKER = 4


def engine_batch_size(rows: int, workers: int) -> int:
    """Rows in a batch: 128, fewer when the slice would give a worker less than 4 batches, never fewer than
    16."""
    return max(_SMALLEST_BATCH, min(_BATCH, math.ceil(rows / (workers * _BATCHES_PER_WORKER))))


def batches_in_flight(batch_size: int) -> int:
    """Batches that a worker holds at once, so that batch_size x batches covers any usual max_num_seqs (4,096
    rows)."""
    return max(4, _IN_FLIGHT_ROWS // batch_size)


def read_tasks(units: int, cpus: float) -> int:
    """Reading tasks: one a unit, up to 4 for each CPU, so that a table of many small files is no flood of
    tasks."""
    return max(1, min(units, int(cpus * 4)))


def light_tasks(cpus: float) -> int:
    """Tasks at once for each step around the engine (read, shape): a quarter of the CPUs, so that they do not
    crowd the stages."""
    return max(1, int(cpus / 4))
