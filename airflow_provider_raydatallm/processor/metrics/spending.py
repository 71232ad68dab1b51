"""What the GPUs of a version's tries cost. Each try keeps its own figure beside the rows that it answered, so
that it stays as long as they do, and is lost with them when they are published."""

from __future__ import annotations

import time
from collections.abc import Collection, Set

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.report import cost_of
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint
from airflow_provider_raydatallm.processor.store.lease import Lease


class Spending:
    """
    :ivar earlier: what other tries spent, as far as they kept it.
    :ivar now: what this one did.
    """

    def __init__(self, job: SliceJob, checkpoint: Checkpoint, lease: Lease, answered_by: Set[int]) -> None:
        """:param answered_by: epochs of the tries that answered rows of the version."""
        self._limit, self._price = job.limits.max_cost, job.engine.gpu_price
        self._checkpoint, self._lease = checkpoint, lease
        kept = checkpoint.costs(answered_by) if self._price is not None else {}
        self.earlier, self.now = sum(kept.values()), 0.0
        self._before_engine, self._engine_began = 0.0, time.time()
        self._before = kept.get(lease.epoch, 0.0)  # by this process, for a version that others published

    @property
    def total(self) -> float | None:
        """What all tries spent by now; None without a price, or before GPUs cost anything."""
        return self.earlier + self.now or None

    def begin_engine(self) -> None:
        """Counts the time of one more engine from now on: while it waits for room, it holds no GPU."""
        self._before_engine, self._engine_began = self.now, time.time()

    def record(self, gpus: float | None, came: Collection[float] = (), fewest: int = 1) -> None:
        """
        :param gpus: that the engine holds.
        :param came: when each of its workers first answered, where more than the fewest come with time.
        """
        held_s = time.time() - self._engine_began - mean_delay(self._engine_began, came, fewest)
        gpu_seconds = held_s * (gpus or 0.0)
        self.now = max(self.now, self._before_engine + (cost_of(gpu_seconds, self._price) or 0.0))

    def check(self, answered: int, planned: int) -> None:
        """:raises SliceError: when a slice with rows to answer has spent what it may."""
        spent = self.earlier + self.now
        if self._limit is None or spent < self._limit:
            return
        raise SliceError(
            f"the slice's GPUs have cost {_amount(spent)} of limits.max_cost {self._limit:g}, with "
            f"{answered:,} of {planned:,} rows answered",
            kind="input",
            advice="Raise limits.max_cost and clear the task: no answered row is asked again",
        )

    def save(self) -> None:
        if self.now and not self._lease.lost:
            self._checkpoint.save_cost(self._lease.epoch, self._before + self.now)


def mean_delay(began: float, came: Collection[float], fewest: int) -> float:
    """Returns the mean seconds by which workers came later than the first, over all. One may take twice as
    long to start as the first did: it held its GPUs meanwhile.

    :param began: when the first did, in epoch seconds.
    :param came: when each first had a row, or answered.
    :param fewest: how many began with it.
    """
    if not came:
        return 0.0
    first = max(min(came), began)
    delays = [at - first for at in sorted(came)[fewest:]]
    return sum(delay for delay in delays if delay > first - began) / len(came)


def _amount(cost: float) -> str:
    return f"{cost:,.2f}" if cost >= 1 else f"{cost:.3g}"
